package lisa.relay;

import java.util.List;

/**
 * A page of messages.
 *
 * @param messages the messages
 * @param next the cursor of the next page, or null if this is the last one. After a search of garbage, a page with a cursor may be
 *     empty
 */
public record MessagePage(List<ListedMessage> messages, String next) {}
