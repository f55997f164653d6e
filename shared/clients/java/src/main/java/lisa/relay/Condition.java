package lisa.relay;

import java.util.Map;

/** The condition of a change. If it is not met, the call fails with the code {@code precondition_failed}. */
public final class Condition {
    private static final Condition CREATE_ONLY = new Condition(Map.of("if-none-match", "*"));

    private final Map<String, String> headers;

    private Condition(Map<String, String> headers) {
        this.headers = headers;
    }

    /**
     * Changes something only if it has a version.
     *
     * @param version the epoch of a topic, or the version of a schedule or token, at least 1
     * @return the condition
     */
    public static Condition ifMatch(long version) {
        if (version < 1) throw new IllegalArgumentException("version: " + version + " is less than 1");
        return new Condition(Map.of("if-match", "\"" + version + "\""));
    }

    /**
     * Changes nothing that exists. It is a condition of a put.
     *
     * @return the condition
     */
    public static Condition createOnly() {
        return CREATE_ONLY;
    }

    Map<String, String> headers() {
        return headers;
    }

    Map<String, String> ofRemoval() {
        if (this == CREATE_ONLY) throw new IllegalArgumentException("condition: createOnly is only for a put");
        return headers;
    }
}
