package lisa.relay;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** Reads answers of Lisa. Throws a RuntimeException for those of another shape. */
final class Answers {
    /** The answer with the status 204. */
    static final Object NO_CONTENT = new Object();

    private Answers() {}

    static Sent sent(Object answer) {
        Map<?, ?> body = object(answer);
        return new Sent(text(body, "id"), text(body, "outcome"), instantOrNull(body, "due_at"), textOrNull(body, "ended"),
                textOrNull(body, "durability"));
    }

    static Ended ended(Object answer) {
        Map<?, ?> body = object(answer);
        return new Ended(text(body, "outcome"), instantOrNull(body, "due_at"), instantOrNull(body, "lease_until"));
    }

    static Message message(Object answer) {
        Map<?, ?> body = object(answer);
        return new Message(text(body, "id"), text(body, "topic"), text(body, "state"), number(body, "attempt"),
                number(body, "max_attempts"), instantOrNull(body, "due_at"), instantOrNull(body, "expires_at"),
                textOrNull(body, "key"), textOrNull(body, "merge_key"), number(body, "priority"), textOrNull(body, "consumer"),
                textOrNull(body, "error"), textOrNull(body, "reason"), instantOrNull(body, "garbage_at"), headers(body),
                payload(body), list(body, "groups").stream().map(Answers::group).toList());
    }

    static Cancelled cancelled(Object answer) {
        Map<?, ?> body = object(answer);
        return new Cancelled(text(body, "id"), headers(body), payload(body), texts(body, "in_garbage"));
    }

    static MessagePage page(Object answer, int most) {
        Map<?, ?> body = object(answer);
        if (list(body, "messages").size() > most) throw new IllegalArgumentException("more messages than the page has");
        return new MessagePage(list(body, "messages").stream().map(Answers::listed).toList(),
                body.get("next") == null ? null : text(body, "next"));
    }

    private static ListedMessage listed(Object message) {
        Map<?, ?> body = object(message);
        return new ListedMessage(text(body, "id"), text(body, "state"), number(body, "attempt"), instantOrNull(body, "due_at"),
                textOrNull(body, "key"), textOrNull(body, "consumer"), textOrNull(body, "error"), textOrNull(body, "reason"),
                instantOrNull(body, "garbage_at"));
    }

    static CancelledKey cancelledKey(Object answer) {
        Map<?, ?> body = object(answer);
        return new CancelledKey(number(body, "cancelled"), number(body, "garbage"), number(body, "in_flight"),
                texts(body, "in_garbage"));
    }

    static RescheduledKey rescheduledKey(Object answer) {
        Map<?, ?> body = object(answer);
        return new RescheduledKey(number(body, "rescheduled"), number(body, "garbage"), number(body, "in_flight"),
                texts(body, "in_garbage"));
    }

    static Requeued requeued(Object answer) {
        Map<?, ?> body = object(answer);
        return new Requeued(number(body, "done"), number(body, "found"), texts(body, "missing"));
    }

    static Topic topic(Object answer) {
        Map<?, ?> body = object(answer);
        return new Topic(text(body, "topic"), longNumber(body, "epoch"), values(body, "settings"), requiredTexts(body, "groups"),
                textOrNull(body, "removal"), isTrue(body, "resharding"));
    }

    static TopicList topicList(Object answer) {
        Map<?, ?> body = object(answer);
        List<?> damaged = body.containsKey("damaged") ? list(body, "damaged") : List.of();
        return new TopicList(list(body, "topics").stream().map(Answers::topic).toList(), damaged.stream()
                .map(one -> new TopicList.DamagedTopic(text(object(one), "topic"), text(object(one), "error"))).toList());
    }

    static TopicDetails topicDetails(Object answer) {
        Map<?, ?> body = object(answer);
        return new TopicDetails(text(body, "topic"), longNumber(body, "epoch"), instantOrNull(body, "created_at"),
                values(body, "settings"), textOrNull(body, "removal"),
                list(body, "groups").stream().map(Answers::groupStats).toList(), topicStats(body.get("stats")));
    }

