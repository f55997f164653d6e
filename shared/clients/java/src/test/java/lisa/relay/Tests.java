package lisa.relay;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.ConnectException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Tests what the contract suite cannot. */
final class Tests {
    private static final String SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    private static final String DELIVERY = "{\"id\":\"a\",\"token\":\"t\",\"attempt\":1,\"max_attempts\":2,\"payload\":\"\",\"headers\":{},"
            + "\"due_at\":\"2026-01-01T00:00:00Z\",\"lease_until\":\"2026-01-01T00:00:00Z\"}";
    private static final String SETTLE = "/v1/deliveries:settle [{\"token\":\"t\",\"ack\":true}]";
    private static final String SETTLE_AND_PULL =
            "/v1/topics/orders/groups/default/settle-and-pull?wait=0ms&lease=60000ms&max=1 [{\"token\":\"t\",\"ack\":true}]";

    private Tests() {}

    public static void main(String[] arguments) throws Exception {
        json();
        jsonThatIsWrong();
        valuesThatAreNotJson();
        webhooks();
        argumentsOfWork();
        wrongArguments();
        errorsAreCutBetweenCharacters();
        itemsShareRequests();
        anInterruptClosesThePull();
        aTimeLimitBoundsTheBody();
        aRejectedHandlerIsNoFailedAttempt();
        anErrorOfTheTokenFailsOnlyItsRequest();
        aBusyCommonPoolDelaysNothing();
        morePulledThanAskedForIsNoAnswer();
        thoseBehindALostLeaseAreHandedBack();
        outcomesGoWithAPull();
        outcomesOfASettleAndPullThatFailsAreSentAgain();
        connectionErrorsNameTheAddress();
        listsAndRequeuesHaveTheirRequests();
        System.out.println("ok");
        System.exit(0);
    }

    private static void json() {
        same(Json.read(" {\"a\":[1,-2.5e1,true,null,\"\\u00e9\\ud83d\\ude00\\n\"]} "), Map.of("a", asList(1L, -25.0, true, null, "é😀\n")));
        same(Json.read("9223372036854775807"), Long.MAX_VALUE);
        same(Json.read("-9223372036854775808"), Long.MIN_VALUE);
        same(Json.read("9223372036854775808"), 0x1p63);
        same(Json.read("1" + "0".repeat(300)), 1e300);
        Json.read("[".repeat(100) + "]".repeat(100));
        same(Json.write(Map.of("a", asList(1, 2.5, null, "\"\\\u0001é😀"))), "{\"a\":[1,2.5,null,\"\\\"\\\\\\u0001é😀\"]}");
    }

    private static void jsonThatIsWrong() {
        List<String> wrong = List.of("", " ", "[", "[1,]", "[1 2]", "{\"a\"}", "{\"a\":1,}", "{a:1}", "01", "+1", ".5", "1.", "1e", "-", "NaN",
                "tru", "truex", "\"", "\"\\", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\u٠٠٠٠\"", "\"\n\"", "1 1", "\0", "'a'", "1e999",
                "\"\\ud83d\"", "\"\\ude00\\ud83d\"", "\"\\ud83dx\"", "[".repeat(101) + "]".repeat(101), "[".repeat(1_000_000));
        for (String text : wrong) fails(() -> Json.read(text), "");
        fails(() -> Json.decode(new byte[] {'"', (byte) 0xff, '"'}), "UTF-8");
        fails(() -> Json.decode(new byte[] {(byte) 0xed, (byte) 0xa0, (byte) 0x80}), "UTF-8");
        fails(() -> Json.decode(new byte[] {(byte) 0xc0, (byte) 0x80}), "UTF-8");
    }

    private static void valuesThatAreNotJson() {
        List<Object> endless = new ArrayList<>();
        endless.add(endless);
        for (Object value : List.of(Double.NaN, Float.POSITIVE_INFINITY, "\ud83d", new Object(), 'c', Map.of(1, 2), endless)) {
            fails(() -> Json.write(value), "");
        }
    }

