package lisa.relay;

import java.time.Instant;

/**
 * The end of a delivery, or the new end of its lease.
 *
 * @param outcome {@code acked}, {@code retry}, {@code deferred}, {@code garbage}, {@code expired}, {@code lost} or {@code extended}
 * @param dueAt the time of the next delivery, or null
 * @param leaseUntil the end of the extended lease, or null
 */
public record Ended(String outcome, Instant dueAt, Instant leaseUntil) {}
