package lisa.relay;

import java.util.List;

/**
 * The result of a requeue. If the request was repeated, the messages that an earlier try requeued are missing.
 *
 * @param done the number of messages that were requeued
 * @param found the number of messages that were in garbage
 * @param missing the ids that are not in the garbage of the group
 */
public record Requeued(int done, int found, List<String> missing) {}
