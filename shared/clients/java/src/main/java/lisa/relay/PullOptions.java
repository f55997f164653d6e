package lisa.relay;

import java.time.Duration;
import java.util.Map;

/**
 * The options of a pull. It is immutable: each method returns a copy with one more option. The server checks the bounds of the times;
 * a wrong value is a {@link ProblemException} with the code {@code invalid}.
 */
public final class PullOptions {
    private final String group;
    private final Map<String, Object> values;

    /** Creates options with the defaults: one message of the group {@code default}, a wait of 20 s, and the lease of the topic. */
    public PullOptions() {
        this("default", Map.of("wait", "20s"));
    }

    private PullOptions(String group, Map<String, Object> values) {
        this.group = group;
        this.values = values;
    }

    String group() {
        return group;
    }

    Map<String, Object> values() {
        return values;
    }

    int max() {
        return (int) values.getOrDefault("max", 1);
    }

    /** Returns the maximum number of ordering keys, which is at most that of deliveries. */
    int maxKeys() {
        return (int) values.getOrDefault("max_keys", max());
    }

    /**
     * Sets the group.
     *
     * @param group the name of the group
     * @return the options
     */
    public PullOptions group(String group) {
        return new PullOptions(Values.text("group", group), values);
    }

    /**
     * Sets the maximum number of deliveries.
     *
     * @param max 1 to 200
     * @return the options
     */
    public PullOptions max(int max) {
        return with("max", Values.deliveries("max", max));
    }

    /**
     * Sets the maximum number of deliveries with the same ordering key, in its order. The messages behind them wait until all are
     * settled.
     *
     * @param maxPerKey 1 to 200
     * @return the options
     */
    public PullOptions maxPerKey(int maxPerKey) {
        return with("max_per_key", Values.deliveries("maxPerKey", maxPerKey));
    }

    /**
     * Sets the maximum number of ordering keys. A delivery without a key counts as a key of its own.
     *
     * @param maxKeys 1 to 200
     * @return the options
     */
    public PullOptions maxKeys(int maxKeys) {
        return with("max_keys", Values.deliveries("maxKeys", maxKeys));
    }

    /**
     * Sets the time to wait for the first message.
     *
     * @param wait up to 30 s
     * @return the options
     */
    public PullOptions wait(Duration wait) {
        return with("wait", Values.duration("wait", wait));
    }

    /**
     * Sets the lease of each delivery.
     *
     * @param lease 1 s to 12 h
     * @return the options
     */
    public PullOptions lease(Duration lease) {
        return with("lease", Values.duration("lease", lease));
    }

    /**
     * Sets the name of the worker, which {@code lisa-manager workers} lists.
     *
     * @param consumer 1 to 100 bytes of UTF-8
     * @return the options
     */
    public PullOptions consumer(String consumer) {
        return with("consumer", Values.text("consumer", consumer));
    }

    private PullOptions with(String name, Object value) {
        return new PullOptions(group, Values.with(values, name, value));
    }
}
