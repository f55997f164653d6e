package lisa.relay;

import java.util.Map;

/**
 * A topic with the settings in force.
 *
 * @param topic its name
 * @param epoch the number of changes of its settings
 * @param settings the settings, as JSON has them
 */
public record Topic(String topic, int epoch, Map<String, Object> settings) {}
