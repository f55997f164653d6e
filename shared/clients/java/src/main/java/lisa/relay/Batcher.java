package lisa.relay;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;

/**
 * Sends the items of single calls in batches. The first one is sent at once. Those that are added while requests are in flight are
 * sent together in the next request. A repeated item does not delay others.
 */
final class Batcher<T> {
    private static final int MAX_IN_FLIGHT = 2;

    private final Attempt<T> attempt;
    private final int tries;
    private final Queue<Call<T>> waiting = new ArrayDeque<>();
    private int inFlight;
    /** True if items wait, and a thread is about to send them. */
    private volatile boolean isScheduled;

    /** Sends items in one request, once. The future has a result for each, or the error of the whole request. */
    interface Attempt<T> {
        CompletableFuture<List<Result<T>>> send(List<Item> items);
    }

    private record Call<T>(Item item, CompletableFuture<T> result) {}

    Batcher(Attempt<T> attempt, int tries) {
        this.attempt = attempt;
        this.tries = tries;
    }

    /** Sends an item. The future has its result, or its LisaException. */
    CompletableFuture<T> add(Item item) {
        Call<T> call = new Call<>(item, new CompletableFuture<>());
        push(List.of(call));
        return call.result;
    }

    private synchronized void push(List<Call<T>> calls) {
        // If there is no thread, it throws.
        if (!isScheduled && inFlight < MAX_IN_FLIGHT) {
            Threads.POOL.execute(this::flush);
            isScheduled = true;
        }
        waiting.addAll(calls);
    }

    private void flush() {
        // The code that runs now may add more.
        Thread.yield();
        for (List<Call<T>> calls = take(); !calls.isEmpty(); calls = take()) send(calls);
    }

    /** Returns true if items wait, and a thread is about to send them. */
    boolean isScheduled() {
        return isScheduled;
    }

    /** Returns true if nothing waits or is in flight. */
    synchronized boolean isIdle() {
        return waiting.isEmpty() && inFlight == 0;
    }

    private synchronized List<Call<T>> take() {
        if (waiting.isEmpty() || inFlight == MAX_IN_FLIGHT) return List.of();
        isScheduled = false;
        int count = Item.fitting(waiting.stream().map(Call::item)::iterator);
        List<Call<T>> calls = Stream.generate(waiting::remove).limit(count).toList();
        inFlight++;
        return calls;
    }

    private void send(List<Call<T>> calls) {
        Values.begin(() -> attempt.send(calls.stream().map(Call::item).toList())).whenComplete((results, error) -> {
            synchronized (this) {
                inFlight--;
                isScheduled = !waiting.isEmpty();
            }
            flush();
            if (error == null) conclude(calls, results);
            else if (error instanceof LisaException failed) conclude(calls, each(failed, calls.size()));
            else fail(calls, error);
        });
    }

    private void conclude(List<Call<T>> calls, List<Result<T>> results) {
        List<Call<T>> again = new ArrayList<>();
        for (int n = 0; n < calls.size(); n++) {
            Call<T> call = calls.get(n);
            Result<T> result = results.get(n);
            if (result.isOk()) call.result.complete(result.value());
            else if (call.item.isFinal(result.error(), tries)) call.result.completeExceptionally(result.error());
            else again.add(call);
        }
        if (again.isEmpty()) return;
        Values.begin(() -> Values.pause(again.get(0).item.failures(), longestAfter(results)))
                .thenRun(() -> push(again))
                .whenComplete((done, error) -> {
                    if (error != null) fail(again, error);
                });
    }

    private void fail(List<Call<T>> calls, Throwable error) {
        calls.forEach(call -> call.result.completeExceptionally(error));
    }

    /**
     * Sends items in order, one request after the other. Returns a result for each. If a request is refused as a whole, no more
     * are sent: they would be refused, too.
     */
    static <T> List<Result<T>> sendInOrder(List<Item> items, Attempt<T> attempt, int tries) {
        Map<Item, Result<T>> results = new HashMap<>();
        Deque<Item> left = new ArrayDeque<>(items);
        while (!left.isEmpty()) {
            List<Item> pending = new ArrayList<>(Stream.generate(left::remove).limit(Item.fitting(left)).toList());
            CompletableFuture<Void> pause = CompletableFuture.completedFuture(null);
            while (!pending.isEmpty()) {
                List<Result<T>> answers;
                try {
                    Values.await(pause);
                    answers = Values.await(attempt.send(pending));
                } catch (LisaException error) {
                    if (!error.isRetryable()) {
                        pending.addAll(left);
                        left.clear();
                    }
                    answers = each(error, pending.size());
                }
                List<Item> again = new ArrayList<>();
                for (int n = 0; n < pending.size(); n++) {
                    Result<T> answer = answers.get(n);
                    if (answer.isOk() || pending.get(n).isFinal(answer.error(), tries)) results.put(pending.get(n), answer);
                    else again.add(pending.get(n));
                }
                if (!again.isEmpty()) pause = Values.pause(again.get(0).failures(), longestAfter(answers));
                pending = again;
            }
        }
        return items.stream().map(results::get).toList();
    }

    private static <T> List<Result<T>> each(LisaException error, int count) {
        return Stream.generate(() -> Result.<T>failed(error.copy())).limit(count).toList();
    }

    private static Duration longestAfter(List<? extends Result<?>> results) {
        return results.stream()
                .filter(result -> !result.isOk())
                .map(result -> result.error().retryAfter())
                .max(Duration::compareTo)
                .orElse(Duration.ZERO);
    }
}
