package lisa.relay;

/** Handles the messages of a {@link Worker}. It is called by several threads at the same time if the concurrency is above 1. */
@FunctionalInterface
public interface Handler {
    /**
     * Handles a message.
     *
     * @param delivery the message, with its lease
     * @return the outcome; null acknowledges. It is ignored if the handler has settled the delivery itself
     * @throws Exception if the attempt failed; its text is the error of the attempt
     */
    Outcome handle(Delivery delivery) throws Exception;
}
