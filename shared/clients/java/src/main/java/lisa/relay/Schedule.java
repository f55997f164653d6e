package lisa.relay;

import java.time.Instant;
import java.util.List;
import java.util.Map;

/**
 * A schedule with its definition.
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
 * @param version grows with each change of its definition; 0 if the configuration of the manager declares it
 * @param definition its definition, as JSON has it
 * @param nextTimes its next five times, whether it is paused or not
 * @param warnings times that may surprise: days that some months do not have, and clock changes that skip or repeat a time
 */
public record Schedule(
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
        Instant errorAt,
        long version,
        Map<String, Object> definition,
        List<Instant> nextTimes,
        List<String> warnings) {}
