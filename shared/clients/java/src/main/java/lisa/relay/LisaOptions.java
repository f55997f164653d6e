package lisa.relay;

import java.net.http.HttpClient;
import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.function.Consumer;

/**
 * The options of a client. It is immutable: each method returns a copy with another value.
 *
 * @param gateway the URL of the gateway, or null if it is that of the producer
 * @param manager the URL of the manager, or null if it is that of the producer
 * @param token returns the bearer token, and is called for each request; or null
 * @param timeout the time limit of one try, from connecting to the last byte of the answer: above zero, up to a day; by default
 *     10 s. A pull gets 30 s more
 * @param tries the maximum number of tries of a request, at least 1; by default 5
 * @param http changes the settings of the HTTP client, such as its TLS or a proxy. By default, there is no proxy. Redirects are
 *     not followed in any case
 */
public record LisaOptions(
        String gateway, String manager, Callable<String> token, Duration timeout, int tries, Consumer<HttpClient.Builder> http) {
    private static final Duration MAX_TIMEOUT = Duration.ofDays(1);

    /**
     * Checks the values.
     *
     * @param gateway the URL of the gateway, or null
     * @param manager the URL of the manager, or null
     * @param token returns the bearer token, or null
     * @param timeout the time limit of one try
     * @param tries the maximum number of tries
     * @param http changes the settings of the HTTP client
     */
    public LisaOptions {
        Values.duration("timeout", timeout);
        if (timeout.isZero() || timeout.compareTo(MAX_TIMEOUT) > 0) {
            throw new IllegalArgumentException("timeout: " + timeout + " is not above zero and up to a day");
        }
        if (tries < 1) throw new IllegalArgumentException("tries: " + tries + " is less than 1");
        Values.required("http", http);
    }

    /** Creates options with the defaults. */
    public LisaOptions() {
        this(null, null, null, Duration.ofSeconds(10), 5, client -> {});
    }

    /**
     * Sets the URL of the gateway.
     *
     * @param gateway the URL, with http or https
     * @return the options
     */
    public LisaOptions gateway(String gateway) {
        return new LisaOptions(gateway, manager, token, timeout, tries, http);
    }

    /**
     * Sets the URL of the manager.
     *
     * @param manager the URL, with http or https
     * @return the options
     */
    public LisaOptions manager(String manager) {
        return new LisaOptions(gateway, manager, token, timeout, tries, http);
    }

    /**
     * Sets the bearer token.
     *
     * @param token the token
     * @return the options
     */
    public LisaOptions token(String token) {
        if (!Http.isToken(token)) throw new IllegalArgumentException("token: is empty, or has invalid characters");
        return token(() -> token);
    }

    /**
     * Sets the source of the bearer token. If it fails, the request is repeated.
     *
     * @param token returns the token, such as {@code () -> Files.readString(path)}; it should be fast
     * @return the options
     */
    public LisaOptions token(Callable<String> token) {
        return new LisaOptions(gateway, manager, token, timeout, tries, http);
    }

    /**
     * Sets the time limit of one try.
     *
     * @param timeout above zero, up to a day
     * @return the options
     */
    public LisaOptions timeout(Duration timeout) {
        return new LisaOptions(gateway, manager, token, timeout, tries, http);
    }

    /**
     * Sets the maximum number of tries of a request.
     *
     * @param tries at least 1
     * @return the options
     */
    public LisaOptions tries(int tries) {
        return new LisaOptions(gateway, manager, token, timeout, tries, http);
    }

    /**
     * Changes the settings of the HTTP client.
     *
     * @param http changes the settings
     * @return the options
     */
    public LisaOptions http(Consumer<HttpClient.Builder> http) {
        return new LisaOptions(gateway, manager, token, timeout, tries, http);
    }
}
