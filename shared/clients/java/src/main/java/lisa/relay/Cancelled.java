package lisa.relay;

import java.util.List;
import java.util.Map;

/**
 * A cancelled message.
 *
 * @param id its id
 * @param headers its headers, or none if it was cancelled before
 * @param payload its payload, or null if it was cancelled before, or the token may not read it
 * @param inGarbage the groups in whose garbage (dead letters) the message stays
 */
public record Cancelled(String id, Map<String, String> headers, byte[] payload, List<String> inGarbage) {}
