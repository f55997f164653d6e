package lisa.relay;

/**
 * The token of a client, and what is used of its quotas.
 *
 * @param token the token
 * @param used the used part of each quota
 */
public record OwnToken(Token token, QuotaUse used) {
    /**
     * The used part of each quota of a token, also by other tokens that reach the same names; null without the quota.
     *
     * @param topics the number of topics
     * @param streams the number of their streams
     * @param messages the sum of {@code max_messages} of the topics; one without it counts as an equal part, and one that holds more as
     *     what it holds
     * @param bytes the same for {@code max_bytes}
     * @param schedules the number of stored schedules
     */
    public record QuotaUse(Long topics, Long streams, Long messages, Long bytes, Long schedules) {}
}