    private static TopicDetails.TopicStats topicStats(Object stats) {
        Map<?, ?> body = object(stats);
        Map<String, Long> counters = new LinkedHashMap<>();
        values(body, "counters").forEach((name, value) -> counters.put(name, (Long) value));
        return new TopicDetails.TopicStats(longNumber(body, "stored"), longNumber(body, "waiting"), instantOrNull(body, "next_due"),
                longNumber(body, "overdue_ms"), longNumber(body, "tombstones"), flag(body, "paused"), numberOrNull(body, "bytes"),
                isTrue(body, "full"), numberOrNull(body, "migrating"), counters, longNumber(body, "conservation_error"));
    }

    private static TopicDetails.GroupStats groupStats(Object group) {
        Map<?, ?> body = object(group);
        return new TopicDetails.GroupStats(text(body, "group"), longNumber(body, "backlog"), longNumber(body, "parked"),
                longNumber(body, "ready"), longNumber(body, "in_flight"), longNumber(body, "retry"), longNumber(body, "garbage"),
                longNumber(body, "consumers"), longNumber(body, "oldest_due_age_ms"), longNumber(body, "oldest_ready_age_ms"),
                isTrue(body, "configured"), isTrue(body, "paused"), textOrNull(body, "retiring"), isTrue(body, "instance"),
                isTrue(body, "never_read"));
    }

    static TopicRemoval topicRemoval(Object answer) {
        Map<?, ?> body = object(answer);
        return new TopicRemoval(text(body, "topic"), text(body, "removal"), number(body, "stored"));
    }

    static TopicPaused topicPaused(Object answer) {
        Map<?, ?> body = object(answer);
        return new TopicPaused(text(body, "topic"), flag(body, "paused"), flag(body, "changed"));
    }

    static GroupPaused groupPaused(Object answer) {
        Map<?, ?> body = object(answer);
        return new GroupPaused(text(body, "topic"), text(body, "group"), flag(body, "paused"), flag(body, "changed"));
    }

    static GroupRetired groupRetired(Object answer) {
        Map<?, ?> body = object(answer);
        return new GroupRetired(text(body, "topic"), text(body, "group"), textOrNull(body, "retiring"), flag(body, "changed"),
                longNumber(body, "left"), isTrue(body, "configured"), isTrue(body, "messages_wait"));
    }

    static Schedule schedule(Object answer) {
        Map<?, ?> body = object(answer);
        ListedSchedule listed = listedSchedule(body);
        Long version = numberOrNull(body, "version");
        List<Instant> nextTimes = list(body, "next_times").stream().map(time -> Instant.parse((String) time)).toList();
        return new Schedule(listed.schedule(), listed.topic(), listed.cron(), listed.timeZone(), listed.declaredInFile(),
                listed.sentUntil(), listed.next(), listed.missed(), listed.newestMissed(), listed.pausedSince(), listed.error(),
                listed.errorAt(), version == null ? 0 : version, values(body, "definition"), nextTimes, requiredTexts(body, "warnings"));
    }

    private static ListedSchedule listedSchedule(Object schedule) {
        Map<?, ?> body = object(schedule);
        Long missed = numberOrNull(body, "missed");
        return new ListedSchedule(text(body, "schedule"), text(body, "topic"), text(body, "cron"), text(body, "time_zone"),
                flag(body, "declared_in_file"), instantOrNull(body, "sent_until"), instantOrNull(body, "next"),
                missed == null ? 0 : missed, instantOrNull(body, "newest_missed"), instantOrNull(body, "paused_since"),
                textOrNull(body, "error"), instantOrNull(body, "error_at"));
    }

    static SchedulePage schedulePage(Object answer, int most) {
        Map<?, ?> body = object(answer);
        List<?> schedules = list(body, "schedules");
        if (schedules.size() > most) throw new IllegalArgumentException("more schedules than the page has");
        List<?> damaged = body.containsKey("damaged") ? list(body, "damaged") : List.of();
        return new SchedulePage(schedules.stream().map(Answers::listedSchedule).toList(),
                body.get("next") == null ? null : text(body, "next"), damaged.stream()
                .map(one -> new SchedulePage.DamagedSchedule(text(object(one), "schedule"), text(object(one), "error"))).toList());
    }

