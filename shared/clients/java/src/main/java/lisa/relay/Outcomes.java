package lisa.relay;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/** Writes outcomes as the HTTP interface has them. */
final class Outcomes {
    private static final int MAX_ERROR = 1024;

    private Outcomes() {}

    static Map<String, Object> body(Outcome outcome) {
        if (outcome instanceof Outcome.Retry retry) {
            Map<String, Object> body = withError(retry.error());
            if (retry.after() != null) body.put("after", Values.duration("after", retry.after()));
            return Map.of("retry", body);
        }
        if (outcome instanceof Outcome.Defer defer) {
            return Map.of("defer", defer.until() == null
                    ? Map.of("after", Values.duration("after", defer.after()))
                    : Map.of("until", Values.instant("until", defer.until())));
        }
        if (outcome instanceof Outcome.Reject reject) return Map.of("reject", withError(reject.error()));
        return Map.of("ack", true);
    }

    private static Map<String, Object> withError(String error) {
        Map<String, Object> body = new LinkedHashMap<>();
        if (error != null) body.put("error", shortened(error));
        return body;
    }

    /** Cuts an error: Lisa keeps 1 KiB of it, and refuses a much longer one. A surrogate without its other half becomes "?". */
    private static String shortened(String error) {
        byte[] bytes = error.getBytes(StandardCharsets.UTF_8);
        if (bytes.length <= MAX_ERROR) return new String(bytes, StandardCharsets.UTF_8);
        int end = MAX_ERROR;
        // Not within a character, whose further bytes begin with the bits 10.
        while ((bytes[end] & 0xc0) == 0x80) end--;
        return new String(Arrays.copyOf(bytes, end), StandardCharsets.UTF_8);
    }
}
