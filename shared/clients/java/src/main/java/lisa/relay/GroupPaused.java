package lisa.relay;

/**
 * A group that was paused or resumed.
 *
 * @param topic the name of its topic
 * @param group its name
 * @param paused true if it is paused
 * @param changed false if it was in that state already
 */
public record GroupPaused(String topic, String group, boolean paused, boolean changed) {}
