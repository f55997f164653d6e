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
 * @param dueAt the due time, or null if the message is in garbage (dead letters)
 * @param attempt the number of the current or next attempt
 * @param headers its headers
 * @param payload its payload
 * @param groups its state in each group
 */
public record Message(
        String id, String topic, String state, Instant dueAt, int attempt, Map<String, String> headers, byte[] payload,
        List<GroupState> groups) {
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
