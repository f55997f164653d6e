package lisa.relay;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/** The driver of the contract suite: see shared/clients/README.md. */
final class Driver {
    private static final Pattern PART = Pattern.compile("([0-9]+)(ms|s|m|h|d)");
    private static final Map<String, Long> UNITS = Map.of("ms", 1L, "s", 1000L, "m", 60_000L, "h", 3_600_000L, "d", 86_400_000L);

    private Lisa lisa;
    private List<Delivery> deliveries = List.of();

    private Driver() {}

    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Driver driver = new Driver();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<?, ?> command = Answers.object(Json.read(line));
            out.println(Json.write(result(() -> driver.run(command))));
        }
        System.exit(0);
    }

    private Object run(Map<?, ?> command) {
        String topic = Answers.textOrNull(command, "topic");
        String group = Answers.textOrNull(command, "group");
        String id = Answers.textOrNull(command, "id");
        String schedule = Answers.textOrNull(command, "schedule");
        String token = Answers.textOrNull(command, "token");
        return switch (Answers.text(command, "call")) {
            case "client" -> client(command);
            case "send" -> sent(lisa.send(topic, command.get("payload"), sendOptions(map(command, "options"))));
            case "send_concurrently" -> sendConcurrently(topic, maps(command, "messages"), Answers.number(command, "callers"));
            case "send_many" -> sendMany(topic, maps(command, "messages"));
            case "get" -> message(lisa.get(topic, id));
            case "cancel" -> given("id", lisa.cancel(topic, id).id());
            case "deliver_now" -> sent(lisa.deliverNow(topic, id));
            case "reschedule" -> reschedule(topic, id, map(command, "options"));
            case "cancel_key" -> cancelKey(topic, Answers.textOrNull(command, "key"));
            case "reschedule_key" -> rescheduleKey(topic, Answers.textOrNull(command, "key"), map(command, "options"));
            case "list" -> list(topic, map(command, "options"));
            case "requeue" -> requeue(topic, command);
            case "list_topics" -> topics(command.get("prefix") instanceof String prefix ? lisa.listTopics(prefix) : lisa.listTopics());
            case "get_topic" -> topicDetails(lisa.getTopic(topic));
            case "put_topic" -> topic(putTopic(topic, values(map(command, "settings")), condition(command)));
            case "remove_topic" -> removeTopic(topic, command);
            case "pause_topic" -> paused(lisa.pauseTopic(topic));
            case "resume_topic" -> paused(lisa.resumeTopic(topic));
            case "pause_group" -> paused(lisa.pauseGroup(topic, group));
            case "resume_group" -> paused(lisa.resumeGroup(topic, group));
            case "drain_group" -> retired(lisa.drainGroup(topic, group));
            case "drop_group" -> retired(lisa.dropGroup(topic, group));
            case "keep_group" -> retired(lisa.keepGroup(topic, group));
            case "list_schedules" -> listSchedules(command);
            case "get_schedule" -> schedule(lisa.getSchedule(schedule));
            case "put_schedule" -> schedule(putSchedule(schedule, values(map(command, "definition")), condition(command)));
            case "backfill_schedule" -> backfill(schedule, command);
            case "remove_schedule" -> removeSchedule(schedule, condition(command));
            case "pause_schedule" -> paused(lisa.pauseSchedule(schedule));
            case "resume_schedule" -> paused(lisa.resumeSchedule(schedule));
            case "run_schedule" -> runSchedule(schedule);
            case "own_token" -> ownToken(lisa.ownToken());
            case "list_tokens" -> tokens(lisa.listTokens(pageOptions(command)));
            case "get_token" -> token(lisa.getToken(token));
            case "put_token" -> changedToken(putToken(token, values(map(command, "definition")), condition(command)));
            case "rotate_token" -> changedToken(rotateToken(token, Answers.textOrNull(command, "step")));
            case "remove_token" -> removeToken(token, condition(command));
            case "pull" -> pull(topic, map(command, "options"));
            case "settle" -> settle(maps(command, "outcomes"));
            case "settle_many" -> settleMany(maps(command, "outcomes"));
            case "extend" -> extend(duration(command.get("lease")));
            case "work" -> work(topic, command);
            default -> throw new IllegalStateException("unknown call");
        };
    }

    private Map<String, Object> client(Map<?, ?> command) {
        LisaOptions options = new LisaOptions();
        if (command.get("gateway") instanceof String gateway) options = options.gateway(gateway);
        if (command.get("manager") instanceof String manager) options = options.manager(manager);
        if (command.get("token") instanceof String token) options = options.token(token);
        if (command.get("timeout") instanceof Long timeout) options = options.timeout(Duration.ofMillis(timeout));
        if (command.get("tries") instanceof Long tries) options = options.tries(tries.intValue());
        lisa = new Lisa(Answers.text(command, "url"), options);
        return Map.of();
    }

    private List<Object> sendConcurrently(String topic, List<Map<?, ?>> messages, int callers) {
        return together(callers, messages, one -> sent(lisa.send(topic, one.get("payload"), sendOptions(one))));
    }

    private List<?> sendMany(String topic, List<Map<?, ?>> messages) {
        List<NewMessage> all = messages.stream().map(one -> new NewMessage(one.get("payload"), sendOptions(one))).toList();
        return lisa.sendMany(topic, all).stream().map(one -> result(() -> sent(one.orElseThrow()))).toList();
    }

    private Object reschedule(String topic, String id, Map<?, ?> options) {
        if (options.get("deliver_at") instanceof String at) return sent(lisa.reschedule(topic, id, Instant.parse(at)));
        return sent(lisa.reschedule(topic, id, duration(options.get("delay"))));
    }

    private Object cancelKey(String topic, String key) {
        CancelledKey done = lisa.cancelKey(topic, key);
        return given("cancelled", done.cancelled(), "garbage", done.garbage(), "in_flight", done.inFlight(), "in_garbage",
                done.inGarbage());
    }

    private Object rescheduleKey(String topic, String key, Map<?, ?> options) {
        RescheduledKey done = options.get("deliver_at") instanceof String at
                ? lisa.rescheduleKey(topic, key, Instant.parse(at))
                : lisa.rescheduleKey(topic, key, duration(options.get("delay")));
        return given("rescheduled", done.rescheduled(), "garbage", done.garbage(), "in_flight", done.inFlight(), "in_garbage",
                done.inGarbage());
    }

    private Object list(String topic, Map<?, ?> given) {
        ListOptions options = new ListOptions();
        for (Map.Entry<?, ?> one : given.entrySet()) options = with(options, (String) one.getKey(), one.getValue());
        MessagePage page = lisa.list(topic, options);
        return given("messages", page.messages().stream().map(Driver::listed).toList(), "next", page.next());
    }

    private Object requeue(String topic, Map<?, ?> command) {
        List<String> ids = ((List<?>) command.get("ids")).stream().map(String.class::cast).toList();
        Requeued done = command.get("group") instanceof String group ? lisa.requeue(topic, ids, group) : lisa.requeue(topic, ids);
        return given("done", done.done(), "found", done.found(), "missing", done.missing());
    }

    private static Object topics(TopicList found) {
        return given("topics", found.topics().stream().map(Driver::topic).toList(), "damaged", found.damaged().stream()
                .map(one -> given("topic", one.topic(), "error", one.error())).toList());
    }

    private static Object topic(Topic topic) {
        return given("topic", topic.topic(), "epoch", topic.epoch(), "settings", topic.settings(), "groups", topic.groups(), "removal",
                topic.removal());
    }

    private static Object topicDetails(TopicDetails topic) {
        TopicDetails.TopicStats stats = topic.stats();
        Object counts = given("stored", stats.stored(), "waiting", stats.waiting(), "overdue_ms", stats.overdueMs(), "next_due",
                stats.nextDue(), "paused", stats.paused(), "counters", stats.counters(), "conservation_error", stats.conservationError());
        return given("topic", topic.topic(), "epoch", topic.epoch(), "settings", topic.settings(), "removal", topic.removal(), "groups",
                topic.groups().stream().map(Driver::groupStats).toList(), "stats", counts, "created_at", topic.createdAt());
    }

    private static Object groupStats(TopicDetails.GroupStats group) {
        return given("group", group.group(), "ready", group.ready(), "in_flight", group.inFlight(), "garbage", group.garbage(),
                "configured", group.configured(), "paused", group.paused(), "retiring", group.retiring());
    }

    /** Returns the condition of a command, or null. */
    private static Condition condition(Map<?, ?> command) {
        if (command.get("if_match") instanceof Long version) return Condition.ifMatch(version);
        return Boolean.TRUE.equals(command.get("create_only")) ? Condition.createOnly() : null;
    }

    private Topic putTopic(String topic, Map<String, Object> settings, Condition condition) {
        return condition == null ? lisa.putTopic(topic, settings) : lisa.putTopic(topic, settings, condition);
    }

    private Object removeTopic(String topic, Map<?, ?> command) {
        TopicRemoval removed = removeTopic(topic, Answers.textOrNull(command, "how"), condition(command));
        return given("topic", removed.topic(), "removal", removed.removal(), "stored", removed.stored());
    }

    private TopicRemoval removeTopic(String topic, String how, Condition condition) {
        if (condition == null) return how == null ? lisa.removeTopic(topic) : lisa.removeTopic(topic, how);
        return how == null ? lisa.removeTopic(topic, condition) : lisa.removeTopic(topic, how, condition);
    }

    private static PageOptions pageOptions(Map<?, ?> command) {
        PageOptions options = new PageOptions();
        if (command.get("prefix") instanceof String prefix) options = options.prefix(prefix);
        if (command.get("limit") instanceof Long limit) options = options.limit(limit.intValue());
        return command.get("cursor") instanceof String cursor ? options.cursor(cursor) : options;
    }

    private static Object ownToken(OwnToken own) {
        OwnToken.QuotaUse used = own.used();
        Map<String, Object> shown = new LinkedHashMap<>(token(own.token()));
        shown.put("used", given("topics", used.topics(), "streams", used.streams(), "messages", used.messages(), "bytes", used.bytes(),
                "schedules", used.schedules()));
        return shown;
    }

    private static Map<String, Object> token(Token token) {
        return given("token", token.token(), "scopes", token.scopes(), "declared_in_file", token.declaredInFile(), "topics", token.topics(),
                "max_topics", token.maxTopics(), "max_messages", token.maxMessages(), "has_expired", token.hasExpired(), "is_rotating",
                token.isRotating(), "version", token.version());
    }

    private static Object tokens(TokenPage page) {
        return given("tokens", page.tokens().stream().map(Driver::token).toList(), "next", page.next(), "damaged",
                page.damaged().stream().map(one -> given("token", one.token(), "error", one.error())).toList());
    }

    private Object listSchedules(Map<?, ?> command) {
        SchedulePage page = lisa.listSchedules(pageOptions(command));
        return given("next", page.next(), "schedules", page.schedules().stream().map(Driver::listedSchedule).toList(), "damaged",
                page.damaged().stream().map(one -> given("schedule", one.schedule(), "error", one.error())).toList());
    }

    private static Object listedSchedule(ListedSchedule one) {
        return given("schedule", one.schedule(), "topic", one.topic(), "cron", one.cron(), "time_zone", one.timeZone(),
                "declared_in_file", one.declaredInFile(), "missed", one.missed());
    }

    private static Object schedule(Schedule found) {
        return given("schedule", found.schedule(), "topic", found.topic(), "declared_in_file", found.declaredInFile(), "version",
                found.version() == 0 ? null : found.version(), "definition", found.definition(), "next_times",
                found.nextTimes().stream().map(Instant::toEpochMilli).toList(), "warnings", found.warnings());
    }

    private Schedule putSchedule(String schedule, Map<String, Object> definition, Condition condition) {
        return condition == null ? lisa.putSchedule(schedule, definition) : lisa.putSchedule(schedule, definition, condition);
    }

    private Object backfill(String schedule, Map<?, ?> command) {
        Instant from = instant(command.get("from"));
        Backfilled done = command.containsKey("to")
                ? lisa.backfillSchedule(schedule, from, instant(command.get("to")), Boolean.TRUE.equals(command.get("dry_run")))
                : lisa.backfillSchedule(schedule, from);
        return given("schedule", done.schedule(), "topic", done.topic(), "times", done.times(), "sent", done.sent(), "duplicates",
                done.duplicates(), "next", done.next() == null ? null : done.next().toEpochMilli());
    }

    private Object removeSchedule(String schedule, Condition condition) {
        if (condition == null) lisa.removeSchedule(schedule);
        else lisa.removeSchedule(schedule, condition);
        return given("removed", true);
    }

    private static Object paused(TopicPaused paused) {
        return given("topic", paused.topic(), "paused", paused.paused(), "changed", paused.changed());
    }

    private static Object paused(GroupPaused paused) {
        return given("topic", paused.topic(), "group", paused.group(), "paused", paused.paused(), "changed", paused.changed());
    }

    private static Object retired(GroupRetired retired) {
        return given("topic", retired.topic(), "group", retired.group(), "retiring", retired.retiring(), "changed", retired.changed(),
                "left", retired.left(), "configured", retired.configured(), "messages_wait", retired.messagesWait());
    }

    private static Object paused(SchedulePaused paused) {
        return given("schedule", paused.schedule(), "paused", paused.paused(), "changed", paused.changed());
    }

    private ChangedToken rotateToken(String token, String step) {
        if ("finish".equals(step)) return lisa.finishRotation(token);
        if ("cancel".equals(step)) return lisa.cancelRotation(token);
        return lisa.rotateToken(token);
    }

    private static Object changedToken(ChangedToken changed) {
        return given("token", changed.token(), "version", changed.version(), "scopes", changed.scopes(), "is_rotating",
                changed.isRotating(), "secret", changed.secret());
    }

    private ChangedToken putToken(String token, Map<String, Object> definition, Condition condition) {
        return condition == null ? lisa.putToken(token, definition) : lisa.putToken(token, definition, condition);
    }

    private Object removeToken(String token, Condition condition) {
        if (condition == null) lisa.removeToken(token);
        else lisa.removeToken(token, condition);
        return given("removed", true);
    }

    private Object runSchedule(String schedule) {
        ScheduleRun run = lisa.runSchedule(schedule);
        return given("schedule", run.schedule(), "topic", run.topic(), "id", run.id(), "sent", run.sent());
    }

    private Object pull(String topic, Map<?, ?> options) {
        PullOptions pull = new PullOptions();
        if (options.get("group") instanceof String group) pull = pull.group(group);
        if (options.get("max") instanceof Long max) pull = pull.max(max.intValue());
        if (options.get("max_per_key") instanceof Long max) pull = pull.maxPerKey(max.intValue());
        if (options.get("max_keys") instanceof Long max) pull = pull.maxKeys(max.intValue());
        if (options.get("wait") instanceof String wait) pull = pull.wait(duration(wait));
        if (options.get("lease") instanceof String lease) pull = pull.lease(duration(lease));
        if (options.get("consumer") instanceof String consumer) pull = pull.consumer(consumer);
        deliveries = lisa.pull(topic, pull);
        return deliveries.stream().map(one -> given("id", one.id(), "attempt", one.attempt(), "payload", one.text())).toList();
    }

    private List<Object> settle(List<Map<?, ?>> outcomes) {
        return together(settlements(outcomes), one -> ended(delivery(one.token()).settle(one.outcome())));
    }

    private List<?> settleMany(List<Map<?, ?>> outcomes) {
        return lisa.settleMany(settlements(outcomes)).stream().map(one -> result(() -> ended(one.orElseThrow()))).toList();
    }

    /** Returns each delivery with its outcome, or the only one. */
    private List<Settlement> settlements(List<Map<?, ?>> outcomes) {
        return IntStream.range(0, deliveries.size())
                .mapToObj(n -> new Settlement(deliveries.get(n).token(), outcome(outcomes.get(outcomes.size() == 1 ? 0 : n))))
                .toList();
    }

    private Delivery delivery(String token) {
        return deliveries.stream().filter(one -> one.token().equals(token)).findFirst().orElseThrow();
    }

    private List<Object> extend(Duration lease) {
        return together(deliveries, one -> ended(lease == null ? one.extend() : one.extend(lease)));
    }

    private Object work(String topic, Map<?, ?> command) {
        WorkOptions options = new WorkOptions();
        if (command.get("concurrency") instanceof Long concurrency) options = options.concurrency(concurrency.intValue());
        if (command.get("max_per_key") instanceof Long max) options = options.maxPerKey(max.intValue());
        if (command.get("lease") instanceof String lease) options = options.lease(duration(lease));
        if (command.get("group") instanceof String group) options = options.group(group);
        Handling handling = new Handling(map(command, "handler"));
        int stopAfter = Answers.number(command, "stop_after");
        Worker[] worker = new Worker[1];
        worker[0] = lisa.worker(topic, delivery -> {
            try {
                return handling.handle(delivery);
            } finally {
                if (handling.ended.incrementAndGet() == stopAfter) worker[0].stop();
            }
        }, options);
        worker[0].run();
        return given("handled", List.copyOf(handling.handled), "most", handling.most.get());
    }

    /** A handler that does what the suite says. */
    private static final class Handling {
        final List<Object> handled = Collections.synchronizedList(new ArrayList<>());
        final AtomicInteger ended = new AtomicInteger();
        final AtomicInteger most = new AtomicInteger();
        private final AtomicInteger running = new AtomicInteger();
        private final List<Map<?, ?>> steps;
        private final Map<?, ?> of;
        private final long sleep;
        private final int together;
        private int begun;

        Handling(Map<?, ?> handler) {
            steps = maps(handler, "do");
            of = map(handler, "of");
            sleep = handler.get("sleep") instanceof Long ms ? ms : 0;
            together = handler.get("together") instanceof Long count ? count.intValue() : 0;
        }

        Outcome handle(Delivery delivery) throws Exception {
            most.accumulateAndGet(running.incrementAndGet(), Math::max);
            try {
                awaitTogether();
                Thread.sleep(sleep);
                return step(delivery);
            } finally {
                handled.add(given("payload", delivery.text(), "attempt", delivery.attempt()));
                running.decrementAndGet();
            }
        }

        private synchronized void awaitTogether() throws InterruptedException {
            begun++;
            notifyAll();
            while (begun < together) wait();
        }

        private Outcome step(Delivery delivery) {
            List<Map<?, ?>> own = of.containsKey(delivery.text()) ? maps(of, delivery.text()) : steps;
            Map<?, ?> step = own.get(Math.min(delivery.attempt(), own.size()) - 1);
            if (step.get("fail") instanceof String text) throw new IllegalStateException(text);
            if (step.containsKey("wrong")) return Outcome.retry(Duration.ofDays(1_000_000), null);
            if (!step.containsKey("settle")) return outcome(step);
            delivery.settle(outcome(map(step, "settle")));
            return null;
        }
    }

    private static Outcome outcome(Map<?, ?> outcome) {
        if (outcome.containsKey("retry")) {
            Map<?, ?> retry = map(outcome, "retry");
            return new Outcome.Retry(duration(retry.get("after")), Answers.textOrNull(retry, "error"));
        }
        if (outcome.containsKey("defer")) {
            Map<?, ?> defer = map(outcome, "defer");
            return new Outcome.Defer(duration(defer.get("after")), instant(defer.get("until")));
        }
        if (outcome.containsKey("reject")) return Outcome.reject(Answers.textOrNull(map(outcome, "reject"), "error"));
        return Outcome.ack();
    }

    private static SendOptions sendOptions(Map<?, ?> given) {
        SendOptions options = new SendOptions();
        for (Map.Entry<?, ?> one : given.entrySet()) options = with(options, (String) one.getKey(), one.getValue());
        return options;
    }

    @SuppressWarnings("unchecked")
    private static SendOptions with(SendOptions options, String name, Object value) {
        return switch (name) {
            case "payload" -> options;
            case "id" -> options.id((String) value);
            case "delay" -> options.delay(duration(value));
            case "deliver_at" -> options.deliverAt(instant(value));
            case "key" -> options.key((String) value);
            case "merge_key" -> options.mergeKey((String) value);
            case "priority" -> options.priority(Math.toIntExact((Long) value));
            case "ttl" -> options.ttl(duration(value));
            case "expires_at" -> options.expiresAt(instant(value));
            case "max_attempts" -> options.maxAttempts(Math.toIntExact((Long) value));
            case "retry" -> options.retry((Map<String, ?>) value);
            case "replace" -> options.replace((String) value);
            case "durability" -> options.durability((String) value);
            case "even_if_cancelled" -> options.evenIfCancelled((Boolean) value);
            case "headers" -> options.headers((Map<String, String>) value);
            default -> throw new IllegalArgumentException(name + ": is not an option");
        };
    }

    private static ListOptions with(ListOptions options, String name, Object value) {
        return switch (name) {
            case "state" -> options.state((String) value);
            case "group" -> options.group((String) value);
            case "key" -> options.key((String) value);
            case "error" -> options.error((String) value);
            case "reason" -> options.reason((String) value);
            case "from" -> options.from(instant(value));
            case "to" -> options.to(instant(value));
            case "order" -> options.order((String) value);
            case "limit" -> options.limit(Math.toIntExact((Long) value));
            case "cursor" -> options.cursor((String) value);
            default -> throw new IllegalArgumentException(name + ": is not an option");
        };
    }

    private static Duration duration(Object text) {
        if (text == null) return null;
        Matcher parts = PART.matcher((String) text);
        long ms = 0;
        int end = 0;
        while (parts.find() && parts.start() == end) {
            ms += Long.parseLong(parts.group(1)) * UNITS.get(parts.group(2));
            end = parts.end();
        }
        if (end == 0 || end < ((String) text).length()) throw new IllegalArgumentException("duration: " + text + " is none");
        return Duration.ofMillis(ms);
    }

    private static Instant instant(Object text) {
        return text == null ? null : Instant.parse((String) text);
    }

    private interface Call<T> {
        Object make(T item);
    }

    private static <T> List<Object> together(List<T> items, Call<T> call) {
        return together(Math.max(1, items.size()), items, call);
    }

    /** Makes a call for each item, so many at a time. Returns their results. */
    private static <T> List<Object> together(int callers, List<T> items, Call<T> call) {
        ExecutorService threads = Executors.newFixedThreadPool(callers);
        try {
            List<Object> results = new ArrayList<>();
            List<Callable<Object>> calls = new ArrayList<>();
            for (T item : items) calls.add(() -> result(() -> call.make(item)));
            for (Future<Object> result : threads.invokeAll(calls)) results.add(result.get());
            return results;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        } finally {
            threads.shutdown();
        }
    }

    private static Object result(Callable<Object> call) {
        try {
            return call.call();
        } catch (Exception error) {
            return Map.of("error", error(error));
        }
    }

    private static Map<String, Object> error(Exception error) {
        String message = String.valueOf(error.getMessage());
        if (error instanceof ProblemException problem) {
            return given("kind", "problem", "status", problem.status(), "code", problem.code(), "retryable", problem.isRetryable(),
                    "id", problem.id(), "ended", problem.ended(), "maybe_settled", problem.maybeSettled(), "message", message);
        }
        if (error instanceof TransportException transport) {
            return given("kind", "transport", "retryable", transport.isRetryable(), "id", transport.id(), "message", message);
        }
        if (error instanceof IllegalArgumentException) return given("kind", "argument", "message", message);
        error.printStackTrace();
        return given("kind", "defect", "message", error.toString());
    }

    private static Map<String, Object> sent(Sent sent) {
        return given("id", sent.id(), "outcome", sent.outcome(), "due_at", sent.dueAt(), "ended", sent.ended(), "durability",
                sent.durability());
    }

    private static Map<String, Object> ended(Ended ended) {
        return given("outcome", ended.outcome(), "due_at", ended.dueAt(), "lease_until", ended.leaseUntil());
    }

    private static Map<String, Object> message(Message message) {
        return given("id", message.id(), "state", message.state(), "attempt", message.attempt(), "headers", message.headers(),
                "payload", new String(message.payload(), StandardCharsets.UTF_8));
    }

    private static Map<String, Object> listed(ListedMessage message) {
        return given("id", message.id(), "state", message.state(), "attempt", message.attempt(), "due_at", message.dueAt(), "key",
                message.key(), "consumer", message.consumer(), "error", message.error(), "reason", message.reason(), "garbage_at",
                message.garbageAt());
    }

    /** Returns the values that are not null. Arguments: names and values. */
    private static Map<String, Object> given(Object... values) {
        Map<String, Object> given = new LinkedHashMap<>();
        for (int n = 0; n < values.length; n += 2) {
            Object value = values[n + 1] instanceof Instant instant ? instant.toString() : values[n + 1];
            if (value != null) given.put((String) values[n], value);
        }
        return given;
    }

    private static Map<?, ?> map(Map<?, ?> command, String name) {
        return command.get(name) == null ? Map.of() : Answers.object(command.get(name));
    }

    private static Map<String, Object> values(Map<?, ?> given) {
        Map<String, Object> values = new LinkedHashMap<>();
        given.forEach((name, value) -> values.put((String) name, value));
        return values;
    }

    private static List<Map<?, ?>> maps(Map<?, ?> command, String name) {
        List<Map<?, ?>> maps = new ArrayList<>();
        for (Object one : (List<?>) command.get(name)) maps.add(Answers.object(one));
        return maps;
    }
}
