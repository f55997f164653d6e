package lisa.relay;

import java.net.URI;
import java.net.URISyntaxException;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import java.util.stream.IntStream;

/**
 * A client of one relay. Share one among all threads. Calls of {@code send}, {@code settle} and {@code extend} that are made while
 * a request of their kind is in flight leave together in the next one. It needs no close.
 *
 * <p>A request without an answer, and one answered with 408, 429, 502, 503 or 504, is repeated up to {@code tries} times. The calls
 * block, for up to {@code tries} times the time limit and the pauses. If the thread is interrupted, they fail with a
 * {@link TransportException} that is not retryable, and the thread stays interrupted; the request may still be carried out.
 */
public final class Lisa {
    /** The most that a pull may wait, by the rules of Lisa. */
    private static final Duration PULL_WAIT = Duration.ofSeconds(30);
    /** The largest limit of a page. */
    static final int MAX_PAGE = 1000;
    private static final Set<String> REMOVALS = Set.of("drain", "force");

    private final String producer;
    private final String gateway;
    private final String manager;
    final int tries;
    private final Http http;
    /** By topic; only those in use. */
    private final Map<String, Batcher<Sent>> sends = new HashMap<>();
    /** Settles deliveries in one request, once. */
    final Batcher.Attempt<Ended> settleAttempt;
    private final Batcher<Ended> settles;
    private final Batcher<Ended> extensions;

    /**
     * Creates a client with the default options.
     *
     * @param url the URL of the relay, with http or https; that of {@code lisa-manager dev} is {@code http://127.0.0.1:7812}
     */
    public Lisa(String url) {
        this(url, new LisaOptions());
    }

    /**
     * Creates a client.
     *
     * @param url the URL of the relay, with http or https
     * @param options its options
     */
    public Lisa(String url, LisaOptions options) {
        producer = checkUrl("url", url);
        gateway = Values.required("options", options).gateway() == null ? producer : checkUrl("gateway", options.gateway());
        manager = options.manager() == null ? producer : checkUrl("manager", options.manager());
        tries = options.tries();
        http = new Http(options);
        // As in all calls, the tokens are in the body, because URLs are logged.
        settleAttempt = attempt(gateway + "/v1/deliveries:settle", Answers::ended);
        settles = new Batcher<>(settleAttempt, tries);
        extensions = new Batcher<>(attempt(gateway + "/v1/deliveries:extend", Answers::ended), tries);
    }

    /**
     * Sends a message with the defaults of its topic.
     *
     * @param topic the topic
     * @param payload the payload
     * @return its receipt
     * @throws LisaException if the request failed; to repeat the send, use its id
     */
    public Sent send(String topic, Object payload) {
        return send(topic, payload, new SendOptions());
    }

    /**
     * Sends a message. Calls of several threads may be stored in any order.
     *
     * @param topic the topic
     * @param payload the payload. A {@code byte[]} and a {@code String} are sent unchanged, and everything else as JSON: maps with
     *     texts as keys, lists, numbers, booleans and null
     * @param options its options
     * @return its receipt
     * @throws LisaException if the request failed; to repeat the send, use its id
     */
    public Sent send(String topic, Object payload, SendOptions options) {
        return Values.await(sendAsync(topic, payload, options));
    }

    /**
     * Sends a message, and does not wait for its receipt. Limit the number of calls: unsent messages are kept in memory. Actions
     * that depend on the future must not block.
     *
     * @param topic the topic
     * @param payload the payload, as in {@link #send(String, Object, SendOptions)}
     * @param options its options
     * @return the receipt, or a LisaException
     */
    public CompletableFuture<Sent> sendAsync(String topic, Object payload, SendOptions options) {
        Item item = item(payload, options);
        String path = batchPath(topic);
        synchronized (sends) {
            if (!sends.containsKey(topic)) sends.values().removeIf(Batcher::isIdle);
            return sends.computeIfAbsent(topic, name -> new Batcher<>(attempt(path, Answers::sent), tries)).add(item);
        }
    }

    /**
     * Sends any number of messages in order, in batches. If a whole request is refused for a reason that repetition cannot cure, no
     * more are sent, and the rest has its error.
     *
     * @param topic the topic
     * @param messages the messages
     * @return a result for each, in order: its receipt, or its error
     */
    public List<Result<Sent>> sendMany(String topic, Collection<NewMessage> messages) {
        List<NewMessage> all = Values.list("messages", messages);
        List<Item> items = IntStream.range(0, all.size()).mapToObj(n -> item(n, all.get(n))).toList();
        return Batcher.sendInOrder(items, attempt(batchPath(topic), Answers::sent), tries);
    }

    /**
     * Looks up a message that is still stored.
     *
     * @param topic the topic
     * @param id the id of the message
     * @return the message
     * @throws LisaException if the request failed. {@link ProblemException#ended} says how a message ended, if that is known
     */
    public Message get(String topic, String id) {
        return call("GET", messagePath(topic, id), null, Map.of(), true, Answers::message);
    }

    /**
     * Looks up a message sent with an ordering key and an id of your own, without querying every shard.
     *
     * @param topic the topic
     * @param id the id of the message
     * @param key the ordering key, in ASCII
     * @return the message
     * @throws LisaException if the request failed. {@link ProblemException#ended} says how a message ended, if that is known
     */
    public Message get(String topic, String id, String key) {
        return call("GET", messagePath(topic, id), null, key(key), true, Answers::message);
    }