    static Backfilled backfilled(Object answer) {
        Map<?, ?> body = object(answer);
        return new Backfilled(text(body, "schedule"), text(body, "topic"), number(body, "times"), number(body, "sent"),
                number(body, "duplicates"), instantOrNull(body, "next"));
    }

    static SchedulePaused schedulePaused(Object answer) {
        Map<?, ?> body = object(answer);
        return new SchedulePaused(text(body, "schedule"), flag(body, "paused"), flag(body, "changed"));
    }

    static ScheduleRun scheduleRun(Object answer) {
        Map<?, ?> body = object(answer);
        return new ScheduleRun(text(body, "schedule"), text(body, "topic"), text(body, "id"), flag(body, "sent"));
    }

    static OwnToken ownToken(Object answer) {
        Map<?, ?> used = object(object(answer).get("used"));
        return new OwnToken(token(answer), new OwnToken.QuotaUse(numberOrNull(used, "topics"), numberOrNull(used, "streams"),
                numberOrNull(used, "messages"), numberOrNull(used, "bytes"), numberOrNull(used, "schedules")));
    }

    static Token token(Object answer) {
        Map<?, ?> body = object(answer);
        Long version = numberOrNull(body, "version");
        return new Token(text(body, "token"), requiredTexts(body, "scopes"), flag(body, "declared_in_file"), textsOrNull(body, "topics"),
                textsOrNull(body, "groups"), textsOrNull(body, "schedules"), instantOrNull(body, "expires"), flag(body, "has_expired"),
                numberOrNull(body, "sends_per_second"), numberOrNull(body, "max_topics"), numberOrNull(body, "max_streams"),
                numberOrNull(body, "max_messages"), numberOrNull(body, "max_bytes"), numberOrNull(body, "max_schedules"),
                flag(body, "is_rotating"), instantOrNull(body, "previous_used"), version == null ? 0 : version,
                instantOrNull(body, "created"), textOrNull(body, "created_by"), isTrue(body, "hides_stored"));
    }

    static TokenPage tokenPage(Object answer, int most) {
        Map<?, ?> body = object(answer);
        List<?> tokens = list(body, "tokens");
        if (tokens.size() > most) throw new IllegalArgumentException("more tokens than the page has");
        List<?> damaged = body.containsKey("damaged") ? list(body, "damaged") : List.of();
        return new TokenPage(tokens.stream().map(Answers::token).toList(), body.get("next") == null ? null : text(body, "next"),
                damaged.stream().map(one -> new TokenPage.DamagedToken(text(object(one), "token"), text(object(one), "error"))).toList());
    }

    static ChangedToken changedToken(Object answer) {
        Map<?, ?> body = object(answer);
        return new ChangedToken(text(body, "token"), longNumber(body, "version"), requiredTexts(body, "scopes"),
                flag(body, "is_rotating"), textOrNull(body, "secret"));
    }

    static Void nothing(Object answer) {
        if (answer != NO_CONTENT) throw new IllegalArgumentException("it has a body");
        return null;
    }

    /** Reads the deliveries of a pull. A worker has no handlers for more. */
    static List<Delivery> deliveries(Object answer, PullOptions options, Lisa lisa, Batcher<Ended> settles) {
        List<?> bodies = list(object(answer), "deliveries");
        int max = options.max();
        if (bodies.size() > max) throw new IllegalArgumentException(bodies.size() + " deliveries for a pull of " + max);
        List<Delivery> deliveries = bodies.stream().map(one -> new Delivery(lisa, settles, object(one))).toList();
        int keys = Delivery.runs(deliveries).size();
        if (keys <= options.maxKeys()) return deliveries;
        throw new IllegalArgumentException("deliveries of " + keys + " keys for a pull of " + options.maxKeys());
    }

    /** Reads the answer of a settle-and-pull for a batch of {@code count} outcomes. */
    static SettledAndPulled settledAndPulled(
            Object answer, int count, PullOptions options, Lisa lisa, Batcher<Ended> settles) {
        List<Result<Ended>> results = results(list(object(answer), "results"), count, Answers::ended);
        return new SettledAndPulled(results, deliveries(answer, options, lisa, settles));
    }

