package io.github.lockkeeper;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The driver by which the project's conformance tests use this client: commands come as lines of standard input,
 * answers and events go as lines to standard output, all in JSON.
 */
public final class Driver {
    private static final String MODES = "exclusive shared permit";
    /** The commands and their fields, besides {@code id} and {@code do}. */
    private static final Map<String, String> FIELDS = Map.of("connect", "url ttl_ms label", "acquire",
            "hold lock mode permits also subtree wait_ms", "lead", "hold election wait_ms", "release", "hold",
            "check", "hold", "cancel", "acquire", "stall", "ms", "die", "");
    /** Also those that were released. */
    private final Map<String, Hold> holds = new ConcurrentHashMap<>();
    /** How to cancel each acquire that is not answered. */
    private final Map<Long, Runnable> cancels = new ConcurrentHashMap<>();
    private volatile Locks locks;

    private Driver() {}

    public static void main(String[] arguments) throws IOException {
        Driver driver = new Driver();
        say(Json.of("driver", "java", "version", "0.1.0", "protocol", 1, "schemes", List.of("http"), "modes",
                List.of(MODES.split(" ")), "features", List.of("election", "all", "subtree")));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            driver.command(line);
        }
        if (driver.locks != null) {
            driver.locks.close();
        }
        System.exit(0);
    }

    private static synchronized void say(Json.Fields line) {
        System.out.println(line);
        System.out.flush();
    }

    private void command(String line) {
        Json.Fields command;
        try {
            command = Json.parse(line);
        } catch (IllegalArgumentException wrong) {
            fail(null, wrong);
            return;
        }
        String what = String.valueOf(command.text("do"));
        List<String> known = List.of(("id do " + FIELDS.getOrDefault(what, "")).split(" "));
        if (command.number("id") == null || !known.containsAll(command.keySet())) {
            String text = "no number as `id`, or an unknown field; known are " + known;
            fail(command.number("id"), new IllegalArgumentException(text));
            return;
        }
        switch (what) {
            case "die" -> Runtime.getRuntime().halt(9);
            case "acquire", "lead" -> acquire(command);
            // Those that end at once are done here, in their order.
            case "connect", "cancel", "check" -> run(command);
            default -> new Thread(() -> run(command)).start();
        }
    }

    private void run(Json.Fields command) {
        Long id = command.number("id");
        try {
            say(Json.of("id", id, "ok", done(command)));
        } catch (RuntimeException error) {
            fail(id, error);
        }
    }

    private Json.Fields done(Json.Fields command) {
        switch (String.valueOf(command.text("do"))) {
            case "connect":
                if (locks != null) {
                    throw new IllegalArgumentException("`connect` comes once");
                }
                Duration ttl = Duration.ofMillis(number(command, "ttl_ms"));
                Lockkeeper options = Lockkeeper.at(text(command, "url")).ttl(ttl);
                if (command.text("label") != null) {
                    options.label(command.text("label"));
                }
                locks = options.connect();
                return Json.of();
            case "cancel":
                Runnable cancel = cancels.remove(command.number("acquire"));
                if (cancel != null) {
                    cancel.run();
                }
                return Json.of();
            case "check":
                Hold checked = hold(command);
                checked.check();
                return Json.of("valid_ms", checked.validFor().toMillis());
            case "release":
                try {
                    hold(command).release();
                    return Json.of("was", "held");
                } catch (LockLostException lost) {
                    boolean isAgain = lost.reason == LockLostException.Cause.RELEASED;
                    return Json.of("was", isAgain ? "released" : "lost");
                }
            case "stall":
                throw new IllegalArgumentException("one thread of a JVM can't stall the others: stop the process");
            default:
                throw new IllegalArgumentException("there is no command `" + command.get("do") + "`");
        }
    }

    /** By a thread that is interrupted if the number is odd, by a future that is cancelled if it is even. */
    private void acquire(Json.Fields command) {
        Long id = command.number("id");
        try {
            Lock lock = lock(command);
            Duration wait = command.get("wait_ms") == null ? null : Duration.ofMillis(number(command, "wait_ms"));
            boolean isAsync = id % 2 == 0;
            String name = text(command, "hold");
            if (isAsync) {
                CompletableFuture<Hold> future = wait == null ? lock.acquireAsync() : lock.acquireAsync(wait);
                cancels.put(id, () -> future.cancel(true));
                future.whenComplete((hold, error) -> acquired(id, name, hold, error));
                return;
            }
            Thread thread = new Thread(() -> {
                try {
                    acquired(id, name, wait == null ? lock.acquire() : lock.acquire(wait), null);
                } catch (InterruptedException | RuntimeException error) {
                    acquired(id, name, null, error);
                }
            });
            cancels.put(id, thread::interrupt);
            thread.start();
        } catch (RuntimeException error) {
            fail(id, error);
        }
    }

    private void acquired(Long id, String name, Hold hold, Throwable error) {
        cancels.remove(id);
        if (error != null) {
            fail(id, error);
            return;
        }
        holds.put(name, hold);
        say(Json.of("id", id, "ok", Json.of("token", hold.token(), "valid_ms", hold.validFor().toMillis())));
        hold.lost().thenAccept(cause -> {
            if (cause != LockLostException.Cause.CLOSED) {
                say(Json.of("event", "lost", "hold", name));
            }
        });
    }

    private Lock lock(Json.Fields command) {
        if (locks == null) {
            throw new IllegalArgumentException("`connect` comes first");
        }
        if ("lead".equals(command.text("do"))) {
            return locks.election(text(command, "election")).candidate("");
        }
        List<String> list = new ArrayList<>(List.of(text(command, "lock")));
        command.list("also").forEach(name -> list.add(name.toString()));
        String[] names = list.toArray(new String[0]);
        Lock lock = switch (text(command, "mode")) {
            case "exclusive" -> locks.all(names);
            case "shared" -> locks.shared(names);
            case "permit" -> locks.semaphore((int) number(command, "permits"), names);
            default -> throw new IllegalArgumentException("`mode` is none of " + MODES);
        };
        return Boolean.TRUE.equals(command.get("subtree")) ? lock.subtree() : lock;
    }

    private Hold hold(Json.Fields command) {
        Hold hold = holds.get(text(command, "hold"));
        if (hold == null) {
            throw new IllegalArgumentException("there is no hold `" + command.text("hold") + "`");
        }
        return hold;
    }

    private static String text(Json.Fields command, String name) {
        if (command.text(name) == null) {
            throw new IllegalArgumentException("`" + name + "` is missing, or not text");
        }
        return command.text(name);
    }

    private static long number(Json.Fields command, String name) {
        if (command.number(name) == null) {
            throw new IllegalArgumentException("`" + name + "` is missing, or not a whole number");
        }
        return command.number(name);
    }

    private static void fail(Long id, Throwable error) {
        String kind = error instanceof LockException.Busy ? "busy"
                : error instanceof LockException.TimedOut ? "timed-out"
                : error instanceof InterruptedException || error instanceof CancellationException ? "cancelled"
                : error instanceof LockException.Unreachable ? "unreachable"
                : error instanceof LockLostException ? "lost" : "refused";
        Json.Fields line = new Json.Fields();
        line.put("id", id);
        line.put("error", Json.of("kind", kind, "text", String.valueOf(error)));
        say(line);
    }
}