    /**
     * Cancels a message that has not been delivered yet.
     *
     * @param topic the topic
     * @param id the id of the message
     * @return the cancelled message
     * @throws LisaException if the request failed, or it is too late
     */
    public Cancelled cancel(String topic, String id) {
        return call("DELETE", messagePath(topic, id), null, Map.of(), true, Answers::cancelled);
    }

    /**
     * Cancels a message sent with an ordering key and an id of your own.
     *
     * @param topic the topic
     * @param id the id of the message
     * @param key the ordering key, in ASCII
     * @return the cancelled message
     * @throws LisaException if the request failed, or it is too late
     */
    public Cancelled cancel(String topic, String id, String key) {
        return call("DELETE", messagePath(topic, id), null, key(key), true, Answers::cancelled);
    }

    /**
     * Reschedules a message that has not been delivered yet.
     *
     * @param topic the topic
     * @param id the id of the message
     * @param delay the time from now until it is due
     * @return its receipt
     * @throws LisaException if the request failed, or it is too late
     */
    public Sent reschedule(String topic, String id, Duration delay) {
        return reschedule(topic, id, new SendOptions().delay(delay), Map.of());
    }

    /**
     * Reschedules a message sent with an ordering key and an id of your own.
     *
     * @param topic the topic
     * @param id the id of the message
     * @param delay the time from now until it is due
     * @param key the ordering key, in ASCII
     * @return its receipt
     * @throws LisaException if the request failed, or it is too late
     */
    public Sent reschedule(String topic, String id, Duration delay, String key) {
        return reschedule(topic, id, new SendOptions().delay(delay), key(key));
    }

    /**
     * Reschedules a message that has not been delivered yet.
     *
     * @param topic the topic
     * @param id the id of the message
     * @param deliverAt the new due time
     * @return its receipt
     * @throws LisaException if the request failed, or it is too late
     */
    public Sent reschedule(String topic, String id, Instant deliverAt) {
        return reschedule(topic, id, new SendOptions().deliverAt(deliverAt), Map.of());
    }

    /**
     * Reschedules a message sent with an ordering key and an id of your own.
     *
     * @param topic the topic
     * @param id the id of the message
     * @param deliverAt the new due time
     * @param key the ordering key, in ASCII
     * @return its receipt
     * @throws LisaException if the request failed, or it is too late
     */
    public Sent reschedule(String topic, String id, Instant deliverAt, String key) {
        return reschedule(topic, id, new SendOptions().deliverAt(deliverAt), key(key));
    }

    /**
     * Delivers now a message that is waiting for its due time or for its next attempt.
     *
     * @param topic the topic
     * @param id the id of the message
     * @return its receipt
     * @throws LisaException if the request failed, or it is too late
     */
    public Sent deliverNow(String topic, String id) {
        return call("POST", messagePath(topic, id) + "/deliver-now", null, Map.of(), false, Answers::sent);
    }

    /**
     * Delivers now a message sent with an ordering key and an id of your own.
     *
     * @param topic the topic
     * @param id the id of the message
     * @param key the ordering key, in ASCII
     * @return its receipt
     * @throws LisaException if the request failed, or it is too late
     */
    public Sent deliverNow(String topic, String id, String key) {
        return call("POST", messagePath(topic, id) + "/deliver-now", null, key(key), false, Answers::sent);
    }

    /**
     * Cancels all messages of an ordering key that have not been delivered yet. The topic needs {@code key_index}. They are
     * cancelled one by one: if the request failed, some may be.
     *
     * @param topic the topic
     * @param key the ordering key, in ASCII; for any other, {@link #list} its messages, and cancel each
     * @return the numbers of messages
     * @throws LisaException if the request failed
     */
    public CancelledKey cancelKey(String topic, String key) {
        return call("DELETE", messagesPath(producer, topic), null, key(key), false, Answers::cancelledKey);
    }

    /**
     * Reschedules all messages of an ordering key that have not been delivered yet. The topic needs {@code key_index}. They are
     * rescheduled one by one: if the request failed, some may be.
     *
     * @param topic the topic
     * @param key the ordering key, in ASCII; for any other, {@link #list} its messages, and reschedule each
     * @param delay the time from now until they are due
     * @return the numbers of messages
     * @throws LisaException if the request failed
     */
    public RescheduledKey rescheduleKey(String topic, String key, Duration delay) {
        return rescheduleKey(topic, key, new SendOptions().delay(delay));
    }

    /**
     * Reschedules all messages of an ordering key that have not been delivered yet. The topic needs {@code key_index}. They are
     * rescheduled one by one: if the request failed, some may be.
     *
     * @param topic the topic
     * @param key the ordering key, in ASCII; for any other, {@link #list} its messages, and reschedule each
     * @param deliverAt the new due time; a past one means now
     * @return the numbers of messages
     * @throws LisaException if the request failed
     */
    public RescheduledKey rescheduleKey(String topic, String key, Instant deliverAt) {
        return rescheduleKey(topic, key, new SendOptions().deliverAt(deliverAt));
    }

