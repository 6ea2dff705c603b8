package io.github.lockkeeper;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;

/** JSON: objects are {@link Json.Fields}, arrays {@link List}, integers {@link Long}, other numbers {@link Double}. */
final class Json {
    /** The limit of nested arrays and objects; the service's answers have 4. Their size is limited by {@link Nodes}. */
    private static final int DEPTH_MAX = 32;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** The fields of an object, in their order. As text it is JSON. */
    static final class Fields extends LinkedHashMap<String, Object> {
        String text(String name) {
            return get(name) instanceof String text ? text : null;
        }

        Long number(String name) {
            return get(name) instanceof Long number ? number : null;
        }

        List<?> list(String name) {
            return get(name) instanceof List<?> list ? list : List.of();
        }

        @Override
        public String toString() {
            StringBuilder out = new StringBuilder(256).append('{');
            forEach((name, value) -> {
                write(out.length() > 1 ? out.append(',') : out, name);
                write(out.append(':'), value);
            });
            return out.append('}').toString();
        }
    }

    /** @throws IllegalArgumentException the text is not one JSON object; with what was wrong and where */
    static Fields parse(String text) {
        Json json = new Json(text);
        if (!(json.value(0) instanceof Fields fields) || json.peek() != 0) {
            throw json.wrong("not one object");
        }
        return fields;
    }

    /** An object of pairs of names and values; those whose value is null are left out. */
    static Fields of(Object... pairs) {
        Fields fields = new Fields();
        for (int i = 0; i < pairs.length; i += 2) {
            if (pairs[i + 1] != null) {
                fields.put((String) pairs[i], pairs[i + 1]);
            }
        }
        return fields;
    }

    private static void write(StringBuilder out, Object value) {
        if (value instanceof List<?> list) {
            for (int i = 0; i < list.size(); i++) {
                write(out.append(i > 0 ? ',' : '['), list.get(i));
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof String text) {
            out.append('"');
            for (char c : text.toCharArray()) {
                out.append(c < ' ' || c == '"' || c == '\\' ? String.format("\\u%04x", (int) c) : String.valueOf(c));
            }
            out.append('"');
        } else {
            out.append(value); // a number, true, false, null, or an object
        }
    }

    private Object value(int depth) {
        if (depth > DEPTH_MAX) {
            throw wrong("more than " + DEPTH_MAX + " nested values");
        }
        char first = peek();
        if (first == '"') {
            return string();
        } else if (first != '{' && first != '[') {
            return word();
        }
        Fields fields = new Fields();
        List<Object> list = new ArrayList<>();
        char end = first == '{' ? '}' : ']';
        at++;
        for (boolean isFirst = true; peek() != end; isFirst = false) {
            if (!isFirst) {
                expect(',');
            }
            if (first == '{') {
                String name = string();
                expect(':');
                fields.put(name, value(depth + 1));
            } else {
                list.add(value(depth + 1));
            }
        }
        at++;
        return first == '{' ? fields : list;
    }

    private Object word() {
        int begin = at;
        while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(begin, at);
        try {
            return switch (word) {
                case "true" -> true;
                case "false" -> false;
                case "null" -> null;
                default -> word.matches("-?[0-9]+") ? (Object) Long.valueOf(word) : Double.valueOf(word);
            };
        } catch (NumberFormatException error) {
            throw wrong("no value: `" + word + "`");
        }
    }

    private String string() {
        expect('"');
        StringBuilder out = new StringBuilder();
        while (at < text.length()) {
            char c = text.charAt(at++);
            if (c == '"') {
                return out.toString();
            }
            out.append(c == '\\' ? escaped() : c);
        }
        throw wrong("a string without an end");
    }

    private char escaped() {
        char c = at < text.length() ? text.charAt(at++) : 0;
        int plain = "\"\\/bfnrt".indexOf(c);
        if (plain < 0 && (c != 'u' || at + 4 > text.length())) {
            throw wrong("an unknown escape");
        }
        return plain >= 0 ? "\"\\/\b\f\n\r\t".charAt(plain) : (char) Integer.parseInt(text, at, at += 4, 16);
    }

    private void expect(char wanted) {
        if (peek() != wanted) {
            throw wrong("`" + wanted + "` is missing");
        }
        at++;
    }

    /** The next character that is no space; 0 at the end. */
    private char peek() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        return at < text.length() ? text.charAt(at) : 0;
    }

    private IllegalArgumentException wrong(String what) {
        return new IllegalArgumentException("JSON: " + what + ", at character " + at);
    }
}
