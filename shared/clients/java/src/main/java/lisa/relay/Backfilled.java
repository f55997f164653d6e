package lisa.relay;

import java.time.Instant;

/**
 * The messages that a backfill has sent.
 *
 * @param schedule the name of the schedule
 * @param topic the topic of the messages
 * @param times the number of times of this call, at most 1,000
 * @param sent the number of messages that were sent; 0 after a dry run
 * @param duplicates the number of times for which there was a message already, also of an earlier try; 0 after a dry run
 * @param next the {@code from} of the next call, or null at the end
 */
public record Backfilled(String schedule, String topic, int times, int sent, int duplicates, Instant next) {}
