package lisa.relay;

import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.nio.channels.UnresolvedAddressException;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import java.util.regex.Pattern;

/** Sends single requests: each has its token, its time limit, and an answer of limited size. */
final class Http {
    /** The most bytes of an answer. */
    private static final int MAX_ANSWER = 8 * 1024 * 1024;
    /** The most bytes of an answer with payloads: up to 16 MiB, each byte of which may take six in JSON. */
    private static final int MAX_PAYLOADS = 128 * 1024 * 1024;
    private static final Pattern TOKEN = Pattern.compile("[!-~]+");
    private static final Pattern SECONDS = Pattern.compile("[0-9]{1,9}");

    private final HttpClient client;
    private final Callable<String> token;
    private final Duration timeout;

    /**
     * A request.
     *
     * @param content its body as JSON, or null
     * @param headers its further headers
     * @param serverWait the time that the server may wait before it answers
     */
    record Request(String method, String url, byte[] content, Map<String, String> headers, boolean hasPayloads, Duration serverWait) {
        int limit() {
            return hasPayloads ? MAX_PAYLOADS : MAX_ANSWER;
        }

        /** Returns an error that says that there is no answer, without a token. */
        TransportException unanswered(Throwable error) {
            URI uri = URI.create(url);
            int port = uri.getPort() >= 0 ? uri.getPort() : uri.getScheme().equalsIgnoreCase("https") ? 443 : 80;
            String text = "no answer from " + uri.getHost() + ":" + port + " to " + method + " " + uri.getRawPath() + ": " + reason(error);
            return new TransportException(text, error);
        }
    }

    Http(LisaOptions options) {
        token = options.token();
        timeout = options.timeout();
        // A redirect would take the payload and the token to another address, and so would a proxy of the environment.
        HttpClient.Builder builder = HttpClient.newBuilder().proxy(HttpClient.Builder.NO_PROXY);
        // The selector thread reads answers itself. It only collects their bytes, so it needs no other thread.
        builder.executor(Runnable::run);
        options.http().accept(builder);
        client = builder.version(HttpClient.Version.HTTP_1_1).followRedirects(HttpClient.Redirect.NEVER).build();
    }

    static boolean isToken(String text) {
        return text != null && TOKEN.matcher(text.strip()).matches();
    }

    /**
     * Sends a request once. The future has the value that {@code read} returns, or a LisaException. If {@code stop} completes
     * first, the connection is closed. Throws nothing.
     */
    <T> CompletableFuture<T> exchange(Request request, Function<Object, T> read, CompletableFuture<Void> stop) {
        CompletableFuture<T> result = new CompletableFuture<>();
        // True once the answer is complete, or a stop comes before that.
        AtomicBoolean hasEnded = new AtomicBoolean();
        try {
            // The asynchronous call of the HTTP client would need a thread of the common pool.
            Future<?> sending = Threads.POOL.submit(() -> send(request, read, result, hasEnded));
            Future<?> limit = Threads.later(timeout.plus(request.serverWait), () -> stop.completeExceptionally(new TimeoutException("timeout")));
            result.whenComplete((value, error) -> limit.cancel(false));
            stop.whenComplete((done, late) -> {
                if (!hasEnded.compareAndSet(false, true)) return;
                Throwable reason = late == null ? new CancellationException("it was stopped") : late;
                // Closes the connection.
                if (result.completeExceptionally(request.unanswered(reason))) sending.cancel(true);
            });
        } catch (Throwable error) {
            // Such as no memory for a thread.
            result.completeExceptionally(request.unanswered(error));
        }
        return result;
    }

    private <T> void send(Request request, Function<Object, T> read, CompletableFuture<T> result, AtomicBoolean hasEnded) {
        try {
            HttpResponse<byte[]> answer = client.send(withHeaders(request), head -> new BoundedBody(head.headers(), request.limit()));
            // A complete answer counts, since the gateway does not take its messages back.
            if (hasEnded.compareAndSet(false, true)) result.complete(read(answer, read));
        } catch (LisaException error) {
            result.completeExceptionally(error);
        } catch (Throwable error) {
            result.completeExceptionally(request.unanswered(error));
        }
    }

    /** Returns why there is no answer. The HTTP client wraps the reason in errors without a text. */
    private static String reason(Throwable error) {
        String text = error.getMessage();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof UnresolvedAddressException) return "unknown host";
            if (text == null) text = cause.getMessage();
        }
        if (text != null) return text;
        return error instanceof ConnectException ? "connection refused" : error.toString();
    }

    private HttpRequest withHeaders(Request request) {
        HttpRequest.Builder builder = HttpRequest.newBuilder(URI.create(request.url));
        builder.method(request.method, request.content == null ? BodyPublishers.noBody() : BodyPublishers.ofByteArray(request.content));
        // Otherwise, a proxy may compress the answer.
        builder.header("accept-encoding", "identity");
        if (request.content != null) builder.header("content-type", "application/json");
        request.headers.forEach(builder::header);
        if (token != null) builder.header("authorization", "Bearer " + readToken());
        return builder.build();
    }

    /** Reads the token. While it is rotated, there may be none for a moment. */
    private String readToken() {
        String text;
        try {
            text = token.call();
        } catch (Throwable error) {
            throw new TransportException("cannot read the token: " + error, error);
        }
        if (isToken(text)) return text.strip();
        throw new TransportException("cannot read the token: it is empty, or has invalid characters", null);
    }

    private static <T> T read(HttpResponse<byte[]> answer, Function<Object, T> read) {
        int status = answer.statusCode();
        if (status >= 300 && status < 400) throw notFromLisa(status, "a redirect, which is not followed", Duration.ZERO);
        String text;
        try {
            text = Json.decode(answer.body());
            if (status == 204) return read.apply(Answers.NO_CONTENT);
            if (status >= 200 && status < 300) return read.apply(Json.read(text));
        } catch (RuntimeException error) {
            // A proxy may answer with anything. Lisa may have carried out the request.
            throw new TransportException("not an answer from Lisa: " + error.getMessage(), error);
        }
        throw problem(status, text, retryAfter(answer.headers()));
    }

    private static ProblemException problem(int status, String text, Duration retryAfter) {
        try {
            if (Json.read(text) instanceof Map<?, ?> body) return new ProblemException(status, body, retryAfter);
        } catch (IllegalArgumentException notJson) {
            // It is the page of a proxy.
        }
        return notFromLisa(status, text.substring(0, Math.min(200, text.length())), retryAfter);
    }

    private static ProblemException notFromLisa(int status, String detail, Duration retryAfter) {
        return new ProblemException(status, Map.of("title", "not an answer from Lisa", "detail", detail), retryAfter);
    }

    private static Duration retryAfter(HttpHeaders headers) {
        String text = headers.firstValue("retry-after").orElse("");
        return SECONDS.matcher(text).matches() ? Duration.ofSeconds(Long.parseLong(text)) : Duration.ZERO;
    }
}
