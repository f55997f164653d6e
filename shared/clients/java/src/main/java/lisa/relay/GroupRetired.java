package lisa.relay;

/**
 * A group that was drained, dropped or kept.
 *
 * @param topic the name of its topic
 * @param group its name
 * @param retiring {@code drain} or {@code drop}, or null if it is kept
 * @param changed false if it was in that state already
 * @param left the number of messages that it still has
 * @param configured true if the settings of the topic name it: the next start of a manager, or change of the topic, creates it again
 * @param messagesWait true if no group of the topic gets messages: due ones wait until one does
 */
public record GroupRetired(
        String topic, String group, String retiring, boolean changed, long left, boolean configured, boolean messagesWait) {}
