package lisa.relay;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.function.Function;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Verifies the signatures of webhooks (Standard Webhooks 1.0.0). */
public final class Webhooks {
    private static final Duration TOLERANCE = Duration.ofMinutes(5);
    // The signed text separates its parts by dots, so an id with a dot could be cut from another part.
    private static final Pattern ID = Pattern.compile("[A-Za-z0-9_:-]{1,64}");
    private static final Pattern SECONDS = Pattern.compile("[0-9]{1,12}");
    private static final String PREFIX = "whsec_";

    private Webhooks() {}

    /**
     * Verifies the signature over the raw body. It covers the id, the time of the attempt and the body, but no other header. The
     * time may differ from now by 5 minutes.
     *
     * @param headers returns the value of a header, or null, such as {@code request::getHeader}. The names are in lower case
     * @param body the raw body
     * @param secrets the secret; while it is rotated, both
     * @return the id of the message
     * @throws InvalidSignatureException if no signature matches, or the request is too old
     * @throws IllegalArgumentException if a secret is not {@code whsec_} followed by base64
     */
    public static String verify(Function<String, String> headers, byte[] body, String... secrets) {
        return verify(headers, body, Arrays.asList(Values.required("secrets", secrets)), TOLERANCE);
    }

    /**
     * Verifies the signature over the raw body, with another tolerance.
     *
     * @param headers returns the value of a header, or null
     * @param body the raw body
     * @param secrets the secret; while it is rotated, both
     * @param tolerance the most that the time of the attempt may differ from now
     * @return the id of the message
     * @throws InvalidSignatureException if no signature matches, or the request is too old
     * @throws IllegalArgumentException if a secret is not {@code whsec_} followed by base64
     */
    public static String verify(Function<String, String> headers, byte[] body, Collection<String> secrets, Duration tolerance) {
        Values.required("headers", headers);
        Values.required("body", body);
        Values.duration("tolerance", tolerance);
        List<byte[]> keys = Values.list("secrets", secrets).stream().map(Webhooks::key).toList();
        if (keys.isEmpty()) throw new IllegalArgumentException("secrets: is empty");
        String id = header(headers, "webhook-id", ID);
        String time = header(headers, "webhook-timestamp", SECONDS);
        Instant at = Instant.ofEpochSecond(Long.parseLong(time));
        if (Duration.between(at, Instant.now()).abs().compareTo(tolerance) > 0) {
            throw new InvalidSignatureException("webhook-timestamp is too old or too new");
        }
        String signatures = header(headers, "webhook-signature", Pattern.compile("[!-~ ]+"));
        for (byte[] key : keys) {
            byte[] expected = ("v1," + sign(key, id + "." + time + ".", body)).getBytes(StandardCharsets.US_ASCII);
            for (String signature : signatures.split(" ")) {
                // Compares in constant time.
                if (MessageDigest.isEqual(signature.getBytes(StandardCharsets.US_ASCII), expected)) return id;
            }
        }
        throw new InvalidSignatureException("no signature matches");
    }

    private static String header(Function<String, String> headers, String name, Pattern pattern) {
        String value = headers.apply(name);
        if (value == null) throw new InvalidSignatureException(name + " is missing");
        if (!pattern.matcher(value).matches()) throw new InvalidSignatureException(name + " is wrong");
        return value;
    }

    private static String sign(byte[] key, String start, byte[] body) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            mac.update(start.getBytes(StandardCharsets.US_ASCII));
            return Base64.getEncoder().encodeToString(mac.doFinal(body));
        } catch (GeneralSecurityException error) {
            // Each JDK has HMAC-SHA256.
            throw new IllegalStateException(error);
        }
    }

    private static byte[] key(String secret) {
        String text = secret.strip();
        try {
            byte[] key = Base64.getDecoder().decode(text.substring(Math.min(PREFIX.length(), text.length())));
            if (text.startsWith(PREFIX) && key.length > 0) return key;
        } catch (IllegalArgumentException notBase64) {
            // The error below says so.
        }
        throw new IllegalArgumentException("secrets: each must be whsec_ followed by base64");
    }
}
