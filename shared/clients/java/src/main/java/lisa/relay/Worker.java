package lisa.relay;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;

/**
 * Pulls messages and runs a handler for each. It acknowledges a message when the handler returns null, and reports a failed attempt
 * when it throws. The lease is extended while the handler runs. A pull that fails is repeated, unless a retry cannot fix the error.
 *
 * <p>It pulls a run of messages for each free handler: those of one ordering key, or one message without a key. Outcomes are sent in
 * batches while the next messages are pulled and handled: as many outcomes as messages may be in flight. While messages are ready, a
 * batch of outcomes is also a pull.
 */
public final class Worker implements Runnable, AutoCloseable {
    private static final System.Logger LOGGER = System.getLogger("lisa.relay");
    /** The most pulls in flight. */
    private static final int MAX_PULLS = 2;
    /** The messages that are worth a pull of their own: one request for 50 costs less than two for 25. */
    private static final int FEW = 50;
    /** The time after a stop for which outcomes are repeated, in milliseconds. */
    private static final long GRACE = 30_000;
    // The rules of Lisa.
    private static final Pattern TOPIC = Pattern.compile("[A-Za-z0-9_][A-Za-z0-9._-]{0,79}");
    private static final Pattern GROUP = Pattern.compile("[a-z0-9][a-z0-9_-]{0,63}");
    private static final Duration MIN_LEASE = Duration.ofSeconds(1);
    private static final Duration MAX_LEASE = Duration.ofHours(12);
    private static final int MAX_CONSUMER = 100;

    private final Lisa lisa;
    private final String topic;
    private final Handler handler;
    private final WorkOptions options;
    private final PullOptions pullOptions;
    /** The length of the lease, and the time between looks at the leases, in milliseconds. */
    private final long lease;
    private final long lookEvery;
    private long nextLook = now();
    private Executor executor;
    private final AtomicInteger failures = new AtomicInteger();
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    /** Settles the deliveries of this worker. */
    private final Batcher<Ended> settles;

    // This object guards what follows.
    private final Set<Running> running = new HashSet<>();
    /** The runs, each of which has a handler. */
    private int runs;
    /** The pulls that a stop ends, and the pauses after failed ones. Completing one ends it. */
    private final Set<CompletableFuture<Void>> waits = new HashSet<>();
    /** The pulls in flight, and the runs that they ask for. */
    private int pulls;
    private int requested;
    /** The outcomes that are not settled yet, and those in requests. */
    private int settling;
    private int sending;
    /** True if the last pull found so many messages that more are probably ready. */
    private boolean areReady;
    /** True once a request that also pulls was refused. */
    private boolean isRefused;
    private boolean hasBegun;
    private boolean isStopped;
    private RuntimeException failure;
    private volatile long repeatUntil = Long.MAX_VALUE;

    /** A delivery whose handler runs, or waits for those before it in its run. */
    private static final class Running {
        final Delivery delivery;
        final Run run;
        volatile long extendedAt = now();

        Running(Delivery delivery, Run run) {
            this.delivery = delivery;
            this.run = run;
        }
    }

    /** The messages of one ordering key in a pull, which are handled one after another, or one message without a key. */
    private static final class Run {
        final Queue<Running> waiting = new ArrayDeque<>();
        /** True once a message of it was not acknowledged. Those behind it have to be delivered after it. */
        boolean isBroken;

        Run(List<Delivery> deliveries) {
            deliveries.forEach(one -> waiting.add(new Running(one, this)));
        }
    }

    /** A settlement that has begun. */
    private record Settling(Running one, Outcome outcome, CompletableFuture<Ended> settled) {}

    Worker(Lisa lisa, String topic, Handler handler, WorkOptions options) {
        check(topic, handler, Values.required("options", options));
        this.lisa = lisa;
        this.topic = topic;
        this.handler = handler;
        this.options = options;
        PullOptions pull = new PullOptions().group(options.group()).lease(options.lease());
        pullOptions = options.consumer() == null ? pull : pull.consumer(options.consumer());
        lease = options.lease().toMillis();
        lookEvery = Math.max(10, lease / 6);
        settles = new Batcher<>(this::send, lisa.tries);
    }

