package lisa.relay;

import java.time.Duration;
import java.time.Instant;

/** The outcome of a delivery. Durations are rounded up to milliseconds. Lisa keeps 1,024 bytes of an error. */
public sealed interface Outcome {
    /** The work is done. */
    record Ack() implements Outcome {}

    /**
     * The attempt failed.
     *
     * @param after the time until the next attempt, or null for that of the retry policy
     * @param error the error, or null
     */
    record Retry(Duration after, String error) implements Outcome {
        /**
         * Checks the duration.
         *
         * @param after the time until the next attempt, or null
         * @param error the error, or null
         */
        public Retry {
            if (after != null) Values.duration("after", after);
        }
    }

    /**
     * The message is delivered again later, and no attempt is counted.
     *
     * @param after the time until then, or null if {@code until} is set
     * @param until the time of the next delivery, or null if {@code after} is set
     */
    record Defer(Duration after, Instant until) implements Outcome {
        /**
         * Checks that one of the two is set.
         *
         * @param after the time until then, or null
         * @param until the time of the next delivery, or null
         */
        public Defer {
            if ((after == null) == (until == null)) throw new IllegalArgumentException("after, until: set one of them");
            if (after != null) Values.duration("after", after);
        }
    }

    /**
     * The message is moved to garbage (dead letters).
     *
     * @param error the error, or null
     */
    record Reject(String error) implements Outcome {}

    /**
     * Acknowledges the message: the work is done.
     *
     * @return the outcome
     */
    static Outcome ack() {
        return new Ack();
    }

    /**
     * Reports a failed attempt. The retry policy decides on the next one.
     *
     * @param error the error
     * @return the outcome
     */
    static Outcome retry(String error) {
        return new Retry(null, error);
    }

    /**
     * Reports a failed attempt, and sets the time until the next one.
     *
     * @param after the time until the next attempt
     * @param error the error
     * @return the outcome
     */
    static Outcome retry(Duration after, String error) {
        return new Retry(Values.required("after", after), error);
    }

    /**
     * Delivers the message again later, without counting an attempt.
     *
     * @param after the time until then
     * @return the outcome
     */
    static Outcome defer(Duration after) {
        return new Defer(after, null);
    }

    /**
     * Delivers the message again later, without counting an attempt.
     *
     * @param until the time of the next delivery
     * @return the outcome
     */
    static Outcome defer(Instant until) {
        return new Defer(null, until);
    }

    /**
     * Moves the message to garbage (dead letters).
     *
     * @param error the error
     * @return the outcome
     */
    static Outcome reject(String error) {
        return new Reject(error);
    }
}
