package lisa.relay;

import java.time.Instant;
import java.util.List;

/**
 * A token, without its secret.
 *
 * @param token its name
 * @param scopes its scopes
 * @param declaredInFile true if the configuration of the manager declares it
 * @param topics the topics that it reaches, or null for all
 * @param groups the groups that it reaches, or null for all
 * @param schedules the schedules that it reaches, or null for those whose names are in {@code topics}
 * @param expires the time from which it is refused, or null
 * @param hasExpired true if that time has come
 * @param sendsPerSecond the number of messages that it may send in a second, in each process, or null for any
 * @param maxTopics the largest number of topics that it reaches; as for each quota, null for any
 * @param maxStreams the largest number of streams of these topics: one for each group on each shard
 * @param maxMessages the largest sum of {@code max_messages} of these topics
 * @param maxBytes the largest sum of {@code max_bytes} of these topics
 * @param maxSchedules the largest number of stored schedules with the names that it reaches
 * @param isRotating true while its previous secret is accepted as well
 * @param previousUsed the time at which its previous secret was last used, or null if that is not known
 * @param version grows with each change of the token; 0 if the configuration of the manager declares it, and in one's own token
 * @param created the time of its creation, or null if {@code version} is 0
 * @param createdBy the name of the token or user that has created it, or null if that is not known
 * @param hidesStored true if a token of this name is also stored; that of the configuration is accepted
 */
public record Token(
        String token,
        List<String> scopes,
        boolean declaredInFile,
        List<String> topics,
        List<String> groups,
        List<String> schedules,
        Instant expires,
        boolean hasExpired,
        Long sendsPerSecond,
        Long maxTopics,
        Long maxStreams,
        Long maxMessages,
        Long maxBytes,
        Long maxSchedules,
        boolean isRotating,
        Instant previousUsed,
        long version,
        Instant created,
        String createdBy,
        boolean hidesStored) {}
