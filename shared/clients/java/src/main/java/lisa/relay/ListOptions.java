package lisa.relay;

import java.time.Instant;
import java.util.Map;

/**
 * The options of a list. It is immutable: each method returns a copy with one more option. The server checks the bounds; a wrong
 * value is a {@link ProblemException} with the code {@code invalid}.
 */
public final class ListOptions {
    private final Map<String, Object> values;

    /** Creates options with the defaults: the first page of the waiting messages, oldest first. */
    public ListOptions() {
        this(Map.of());
    }

    private ListOptions(Map<String, Object> values) {
        this.values = values;
    }

    Map<String, Object> values() {
        return values;
    }

    /**
     * Sets the state.
     *
     * @param state {@code waiting}, {@code backlog}, {@code parked}, {@code ready}, {@code in_flight}, {@code retry} or
     *     {@code garbage} (dead letters)
     * @return the options
     */
    public ListOptions state(String state) {
        return with("state", Values.text("state", state));
    }

    /**
     * Sets the group. If the topic has several, all states but {@code waiting} need it.
     *
     * @param group the name of the group
     * @return the options
     */
    public ListOptions group(String group) {
        return with("group", Values.text("group", group));
    }

    /**
     * Selects the messages of an ordering key: in garbage, or without a state and a group, in any state. The latter needs the
     * {@code key_index} of the topic.
     *
     * @param key 1 to 256 bytes of UTF-8
     * @return the options
     */
    public ListOptions key(String key) {
        return with("key", Values.text("key", key));
    }

    /**
     * Selects the messages in garbage by their last error.
     *
     * @param error a part of it, 1 to 200 characters; {@code #}, {@code *} and {@code …} stand for any text
     * @return the options
     */
    public ListOptions error(String error) {
        return with("error", Values.text("error", error));
    }

    /**
     * Selects the messages in garbage by the reason.
     *
     * @param reason {@code exhausted}, {@code rejected} or {@code expired}
     * @return the options
     */
    public ListOptions reason(String reason) {
        return with("reason", Values.text("reason", reason));
    }

    /**
     * Selects the messages from a time on: the due time if they are waiting, that of the next attempt in {@code retry}, and that of
     * the move to garbage. Other states have no such time.
     *
     * @param from the time
     * @return the options
     */
    public ListOptions from(Instant from) {
        return with("from", Values.instant("from", from));
    }

    /**
     * Selects the messages before a time; see {@link #from}.
     *
     * @param to the time
     * @return the options
     */
    public ListOptions to(Instant to) {
        return with("to", Values.instant("to", to));
    }

    /**
     * Sets the order by that time, within each shard.
     *
     * @param order {@code oldest} or {@code newest}; by default {@code oldest}
     * @return the options
     */
    public ListOptions order(String order) {
        return with("order", Values.text("order", order));
    }

    /**
     * Sets the maximum number of messages of a page.
     *
     * @param limit 1 to 1,000; by default 100
     * @return the options
     */
    public ListOptions limit(int limit) {
        return with("limit", limit);
    }

    /**
     * Continues after a page, whose other options must be the same.
     *
     * @param cursor {@link MessagePage#next} of that page
     * @return the options
     */
    public ListOptions cursor(String cursor) {
        return with("cursor", Values.text("cursor", cursor));
    }

    private ListOptions with(String name, Object value) {
        return new ListOptions(Values.with(values, name, value));
    }
}
