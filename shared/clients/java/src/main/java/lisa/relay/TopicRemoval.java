package lisa.relay;

/**
 * A topic that is being removed.
 *
 * @param topic its name
 * @param removal {@code drain} or {@code force}; a removal by force stays one
 * @param stored the number of messages that it still stores
 */
public record TopicRemoval(String topic, String removal, int stored) {}
