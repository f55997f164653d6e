package lisa.relay;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** A message that was pulled, and its lease. Settle it before the lease ends; else the attempt has failed. */
public final class Delivery {
    private final Lisa lisa;
    private final Batcher<Ended> settles;
    private final String id;
    private final String token;
    private final int attempt;
    private final int maxAttempts;
    private final Instant dueAt;
    private final String key;
    private final Map<String, String> headers;
    private final byte[] payload;
    private final CompletableFuture<Void> lost = new CompletableFuture<>();
    private volatile Instant leaseUntil;
    private volatile boolean isSettled;
    private volatile boolean isAcked;

    /** Creates one that is settled by a batcher: that of its worker, or that of the client. */
    Delivery(Lisa lisa, Batcher<Ended> settles, Map<?, ?> body) {
        this.lisa = lisa;
        this.settles = settles;
        id = Answers.text(body, "id");
        token = Answers.text(body, "token");
        attempt = Answers.number(body, "attempt");
        maxAttempts = Answers.number(body, "max_attempts");
        dueAt = Answers.instant(body, "due_at");
        key = Answers.textOrNull(body, "key");
        headers = Answers.headers(body);
        payload = Values.required("payload", Answers.payload(body));
        leaseUntil = Answers.instant(body, "lease_until");
    }

    /**
     * Returns the id of the message, which is the same in every attempt.
     *
     * @return the id
     */
    public String id() {
        return id;
    }

    /**
     * Returns the token that settles the delivery. It is a secret.
     *
     * @return the token
     */
    public String token() {
        return token;
    }

    /**
     * Returns the number of this attempt.
     *
     * @return the number, from 1
     */
    public int attempt() {
        return attempt;
    }

    /**
     * Returns the number of the last attempt: if both are equal, a failure moves the message to garbage (dead letters).
     *
     * @return the number
     */
    public int maxAttempts() {
        return maxAttempts;
    }

    /**
     * Returns the due time of this attempt.
     *
     * @return the time
     */
    public Instant dueAt() {
        return dueAt;
    }

    /**
     * Returns the end of the lease, on the clock of the server.
     *
     * @return the time
     */
    public Instant leaseUntil() {
        return leaseUntil;
    }

    /**
     * Returns the ordering key.
     *
     * @return the key, or null
     */
    public String key() {
        return key;
    }

    /**
     * Returns the headers of the message, with names in lower case.
     *
     * @return the headers
     */
    public Map<String, String> headers() {
        return headers;
    }

    /**
     * Returns the payload, which is not copied.
     *
     * @return the bytes
     */
    public byte[] payload() {
        return payload;
    }

    /**
     * Returns the payload as text.
     *
     * @return the text
     * @throws IllegalArgumentException if it is not UTF-8
     */
    public String text() {
        return Json.decode(payload);
    }

    /**
     * Parses the payload as JSON: a Map, List, String, Long, Double, Boolean or null. A whole number beyond a Long is a Double.
     *
     * @return the value
     * @throws IllegalArgumentException if it is not JSON, or more than 100 arrays and objects are nested
     */
    public Object json() {
        return Json.read(text());
    }

    /**
     * Returns true once the delivery was settled, or is known to be stale.
     *
     * @return true if it needs no outcome
     */
    public boolean isSettled() {
        return isSettled;
    }

    /**
     * Returns true if a {@link Worker} could not extend the lease because it was lost. Another worker may have the message.
     *
     * @return true if the outcome will be ignored
     */
    public boolean isLost() {
        return lost.isDone();
    }

    /**
     * Runs an action once the {@link Worker} finds out that the lease was lost, such as an interrupt of the handler's thread. It
     * must not block.
     *
     * @param action the action
     */
    public void onLost(Runnable action) {
        lost.thenRun(Values.required("action", action));
    }

    /**
     * Acknowledges the message: the work is done.
     *
     * @return the outcome
     * @throws LisaException if the request failed
     */
    public Ended ack() {
        return settle(Outcome.ack());
    }

    /**
     * Reports a failed attempt. The retry policy decides on the next one.
     *
     * @param error the error
     * @return the outcome
     * @throws LisaException if the request failed
     */
    public Ended retry(String error) {
        return settle(Outcome.retry(error));
    }

    /**
     * Reports a failed attempt, and sets the time until the next one.
     *
     * @param after the time until the next attempt
     * @param error the error
     * @return the outcome
     * @throws LisaException if the request failed
     */
    public Ended retry(Duration after, String error) {
        return settle(Outcome.retry(after, error));
    }

    /**
     * Delivers the message again later, without counting an attempt.
     *
     * @param after the time until then
     * @return the outcome
     * @throws LisaException if the request failed
     */
    public Ended defer(Duration after) {
        return settle(Outcome.defer(after));
    }

    /**
     * Delivers the message again later, without counting an attempt.
     *
     * @param until the time of the next delivery
     * @return the outcome
     * @throws LisaException if the request failed
     */
    public Ended defer(Instant until) {
        return settle(Outcome.defer(until));
    }

    /**
     * Moves the message to garbage (dead letters).
     *
     * @param error the error
     * @return the outcome
     * @throws LisaException if the request failed
     */
    public Ended reject(String error) {
        return settle(Outcome.reject(error));
    }

    /**
     * Settles the delivery.
     *
     * @param outcome the outcome
     * @return what became of the message
     * @throws LisaException if the request failed
     */
    public Ended settle(Outcome outcome) {
        return Values.await(settleAsync(outcome));
    }

    /** Returns true once the delivery was acknowledged. */
    boolean isAcked() {
        return isAcked;
    }

    /** Returns the deliveries of each ordering key, in order. One without a key is alone. */
    static Collection<List<Delivery>> runs(List<Delivery> deliveries) {
        Map<Object, List<Delivery>> runs = new LinkedHashMap<>();
        for (Delivery one : deliveries) {
            runs.computeIfAbsent(one.key == null ? one : one.key, key -> new ArrayList<>()).add(one);
        }
        return runs.values();
    }

    CompletableFuture<Ended> settleAsync(Outcome outcome) {
        return Values.after(Values.begin(() -> settles.add(Item.of(new Settlement(token, outcome)))), (ended, error) -> {
            if (ended != null && ended.outcome().equals("acked")) isAcked = true;
            if (ended != null || (error instanceof ProblemException problem && problem.isStale())) isSettled = true;
        });
    }

    /**
     * Replaces the lease with a new one that starts now and is as long as that of the topic.
     *
     * @return the new end of the lease
     * @throws LisaException if the request failed
     */
    public Ended extend() {
        return Values.await(extendAsync(null));
    }

    /**
     * Replaces the lease with a new one that starts now.
     *
     * @param lease its length, 1 s to 12 h
     * @return the new end of the lease
     * @throws LisaException if the request failed
     */
    public Ended extend(Duration lease) {
        return Values.await(extendAsync(Values.required("lease", lease)));
    }

    CompletableFuture<Ended> extendAsync(Duration lease) {
        return Values.after(Values.begin(() -> lisa.extendAsync(token, lease)), (ended, error) -> {
            if (ended != null && ended.leaseUntil() != null) leaseUntil = ended.leaseUntil();
        });
    }

    void setLost() {
        lost.complete(null);
    }

    /** Omits the token, which is a secret. */
    @Override
    public String toString() {
        return "Delivery[id=" + id + ", attempt=" + attempt + "]";
    }
}
