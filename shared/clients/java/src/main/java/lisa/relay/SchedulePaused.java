package lisa.relay;

/**
 * A schedule that was paused or resumed.
 *
 * @param schedule its name
 * @param paused true if it is paused
 * @param changed false if it was in that state already
 */
public record SchedulePaused(String schedule, boolean paused, boolean changed) {}