    /** Reads the results of a batch. */
    static <T> List<Result<T>> results(Object answer, int count, Function<Object, T> read) {
        List<?> results = (List<?>) answer;
        if (results.size() != count) throw new IllegalArgumentException(results.size() + " results for a batch of " + count);
        return results.stream().map(one -> result(object(one), read)).toList();
    }

    private static <T> Result<T> result(Map<?, ?> body, Function<Object, T> read) {
        if (!body.containsKey("error")) return Result.of(read.apply(body));
        Map<?, ?> error = object(body.get("error"));
        int status = error.containsKey("status") ? number(error, "status") : 500;
        return Result.failed(new ProblemException(status, error, Duration.ZERO));
    }

    private static Message.GroupState group(Object group) {
        Map<?, ?> body = object(group);
        return new Message.GroupState(text(body, "group"), text(body, "state"), text(body, "why"), textOrNull(body, "holder"),
                body.containsKey("attempts") ? list(body, "attempts").stream().map(Answers::attempt).toList() : List.of());
    }

    private static Message.FailedAttempt attempt(Object attempt) {
        Map<?, ?> body = object(attempt);
        return new Message.FailedAttempt(instant(body, "at"), text(body, "outcome"), textOrNull(body, "consumer"), text(body, "error"));
    }

    static Map<?, ?> object(Object value) {
        if (value instanceof Map<?, ?> body) return body;
        throw new IllegalArgumentException("not an object");
    }

    static String text(Map<?, ?> body, String name) {
        if (body.get(name) instanceof String text) return text;
        throw new IllegalArgumentException(name + " is missing");
    }

    static String textOrNull(Map<?, ?> body, String name) {
        return body.get(name) instanceof String text ? text : null;
    }

    static int number(Map<?, ?> body, String name) {
        return Math.toIntExact(longNumber(body, name));
    }

    private static long longNumber(Map<?, ?> body, String name) {
        if (body.get(name) instanceof Long number) return number;
        throw new IllegalArgumentException(name + " is missing");
    }

    private static boolean flag(Map<?, ?> body, String name) {
        if (body.get(name) instanceof Boolean flag) return flag;
        throw new IllegalArgumentException(name + " is missing");
    }

    /** Returns a flag that is left out if it is false. */
    private static boolean isTrue(Map<?, ?> body, String name) {
        return body.get(name) != null && flag(body, name);
    }

    private static Long numberOrNull(Map<?, ?> body, String name) {
        return body.get(name) == null ? null : longNumber(body, name);
    }

    private static Map<String, Object> values(Map<?, ?> body, String name) {
        Map<String, Object> values = new LinkedHashMap<>();
        object(body.get(name)).forEach((key, value) -> values.put((String) key, value));
        return values;
    }

    static Instant instant(Map<?, ?> body, String name) {
        return Instant.parse(text(body, name));
    }

    static Map<String, String> headers(Map<?, ?> body) {
        Map<String, String> headers = new LinkedHashMap<>();
        if (body.get("headers") instanceof Map<?, ?> given) given.forEach((name, value) -> headers.put((String) name, (String) value));
        return headers;
    }

    /** Returns the payload, or null if there is none. */
    static byte[] payload(Map<?, ?> body) {
        if (body.get("payload_base64") instanceof String base64) return Base64.getDecoder().decode(base64);
        return body.get("payload") instanceof String text ? text.getBytes(StandardCharsets.UTF_8) : null;
    }

    private static Instant instantOrNull(Map<?, ?> body, String name) {
        return body.get(name) == null ? null : instant(body, name);
    }

    /** Returns a list of texts, which is left out if it is empty. */
    private static List<String> texts(Map<?, ?> body, String name) {
        return body.containsKey(name) ? requiredTexts(body, name) : List.of();
    }

    private static List<String> textsOrNull(Map<?, ?> body, String name) {
        return body.get(name) == null ? null : requiredTexts(body, name);
    }

    private static List<String> requiredTexts(Map<?, ?> body, String name) {
        return list(body, name).stream().map(String.class::cast).toList();
    }

    private static List<?> list(Map<?, ?> body, String name) {
        if (body.get(name) instanceof List<?> list) return list;
        throw new IllegalArgumentException(name + " is missing");
    }
}
