package lisa.relay;

import java.time.Instant;

/**
 * A message without its payload and options.
 *
 * @param id its id
 * @param state {@code waiting}, {@code backlog}, {@code parked}, {@code ready}, {@code in_flight}, {@code retry} or
 *     {@code garbage}
 * @param attempt the number of the current or next attempt; in garbage, of the attempts made
 * @param dueAt the time at which it is due or was due, or null in garbage, or if that was not read
 * @param key its ordering key, or null
 * @param consumer the name of its worker, or null
 * @param error its last error, or null
 * @param reason why it is in garbage: {@code exhausted}, {@code rejected} or {@code expired}; or null
 * @param garbageAt the time at which it was moved to garbage, or null
 */
public record ListedMessage(
        String id, String state, int attempt, Instant dueAt, String key, String consumer, String error, String reason,
        Instant garbageAt) {}
