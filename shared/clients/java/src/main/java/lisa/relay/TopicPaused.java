package lisa.relay;

/**
 * A topic that was paused or resumed.
 *
 * @param topic its name
 * @param paused true if it is paused
 * @param changed false if it was in that state already
 */
public record TopicPaused(String topic, boolean paused, boolean changed) {}
