package lisa.relay;

import java.time.Instant;
import java.util.List;
import java.util.Map;

/**
 * A stored message with its state.
 *
 * @param id its id
 * @param topic its topic
 * @param state {@code waiting}, {@code backlog}, {@code parked}, {@code ready}, {@code in_flight}, {@code retry} or
 *     {@code garbage}: that in the first group that still has the message
 * @param attempt the number of the current or next attempt; in garbage, of the attempts made
 * @param maxAttempts the number of attempts after which it is moved to garbage (dead letters)
 * @param dueAt the time at which it is due or was due, or null in garbage, or if that was not read
 * @param expiresAt the time at which it expires, or null
 * @param key its ordering key, or null
 * @param mergeKey its merge key, or null
 * @param priority its priority
 * @param consumer the name of its worker, or null
 * @param error its last error, or null
 * @param reason why it is in garbage: {@code exhausted}, {@code rejected} or {@code expired}; or null
 * @param garbageAt the time at which it was moved to garbage, or null
 * @param headers its headers
 * @param payload its payload
 * @param groups its state in each group
 */
public record Message(
        String id, String topic, String state, int attempt, int maxAttempts, Instant dueAt, Instant expiresAt, String key,
        String mergeKey, int priority, String consumer, String error, String reason, Instant garbageAt,
        Map<String, String> headers, byte[] payload, List<GroupState> groups) {
    /**
     * The state of a message in a group.
     *
     * @param group the name of the group
     * @param state the state
     * @param why the reason why the message has not been delivered
     * @param holder the message that holds its ordering key, if it is parked, or null
     * @param attempts the last failed attempts, up to five, newest first
     */
    public record GroupState(String group, String state, String why, String holder, List<FailedAttempt> attempts) {}

    /**
     * A failed attempt.
     *
     * @param at the time of the failure
     * @param outcome {@code failed}, {@code rejected} or {@code lease_expired}
     * @param consumer the name of the worker, or null
     * @param error the error, of which Lisa keeps 200 bytes
     */
    public record FailedAttempt(Instant at, String outcome, String consumer, String error) {}
}
