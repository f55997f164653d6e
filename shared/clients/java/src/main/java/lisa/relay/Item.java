package lisa.relay;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** An item of a batch, with what its tries have shown. It is used by one thread at a time. */
final class Item {
    /** The most items of a request, and the most bytes of their JSON. */
    private static final int MAX_ITEMS = 500;
    private static final int MAX_BYTES = 1024 * 1024;

    /** Its JSON. */
    final byte[] json;
    private final String id;
    private int failures;
    private boolean isInDoubt;

    Item(Map<String, Object> body) {
        json = Json.encode(Json.write(body));
        id = (String) body.get("id");
    }

    static Item of(Settlement settlement) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("token", Values.text("token", settlement.token()));
        body.putAll(Outcomes.body(Values.required("outcome", settlement.outcome())));
        return new Item(body);
    }

    /** Returns the number of tries that failed. */
    int failures() {
        return failures;
    }

    /** Takes the error of a try. Returns true if it is final, and completes it with what earlier tries have shown. */
    boolean isFinal(LisaException error, int tries) {
        failures++;
        if (error.isRetryable() && failures < tries) {
            isInDoubt |= error.isInDoubt();
            return false;
        }
        if (error instanceof ProblemException problem && problem.isStale()) problem.setMaybeSettled(isInDoubt);
        // The error may name another message, such as the one to replace.
        if (id != null) error.setId(id);
        return true;
    }

    /** Returns the number of leading items that fit in a request. */
    static int fitting(Iterable<Item> items) {
        int count = 0;
        long size = 0;
        for (Item item : items) {
            size += item.json.length + 1;
            if (count == MAX_ITEMS || (count > 0 && size > MAX_BYTES)) break;
            count++;
        }
        return count;
    }

    /** Returns the items as a JSON array. */
    static byte[] array(List<Item> items) {
        byte[] array = new byte[1 + items.stream().mapToInt(item -> item.json.length + 1).sum()];
        int at = 0;
        for (Item item : items) {
            array[at] = (byte) (at == 0 ? '[' : ',');
            System.arraycopy(item.json, 0, array, at + 1, item.json.length);
            at += item.json.length + 1;
        }
        array[at] = ']';
        return array;
    }
}
