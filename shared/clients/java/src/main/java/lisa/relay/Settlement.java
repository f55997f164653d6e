package lisa.relay;

/**
 * A delivery and its outcome.
 *
 * @param token the token of the delivery
 * @param outcome the outcome
 */
public record Settlement(String token, Outcome outcome) {
    /** Omits the token, which is a secret. */
    @Override
    public String toString() {
        return "Settlement[" + outcome + "]";
    }
}
