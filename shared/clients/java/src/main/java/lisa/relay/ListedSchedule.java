package lisa.relay;

import java.time.Instant;

/**
 * A schedule of a page, and its progress.
 *
 * @param schedule its name
 * @param topic the topic that it sends to
 * @param cron its cron expression
 * @param timeZone the time zone of {@code cron}
 * @param declaredInFile true if the configuration of the manager declares it
 * @param sentUntil the newest of its times for which a message was sent, possibly ahead of that time, or null
 * @param next its next time, or null if it is paused
 * @param missed the number of its times for which no message was sent because no manager was available, or because the topic
 *     refused it
 * @param newestMissed the newest of those, or null
 * @param pausedSince the time at which it was paused, or null
 * @param error the error of its last send, or null if that did not fail
 * @param errorAt the time of that error, or null
 */
public record ListedSchedule(
        String schedule,
        String topic,
        String cron,
        String timeZone,
        boolean declaredInFile,
        Instant sentUntil,
        Instant next,
        long missed,
        Instant newestMissed,
        Instant pausedSince,
        String error,
        Instant errorAt) {}
