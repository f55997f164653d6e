package lisa.relay;

import java.util.List;

/**
 * Topics by name.
 *
 * @param topics the topics
 * @param damaged those whose settings cannot be read
 */
public record TopicList(List<Topic> topics, List<DamagedTopic> damaged) {
    /**
     * A topic whose settings cannot be read.
     *
     * @param topic its name
     * @param error the reason
     */
    public record DamagedTopic(String topic, String error) {}
}
