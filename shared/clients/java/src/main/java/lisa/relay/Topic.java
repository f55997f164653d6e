package lisa.relay;

import java.util.List;
import java.util.Map;

/**
 * A topic with the settings in force.
 *
 * @param topic its name
 * @param epoch grows with each change of the topic, and goes on if the topic is created again
 * @param settings the settings, as JSON has them
 * @param groups all its groups, including those that the settings do not name
 * @param removal {@code drain} or {@code force} if it is being removed, else null
 * @param resharding true while its number of shards is changed
 */
public record Topic(
        String topic, long epoch, Map<String, Object> settings, List<String> groups, String removal, boolean resharding) {}
