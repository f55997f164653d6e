package lisa.relay;

import java.time.Duration;
import java.util.concurrent.Executor;
import java.util.function.BiConsumer;

/**
 * The options of a {@link Worker}, which checks them. It is immutable: each method returns a copy with another value.
 *
 * @param group the name of the group; by default {@code default}
 * @param concurrency the maximum number of handlers that run at the same time, at least 1; by default 1
 * @param maxPerKey the maximum number of messages with the same ordering key in a pull, 1 to 200; by default 1. They are handled one
 *     after another, in order. Those behind a message that is not acknowledged are delivered again after it
 * @param lease the lease, which is extended while a handler runs: 1 s to 12 h; by default 1 minute
 * @param consumer the name of the worker, which {@code lisa-manager workers} lists: 1 to 100 bytes of UTF-8 without control
 *     characters, or null
 * @param executor runs the handlers. By default, each has a virtual thread on JDK 21 or newer, or one of {@code concurrency}
 *     threads. A smaller one delays handlers while their leases are extended
 * @param log receives failures: failed attempts, pulls, extensions and settlements, and lost leases. It must not block. By
 *     default, they are logged as warnings by the {@link System.Logger} named {@code lisa.relay}
 */
public record WorkOptions(
        String group,
        int concurrency,
        int maxPerKey,
        Duration lease,
        String consumer,
        Executor executor,
        BiConsumer<String, Throwable> log) {
    /** Creates options with the defaults. */
    public WorkOptions() {
        this("default", 1, 1, Duration.ofMinutes(1), null, null, Worker::warn);
    }

    /**
     * Sets the group.
     *
     * @param group the name of the group
     * @return the options
     */
    public WorkOptions group(String group) {
        return new WorkOptions(group, concurrency, maxPerKey, lease, consumer, executor, log);
    }

    /**
     * Sets the maximum number of handlers that run at the same time.
     *
     * @param concurrency at least 1
     * @return the options
     */
    public WorkOptions concurrency(int concurrency) {
        return new WorkOptions(group, concurrency, maxPerKey, lease, consumer, executor, log);
    }

    /**
     * Sets the maximum number of messages with the same ordering key in a pull.
     *
     * @param maxPerKey 1 to 200
     * @return the options
     */
    public WorkOptions maxPerKey(int maxPerKey) {
        return new WorkOptions(group, concurrency, maxPerKey, lease, consumer, executor, log);
    }

    /**
     * Sets the lease.
     *
     * @param lease 1 s to 12 h
     * @return the options
     */
    public WorkOptions lease(Duration lease) {
        return new WorkOptions(group, concurrency, maxPerKey, lease, consumer, executor, log);
    }

    /**
     * Sets the name of the worker.
     *
     * @param consumer 1 to 100 bytes of UTF-8
     * @return the options
     */
    public WorkOptions consumer(String consumer) {
        return new WorkOptions(group, concurrency, maxPerKey, lease, consumer, executor, log);
    }

    /**
     * Sets the executor of the handlers, which the worker does not shut down.
     *
     * @param executor the executor
     * @return the options
     */
    public WorkOptions executor(Executor executor) {
        return new WorkOptions(group, concurrency, maxPerKey, lease, consumer, executor, log);
    }

    /**
     * Sets the receiver of failures.
     *
     * @param log takes a text and its error
     * @return the options
     */
    public WorkOptions log(BiConsumer<String, Throwable> log) {
        return new WorkOptions(group, concurrency, maxPerKey, lease, consumer, executor, log);
    }
}
