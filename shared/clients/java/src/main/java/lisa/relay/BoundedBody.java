package lisa.relay;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.http.HttpHeaders;
import java.net.http.HttpResponse.BodySubscriber;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow.Subscription;

/** Reads the body of an answer up to a limit. Refuses compressed ones: a few bytes could become gigabytes. */
final class BoundedBody implements BodySubscriber<byte[]> {
    private final CompletableFuture<byte[]> body = new CompletableFuture<>();
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private final boolean isCompressed;
    private final int limit;
    private Subscription subscription;

    BoundedBody(HttpHeaders headers, int limit) {
        isCompressed = !headers.firstValue("content-encoding").orElse("identity").equalsIgnoreCase("identity");
        this.limit = limit;
    }

    @Override
    public CompletionStage<byte[]> getBody() {
        return body;
    }

    @Override
    public void onSubscribe(Subscription subscription) {
        this.subscription = subscription;
        if (isCompressed) refuse("it is compressed");
        else subscription.request(Long.MAX_VALUE);
    }

    @Override
    public void onNext(List<ByteBuffer> parts) {
        for (ByteBuffer part : parts) {
            if (part.remaining() > limit - bytes.size()) {
                refuse("it is longer than " + limit + " bytes");
                return;
            }
            byte[] copy = new byte[part.remaining()];
            part.get(copy);
            bytes.write(copy, 0, copy.length);
        }
    }

    @Override
    public void onError(Throwable error) {
        body.completeExceptionally(error);
    }

    @Override
    public void onComplete() {
        body.complete(bytes.toByteArray());
    }

    private void refuse(String reason) {
        subscription.cancel();
        body.completeExceptionally(new IOException("not an answer from Lisa: " + reason));
    }
}