    /**
     * Lists messages, a page at a time. The manager answers it.
     *
     * @param topic the topic
     * @param options its options
     * @return a page of messages; {@link MessagePage#next} is the cursor of the next one
     * @throws LisaException if the request failed
     */
    public MessagePage list(String topic, ListOptions options) {
        String url = messagesPath(manager, topic) + Values.query(Values.required("options", options).values());
        int most = (int) options.values().getOrDefault("limit", MAX_PAGE);
        return call("GET", url, null, Map.of(), false, answer -> Answers.page(answer, most));
    }

    /**
     * Requeues messages from the garbage (dead letters) of the group {@code default}.
     *
     * @param topic the topic
     * @param ids the ids of the messages, at least one
     * @return the numbers of messages, and the ids that are missing
     * @throws LisaException if the request failed
     */
    public Requeued requeue(String topic, Collection<String> ids) {
        return requeue(topic, ids, "default");
    }

    /**
     * Requeues messages from the garbage (dead letters) of a group: delivers them again, with their attempts reset. The manager
     * answers it. If the request failed, some may be requeued: repeat it.
     *
     * @param topic the topic
     * @param ids the ids of the messages, at least one
     * @param group the name of the group
     * @return the numbers of messages, and the ids that are missing
     * @throws LisaException if the request failed
     */
    public Requeued requeue(String topic, Collection<String> ids, String group) {
        List<String> all = Values.list("ids", ids);
        if (all.isEmpty()) throw new IllegalArgumentException("ids: is empty");
        all.forEach(id -> Values.text("ids", id));
        String path = Values.path("topics", Values.text("topic", topic), "groups", Values.text("group", group), "garbage", "requeue");
        return call("POST", manager + path, Json.encode(Json.write(Map.of("ids", all))), Map.of(), false, Answers::requeued);
    }

    /**
     * Lists all topics by name, with their settings. The manager answers it.
     *
     * @return the topics
     * @throws LisaException if the request failed
     */
    public TopicList listTopics() {
        return listTopicsOf(Map.of());
    }

    /**
     * Lists topics by name, with their settings. The manager answers it.
     *
     * @param prefix the start of their names
     * @return the topics
     * @throws LisaException if the request failed
     */
    public TopicList listTopics(String prefix) {
        return listTopicsOf(Map.of("prefix", Values.text("prefix", prefix)));
    }

    private TopicList listTopicsOf(Map<String, Object> query) {
        // Up to 10,000 topics.
        return call("GET", manager + "/v1/topics" + Values.query(query), null, Map.of(), true, Answers::topicList);
    }

    /**
     * Returns a topic with its settings, groups and counts. The manager answers it.
     *
     * @param topic the topic
     * @return the topic
     * @throws LisaException if the request failed; with the code {@code unknown_topic} if there is none
     */
    public TopicDetails getTopic(String topic) {
        return call("GET", topicUrl(topic), null, Map.of(), false, Answers::topicDetails);
    }

    /**
     * Creates a topic, or replaces its settings. The manager answers it.
     *
     * @param topic the topic
     * @param settings those of {@code topics.NAME} in the configuration, such as {@code Map.of("lease", "1m")}; one that is
     *     missing has the value of {@code topic_defaults} of the manager, and a number of shards stays
     * @return the topic, with the settings in force
     * @throws LisaException if the request failed, or the configuration of the manager declares the topic
     */
    public Topic putTopic(String topic, Map<String, ?> settings) {
        return putTopicIf(topic, settings, Map.of());
    }

    /**
     * Creates a topic, or replaces its settings, if a condition is met. Settings that are in force already are a success in any case.
     * The manager answers it.
     *
     * @param topic the topic
     * @param settings as in {@link #putTopic(String, Map)}
     * @param condition {@link Condition#ifMatch} with an epoch, or {@link Condition#createOnly}
     * @return the topic, with the settings in force
     * @throws LisaException if the request failed; with the code {@code precondition_failed} if the condition is not met, and with
     *     {@code declared_in_file} if the configuration of the manager declares the topic
     */
    public Topic putTopic(String topic, Map<String, ?> settings, Condition condition) {
        return putTopicIf(topic, settings, Values.required("condition", condition).headers());
    }

    private Topic putTopicIf(String topic, Map<String, ?> settings, Map<String, String> condition) {
        String url = topicUrl(topic);
        String body = Json.write(Values.required("settings", settings));
        return call("PUT", url, Json.encode(body), condition, false, Answers::topic);
    }

    /**
     * Removes a topic that has no messages. From then on, it accepts none. The manager answers it.
     *
     * @param topic the topic
     * @return the topic that is being removed
     * @throws LisaException if the request failed; with the code {@code not_empty} if the topic has messages, with
     *     {@code declared_in_file} if the configuration of the manager declares it, and with {@code unknown_topic} if there is
     *     none, also if an earlier try without an answer has removed it
     */
    public TopicRemoval removeTopic(String topic) {
        return removeTopicBy(topic, "", Map.of());
    }