    /** Throws one error for all wrong arguments. Later, they would count as failed attempts of messages. */
    private static void check(String topic, Handler handler, WorkOptions options) {
        List<String> problems = new ArrayList<>();
        check(problems, () -> Values.name("topic", topic, TOPIC));
        check(problems, () -> Values.required("handler", handler));
        check(problems, () -> Values.name("group", options.group(), GROUP));
        check(problems, () -> Values.deliveries("maxPerKey", options.maxPerKey()));
        if (options.concurrency() < 1) problems.add("concurrency: " + options.concurrency() + " is less than 1");
        check(problems, () -> checkLease(options.lease()));
        if (options.consumer() != null) check(problems, () -> checkConsumer(options.consumer()));
        check(problems, () -> Values.required("log", options.log()));
        if (!problems.isEmpty()) throw new IllegalArgumentException(String.join("; ", problems));
    }

    private static void checkLease(Duration lease) {
        boolean isAllowed = Values.required("lease", lease).compareTo(MIN_LEASE) >= 0 && lease.compareTo(MAX_LEASE) <= 0;
        if (!isAllowed) throw new IllegalArgumentException("lease: " + lease + " is not 1 s to 12 h");
    }

    private static void checkConsumer(String consumer) {
        int size = Json.encode(Values.text("consumer", consumer)).length;
        boolean isAllowed = size <= MAX_CONSUMER && consumer.chars().noneMatch(Character::isISOControl);
        if (!isAllowed) throw new IllegalArgumentException("consumer: is not 1 to 100 bytes without control characters");
    }

    private static void check(List<String> problems, Runnable check) {
        try {
            check.run();
        } catch (IllegalArgumentException error) {
            problems.add(error.getMessage());
        }
    }

    /**
     * Handles messages in this thread and in those of handlers, until a stop or an interrupt of this thread. It returns after the
     * running handlers have ended, and their outcomes were sent.
     *
     * @throws LisaException if a pull failed with an error that a retry cannot fix
     * @throws RuntimeException if the executor refused a handler, with its error; the message is delivered again
     * @throws IllegalStateException if it has run before
     */
    @Override
    public void run() {
        begin();
        ExecutorService own = options.executor() == null ? newExecutor() : null;
        executor = own == null ? options.executor() : own;
        boolean isInterrupted = false;
        try {
            while (!hasEnded()) {
                try {
                    int max = awaitPull();
                    if (max > 0) pull(max);
                    extendThoseDue();
                } catch (InterruptedException error) {
                    isInterrupted = true;
                    stop();
                } catch (Throwable error) {
                    // Such as no memory. The running handlers continue.
                    end(unchecked(error));
                }
            }
        } finally {
            if (own != null) own.shutdown();
            ended.complete(null);
            if (isInterrupted) Thread.currentThread().interrupt();
        }
        if (failure == null) return;
        // It was created by another thread.
        failure.fillInStackTrace();
        throw failure;
    }

    /**
     * Runs in a new thread. If a pull fails with an error that a retry cannot fix, the error is logged, and the worker ends.
     *
     * @return this
     */
    public Worker start() {
        Thread thread = new Thread(() -> {
            try {
                run();
            } catch (RuntimeException error) {
                log("the worker of " + topic + " has ended", error);
            }
        }, "lisa-relay-" + topic);
        thread.start();
        return this;
    }

    /** Stops pulling. Running handlers continue to their end. Does not wait for them, and may be called by a handler. */
    public void stop() {
        end(null);
    }

