package lisa.relay;

import java.util.List;

/**
 * What became of the messages of an ordering key that was cancelled. If the request was repeated, these are the numbers of the last
 * try.
 *
 * @param cancelled the number of messages that were cancelled
 * @param garbage the number in garbage (dead letters), which stay there
 * @param inFlight the number that are ready or in flight: too late
 * @param inGarbage the groups in whose garbage some of the cancelled messages stay
 */
public record CancelledKey(int cancelled, int garbage, int inFlight, List<String> inGarbage) {}
