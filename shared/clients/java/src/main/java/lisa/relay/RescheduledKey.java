package lisa.relay;

import java.util.List;

/**
 * What became of the messages of an ordering key that was rescheduled.
 *
 * @param rescheduled the number of messages that were rescheduled
 * @param garbage the number in garbage (dead letters), which stay there
 * @param inFlight the number that are ready or in flight: too late
 * @param inGarbage the groups in whose garbage some of the rescheduled messages stay
 */
public record RescheduledKey(int rescheduled, int garbage, int inFlight, List<String> inGarbage) {}
