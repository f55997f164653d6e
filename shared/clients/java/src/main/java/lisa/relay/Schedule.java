package lisa.relay;

import java.time.Instant;
import java.util.List;
import java.util.Map;

/**
 * A schedule with its definition.
 *
 * @param schedule its name
 * @param version changes whenever its definition does
 * @param definition its definition, as JSON has it
 * @param nextTimes its next five times, whether it is paused or not
 * @param warnings times that may surprise: days that some months do not have, and clock changes that skip or repeat a time
 */
public record Schedule(String schedule, long version, Map<String, Object> definition, List<Instant> nextTimes, List<String> warnings) {}