    /**
     * Stops, and waits until the running handlers have ended and their outcomes were sent, or this thread is interrupted. A handler
     * must not call it, since it would wait for itself.
     */
    @Override
    public void close() {
        stop();
        if (!isRunning()) return;
        try {
            ended.get();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /**
     * Returns true while it runs, including after a stop, until its handlers have finished.
     *
     * @return true if it has begun and not ended
     */
    public synchronized boolean isRunning() {
        return hasBegun && !ended.isDone();
    }

    private synchronized void begin() {
        if (hasBegun) throw new IllegalStateException("a worker runs only once");
        hasBegun = true;
    }

    /** Ends the pulls, because of a stop or a failure. */
    private synchronized void end(RuntimeException error) {
        if (failure == null) failure = error;
        if (isStopped) return;
        isStopped = true;
        repeatUntil = now() + GRACE;
        // To end one changes the set.
        List.copyOf(waits).forEach(one -> one.complete(null));
        notifyAll();
    }

    private synchronized boolean hasEnded() {
        return isStopped && pulls == 0 && running.isEmpty() && settling == 0;
    }

    /** Waits for a change, or until it is time to look at the leases. Returns the number of runs to pull now. */
    private synchronized int awaitPull() throws InterruptedException {
        if (ownPull() == 0 && !hasEnded()) wait(lookEvery);
        return beginPull(ownPull());
    }

    /** Returns the number of runs that the thread of the worker has to pull now. A batch of outcomes may be that pull. */
    private int ownPull() {
        return areReady && !isRefused && settles.isScheduled() ? 0 : wanted(settling);
    }

    /** Wakes the thread of the worker if there is something to do. */
    private void changed() {
        if (ownPull() > 0 || hasEnded()) notifyAll();
    }

    /**
     * Returns the number of runs to pull now, while this many outcomes are on their way: for half of the free handlers, so that
     * the gateway can fill a second pull while the messages of the first are handled, but not for few. The second is only for at
     * least half of all handlers: otherwise, the first one will return soon.
     */
    private int wanted(int outcomes) {
        int concurrency = options.concurrency();
        int free = concurrency - runs - requested;
        boolean isSecond = pulls > 0;
        boolean isBusy = pulls == MAX_PULLS || outcomes / options.maxPerKey() >= concurrency;
        if (isStopped || isBusy || (isSecond && free < concurrency - free)) return 0;
        int most = Math.min(isSecond ? free : Math.max((free + 1) / 2, FEW), Values.MAX_PULL);
        return Math.max(0, Math.min(most, free));
    }

    /** Counts a pull of this many runs, if any, until {@link #endPull}. Returns their number. */
    private int beginPull(int count) {
        if (count > 0) pulls++;
        requested += count;
        return count;
    }

    /** Returns the options of a pull of this many runs. */
    private PullOptions pullOptions(int count) {
        int maxPerKey = options.maxPerKey();
        if (maxPerKey == 1) return pullOptions.max(count);
        return pullOptions.max(Math.min(count * maxPerKey, Values.MAX_PULL)).maxPerKey(maxPerKey).maxKeys(count);
    }

    private void pull(int count) {
        CompletableFuture<Void> stop = new CompletableFuture<>();
        addWait(stop);
        Values.begin(() -> lisa.pullAsync(topic, pullOptions(count), settles, stop)).whenComplete((deliveries, error) -> {
            stop.complete(null);
            if (error != null) {
                failPull(count, error);
                return;
            }
            failures.set(0);
            endPull(count, deliveries);
        });
    }

    private void failPull(int count, Throwable error) {
        if (!isStopped() && error instanceof LisaException failed && failed.isRetryable()) {
            log("cannot pull; retrying", error);
            synchronized (this) {
                areReady = false;
            }
            CompletableFuture<Void> pause = Values.begin(() -> Values.pause(failures.incrementAndGet(), failed.retryAfter()));
            addWait(pause);
            pause.whenComplete((done, none) -> endPull(count, List.of()));
        } else {
            if (!isStopped()) end(unchecked(error));
            endPull(count, List.of());
        }
    }

    private synchronized void addWait(CompletableFuture<Void> wait) {
        waits.add(wait);
        wait.whenComplete((done, error) -> removeWait(wait));
        if (isStopped) wait.complete(null);
    }

    private synchronized void removeWait(CompletableFuture<Void> wait) {
        waits.remove(wait);
    }

    /** Ends a pull of this many runs, and handles those that it has returned. */
    private void endPull(int count, List<Delivery> deliveries) {
        List<Run> pulled = Delivery.runs(deliveries).stream().map(Run::new).toList();
        int max = pullOptions(count).max();
        List<Running> first;
        synchronized (this) {
            pulls--;
            requested -= count;
            runs += pulled.size();
            areReady = pulled.size() >= count - pulled.size() || deliveries.size() >= max - deliveries.size();
            pulled.forEach(run -> running.addAll(run.waiting));
            first = pulled.stream().map(run -> run.waiting.remove()).toList();
            changed();
        }
        first.forEach(this::start);
    }

    /** Sends outcomes. While messages are ready, pulls in the same request. */
    private CompletableFuture<List<Result<Ended>>> send(List<Item> items) {
        int count = beginSend(items.size());
        return Values.after(count > 0 ? settleAndPull(items, count) : settle(items), (results, error) -> {
            synchronized (this) {
                sending -= items.size();
                // Those that are repeated later count for the next pull.
                if (error != null || results.stream().anyMatch(Worker::isRepeated)) areReady = false;
            }
        });
    }

    /** Returns the number of runs to pull in the same request. */
    private synchronized int beginSend(int outcomes) {
        int count = areReady && !isRefused ? beginPull(wanted(sending)) : 0;
        sending += outcomes;
        changed();
        return count;
    }

    private CompletableFuture<List<Result<Ended>>> settleAndPull(List<Item> items, int count) {
        PullOptions ready = pullOptions(count).wait(Duration.ZERO);
        CompletableFuture<List<Result<Ended>>> results = new CompletableFuture<>();
        Values.begin(() -> lisa.settleAndPullAsync(topic, items, ready, settles)).whenComplete((answer, error) -> {
            endPull(count, error == null ? answer.deliveries() : List.of());
            if (error == null) {
                results.complete(answer.results());
            } else if (error instanceof LisaException failed && !failed.isRetryable()) {
                // It says nothing about the outcomes.
                log("cannot settle and pull in one request", error);
                refuse();
                settle(items).whenComplete((settled, failure) -> Values.complete(results, settled, failure));
            } else {
                results.completeExceptionally(error);
            }
        });
        return results;
    }

    private static boolean isRepeated(Result<Ended> result) {
        return !result.isOk() && result.error().isRetryable();
    }

    private synchronized void refuse() {
        isRefused = true;
    }

    private CompletableFuture<List<Result<Ended>>> settle(List<Item> items) {
        return Values.begin(() -> lisa.settleAttempt.send(items));
    }

    private synchronized boolean isStopped() {
        return isStopped;
    }

    private void start(Running one) {
        try {
            executor.execute(() -> handle(one));
        } catch (Throwable error) {
            // Such as a RejectedExecutionException, or no memory for a thread. It says nothing about the message.
            end(unchecked(error));
            endHandler(one, Outcome.defer(Duration.ZERO));
        }
    }

    private void handle(Running one) {
        Outcome outcome;
        try {
            outcome = handler.handle(one.delivery);
            if (outcome == null) outcome = Outcome.ack();
        } catch (Throwable error) {
            log("attempt " + one.delivery.attempt() + " of " + one.delivery.id() + " failed", error);
            outcome = Outcome.retry(textOf(error));
        }
        endHandler(one, outcome);
    }

    /** Settles a delivery, and begins the next handler of its run, which does not wait for that. */
    private void endHandler(Running one, Outcome outcome) {
        List<Settling> begun = new ArrayList<>();
        Running next;
        synchronized (this) {
            boolean isAcked = one.delivery.isSettled() ? one.delivery.isAcked() : outcome instanceof Outcome.Ack;
            if (one.delivery.isLost() || !isAcked) one.run.isBroken = true;
            // Before the thread of the worker sees the free handler: the outcome can go with the next pull.
            beginSettle(one, outcome, begun);
            next = goOn(one.run, begun);
            changed();
        }
        begun.forEach(each -> whenSettled(each.one, each.outcome, false, each.settled));
        if (next != null) start(next);
    }

    /** Returns the next message of a run. If there is none, ends the run: those that wait are delivered again, uncounted. */
    private Running goOn(Run run, List<Settling> begun) {
        Running next = run.waiting.peek();
        if (next != null && !run.isBroken && !isStopped && !next.delivery.isLost()) return run.waiting.remove();
        runs--;
        run.waiting.forEach(one -> beginSettle(one, Outcome.defer(Duration.ZERO), begun));
        run.waiting.clear();
        return null;
    }

    private void beginSettle(Running one, Outcome outcome, List<Settling> begun) {
        running.remove(one);
        if (one.delivery.isSettled() || one.delivery.isLost()) return;
        settling++;
        begun.add(new Settling(one, outcome, one.delivery.settleAsync(outcome)));
    }

    /** Ends a run after its present handler: a message of it is delivered again. */
    private synchronized void breakRun(Run run) {
        run.isBroken = true;
    }

    private synchronized void endSettle() {
        settling--;
        changed();
    }

    /** Settles. Repeats it until the lease ends, since the work is done; after a stop, for half a minute. */
    private void settle(Running one, Outcome outcome, boolean isCorrection) {
        whenSettled(one, outcome, isCorrection, one.delivery.settleAsync(outcome));
    }

    private void whenSettled(Running one, Outcome outcome, boolean isCorrection, CompletableFuture<Ended> settled) {
        String id = one.delivery.id();
        settled.whenComplete((ended, error) -> {
            if (error instanceof ProblemException problem && problem.code().equals("invalid") && !isCorrection) {
                log("the outcome of " + id + " is wrong", error);
                settle(one, Outcome.retry("the handler returned a wrong outcome: " + error.getMessage()), true);
                return;
            }
            if (error instanceof LisaException failed && failed.isRetryable() && now() < Math.min(one.extendedAt + lease, repeatUntil)) {
                log("cannot settle " + id + "; retrying", error);
                Values.pause(3, failed.retryAfter()).thenRun(() -> settle(one, outcome, isCorrection));
                return;
            }
            boolean maybeSettled = isStale(error) && ((ProblemException) error).maybeSettled();
            if (error == null ? ended.dueAt() != null : !maybeSettled) breakRun(one.run);
            if (isStale(error)) {
                if (!maybeSettled) log("lease of " + id + " was lost; another worker may have it", error);
            } else if (error != null) {
                log("cannot settle " + id + "; it is delivered again after its lease", error);
            }
            endSettle();
        });
    }

    /** Extends the leases that are due. A failure says nothing about a handler, unless its lease was lost. */
    private void extendThoseDue() {
        long now = now();
        if (now < nextLook) return;
        nextLook = now + lookEvery;
        List<Running> due;
        synchronized (this) {
            due = running.stream()
                    .filter(one -> now >= one.extendedAt + lease / 3 && !one.delivery.isSettled() && !one.delivery.isLost())
                    .toList();
        }
        due.forEach(one -> {
            one.extendedAt = now;
            one.delivery.extendAsync(options.lease()).whenComplete((ended, error) -> {
                if (error != null) failExtension(one, error);
            });
        });
    }

    private void failExtension(Running one, Throwable error) {
        synchronized (this) {
            if (!running.contains(one) || one.delivery.isSettled()) return;
        }
        String id = one.delivery.id();
        if (!isStale(error)) {
            log("cannot extend the lease of " + id, error);
            return;
        }
        one.delivery.setLost();
        log("lease of " + id + " was lost; another worker may have it", error);
    }

    private void log(String text, Throwable error) {
        try {
            options.log().accept(text, error);
        } catch (Throwable ignored) {
            // The work continues without a log.
        }
    }

    /** The default log. It is here because the logger names its caller. */
    static void warn(String text, Throwable error) {
        // The stack of an error of the client says nothing.
        boolean isOwn = error instanceof LisaException;
        LOGGER.log(System.Logger.Level.WARNING, text + ": " + error, isOwn ? null : error);
    }

    private ExecutorService newExecutor() {
        try {
            // Before JDK 21, it does not exist, or is a preview that throws.
            return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        } catch (ReflectiveOperationException error) {
            return Executors.newFixedThreadPool(options.concurrency());
        }
    }

    private static boolean isStale(Throwable error) {
        return error instanceof ProblemException problem && problem.isStale();
    }

    private static RuntimeException unchecked(Throwable error) {
        return error instanceof RuntimeException failed ? failed : new IllegalStateException(error);
    }

    private static String textOf(Throwable error) {
        try {
            return error.toString();
        } catch (Throwable failed) {
            return "an error that has no text";
        }
    }

    /** Returns a time in milliseconds, to compare with others. */
    private static long now() {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
    }
}