    /**
     * Removes a topic that may have messages. From then on, it accepts no new ones. The manager answers it.
     *
     * @param topic the topic
     * @param how {@code drain} removes the topic once it has delivered its messages, and {@code force} together with them
     * @return the topic that is being removed
     * @throws LisaException if the request failed; with the code {@code declared_in_file} if the configuration of the manager
     *     declares the topic, and with {@code unknown_topic} if there is none, also if an earlier try without an answer has
     *     removed it
     */
    public TopicRemoval removeTopic(String topic, String how) {
        return removeTopicBy(topic, removalQuery(how), Map.of());
    }

    /**
     * Removes a topic that has no messages, if it has an epoch.
     *
     * @param topic the topic
     * @param condition {@link Condition#ifMatch} with an epoch
     * @return the topic that is being removed
     * @throws LisaException as {@link #removeTopic(String)}; with the code {@code precondition_failed} if the topic has another epoch
     */
    public TopicRemoval removeTopic(String topic, Condition condition) {
        return removeTopicBy(topic, "", Values.required("condition", condition).ofRemoval());
    }

    /**
     * Removes a topic that may have messages, if it has an epoch, or is being removed in this way already.
     *
     * @param topic the topic
     * @param how as in {@link #removeTopic(String, String)}
     * @param condition {@link Condition#ifMatch} with an epoch
     * @return the topic that is being removed
     * @throws LisaException as {@link #removeTopic(String, String)}; with the code {@code precondition_failed} if the topic has another
     *     epoch
     */
    public TopicRemoval removeTopic(String topic, String how, Condition condition) {
        return removeTopicBy(topic, removalQuery(how), Values.required("condition", condition).ofRemoval());
    }

    private TopicRemoval removeTopicBy(String topic, String query, Map<String, String> condition) {
        return call("DELETE", topicUrl(topic) + query, null, condition, false, Answers::topicRemoval);
    }

    private static String removalQuery(String how) {
        if (REMOVALS.contains(Values.text("how", how))) return Values.query(Map.of("how", how));
        throw new IllegalArgumentException("how: \"" + how + "\" is neither drain nor force");
    }

    /**
     * Pauses a topic: due messages collect in the backlog of each group. The manager answers it.
     *
     * @param topic the topic
     * @return its state
     * @throws LisaException if the request failed; with the code {@code unknown_topic} if there is none
     */
    public TopicPaused pauseTopic(String topic) {
        return post(topicUrl(topic) + "/pause", Answers::topicPaused);
    }

    /**
     * Resumes a paused topic. The manager answers it.
     *
     * @param topic the topic
     * @return its state
     * @throws LisaException if the request failed; with the code {@code unknown_topic} if there is none
     */
    public TopicPaused resumeTopic(String topic) {
        return post(topicUrl(topic) + "/resume", Answers::topicPaused);
    }

    /**
     * Pauses a group: messages that become due for it collect in its backlog. Other groups are not affected. The manager answers it.
     *
     * @param topic the topic
     * @param group the name of the group
     * @return its state
     * @throws LisaException if the request failed; with the code {@code not_found} if there is no such group
     */
    public GroupPaused pauseGroup(String topic, String group) {
        return post(groupUrl(topic, group) + "/pause", Answers::groupPaused);
    }

    /**
     * Resumes a paused group. The manager answers it.
     *
     * @param topic the topic
     * @param group the name of the group
     * @return its state
     * @throws LisaException if the request failed; with the code {@code not_found} if there is no such group
     */
    public GroupPaused resumeGroup(String topic, String group) {
        return post(groupUrl(topic, group) + "/resume", Answers::groupPaused);
    }

    /**
     * Drains a group: it gets no new messages, and is removed within a minute after its last one is finished. If the configuration of
     * the manager does not declare the topic, its settings then do not name the group any more. The manager answers it.
     *
     * @param topic the topic
     * @param group the name of the group
     * @return its state
     * @throws LisaException if the request failed; with the code {@code not_found} if there is no such group, also if it is gone since an
     *     earlier try without an answer
     */
    public GroupRetired drainGroup(String topic, String group) {
        return post(groupUrl(topic, group) + "/drain", Answers::groupRetired);
    }

    /**
     * Drops the messages of a group, which cannot be undone, and removes it. It drops messages for up to 2 s, and a manager begins to
     * drop those that are left within a minute. For the settings of the topic, see {@link #drainGroup}. The manager answers it.
     *
     * @param topic the topic
     * @param group the name of the group
     * @return its state
     * @throws LisaException as {@link #drainGroup}
     */
    public GroupRetired dropGroup(String topic, String group) {
        return post(groupUrl(topic, group) + "/drop", Answers::groupRetired);
    }

    /**
     * Cancels a drain or drop: the group gets messages again, except those dropped or due in the meantime. If the configuration of the
     * manager does not declare the topic, its settings name the group again. The manager answers it.
     *
     * @param topic the topic
     * @param group the name of the group
     * @return its state
     * @throws LisaException if the request failed; with the code {@code not_found} if there is no such group
     */
    public GroupRetired keepGroup(String topic, String group) {
        return post(groupUrl(topic, group) + "/keep", Answers::groupRetired);
    }

    /** Sends a request without a body. */
    private <T> T post(String url, Function<Object, T> read) {
        return call("POST", url, null, Map.of(), false, read);
    }

    private String groupUrl(String topic, String group) {
        return manager + Values.path("topics", Values.text("topic", topic), "groups", Values.text("group", group));
    }

