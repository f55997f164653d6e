package lisa.relay;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads and writes JSON (RFC 8259). Values are maps with texts as keys, lists, texts, numbers, booleans and null. Numbers are read
 * as a Long, or as a Double if they do not fit. Errors are an IllegalArgumentException that contains no part of the input, since
 * that may be secret.
 */
final class Json {
    /** The maximum depth of arrays and objects. */
    private static final int MAX_DEPTH = 100;
    private static final char[] HEX = "0123456789abcdef".toCharArray();

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Decodes UTF-8, and fails for bytes that are something else. */
    static String decode(byte[] bytes) {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException error) {
            throw new IllegalArgumentException("the text is not UTF-8", error);
        }
    }

    /** Encodes a text as UTF-8, and fails for a surrogate without its other half. */
    static byte[] encode(String text) {
        checkSurrogates(text);
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value(MAX_DEPTH);
        json.skipSpace();
        if (json.at < text.length()) throw json.error("expected the end");
        return value;
    }

    static String write(Object value) {
        StringBuilder out = new StringBuilder(256);
        write(value, out, MAX_DEPTH);
        return out.toString();
    }

    private Object value(int depth) {
        skipSpace();
        return switch (peek()) {
            case '{' -> object(inner(depth));
            case '[' -> array(inner(depth));
            case '"' -> string();
            case 't' -> literal("true", true);
            case 'f' -> literal("false", false);
            case 'n' -> literal("null", null);
            default -> number();
        };
    }

    private static int inner(int depth) {
        if (depth == 0) throw new IllegalArgumentException("more than " + MAX_DEPTH + " arrays and objects are nested");
        return depth - 1;
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> object = new LinkedHashMap<>();
        at++;
        skipSpace();
        if (skip('}')) return object;
        do {
            skipSpace();
            if (peek() != '"') throw error("expected the name of a member");
            String name = string();
            skipSpace();
            if (!skip(':')) throw error("expected a colon");
            object.put(name, value(depth));
            skipSpace();
        } while (skip(','));
        if (!skip('}')) throw error("expected the end of an object");
        return object;
    }

    private List<Object> array(int depth) {
        List<Object> array = new ArrayList<>();
        at++;
        skipSpace();
        if (skip(']')) return array;
        do {
            array.add(value(depth));
            skipSpace();
        } while (skip(','));
        if (!skip(']')) throw error("expected the end of an array");
        return array;
    }

    private String string() {
        int start = ++at;
        while (peek() != '"' && peek() != '\\') plain();
        // Most strings have no escapes.
        if (peek() == '"') return checkSurrogates(text.substring(start, at++));
        StringBuilder out = new StringBuilder().append(text, start, at);
        while (!skip('"')) {
            if (skip('\\')) out.append(escaped());
            else out.append(plain());
        }
        return checkSurrogates(out.toString());
    }

    private char plain() {
        char one = peek();
        if (one < ' ') throw error("expected the end of a string");
        at++;
        return one;
    }

    private char escaped() {
        char one = peek();
        at++;
        return switch (one) {
            case '"', '\\', '/' -> one;
            case 'b' -> '\b';
            case 'f' -> '\f';
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 't' -> '\t';
            case 'u' -> unit();
            default -> throw error("unknown escape");
        };
    }

    private char unit() {
        int unit = 0;
        for (int n = 0; n < 4; n++, at++) {
            char one = peek();
            int digit = one < 128 ? Character.digit(one, 16) : -1;
            if (digit < 0) throw error("expected four hexadecimal digits");
            unit = unit * 16 + digit;
        }
        return (char) unit;
    }

    private Object literal(String name, Object value) {
        if (!text.startsWith(name, at)) throw error("expected a value");
        at += name.length();
        return value;
    }

    private Object number() {
        int start = at;
        skip('-');
        if (!skip('0')) digits();
        boolean isWhole = true;
        if (skip('.')) {
            isWhole = false;
            digits();
        }
        if (skip('e') || skip('E')) {
            isWhole = false;
            if (!skip('+')) skip('-');
            digits();
        }
        return number(text.substring(start, at), isWhole);
    }

    private Object number(String digits, boolean isWhole) {
        // A long has up to 19 digits; longer ones are not worth a try.
        if (isWhole && digits.length() <= 20) {
            try {
                return Long.valueOf(digits);
            } catch (NumberFormatException tooLarge) {
                // It is read as a Double.
            }
        }
        double value = Double.parseDouble(digits);
        if (Double.isInfinite(value)) throw error("the number is too large");
        return value;
    }

    private void digits() {
        int start = at;
        while (peek() >= '0' && peek() <= '9') at++;
        if (at == start) throw error(start == text.length() ? "it is cut off" : "expected a value");
    }

    /** Returns the next character, or a control character at the end. */
    private char peek() {
        return at < text.length() ? text.charAt(at) : '\0';
    }

    private boolean skip(char one) {
        if (peek() != one) return false;
        at++;
        return true;
    }

    private void skipSpace() {
        while (" \t\r\n".indexOf(peek()) >= 0) at++;
    }

    private IllegalArgumentException error(String text) {
        return new IllegalArgumentException("not JSON: " + text + " at position " + at);
    }

    private static void write(Object value, StringBuilder out, int depth) {
        if (value == null || value instanceof Boolean) out.append(value);
        else if (value instanceof String text) quote(text, out);
        else if (value instanceof Number number) out.append(plain(number));
        else if (value instanceof Map<?, ?> map) writeObject(map, out, inner(depth));
        else if (value instanceof Iterable<?> items) writeArray(items, out, inner(depth));
        else throw new IllegalArgumentException(value.getClass().getName() + " is not JSON: use a Map, List, String, number or boolean");
    }

    private static void writeObject(Map<?, ?> map, StringBuilder out, int depth) {
        out.append('{');
        for (Iterator<? extends Map.Entry<?, ?>> entries = map.entrySet().iterator(); entries.hasNext(); ) {
            Map.Entry<?, ?> entry = entries.next();
            if (!(entry.getKey() instanceof String name)) throw new IllegalArgumentException("the key of a map is not a String");
            quote(name, out);
            out.append(':');
            write(entry.getValue(), out, depth);
            if (entries.hasNext()) out.append(',');
        }
        out.append('}');
    }

    private static void writeArray(Iterable<?> items, StringBuilder out, int depth) {
        out.append('[');
        for (Iterator<?> all = items.iterator(); all.hasNext(); ) {
            write(all.next(), out, depth);
            if (all.hasNext()) out.append(',');
        }
        out.append(']');
    }

    private static String plain(Number number) {
        boolean isReal = number instanceof Double || number instanceof Float;
        if (isReal && Double.isFinite(number.doubleValue())) return number.toString();
        boolean isWhole = number instanceof Integer || number instanceof Long || number instanceof Short || number instanceof Byte;
        if (isWhole || number instanceof BigInteger || number instanceof BigDecimal) return number.toString();
        throw new IllegalArgumentException(isReal ? number + " is not JSON" : number.getClass().getName() + " is not a number of JSON");
    }

    private static void quote(String text, StringBuilder out) {
        checkSurrogates(text);
        out.append('"');
        int start = 0;
        for (int n = 0; n < text.length(); n++) {
            char one = text.charAt(n);
            if (one >= ' ' && one != '"' && one != '\\') continue;
            out.append(text, start, n);
            start = n + 1;
            if (one >= ' ') out.append('\\').append(one);
            else out.append("\\u00").append(HEX[one >> 4]).append(HEX[one & 15]);
        }
        out.append(text, start, text.length()).append('"');
    }

    static String checkSurrogates(String text) {
        for (int n = 0; n < text.length(); n++) {
            if (!Character.isSurrogate(text.charAt(n))) continue;
            if (!Character.isSupplementaryCodePoint(text.codePointAt(n))) {
                throw new IllegalArgumentException("a text has a surrogate without its other half");
            }
            n++;
        }
        return text;
    }
}
