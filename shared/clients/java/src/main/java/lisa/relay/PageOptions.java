package lisa.relay;

import java.util.Map;

/**
 * The options of a list by name. It is immutable: each method returns a copy with one more option. The server checks the bounds; a wrong
 * value is a {@link ProblemException} with the code {@code invalid}.
 */
public final class PageOptions {
    private final Map<String, Object> values;

    /** Creates options with the defaults: the first page of all. */
    public PageOptions() {
        this(Map.of());
    }

    private PageOptions(Map<String, Object> values) {
        this.values = values;
    }

    Map<String, Object> values() {
        return values;
    }

    /** Returns the largest number of a page. */
    int most() {
        return (int) values.getOrDefault("limit", Lisa.MAX_PAGE);
    }

    /**
     * Selects by the start of the name.
     *
     * @param prefix the start
     * @return the options
     */
    public PageOptions prefix(String prefix) {
        return with("prefix", Values.text("prefix", prefix));
    }

    /**
     * Sets the maximum number of a page.
     *
     * @param limit 1 to 1,000; by default 100
     * @return the options
     */
    public PageOptions limit(int limit) {
        return with("limit", limit);
    }

    /**
     * Continues after a page, whose other options must be the same.
     *
     * @param cursor the {@code next} of that page
     * @return the options
     */
    public PageOptions cursor(String cursor) {
        return with("cursor", Values.text("cursor", cursor));
    }

    private PageOptions with(String name, Object value) {
        return new PageOptions(Values.with(values, name, value));
    }
}