    private static void webhooks() throws Exception {
        byte[] body = "1700000000.hello".getBytes(StandardCharsets.UTF_8);
        String now = String.valueOf(System.currentTimeMillis() / 1000);
        Map<String, String> headers = new HashMap<>(Map.of("webhook-id", "order-7", "webhook-timestamp", now));
        headers.put("webhook-signature", "v1a,x v1, v1,AAAA " + sign("order-7." + now + ".", body));
        same(Webhooks.verify(headers::get, body, SECRET), "order-7");
        same(Webhooks.verify(headers::get, body, "whsec_AAAA", " " + SECRET + "\n"), "order-7");
        invalid(headers, "hello".getBytes(StandardCharsets.UTF_8));
        fails(() -> Webhooks.verify(headers::get, body, "whsec_"), "secrets");
        fails(() -> Webhooks.verify(headers::get, body, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "secrets");
        fails(() -> Webhooks.verify(headers::get, body), "secrets");

        List<String> times = List.of("", "-1", "+" + now, now + " ", " " + now, now + ".5", "1e9", "٢", "0", "9".repeat(12), "9".repeat(40), "NaN");
        for (String time : times) {
            invalid(signed("order-7", time, body), body);
        }
        for (String id : List.of("", "a.b", "a b", "\ud83d", "é", "x".repeat(65))) invalid(signed(id, now, body), body);
        // A part of the body must not pass as the time of the attempt.
        Map<String, String> moved = signed("order-7." + now, now, "5".getBytes(StandardCharsets.UTF_8));
        invalid(moved, "5".getBytes(StandardCharsets.UTF_8));
        for (String name : List.of("webhook-id", "webhook-timestamp", "webhook-signature")) {
            Map<String, String> some = signed("order-7", now, body);
            some.remove(name);
            invalid(some, body);
        }
    }

    private static Map<String, String> signed(String id, String time, byte[] body) throws Exception {
        return new HashMap<>(Map.of("webhook-id", id, "webhook-timestamp", time, "webhook-signature", sign(id + "." + time + ".", body)));
    }

    private static String sign(String start, byte[] body) throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(Base64.getDecoder().decode(SECRET.substring(6)), "HmacSHA256"));
        mac.update(start.getBytes(StandardCharsets.UTF_8));
        return "v1," + Base64.getEncoder().encodeToString(mac.doFinal(body));
    }

    private static void invalid(Map<String, String> headers, byte[] body) {
        try {
            Webhooks.verify(headers::get, body, SECRET);
        } catch (InvalidSignatureException expected) {
            return;
        }
        throw new AssertionError(headers);
    }

    private static void argumentsOfWork() {
        Lisa lisa = new Lisa("http://127.0.0.1:1");
        WorkOptions wrong = new WorkOptions().group("").concurrency(0).maxPerKey(201).lease(Duration.ofSeconds(-1)).consumer("\ud83d").log(null);
        IllegalArgumentException error = fails(() -> lisa.worker("", null, wrong), "");
        for (String name : List.of("topic", "handler", "group", "concurrency", "maxPerKey", "lease", "consumer", "log")) {
            if (!error.getMessage().contains(name + ": ")) throw new AssertionError(error.getMessage());
        }
        WorkOptions named = new WorkOptions().group("Billing").lease(Duration.ofMillis(999)).consumer("x".repeat(101));
        String text = fails(() -> lisa.worker("a b", delivery -> null, named), "").getMessage();
        same(List.of(text.split("; ")).stream().map(one -> one.split(":")[0]).toList(), List.of("topic", "group", "lease", "consumer"));
        fails(() -> lisa.worker("orders", delivery -> null, null), "options: ");
        Worker stopped = lisa.worker("orders", delivery -> null, new WorkOptions());
        stopped.close();
        stopped.run();
    }

    private static void wrongArguments() {
        Lisa lisa = new Lisa("http://127.0.0.1:1");
        fails(() -> new Lisa("localhost:7812"), "url: ");
        fails(() -> new Lisa("http://a", new LisaOptions().gateway("ftp://b")), "gateway: \"ftp://b\" has neither http nor https");
        fails(() -> new Lisa("http://a", new LisaOptions().manager("b")), "manager: ");
        Map<String, String> urls = Map.of("http://a?b", "query", "http://a#b", "fragment", "http://u:p@a", "http://…@a", "http://a_b:1",
                "underscore", "http://a:65536", "port", "http://", "is not a URL", "http:///a", "has no host");
        urls.forEach((url, part) -> fails(() -> new Lisa(url), part));
        fails(() -> new LisaOptions().token("a\nb"), "token: ");
        fails(() -> new LisaOptions().timeout(Duration.ZERO), "timeout: ");
        fails(() -> lisa.send("orders", "\ud83d"), "payload: ");
        fails(() -> lisa.send("orders", Map.of("a", Double.NaN)), "payload: ");
        fails(() -> lisa.send(null, "x"), "topic: ");
        fails(() -> lisa.sendMany("orders", List.of(new NewMessage("x"), new NewMessage(new Object()))), "messages[1]: payload: ");
        fails(() -> lisa.get("orders", "a", "straße"), "key: ");
        fails(() -> lisa.cancelKey("orders", "straße"), "key: ");
        fails(() -> lisa.rescheduleKey("orders", "k", (Duration) null), "delay: ");
        fails(() -> lisa.list("orders", null), "options: ");
        fails(() -> new ListOptions().cursor(null), "cursor: ");
        fails(() -> lisa.requeue("orders", List.of()), "ids: ");
        fails(() -> lisa.requeue("orders", Arrays.asList("a", null)), "ids: ");
        fails(() -> lisa.requeue("orders", List.of("a", "")), "ids: ");
        fails(() -> lisa.settle("", Outcome.ack()), "token: ");
        fails(() -> new SendOptions().delay(Duration.ofSeconds(Long.MAX_VALUE)), "delay: ");
        fails(() -> new SendOptions().key("\ud83d"), "key: ");
        fails(() -> Outcome.retry(Duration.ofMillis(-1), null), "after: ");
        fails(() -> new Outcome.Defer(null, null), "after, until: ");
    }

    private static void errorsAreCutBetweenCharacters() {
        same(Outcomes.body(Outcome.reject("x" + "é".repeat(600))), Map.of("reject", Map.of("error", "x" + "é".repeat(511))));
        same(Outcomes.body(Outcome.reject("\ud83d")), Map.of("reject", Map.of("error", "?")));
    }

    /** Two requests are in flight; what is added meanwhile shares the next one, whose failure is an error for each. */
    private static void itemsShareRequests() throws Exception {
        CountDownLatch added = new CountDownLatch(1);
        BlockingQueue<Integer> sizes = new LinkedBlockingQueue<>();
        HttpServer server = serve(exchange -> {
            int size = ((List<?>) Json.read(Json.decode(exchange.getRequestBody().readAllBytes()))).size();
            sizes.add(size);
            if (size == 1) await(added);
            answer(exchange, size == 1 ? 200 : 413, size == 1 ? "[{\"id\":\"a\",\"outcome\":\"ready\"}]" : "{\"code\":\"too_large\"}");
        });
        Lisa lisa = new Lisa(url(server));
        List<CompletableFuture<Sent>> calls = new ArrayList<>();
        for (int n = 0; n < 12; n++) {
            calls.add(lisa.sendAsync("orders", "x", new SendOptions().id("id-" + n)));
            if (n < 2) same(sizes.poll(10, TimeUnit.SECONDS), 1);
        }
        added.countDown();
        Set<Throwable> errors = Collections.newSetFromMap(new IdentityHashMap<>());
        for (int n = 2; n < 12; n++) {
            ProblemException error = (ProblemException) errorOf(calls.get(n));
            same(error.id(), "id-" + n);
            errors.add(error);
        }
        same(errors.size(), 10);
        same(calls.get(0).get().outcome(), "ready");
        same(List.copyOf(sizes), List.of(10));
        server.stop(0);
    }

    private static void anInterruptClosesThePull() throws Exception {
        try (ServerSocket server = new ServerSocket(0, 9, InetAddress.getLoopbackAddress())) {
            Lisa lisa = new Lisa("http://127.0.0.1:" + server.getLocalPort());
            CompletableFuture<LisaException> failed = new CompletableFuture<>();
            Thread puller = new Thread(() -> {
                try {
                    lisa.pull("orders", new PullOptions());
                } catch (LisaException error) {
                    failed.complete(Thread.currentThread().isInterrupted() ? error : null);
                }
            });
            puller.start();
            Socket connection = server.accept();
            puller.interrupt();
            same(failed.get(10, TimeUnit.SECONDS).isRetryable(), false);
            awaitClose(connection);

            // A stop ends the pull of a worker in the same way.
            Worker worker = lisa.worker("orders", delivery -> null, new WorkOptions()).start();
            connection = server.accept();
            worker.close();
            same(worker.isRunning(), false);
            awaitClose(connection);
        }
    }

    private static void aTimeLimitBoundsTheBody() throws Exception {
        try (ServerSocket server = new ServerSocket(0, 9, InetAddress.getLoopbackAddress())) {
            Lisa lisa = new Lisa("http://127.0.0.1:" + server.getLocalPort(), new LisaOptions().timeout(Duration.ofMillis(300)).tries(1));
            CompletableFuture<Sent> sending = lisa.sendAsync("orders", "x", new SendOptions());
            Socket connection = server.accept();
            connection.getOutputStream().write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[".getBytes(StandardCharsets.US_ASCII));
            same(errorOf(sending).getClass(), TransportException.class);
            awaitClose(connection);
        }
    }

    private static void aRejectedHandlerIsNoFailedAttempt() throws Exception {
        List<String> settled = Collections.synchronizedList(new ArrayList<>());
        HttpServer server = serve(exchange -> {
            String body = Json.decode(exchange.getRequestBody().readAllBytes());
            boolean isPull = exchange.getRequestURI().getPath().endsWith("/pull");
            if (!isPull) settled.add(body);
            answer(exchange, 200, isPull
                    ? "{\"deliveries\":[" + DELIVERY + "]}"
                    : "[{\"outcome\":\"deferred\"}]");
        });
        Lisa lisa = new Lisa(url(server));
        var closed = Executors.newSingleThreadExecutor();
        closed.shutdown();
        try {
            lisa.work("orders", delivery -> null, new WorkOptions().executor(closed));
            throw new AssertionError("no error");
        } catch (RejectedExecutionException expected) {
            same(settled, List.of("[{\"token\":\"t\",\"defer\":{\"after\":\"0ms\"}}]"));
        }
        server.stop(0);
    }

    private static void anErrorOfTheTokenFailsOnlyItsRequest() throws Exception {
        HttpServer server = serve(exchange -> answer(exchange, 200, "[{\"id\":\"a\",\"outcome\":\"ready\"}]"));
        AtomicInteger calls = new AtomicInteger();
        Lisa lisa = new Lisa(url(server), new LisaOptions().tries(1).token(() -> {
            if (calls.incrementAndGet() <= 3) throw new NoClassDefFoundError("x");
            return "token";
        }));
        for (int n = 0; n < 3; n++) {
            Throwable error = errorOf(lisa.sendAsync("orders", "x", new SendOptions()));
            same(error.getClass(), TransportException.class);
            same(error.getMessage(), "cannot read the token: java.lang.NoClassDefFoundError: x");
        }
        same(lisa.sendAsync("orders", "x", new SendOptions()).get(10, TimeUnit.SECONDS).outcome(), "ready");
        server.stop(0);

        // A worker repeats its pull.
        CountDownLatch pulls = new CountDownLatch(2);
        Lisa broken = new Lisa(url(server), new LisaOptions().token(() -> {
            pulls.countDown();
            throw new StackOverflowError();
        }));
        Worker worker = broken.worker("orders", delivery -> null, new WorkOptions().log((text, error) -> {})).start();
        same(pulls.await(10, TimeUnit.SECONDS), true);
        worker.close();
        same(worker.isRunning(), false);
    }

    private static void aBusyCommonPoolDelaysNothing() throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        for (int n = 0; n < ForkJoinPool.getCommonPoolParallelism(); n++) ForkJoinPool.commonPool().execute(() -> await(done));
        HttpServer server = serve(exchange -> answer(exchange, 503, "{}"));
        Lisa lisa = new Lisa(url(server), new LisaOptions().tries(2));
        same(errorOf(lisa.sendAsync("orders", "x", new SendOptions())).getClass(), ProblemException.class);
        // The answer, and that there is no connection.
        server.stop(0);
        same(errorOf(lisa.sendAsync("orders", "x", new SendOptions())).getClass(), TransportException.class);
        done.countDown();
    }

    private static void morePulledThanAskedForIsNoAnswer() throws Exception {
        HttpServer server = serve(exchange -> answer(exchange, 200, "{\"deliveries\":[" + DELIVERY + "," + DELIVERY + "]}"));
        Lisa lisa = new Lisa(url(server));
        same(lisa.pull("orders", new PullOptions().max(2)).size(), 2);
        for (PullOptions one : List.of(new PullOptions(), new PullOptions().max(1))) {
            String text = transportError(() -> lisa.pull("orders", one)).getMessage();
            same(text, "not an answer from Lisa: 2 deliveries for a pull of 1");
        }
        server.stop(0);
    }

    private static void thoseBehindALostLeaseAreHandedBack() throws Exception {
        String ack = "{ack=true}";
        String back = "{defer={after=0ms}}";
        // The extension of one that waits fails, or the settlement of one that was handled.
        same(lostBy("extend", "1", 3), Map.of("0", ack, "2", back, "3", back));
        same(lostBy("settle", "0", 4), Map.of("0", ack, "1", ack, "2", back, "3", back));
    }

    /** Runs a worker with four messages of a key, one of which loses its lease. Returns the outcomes of the others. */
    private static Map<String, String> lostBy(String verb, String lost, int count) throws Exception {
        Map<String, String> settled = new ConcurrentHashMap<>();
        AtomicInteger pulls = new AtomicInteger();
        CountDownLatch isLost = new CountDownLatch(1);
        CompletableFuture<Worker> worker = new CompletableFuture<>();
        HttpServer server = serve(exchange -> {
            String body = Json.decode(exchange.getRequestBody().readAllBytes());
            String path = exchange.getRequestURI().getPath();
            if (path.endsWith("/pull")) {
                boolean isFirst = pulls.incrementAndGet() == 1;
                if (isFirst) same(Json.read(body), Map.of("wait", "20s", "lease", "1000ms", "max", 12L, "max_per_key", 4L, "max_keys", 3L));
                List<String> deliveries = new ArrayList<>();
                for (int n = 0; isFirst && n < 4; n++) {
                    deliveries.add(DELIVERY.replace("\"a\"", "\"" + n + "\"").replace("\"t\"", "\"" + n + "\",\"key\":\"k\""));
                }
                answer(exchange, 200, "{\"deliveries\":" + deliveries + "}");
                return;
            }
            List<String> results = new ArrayList<>();
            for (Object one : (List<?>) Json.read(body)) {
                Map<Object, Object> outcome = new HashMap<>((Map<?, ?>) one);
                String token = (String) outcome.remove("token");
                if (path.endsWith("settle")) settled.put(token, outcome.toString());
                boolean isStale = path.endsWith(verb) && token.equals(lost);
                results.add(isStale ? "{\"error\":{\"status\":409,\"code\":\"stale\"}}" : "{\"outcome\":\"acked\"}");
            }
            answer(exchange, 200, results.toString());
            if (settled.size() == count) worker.join().stop();
        });
        WorkOptions options = new WorkOptions().concurrency(3).maxPerKey(4).lease(Duration.ofSeconds(1)).log((text, error) -> {
            same(text, "lease of " + lost + " was lost; another worker may have it");
            isLost.countDown();
        });
        worker.complete(new Lisa(url(server)).worker("orders", delivery -> {
            if (verb.equals("settle") == delivery.id().equals("1")) await(isLost);
            return null;
        }, options));
        worker.join().run();
        server.stop(0);
        return settled;
    }

    private static void outcomesGoWithAPull() throws Exception {
        AtomicInteger requests = new AtomicInteger();
        List<String> settled = settled((worker, exchange) -> {
            // A stop does not end the second one.
            if (requests.incrementAndGet() == 2) worker.stop();
            answer(exchange, 200, settledAndPulled(1, 1));
        });
        same(settled, List.of(SETTLE_AND_PULL, SETTLE_AND_PULL, SETTLE));
    }

    private static void outcomesOfASettleAndPullThatFailsAreSentAgain() throws Exception {
        same(settled((worker, exchange) -> answer(exchange, 404, "{\"code\":\"not_found\"}")), List.of(SETTLE_AND_PULL, SETTLE));
        same(settled((worker, exchange) -> exchange.close()), List.of(SETTLE_AND_PULL, SETTLE));
        for (String wrong : List.of("[]", settledAndPulled(0, 1), settledAndPulled(2, 1), settledAndPulled(1, 2))) {
            same(settled((worker, exchange) -> answer(exchange, 200, wrong)), List.of(SETTLE_AND_PULL, SETTLE));
        }
    }

    private static String settledAndPulled(int results, int deliveries) {
        return "{\"results\":" + Collections.nCopies(results, "{\"outcome\":\"acked\"}")
                + ",\"deliveries\":" + Collections.nCopies(deliveries, DELIVERY) + "}";
    }

    private interface AnswerToWorker {
        void to(Worker worker, HttpExchange exchange) throws IOException;
    }

    /** Runs a worker, whose first pull returns a message, until a settle. Returns the requests that settle. */
    private static List<String> settled(AnswerToWorker settleAndPull) throws Exception {
        CompletableFuture<Worker> worker = new CompletableFuture<>();
        AtomicInteger pulls = new AtomicInteger();
        List<String> settled = Collections.synchronizedList(new ArrayList<>());
        HttpServer server = serve(exchange -> {
            String body = Json.decode(exchange.getRequestBody().readAllBytes());
            String path = exchange.getRequestURI().getPath();
            if (path.endsWith("/pull")) {
                answer(exchange, 200, "{\"deliveries\":[" + (pulls.incrementAndGet() == 1 ? DELIVERY : "") + "]}");
                return;
            }
            settled.add(exchange.getRequestURI() + " " + body);
            if (path.endsWith("/settle-and-pull")) {
                settleAndPull.to(worker.join(), exchange);
            } else {
                worker.join().stop();
                answer(exchange, 200, "[{\"outcome\":\"acked\"}]");
            }
        });
        worker.complete(new Lisa(url(server)).worker("orders", delivery -> null, new WorkOptions().concurrency(1)));
        worker.join().run();
        server.stop(0);
        return settled;
    }

    private static void connectionErrorsNameTheAddress() {
        LisaOptions once = new LisaOptions().tries(1);
        TransportException error = transportError(() -> new Lisa("http://127.0.0.1:1", once).send("orders", "x"));
        same(error.getMessage(), "no answer from 127.0.0.1:1 to POST /v1/topics/orders/messages:batch: connection refused");
        same(error.getCause().getClass(), ConnectException.class);
        error = transportError(() -> new Lisa("https://unknown.invalid", once).get("orders", "a"));
        same(error.getMessage(), "no answer from unknown.invalid:443 to GET /v1/topics/orders/messages/a: unknown host");
    }

    private static void listsAndRequeuesHaveTheirRequests() throws Exception {
        BlockingQueue<String> requests = new LinkedBlockingQueue<>();
        HttpServer server = serve(exchange -> {
            String body = Json.decode(exchange.getRequestBody().readAllBytes());
            requests.add(exchange.getRequestMethod() + " " + exchange.getRequestURI() + " " + body);
            answer(exchange, 200, body.isEmpty() ? "{\"messages\":[],\"next\":null}" : "{\"done\":1,\"found\":1}");
        });
        Lisa lisa = new Lisa("http://127.0.0.1:1", new LisaOptions().manager(url(server)));
        same(lisa.list("a b", new ListOptions()), new MessagePage(List.of(), null));
        same(requests.poll(10, TimeUnit.SECONDS), "GET /v1/topics/a%20b/messages ");
        lisa.list("orders", new ListOptions().key("straße 7&").from(Instant.parse("2026-01-02T04:04:05.006+01:00")).limit(2));
        same(requests.poll(10, TimeUnit.SECONDS),
                "GET /v1/topics/orders/messages?key=stra%C3%9Fe%207%26&from=2026-01-02T03%3A04%3A05.006Z&limit=2 ");
        same(lisa.requeue("orders", List.of("x"), "Billing"), new Requeued(1, 1, List.of()));
        same(requests.poll(10, TimeUnit.SECONDS), "POST /v1/topics/orders/groups/Billing/garbage/requeue {\"ids\":[\"x\"]}");
        server.stop(0);
    }

    private interface Answer {
        void to(HttpExchange exchange) throws IOException;
    }

    private static HttpServer serve(Answer answer) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", answer::to);
        server.start();
        return server;
    }

    private static String url(HttpServer server) {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    private static void answer(HttpExchange exchange, int status, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(status, bytes.length);
        exchange.getResponseBody().write(bytes);
        exchange.close();
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static Throwable errorOf(CompletableFuture<?> future) throws Exception {
        try {
            throw new AssertionError(future.get(10, TimeUnit.SECONDS));
        } catch (ExecutionException error) {
            return error.getCause();
        }
    }

    private static TransportException transportError(Runnable call) {
        try {
            call.run();
        } catch (TransportException error) {
            return error;
        }
        throw new AssertionError("no error");
    }

    /** Reads until the other side has closed the connection. */
    private static void awaitClose(Socket connection) throws IOException {
        connection.setSoTimeout(10_000);
        connection.getInputStream().readAllBytes();
        connection.close();
    }

    private static List<Object> asList(Object... values) {
        return Arrays.asList(values);
    }

    private static void same(Object found, Object expected) {
        if (!Objects.equals(found, expected)) throw new AssertionError("found " + found + ", expected " + expected);
    }

    private static IllegalArgumentException fails(Runnable call, String part) {
        try {
            call.run();
        } catch (IllegalArgumentException error) {
            if (!error.getMessage().contains(part)) throw new AssertionError(error.getMessage());
            return error;
        }
        throw new AssertionError("no error: " + part);
    }
}
