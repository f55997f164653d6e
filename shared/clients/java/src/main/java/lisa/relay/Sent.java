package lisa.relay;

import java.time.Instant;

/**
 * A message that was accepted.
 *
 * @param id its id
 * @param outcome {@code waiting}, {@code ready}, {@code merged}, {@code duplicate} or {@code rescheduled}. A {@code duplicate}
 *     means that a send with this id was accepted earlier, which may be an earlier try of this call
 * @param dueAt the due time, or null if the message is no longer waiting
 * @param ended the end of the earlier message of a {@code duplicate}, or null
 * @param durability the durability that was reached, or null if none was requested
 */
public record Sent(String id, String outcome, Instant dueAt, String ended, String durability) {}
