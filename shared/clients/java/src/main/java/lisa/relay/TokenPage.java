package lisa.relay;

import java.util.List;

/**
 * A page of tokens by name.
 *
 * @param tokens the tokens
 * @param next the cursor of the next page, or null if this is the last one
 * @param damaged those whose record cannot be read; they are not accepted
 */
public record TokenPage(List<Token> tokens, String next, List<DamagedToken> damaged) {
    /**
     * A token whose record cannot be read.
     *
     * @param token its name
     * @param error the reason
     */
    public record DamagedToken(String token, String error) {}
}
