package lisa.relay;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The options of a message. The defaults are those of the topic. It is immutable: each method returns a copy with one more option.
 * The server checks the bounds; a wrong value is a {@link ProblemException} with the code {@code invalid}. Durations are rounded up
 * to milliseconds.
 */
public final class SendOptions {
    private final Map<String, Object> values;

    /** Creates options without any. */
    public SendOptions() {
        this(Map.of());
    }

    private SendOptions(Map<String, Object> values) {
        this.values = values;
    }

    Map<String, Object> values() {
        return values;
    }

    /**
     * Sets the id (idempotency key). By default, it is a UUID of version 7.
     *
     * @param id 1 to 64 characters of {@code A-Z a-z 0-9 _ : -}
     * @return the options
     */
    public SendOptions id(String id) {
        return with("id", Values.text("id", id));
    }

    /**
     * Sets the time until the message is due.
     *
     * @param delay the delay
     * @return the options
     */
    public SendOptions delay(Duration delay) {
        return with("delay", Values.duration("delay", delay));
    }

    /**
     * Sets the due time.
     *
     * @param deliverAt the time; a past one means now
     * @return the options
     */
    public SendOptions deliverAt(Instant deliverAt) {
        return with("deliver_at", Values.instant("deliverAt", deliverAt));
    }

    /**
     * Sets the ordering key.
     *
     * @param key 1 to 256 bytes of UTF-8
     * @return the options
     */
    public SendOptions key(String key) {
        return with("key", Values.text("key", key));
    }

    /**
     * Sets the merge key.
     *
     * @param mergeKey 1 to 256 bytes of UTF-8
     * @return the options
     */
    public SendOptions mergeKey(String mergeKey) {
        return with("merge_key", Values.text("mergeKey", mergeKey));
    }

    /**
     * Sets the priority. Of the messages that are due, the one with the highest number is delivered first.
     *
     * @param priority any int; by default 0
     * @return the options
     */
    public SendOptions priority(int priority) {
        return with("priority", priority);
    }

    /**
     * Sets the time after which the message expires, counted from its due time.
     *
     * @param ttl 1 ms to 3,653 days
     * @return the options
     */
    public SendOptions ttl(Duration ttl) {
        return with("ttl", Values.duration("ttl", ttl));
    }

    /**
     * Sets the time at which the message expires.
     *
     * @param expiresAt the time
     * @return the options
     */
    public SendOptions expiresAt(Instant expiresAt) {
        return with("expires_at", Values.instant("expiresAt", expiresAt));
    }

    /**
     * Sets the number of attempts before the message is moved to garbage (dead letters).
     *
     * @param maxAttempts 1 to 1,000
     * @return the options
     */
    public SendOptions maxAttempts(int maxAttempts) {
        return with("max_attempts", maxAttempts);
    }

    /**
     * Sets the retry policy.
     *
     * @param retry the policy as a JSON object, such as {@code Map.of("kind", "fixed", "delay", "5s")}
     * @return the options
     */
    public SendOptions retry(Map<String, ?> retry) {
        Values.json("retry", Values.required("retry", retry));
        return with("retry", new LinkedHashMap<>(retry));
    }

    /**
     * Replaces a message in the same step, if it has not been delivered yet.
     *
     * @param replace the id of that message
     * @return the options
     */
    public SendOptions replace(String replace) {
        return with("replace", Values.text("replace", replace));
    }

    /**
     * Sets the durability to wait for.
     *
     * @param durability {@code memory}, {@code aof} or {@code replicas:N}
     * @return the options
     */
    public SendOptions durability(String durability) {
        return with("durability", Values.text("durability", durability));
    }

    /**
     * Sends the message even if its id was cancelled.
     *
     * @param evenIfCancelled true to do so
     * @return the options
     */
    public SendOptions evenIfCancelled(boolean evenIfCancelled) {
        return with("even_if_cancelled", evenIfCancelled);
    }

    /**
     * Sets the headers. A {@code content-type} replaces that of the payload.
     *
     * @param headers up to 64 headers
     * @return the options
     */
    public SendOptions headers(Map<String, String> headers) {
        Values.json("headers", Values.required("headers", headers));
        return with("headers", new LinkedHashMap<>(headers));
    }

    private SendOptions with(String name, Object value) {
        return new SendOptions(Values.with(values, name, value));
    }
}
