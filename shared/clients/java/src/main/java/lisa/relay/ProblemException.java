package lisa.relay;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** An answer that is an error (RFC 9457). {@link #code} identifies it; {@link #detail} is for humans. */
public final class ProblemException extends LisaException {
    private static final long serialVersionUID = 1;
    private static final Set<Integer> RETRYABLE = Set.of(408, 429, 502, 503, 504);

    /** The HTTP status. */
    private final int status;
    /** The answer. */
    private final LinkedHashMap<Object, Object> body;
    /** The time before the next try that the server asks for. */
    private final Duration retryAfter;
    /** True if an earlier try may have settled the delivery. */
    private boolean maybeSettled;

    /**
     * A part of a request that is wrong.
     *
     * @param field its name
     * @param detail what is wrong, for humans
     */
    public record FieldError(String field, String detail) {}

    ProblemException(int status, Map<?, ?> body, Duration retryAfter) {
        super(status + " " + text(body, "code", text(body, "title", "")) + ": " + text(body, "detail", ""), null);
        this.status = status;
        this.body = new LinkedHashMap<>(body);
        this.retryAfter = retryAfter;
        setId(text(body, "id", null));
    }

    /**
     * Returns the HTTP status, such as 404.
     *
     * @return the status
     */
    public int status() {
        return status;
    }

    /**
     * Returns the code of the problem, such as {@code unknown_topic}. Codes never change their meaning; a later version of Lisa
     * may add some.
     *
     * @return the code, or an empty text if the answer was not written by Lisa
     */
    public String code() {
        return text(body, "code", "");
    }

    /**
     * Returns the description for humans.
     *
     * @return the description, which may be empty
     */
    public String detail() {
        return text(body, "detail", "");
    }

    /**
     * Returns everything that is wrong with the request.
     *
     * @return the list, which may be empty
     */
    public List<FieldError> errors() {
        return body.get("errors") instanceof List<?> list ? list.stream().map(ProblemException::fieldError).toList() : List.of();
    }

    /**
     * Returns the end of the message, if it has ended and Lisa still remembers it.
     *
     * @return the end, such as {@code cancelled}, or null
     */
    public String ended() {
        return text(body, "ended", null);
    }

    /**
     * Returns true if the message is stored although the code is {@code indeterminate}: only its durability was not reached.
     *
     * @return true if the message is stored
     */
    public boolean isStored() {
        return Boolean.TRUE.equals(body.get("stored"));
    }

    /**
     * Returns true for the code {@code stale} if an earlier try of the same call may have settled the delivery.
     *
     * @return true if the outcome of an earlier try is unknown
     */
    public boolean maybeSettled() {
        return maybeSettled;
    }

    @Override
    public boolean isRetryable() {
        return RETRYABLE.contains(status);
    }

    @Override
    boolean isInDoubt() {
        return status == 502 || status == 504 || code().equals("indeterminate");
    }

    @Override
    Duration retryAfter() {
        return retryAfter;
    }

    @Override
    ProblemException copy() {
        return new ProblemException(status, body, retryAfter);
    }

    boolean isStale() {
        return code().equals("stale");
    }

    void setMaybeSettled(boolean maybeSettled) {
        this.maybeSettled = maybeSettled;
    }

    private static FieldError fieldError(Object error) {
        Map<?, ?> body = error instanceof Map<?, ?> map ? map : Map.of();
        return new FieldError(text(body, "field", ""), text(body, "detail", ""));
    }

    private static String text(Map<?, ?> body, String name, String otherwise) {
        return body.get(name) instanceof String text ? text : otherwise;
    }
}
