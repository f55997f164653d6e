package lisa.relay;

/**
 * The message that a run of a schedule has sent.
 *
 * @param schedule the name of the schedule
 * @param topic the topic of the message
 * @param id the id of the message
 * @param sent false if an earlier run has sent the message in the same second
 */
public record ScheduleRun(String schedule, String topic, String id, boolean sent) {}
