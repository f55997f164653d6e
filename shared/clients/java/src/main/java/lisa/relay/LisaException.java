package lisa.relay;

import java.time.Duration;

/** A request that failed: a {@link TransportException} without an answer of Lisa, or a {@link ProblemException}. */
public abstract sealed class LisaException extends RuntimeException permits TransportException, ProblemException {
    private static final long serialVersionUID = 1;

    /** The id of the message, or null. */
    private String id;

    LisaException(String message, Throwable cause) {
        super(message, cause);
    }

    /**
     * Returns the id of the message. For a send, it is the id to repeat the send with.
     *
     * @return the id, or null if the request was not about one message
     */
    public String id() {
        return id;
    }

    /**
     * Returns true if the request can be repeated.
     *
     * @return true if a later try may succeed
     */
    public abstract boolean isRetryable();

    /** Returns true if the request may have been carried out. */
    abstract boolean isInDoubt();

    /** Returns the time before the next try that the server asks for. */
    abstract Duration retryAfter();

    /** Returns a copy: each item of a batch that failed as a whole gets one. */
    abstract LisaException copy();

    void setId(String id) {
        this.id = id;
    }
}
