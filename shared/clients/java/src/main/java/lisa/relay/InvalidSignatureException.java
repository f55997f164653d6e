package lisa.relay;

/** A request that was not sent by Lisa with this secret, or is too old. */
public final class InvalidSignatureException extends RuntimeException {
    private static final long serialVersionUID = 1;

    InvalidSignatureException(String message) {
        super(message);
    }
}
