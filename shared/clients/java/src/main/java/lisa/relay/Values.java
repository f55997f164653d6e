package lisa.relay;

import java.net.URLEncoder;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.BiConsumer;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** Checks arguments, and converts them to the texts of the HTTP interface. Errors name the argument. */
final class Values {
    /** The most deliveries of a pull. */
    static final int MAX_PULL = 200;
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final Duration MAX_RETRY_AFTER = Duration.ofMinutes(1);

    private Values() {}

    static <T> T required(String name, T value) {
        if (value == null) throw new IllegalArgumentException(name + ": is null");
        return value;
    }

    /** Returns a text that is not empty and can be sent. */
    static String text(String name, String text) {
        if (required(name, text).isEmpty()) throw new IllegalArgumentException(name + ": is empty");
        return sendable(name, text);
    }

    /** Returns a number of deliveries of a pull. */
    static int deliveries(String name, int count) {
        if (count >= 1 && count <= MAX_PULL) return count;
        throw new IllegalArgumentException(name + ": " + count + " is not 1 to " + MAX_PULL);
    }

    /** Checks a name of Lisa. */
    static void name(String name, String text, Pattern allowed) {
        if (allowed.matcher(required(name, text)).matches()) return;
        throw new IllegalArgumentException(name + ": \"" + text + "\" is not a name: must be " + allowed);
    }

    /** Returns a text that can be sent, and may be empty. */
    static String sendable(String name, String text) {
        required(name, text);
        return named(name, () -> Json.checkSurrogates(text));
    }

    /** Returns a value as JSON. */
    static String json(String name, Object value) {
        return named(name, () -> Json.write(value));
    }

    private static <T> T named(String name, Supplier<T> value) {
        try {
            return value.get();
        } catch (IllegalArgumentException error) {
            throw new IllegalArgumentException(name + ": " + error.getMessage(), error);
        }
    }

    /** Returns a duration as text, rounded up to milliseconds. */
    static String duration(String name, Duration duration) {
        if (required(name, duration).isNegative()) throw new IllegalArgumentException(name + ": " + duration + " is negative");
        try {
            return duration.plusNanos(999_999).toMillis() + "ms";
        } catch (ArithmeticException error) {
            throw new IllegalArgumentException(name + ": " + duration + " is too long", error);
        }
    }

    static String instant(String name, Instant instant) {
        return required(name, instant).toString();
    }

    /** Returns a list without null. */
    static <T> List<T> list(String name, Collection<? extends T> items) {
        try {
            return List.copyOf(items);
        } catch (NullPointerException error) {
            throw new IllegalArgumentException(name + ": is null, or contains null", error);
        }
    }

    /** Returns a copy of a map with one more value. */
    static Map<String, Object> with(Map<String, Object> values, String name, Object value) {
        Map<String, Object> all = new LinkedHashMap<>(values);
        all.put(name, value);
        return all;
    }

    /** Returns a path with escaped parts. */
    static String path(String... parts) {
        for (String part : parts) {
            // A proxy may drop it: the request would be about something else.
            if (part.equals(".") || part.equals("..")) throw new IllegalArgumentException("\"" + part + "\" cannot be part of a path");
        }
        return Arrays.stream(parts).map(Values::escaped).collect(Collectors.joining("/", "/v1/", ""));
    }

    /** Returns the query of a URL, with escaped values. */
    static String query(Map<String, Object> values) {
        return values.entrySet().stream()
                .map(one -> one.getKey() + "=" + escaped(one.getValue().toString()))
                .collect(Collectors.joining("&", "?", ""));
    }

    private static String escaped(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    /** Makes a UUID of version 7, whose first part is the time. */
    static String newId() {
        byte[] random = new byte[10];
        RANDOM.nextBytes(random);
        ByteBuffer bytes = ByteBuffer.wrap(random);
        long high = System.currentTimeMillis() << 16 | 0x7000 | bytes.getShort() & 0x0fff;
        long low = bytes.getLong() & 0x3fff_ffff_ffff_ffffL | 0x8000_0000_0000_0000L;
        return new UUID(high, low).toString();
    }

    /** Waits before the next try: exponential with jitter, and at least as long as the server asks for, up to a minute. */
    static CompletableFuture<Void> pause(int failures, Duration retryAfter) {
        long backoff = Math.min(8000, 125L << Math.min(failures, 6));
        long asked = Math.min(retryAfter.toMillis(), MAX_RETRY_AFTER.toMillis());
        long pause = (long) (Math.max(backoff, asked) * ThreadLocalRandom.current().nextDouble(1, 1.25));
        CompletableFuture<Void> end = new CompletableFuture<>();
        Threads.later(Duration.ofMillis(pause), () -> end.complete(null));
        return end;
    }

    /** Returns the future of a call. If the call throws, it has failed. */
    static <T> CompletableFuture<T> begin(Supplier<CompletableFuture<T>> call) {
        try {
            return call.get();
        } catch (Throwable error) {
            return CompletableFuture.failedFuture(error);
        }
    }

    /** Returns a future that completes in the same way, with the same error, after an action. */
    static <T> CompletableFuture<T> after(CompletableFuture<T> future, BiConsumer<T, Throwable> action) {
        CompletableFuture<T> result = new CompletableFuture<>();
        future.whenComplete((value, error) -> {
            action.accept(value, error);
            complete(result, value, error);
        });
        return result;
    }

    static <T> void complete(CompletableFuture<T> future, T value, Throwable error) {
        if (error == null) future.complete(value);
        else future.completeExceptionally(error);
    }

    /** Waits for the value of a future in this thread, and throws its error. */
    static <T> T await(CompletableFuture<T> future) {
        try {
            return future.get();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new TransportException("the thread was interrupted while it waited for an answer", error);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof RuntimeException cause) {
                // The error was created by another thread, and belongs to this call alone.
                cause.fillInStackTrace();
                throw cause;
            }
            throw new IllegalStateException(error.getCause());
        }
    }
}
