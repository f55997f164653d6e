package lisa.relay;

import java.time.Instant;
import java.util.List;
import java.util.Map;

/**
 * A topic with its settings, groups and counts.
 *
 * @param topic its name
 * @param epoch grows with each change of the topic, and goes on if the topic is created again
 * @param createdAt the time at which it was created, or null if that is not known
 * @param settings the settings, as JSON has them
 * @param removal {@code drain} or {@code force} if it is being removed, else null
 * @param groups all its groups
 * @param stats its counts
 */
public record TopicDetails(
        String topic, long epoch, Instant createdAt, Map<String, Object> settings, String removal, List<GroupStats> groups, TopicStats stats) {
    /**
     * The numbers of messages of a topic, at one instant of each shard.
     *
     * @param stored those that are stored, including garbage (dead letters); each counts once, for any number of groups
     * @param waiting those that are not yet due
     * @param nextDue the time at which the next one is due, or null
     * @param overdueMs the age of the oldest one that is due and that no consumer holds, in milliseconds
     * @param tombstones the ended ids that are remembered for the {@code dedup_window}
     * @param paused true if the topic is paused
     * @param bytes the size of those that are stored, if {@code max_bytes} limits it, else null
     * @param full true if a shard refuses sends
     * @param migrating those that are still on retiring shards, while the number of shards is changed, else null
     * @param counters the counters since the topic was created
     * @param conservationError must be 0
     */
    public record TopicStats(
            long stored,
            long waiting,
            Instant nextDue,
            long overdueMs,
            long tombstones,
            boolean paused,
            Long bytes,
            boolean full,
            Long migrating,
            Map<String, Long> counters,
            long conservationError) {}

    /**
     * The numbers of messages of a group by state, at one instant of each shard.
     *
     * @param group its name
     * @param backlog those that are due, and held back by a limit or a pause
     * @param parked those that are due, behind an earlier message of their ordering key
     * @param ready those that no consumer has read yet
     * @param inFlight those that consumers hold
     * @param retry those that wait for their next attempt
     * @param garbage those in garbage (dead letters)
     * @param consumers the number of consumers that have reported within the last 30 s
     * @param oldestDueAgeMs the age of the oldest one that is due and that no consumer holds, in milliseconds since its due time
     * @param oldestReadyAgeMs the age of the first ready one that no consumer has read, in milliseconds since its due time
     * @param configured true if the settings name the group
     * @param paused true if the group is paused
     * @param retiring {@code drain} or {@code drop} if the group is being removed, else null
     * @param instance true if the group belongs to one running consumer; settings never name it
     * @param neverRead true if messages are ready, and no consumer has ever read one
     */
    public record GroupStats(
            String group,
            long backlog,
            long parked,
            long ready,
            long inFlight,
            long retry,
            long garbage,
            long consumers,
            long oldestDueAgeMs,
            long oldestReadyAgeMs,
            boolean configured,
            boolean paused,
            String retiring,
            boolean instance,
            boolean neverRead) {}
}
