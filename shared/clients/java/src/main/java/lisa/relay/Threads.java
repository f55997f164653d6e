package lisa.relay;

import java.time.Duration;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * The threads of all clients of the process. Others may keep the common pool busy, so it is not used. A request in flight has a
 * thread, and a batcher has at most two requests.
 */
final class Threads {
    /** A thread ends after a minute without work. */
    static final ExecutorService POOL = Executors.newCachedThreadPool(action -> daemon("lisa-relay", action));
    private static final ScheduledThreadPoolExecutor TIMER =
            new ScheduledThreadPoolExecutor(1, action -> daemon("lisa-relay-timer", action));

    static {
        TIMER.setRemoveOnCancelPolicy(true);
    }

    private Threads() {}

    /** Runs an action in the pool after a pause. */
    static Future<?> later(Duration pause, Runnable action) {
        return TIMER.schedule(() -> POOL.execute(action), pause.toNanos(), TimeUnit.NANOSECONDS);
    }

    private static Thread daemon(String name, Runnable action) {
        Thread thread = new Thread(action, name);
        thread.setDaemon(true);
        return thread;
    }
}
