package lisa.relay;

/**
 * A message of a batch.
 *
 * @param payload the payload, as in {@link Lisa#send(String, Object, SendOptions)}
 * @param options its options
 */
public record NewMessage(Object payload, SendOptions options) {
    /**
     * Creates a message with the defaults of its topic.
     *
     * @param payload the payload
     */
    public NewMessage(Object payload) {
        this(payload, new SendOptions());
    }
}
