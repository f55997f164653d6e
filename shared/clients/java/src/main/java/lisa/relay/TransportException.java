package lisa.relay;

import java.time.Duration;

/**
 * No answer of Lisa: no connection, a broken one, a timeout, an answer of something else, or no token to send. The request may
 * have been carried out. It can be repeated, except after an interrupt of the thread.
 */
public final class TransportException extends LisaException {
    private static final long serialVersionUID = 1;

    /** True if the thread that waited was interrupted. */
    private final boolean isInterrupt;

    TransportException(String message, Throwable cause) {
        super(message, cause);
        isInterrupt = cause instanceof InterruptedException;
    }

    @Override
    public boolean isRetryable() {
        return !isInterrupt;
    }

    @Override
    boolean isInDoubt() {
        return true;
    }

    @Override
    Duration retryAfter() {
        return Duration.ZERO;
    }

    @Override
    TransportException copy() {
        return new TransportException(getMessage(), getCause());
    }
}
