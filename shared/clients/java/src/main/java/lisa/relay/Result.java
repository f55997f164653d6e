package lisa.relay;

/**
 * The result of an item of a batch: a value or an error.
 *
 * @param <T> the type of the value
 * @param value the value, or null if the item failed
 * @param error the error, or null if the item succeeded
 */
public record Result<T>(T value, LisaException error) {
    static <T> Result<T> of(T value) {
        return new Result<>(value, null);
    }

    static <T> Result<T> failed(LisaException error) {
        return new Result<>(null, error);
    }

    /**
     * Returns true if the item succeeded.
     *
     * @return true if there is a value
     */
    public boolean isOk() {
        return error == null;
    }

    /**
     * Returns the value.
     *
     * @return the value
     * @throws LisaException if the item failed
     */
    public T orElseThrow() {
        if (error != null) throw error;
        return value;
    }
}
