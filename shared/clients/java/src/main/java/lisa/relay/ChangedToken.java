package lisa.relay;

import java.util.List;

/**
 * A token that was created by call.
 *
 * @param token its name
 * @param version changes whenever the token does
 * @param scopes its scopes
 * @param isRotating true while its previous secret is accepted as well
 * @param secret the bearer token, if this call has generated it, else null; no later call returns it
 */
public record ChangedToken(String token, long version, List<String> scopes, boolean isRotating, String secret) {
    /** Returns the token without its secret. */
    @Override
    public String toString() {
        return "ChangedToken[token=" + token + ", version=" + version + ", scopes=" + scopes + ", isRotating=" + isRotating + "]";
    }
}
