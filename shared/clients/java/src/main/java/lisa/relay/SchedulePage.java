package lisa.relay;

import java.util.List;

/**
 * A page of schedules by name. With large definitions, it has fewer than its limit.
 *
 * @param schedules the schedules
 * @param next the cursor of the next page, or null if this is the last one
 * @param damaged those whose definition cannot be read
 */
public record SchedulePage(List<ListedSchedule> schedules, String next, List<DamagedSchedule> damaged) {
    /**
     * A schedule whose definition cannot be read.
     *
     * @param schedule its name
     * @param error the reason
     */
    public record DamagedSchedule(String schedule, String error) {}
}