    private String topicUrl(String topic) {
        return manager + Values.path("topics", Values.text("topic", topic));
    }

    /**
     * Lists schedules by name, a page at a time. The manager answers it.
     *
     * @param options its options
     * @return a page of schedules; {@link SchedulePage#next} is the cursor of the next one
     * @throws LisaException if the request failed
     */
    public SchedulePage listSchedules(PageOptions options) {
        String url = manager + "/v1/schedules" + Values.query(Values.required("options", options).values());
        return call("GET", url, null, Map.of(), false, answer -> Answers.schedulePage(answer, options.most()));
    }

    /**
     * Returns a schedule with its definition and its next times. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @return the schedule
     * @throws LisaException if the request failed; with the code {@code not_found} if there is no such schedule
     */
    public Schedule getSchedule(String schedule) {
        return call("GET", scheduleUrl(schedule), null, Map.of(), false, Answers::schedule);
    }

    /**
     * Creates a schedule, or replaces its definition. At each time of its {@code cron}, the schedule sends a message to its
     * {@code topic}. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @param definition the fields of {@code schedules.NAME} in the configuration, such as
     *     {@code Map.of("topic", "reports", "cron", "0 0 6 * * *")}; one that is missing has its default
     * @return the schedule, with its next times
     * @throws LisaException if the request failed; with the code {@code unknown_topic} if there is no such topic, and with
     *     {@code declared_in_file} if the configuration of the manager declares the schedule
     */
    public Schedule putSchedule(String schedule, Map<String, ?> definition) {
        return putScheduleIf(schedule, definition, Map.of());
    }

    /**
     * Creates a schedule, or replaces its definition, if a condition is met. A definition that is in force already is a success in any
     * case. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @param definition as in {@link #putSchedule(String, Map)}
     * @param condition {@link Condition#ifMatch} with a version, or {@link Condition#createOnly}
     * @return the schedule, with its next times
     * @throws LisaException as {@link #putSchedule(String, Map)}; with the code {@code precondition_failed} if the condition is not met
     */
    public Schedule putSchedule(String schedule, Map<String, ?> definition, Condition condition) {
        return putScheduleIf(schedule, definition, Values.required("condition", condition).headers());
    }

    private Schedule putScheduleIf(String schedule, Map<String, ?> definition, Map<String, String> condition) {
        String url = scheduleUrl(schedule);
        byte[] content = Json.encode(Json.write(Values.required("definition", definition)));
        return call("PUT", url, content, condition, false, Answers::schedule);
    }

    /**
     * Removes a schedule. The messages that it has sent stay. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @throws LisaException if the request failed; with the code {@code declared_in_file} if the configuration of the manager
     *     declares the schedule, and with {@code not_found} if there is none, also if an earlier try without an answer has
     *     removed it
     */
    public void removeSchedule(String schedule) {
        call("DELETE", scheduleUrl(schedule), null, Map.of(), false, Answers::nothing);
    }

    /**
     * Removes a schedule, if it has a version. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @param condition {@link Condition#ifMatch} with a version
     * @throws LisaException as {@link #removeSchedule(String)}; with the code {@code precondition_failed} if the schedule has another
     *     version
     */
    public void removeSchedule(String schedule, Condition condition) {
        call("DELETE", scheduleUrl(schedule), null, Values.required("condition", condition).ofRemoval(), false, Answers::nothing);
    }

    /**
     * Sends a message, due now, for each time of a schedule from a time until now. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @param from the first time
     * @return the number of messages
     * @throws LisaException as {@link #backfillSchedule(String, Instant, Instant, boolean)}
     */
    public Backfilled backfillSchedule(String schedule, Instant from) {
        return backfillSchedule(schedule, Map.of("from", Values.instant("from", from)));
    }

    /**
     * Sends a message, due now, for each time of a schedule in a period. A time for which there is a message already, within the
     * {@code dedup_window} of the topic, is skipped. A call sends up to 1,000 messages: {@link Backfilled#next} is the {@code from} of
     * the next one. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @param from the first time
     * @param to the end, which is not part of the period
     * @param dryRun true to count the times, and send nothing
     * @return the number of messages
     * @throws LisaException if the request failed; with the code {@code not_found} if there is no such schedule, with
     *     {@code unknown_topic} if its topic does not exist, and with {@code full} if the topic is full
     */
    public Backfilled backfillSchedule(String schedule, Instant from, Instant to, boolean dryRun) {
        return backfillSchedule(schedule,
                Map.of("from", Values.instant("from", from), "to", Values.instant("to", to), "dry_run", dryRun));
    }

    private Backfilled backfillSchedule(String schedule, Map<String, Object> period) {
        byte[] content = Json.encode(Json.write(period));
        return call("POST", scheduleUrl(schedule, "backfill"), content, Map.of(), false, Answers::backfilled);
    }

    /**
     * Pauses a schedule: it sends nothing until it is resumed. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @return its state
     * @throws LisaException if the request failed; with the code {@code not_found} if there is no such schedule
     */
    public SchedulePaused pauseSchedule(String schedule) {
        return post(scheduleUrl(schedule, "pause"), Answers::schedulePaused);
    }

