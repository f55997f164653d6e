import java.io.IOException;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.StringJoiner;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import lisa.relay.Lisa;
import lisa.relay.LisaOptions;
import lisa.relay.NewMessage;
import lisa.relay.SendOptions;
import lisa.relay.WorkOptions;

/** Lisa through its Java client: bulk by {@code sendMany} of 500, 500 handlers at once. {@code protocol.rs} describes the protocol. */
final class Peer {
    private static final int SIZE = 100;
    private static final int CALLERS = 50;
    private static final int BULK = 500;
    /** The delay of a message that opens connections before the measurement: never due. */
    private static final Duration WARM_UP = Duration.ofHours(2);

    private final PrintStream out = System.out;
    private final Lisa lisa;
    private final List<Long> late = new ArrayList<>();
    private long last;

    private Peer(String address) {
        String[] urls = address.split(",");
        lisa = new Lisa(urls[0], new LisaOptions().gateway(urls[1]));
    }

    public static void main(String[] arguments) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        Peer peer = new Peer(arguments[0]);
        if (arguments[1].equals("work")) {
            peer.work(arguments.length > 2 ? Integer.parseInt(arguments[2]) : 500);
        } else {
            peer.send(
                    arguments[2].equals("bulk"),
                    Integer.parseInt(arguments[3]),
                    Duration.ofMillis(Long.parseLong(arguments[4])),
                    Integer.parseInt(arguments[5]));
        }
    }

    private void send(boolean bulk, int n, Duration delay, int rate) throws Exception {
        lisa.send("bench", message(WARM_UP), new SendOptions().delay(WARM_UP));
        awaitGo();
        long start = System.nanoTime();
        if (rate > 0) {
            int size = Math.max(1, rate / 100);
            for (int sent = 0; sent < n; sent += size) {
                long until = start + sent * 1_000_000_000L / rate;
                while (System.nanoTime() < until) LockSupport.parkNanos(until - System.nanoTime());
                batch(Math.min(size, n - sent), delay);
            }
        } else if (bulk) {
            for (int sent = 0; sent < n; sent += BULK) batch(Math.min(BULK, n - sent), delay);
        } else {
            List<Thread> callers = Stream.generate(() -> new Thread(() -> {
                        SendOptions options = new SendOptions().delay(delay);
                        for (int sent = 0; sent < n; sent += CALLERS) lisa.send("bench", message(delay), options);
                    }))
                    .limit(CALLERS)
                    .toList();
            callers.forEach(Thread::start);
            for (Thread caller : callers) caller.join();
        }
        say("sent " + (System.nanoTime() - start) / 1e9);
        awaitEnd();
    }

    private void batch(int size, Duration delay) {
        SendOptions options = new SendOptions().delay(delay);
        lisa.sendMany("bench", Stream.generate(() -> new NewMessage(message(delay), options)).limit(size).toList())
                .forEach(result -> result.orElseThrow());
    }

    private void work(int handlers) throws IOException, InterruptedException {
        awaitGo();
        daemon(() -> lisa.worker("bench", delivery -> {
                    handled(delivery.text());
                    return null;
                }, new WorkOptions().concurrency(handlers)).run());
        daemon(this::tell);
        awaitEnd();
        StringJoiner line = new StringJoiner(" ");
        synchronized (late) {
            late.forEach(ms -> line.add(ms.toString()));
        }
        say("late " + line);
        System.exit(0);
    }

    private static void daemon(Runnable action) {
        Thread thread = new Thread(action);
        thread.setDaemon(true);
        thread.start();
    }

    private void handled(String text) {
        long due = Long.parseLong(text, 0, text.indexOf(' '), 10);
        synchronized (late) {
            last = System.currentTimeMillis();
            late.add(last - due);
        }
    }

    /** Reports every 20 ms how many messages were handled. */
    private void tell() {
        for (int told = 0; ; LockSupport.parkNanos(20_000_000)) {
            String line;
            synchronized (late) {
                if (late.size() == told) continue;
                told = late.size();
                line = "handled " + told + " " + last;
            }
            say(line);
        }
    }

    private static String message(Duration delay) {
        String due = System.currentTimeMillis() + delay.toMillis() + " ";
        return due + "x".repeat(SIZE - due.length());
    }

    private void awaitGo() throws IOException {
        say("ready");
        while (System.in.read() != '\n') {}
    }

    private static void awaitEnd() throws IOException {
        while (System.in.read() != -1) {}
    }

    private void say(String line) {
        out.println(line);
        out.flush();
    }
}
