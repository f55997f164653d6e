package lisa.relay;

import java.util.List;

/** One result for each settled delivery, in order, and the deliveries that were pulled. */
record SettledAndPulled(List<Result<Ended>> results, List<Delivery> deliveries) {}