    /**
     * Resumes a paused schedule. It does not send for the times that have passed. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @return its state
     * @throws LisaException if the request failed; with the code {@code not_found} if there is no such schedule
     */
    public SchedulePaused resumeSchedule(String schedule) {
        return post(scheduleUrl(schedule, "resume"), Answers::schedulePaused);
    }

    /**
     * Sends a message of a schedule now, also if it is paused. Two runs in the same second send one message. A failed run is not
     * repeated, because it may have sent the message, and a later second has another one. The manager answers it.
     *
     * @param schedule the name of the schedule
     * @return the message
     * @throws LisaException if the request failed; with the code {@code not_found} if there is no such schedule, and with
     *     {@code unknown_topic} if its topic does not exist
     */
    public ScheduleRun runSchedule(String schedule) {
        Http.Request request = new Http.Request("POST", scheduleUrl(schedule, "run"), null, Map.of(), false, Duration.ZERO);
        return once(request, Answers::scheduleRun);
    }

    /**
     * Returns the token of the client: its scopes, what it reaches, its quotas and what is used of them. The manager answers it, and it
     * needs a token with any scope.
     *
     * @return the token
     * @throws LisaException if the request failed; with the code {@code not_found} if no tokens are configured
     */
    public OwnToken ownToken() {
        return call("GET", manager + "/v1/token", null, Map.of(), false, Answers::ownToken);
    }

    /**
     * Lists tokens by name, without their secrets, a page at a time. The manager answers it, and it needs the scope {@code tokens}.
     *
     * @param options its options
     * @return a page of tokens; {@link TokenPage#next} is the cursor of the next one
     * @throws LisaException if the request failed
     */
    public TokenPage listTokens(PageOptions options) {
        String url = manager + "/v1/tokens" + Values.query(Values.required("options", options).values());
        return call("GET", url, null, Map.of(), false, answer -> Answers.tokenPage(answer, options.most()));
    }

    /**
     * Returns a token, without its secret. The manager answers it, and it needs the scope {@code tokens}.
     *
     * @param token the name of the token
     * @return the token
     * @throws LisaException if the request failed; with the code {@code not_found} if there is none
     */
    public Token getToken(String token) {
        return call("GET", tokenUrl(token), null, Map.of(), false, Answers::token);
    }

    /**
     * Creates a token, or replaces its permissions. The manager generates the secret of a new token, unless there is a {@code sha256}, and
     * only this call returns it. A failed call is not repeated, because a repeat would not return the secret: rotate the token then. The
     * manager answers it, and it needs the scope {@code tokens}.
     *
     * @param token the name of the token
     * @param definition its fields, which are those of {@code PUT /v1/tokens/{token}}
     * @return the token, with its secret if the manager has generated it
     * @throws LisaException if the request failed; with the code {@code declared_in_file} if the configuration of the manager declares the token
     */
    public ChangedToken putToken(String token, Map<String, ?> definition) {
        return changeToken("PUT", tokenUrl(token), Values.required("definition", definition), Map.of());
    }

    /**
     * Creates a token, or replaces its permissions, if a condition is met. A token that is already as the definition says is a success in
     * any case.
     *
     * @param token the name of the token
     * @param definition as in {@link #putToken(String, Map)}
     * @param condition {@link Condition#ifMatch} with a version, or {@link Condition#createOnly}
     * @return the token, with its secret if the manager has generated it
     * @throws LisaException as {@link #putToken(String, Map)}; with the code {@code precondition_failed} if the condition is not met
     */
    public ChangedToken putToken(String token, Map<String, ?> definition, Condition condition) {
        Map<String, String> headers = Values.required("condition", condition).headers();
        return changeToken("PUT", tokenUrl(token), Values.required("definition", definition), headers);
    }

    /**
     * Begins to replace the secret of a token: the new one and the previous one are accepted until {@link #finishRotation} or
     * {@link #cancelRotation}. A failed call is not repeated. If the new secret is lost, cancel and begin again. The manager answers it.
     *
     * @param token the name of the token
     * @return the token, with its new secret
     * @throws LisaException if the request failed; with the code {@code busy} if a rotation has begun already, with {@code declared_in_file} if
     *     the configuration of the manager declares the token, and with {@code not_found} if there is none
     */
    public ChangedToken rotateToken(String token) {
        return rotateToken(token, "begin");
    }

    /**
     * Accepts only the new secret of a token. The manager answers it.
     *
     * @param token the name of the token
     * @return the token
     * @throws LisaException as {@link #rotateToken}
     */
    public ChangedToken finishRotation(String token) {
        return rotateToken(token, "finish");
    }

    /**
     * Accepts only the previous secret of a token. The manager answers it.
     *
     * @param token the name of the token
     * @return the token
     * @throws LisaException as {@link #rotateToken}
     */
    public ChangedToken cancelRotation(String token) {
        return rotateToken(token, "cancel");
    }

    /**
     * Removes a token: no process accepts it a few seconds later. The manager answers it.
     *
     * @param token the name of the token
     * @throws LisaException if the request failed; with the code {@code declared_in_file} if the configuration of the manager declares the
     *     token, and with {@code not_found} if there is none, also if an earlier try without an answer has removed it
     */
    public void removeToken(String token) {
        call("DELETE", tokenUrl(token), null, Map.of(), false, Answers::nothing);
    }

    /**
     * Removes a token, if it has a version. The manager answers it.
     *
     * @param token the name of the token
     * @param condition {@link Condition#ifMatch} with a version
     * @throws LisaException as {@link #removeToken(String)}; with the code {@code precondition_failed} if the token has another version
     */
    public void removeToken(String token, Condition condition) {
        call("DELETE", tokenUrl(token), null, Values.required("condition", condition).ofRemoval(), false, Answers::nothing);
    }

    private ChangedToken rotateToken(String token, String step) {
        return changeToken("POST", tokenUrl(token) + "/rotate", Map.of("step", step), Map.of());
    }

    private ChangedToken changeToken(String method, String url, Map<String, ?> body, Map<String, String> condition) {
        Http.Request request = new Http.Request(method, url, Json.encode(Json.write(body)), condition, false, Duration.ZERO);
        return once(request, Answers::changedToken);
    }

    private String tokenUrl(String token) {
        return manager + Values.path("tokens", Values.text("token", token));
    }

    private String scheduleUrl(String schedule) {
        return manager + Values.path("schedules", Values.text("schedule", schedule));
    }

    private String scheduleUrl(String schedule, String verb) {
        return scheduleUrl(schedule) + "/" + verb;
    }

    /**
     * Pulls messages. An interrupt ends the pull. It is not repeated if it fails, because a lost answer may hold messages until
     * their leases end: the caller decides.
     *
     * @param topic the topic
     * @param options its options
     * @return the deliveries; none if no message became ready in time
     * @throws LisaException if the request failed
     */
    public List<Delivery> pull(String topic, PullOptions options) {
        CompletableFuture<Void> stop = new CompletableFuture<>();
        try {
            return Values.await(pullAsync(topic, options, settles, stop));
        } finally {
            stop.complete(null);
        }
    }

    /** Pulls messages, which are settled by a batcher. */
    CompletableFuture<List<Delivery>> pullAsync(
            String topic, PullOptions options, Batcher<Ended> settles, CompletableFuture<Void> stop) {
        String url = groupPath(topic, Values.required("options", options).group(), "pull");
        Http.Request request = new Http.Request("POST", url, Json.encode(Json.write(options.values())), Map.of(), true, PULL_WAIT);
        return http.exchange(request, answer -> Answers.deliveries(answer, options, this, settles), stop);
    }

    /** Settles in one request, once, and then pulls messages, which are settled by a batcher. */
    CompletableFuture<SettledAndPulled> settleAndPullAsync(String topic, List<Item> items, PullOptions options, Batcher<Ended> settles) {
        String url = groupPath(topic, options.group(), "settle-and-pull") + Values.query(options.values());
        Http.Request request = new Http.Request("POST", url, Item.array(items), Map.of(), true, Duration.ZERO);
        Function<Object, SettledAndPulled> read = answer -> Answers.settledAndPulled(answer, items.size(), options, this, settles);
        return http.exchange(request, read, new CompletableFuture<>());
    }

    /**
     * Settles a delivery by its token.
     *
     * @param token the token of the delivery
     * @param outcome the outcome
     * @return what became of the message
     * @throws LisaException if the request failed
     */
    public Ended settle(String token, Outcome outcome) {
        return Values.await(settles.add(Item.of(new Settlement(token, outcome))));
    }

    /**
     * Settles many deliveries in order, in batches. If a whole request is refused with an error that is not retryable, no more
     * are sent, and the rest has its error.
     *
     * @param settlements the deliveries and their outcomes
     * @return a result for each, in order: what became of the message, or its error
     */
    public List<Result<Ended>> settleMany(Collection<Settlement> settlements) {
        List<Item> items = Values.list("settlements", settlements).stream().map(Item::of).toList();
        return Batcher.sendInOrder(items, settleAttempt, tries);
    }

    /**
     * Replaces the lease of a delivery with a new one that starts now.
     *
     * @param token the token of the delivery
     * @param lease its length, 1 s to 12 h
     * @return the new end of the lease
     * @throws LisaException if the request failed
     */
    public Ended extend(String token, Duration lease) {
        return Values.await(extendAsync(token, Values.required("lease", lease)));
    }

    CompletableFuture<Ended> extendAsync(String token, Duration lease) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("token", Values.text("token", token));
        if (lease != null) body.put("lease", Values.duration("lease", lease));
        return extensions.add(new Item(body));
    }

    /**
     * Creates a worker, which pulls messages and runs a handler for each. It does not run yet.
     *
     * @param topic the topic
     * @param handler handles the messages
     * @param options its options
     * @return the worker
     * @throws IllegalArgumentException if arguments are wrong; it names all of them
     */
    public Worker worker(String topic, Handler handler, WorkOptions options) {
        return new Worker(this, topic, handler, options);
    }

    /**
     * Runs a worker in this thread, until the thread is interrupted. Use {@link #worker} to stop it in another way.
     *
     * @param topic the topic
     * @param handler handles the messages
     * @param options its options
     * @throws LisaException if a pull failed with an error that a retry cannot fix
     * @throws IllegalArgumentException if arguments are wrong; it names all of them
     */
    public void work(String topic, Handler handler, WorkOptions options) {
        worker(topic, handler, options).run();
    }

    /** Returns a function that sends items to a URL, once. */
    private <T> Batcher.Attempt<T> attempt(String url, Function<Object, T> read) {
        return items -> {
            Http.Request request = new Http.Request("POST", url, Item.array(items), Map.of(), false, Duration.ZERO);
            return http.exchange(request, answer -> Answers.results(answer, items.size(), read), new CompletableFuture<>());
        };
    }

    private Sent reschedule(String topic, String id, SendOptions due, Map<String, String> key) {
        return call("PATCH", messagePath(topic, id), Json.encode(Json.write(due.values())), key, false, Answers::sent);
    }

    private RescheduledKey rescheduleKey(String topic, String key, SendOptions due) {
        byte[] content = Json.encode(Json.write(due.values()));
        return call("PATCH", messagesPath(producer, topic), content, key(key), false, Answers::rescheduledKey);
    }

    /** Sends a request until it has an answer that is no reason to repeat it. */
    private <T> T call(
            String method, String url, byte[] content, Map<String, String> headers, boolean hasPayloads, Function<Object, T> read) {
        Http.Request request = new Http.Request(method, url, content, headers, hasPayloads, Duration.ZERO);
        for (int attempt = 1; ; attempt++) {
            try {
                return once(request, read);
            } catch (LisaException error) {
                if (!error.isRetryable() || attempt >= tries) throw error;
                Values.await(Values.pause(attempt, error.retryAfter()));
            }
        }
    }

    /** Sends a request once. An interrupt closes its connection. */
    private <T> T once(Http.Request request, Function<Object, T> read) {
        CompletableFuture<Void> stop = new CompletableFuture<>();
        try {
            return Values.await(http.exchange(request, read, stop));
        } finally {
            stop.complete(null);
        }
    }

    private String messagePath(String topic, String id) {
        return producer + Values.path("topics", Values.text("topic", topic), "messages", Values.text("id", id));
    }

    private static String messagesPath(String base, String topic) {
        return base + Values.path("topics", Values.text("topic", topic), "messages");
    }

    private String groupPath(String topic, String group, String call) {
        return gateway + Values.path("topics", Values.text("topic", topic), "groups", group, call);
    }

    private String batchPath(String topic) {
        return messagesPath(producer, topic) + ":batch";
    }

    private static Map<String, String> key(String key) {
        // The HTTP client of the JDK replaces all other characters.
        boolean isAscii = Values.text("key", key).chars().allMatch(one -> one >= ' ' && one <= '~') && key.strip().equals(key);
        if (!isAscii) throw new IllegalArgumentException("key: cannot be a header; use ids of messages, without a key");
        return Map.of("lisa-key", key);
    }

    private static Item item(int index, NewMessage message) {
        try {
            return item(message.payload(), message.options());
        } catch (IllegalArgumentException error) {
            throw new IllegalArgumentException("messages[" + index + "]: " + error.getMessage(), error);
        }
    }

    private static Item item(Object payload, SendOptions options) {
        Map<String, Object> body = new LinkedHashMap<>(Values.required("options", options).values());
        body.putIfAbsent("id", Values.newId());
        if (payload instanceof byte[] bytes) {
            body.put("payload_base64", Base64.getEncoder().encodeToString(bytes));
            addContentType(body, "application/octet-stream");
        } else if (payload instanceof String text) {
            body.put("payload_text", Values.sendable("payload", text));
            addContentType(body, "text/plain; charset=utf-8");
        } else {
            body.put("payload_text", Values.json("payload", payload));
            addContentType(body, "application/json");
        }
        return new Item(body);
    }

    private static void addContentType(Map<String, Object> body, String type) {
        Map<String, Object> headers = new LinkedHashMap<>();
        if (body.get("headers") instanceof Map<?, ?> given) given.forEach((name, value) -> headers.put((String) name, value));
        if (headers.keySet().stream().noneMatch("content-type"::equalsIgnoreCase)) headers.put("content-type", type);
        body.put("headers", headers);
    }

    private static String checkUrl(String name, String url) {
        String text = Values.text(name, url).replaceFirst("/+$", "");
        String problem = problemOf(text);
        if (problem == null) return text;
        // The user info may be a secret.
        throw new IllegalArgumentException(name + ": \"" + text.replaceFirst("^(https?://)?.*@", "$1…@") + "\" " + problem);
    }

    /** Returns what is wrong with a URL, or null. */
    private static String problemOf(String url) {
        URI uri;
        try {
            uri = new URI(url);
        } catch (URISyntaxException error) {
            return "is not a URL";
        }
        if (!"http".equalsIgnoreCase(uri.getScheme()) && !"https".equalsIgnoreCase(uri.getScheme())) return "has neither http nor https";
        String authority = uri.getRawAuthority();
        if (authority == null) return "has no host";
        if (authority.contains("@")) return "has a user, which is not allowed: set a token";
        if (uri.getRawQuery() != null) return "has a query, which is not allowed";
        if (uri.getRawFragment() != null) return "has a fragment, which is not allowed";
        if (uri.getHost() == null && authority.contains("_")) return "has an underscore in its host, which the HTTP client of the JDK refuses";
        if (uri.getHost() == null) return "has no valid host";
        if (uri.getPort() == 0 || uri.getPort() > 65535) return "has a port that is not 1 to 65535";
        return null;
    }
}
