package io.github.lockkeeper;

import io.github.lockkeeper.LockLostException.Cause;
import java.io.IOException;
import java.io.InputStream;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;

/** The client on a real node: {@code ClientTest URL PID [TEST…]}. */
final class ClientTest {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    static String url;
    private static long node;

    interface Body {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // whatever threads are left
        });
        url = arguments[0];
        node = Long.parseLong(arguments[1]);
        Map<String, Body> tests = new LinkedHashMap<>();
        tests.put("json", ClientTest::json);
        tests.put("holds of one lock exclude each other, and their tokens rise", ClientTest::excludes);
        tests.put("many requests of one session", ClientTest::many);
        tests.put("modes", ClientTest::modes);
        tests.put("a wait ends in time", ClientTest::waits);
        tests.put("an interrupt leaves nothing behind", ClientTest::interrupts);
        tests.put("a cancelled future leaves nothing behind", ClientTest::cancels);
        tests.put("a break is a loss", ClientTest::breaks);
        tests.put("lost calls and answers are repeated", ClientTest::lostAnswers);
        tests.put("another node is asked", ClientTest::failsOver);
        tests.put("an election", ClientTest::elects);
        tests.put("refusals", ClientTest::refusals);
        tests.put("a closed client", ClientTest::closed);
        tests.put("bad nodes", Faults::badNodes);
        tests.put("a wait ends between two requests", Faults::timesOutBetweenRequests);
        tests.put("deletes that are refused", Faults::refusedDeletes);
        tests.put("a call without an answer", Faults::forgets);
        tests.put("limits of time", Faults::limits);
        tests.put("endless answers", Faults::endlessAnswers);
        tests.put("grants that can't be read", Faults::brokenGrants);
        tests.put("a node that does not answer", ClientTest::silentNode);
        tests.put("a program that is stopped", ClientTest::stopped);
        List<String> chosen = List.of(arguments).subList(2, arguments.length);
        tests.keySet().removeIf(name -> !chosen.isEmpty() && !chosen.contains(name));
        for (Map.Entry<String, Body> test : tests.entrySet()) {
            long begin = System.nanoTime();
            test.getValue().run();
            System.out.printf("%5d ms  %s%n", (System.nanoTime() - begin) / 1_000_000, test.getKey());
        }
        System.exit(0);
    }

    private static Locks connect() {
        return Lockkeeper.at(url).ttl(Duration.ofSeconds(10)).label("test").connect();
    }

    static void is(boolean condition, Object what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    static <E extends Exception> E fails(Class<E> kind, Body body) {
        try {
            body.run();
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            is(kind.isInstance(cause), error);
            return kind.cast(cause);
        }
        throw new AssertionError("no " + kind.getSimpleName());
    }

    static void waitUntil(String what, BooleanSupplier condition) throws InterruptedException {
        long until = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.getAsBoolean()) {
            is(System.nanoTime() < until, "not in time: " + what);
            Thread.sleep(2);
        }
    }

    private static Json.Fields shown(Locks locks, String name) {
        try {
            long until = System.nanoTime() + PATIENCE.toNanos();
            return locks.ask(new Nodes.Call("GET", "/v1/locks/" + name, null, null, null, "holds"), until).body();
        } catch (InterruptedException interrupt) {
            throw new AssertionError(interrupt);
        }
    }

    static long waiters(Locks locks, String name) {
        Long count = shown(locks, name).number("waiter_count");
        return count == null ? 0 : count;
    }

    static void isFree(Locks locks, String name) throws InterruptedException {
        waitUntil(name + " is free", () -> shown(locks, name).list("holds").isEmpty() && waiters(locks, name) == 0);
    }

    static List<Thread> threads(int count, Body body) {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Thread thread = new Thread(() -> {
                try {
                    body.run();
                } catch (Throwable error) {
                    error.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
            threads.add(thread);
            thread.start();
        }
        return threads;
    }

    static void join(List<Thread> threads) throws InterruptedException {
        for (Thread thread : threads) {
            thread.join(PATIENCE.toMillis());
            is(!thread.isAlive(), "a thread hangs");
        }
    }

    private static void json() {
        String text = "{\"a\":[1,-2.5,true,null,\"\\u00e4\\n\\\"\"],\"b\":{},\"c\":[]}";
        Json.Fields fields = Json.parse(" " + text + "\n");
        is(fields.list("a").equals(java.util.Arrays.asList(1L, -2.5, true, null, "ä\n\"")), fields);
        is(Json.parse(fields.toString()).equals(fields), fields);
        is(Json.of("x", 1, "y", null).toString().equals("{\"x\":1}"), "null is left out");
        for (String wrong : new String[] {"", "[]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u12", "{\"a\":1}x", "{\"a\":tru}", "{\"a\":99999999999999999999}",
            "{\"a\":" + "[".repeat(100)}) {
            fails(IllegalArgumentException.class, () -> Json.parse(wrong));
        }
    }

    private static void excludes() throws Exception {
        AtomicInteger inside = new AtomicInteger();
        AtomicLong newest = new AtomicLong();
        List<Thread> all = new ArrayList<>();
        Locks[] clients = {connect(), connect()};
        for (Locks locks : clients) {
            all.addAll(threads(4, () -> {
                for (int i = 0; i < 25; i++) {
                    try (Hold hold = locks.mutex("excludes").acquire()) {
                        is(inside.incrementAndGet() == 1, "two holds");
                        is(hold.token() > newest.getAndSet(hold.token()), "tokens rise");
                        hold.check(Duration.ofMillis(1));
                        is(hold.validFor().toMillis() <= 9_900, hold.validFor());
                        inside.decrementAndGet();
                    }
                }
            }));
        }
        join(all);
        isFree(clients[0], "excludes");
        for (Locks locks : clients) {
            locks.close();
        }
    }

    /** More than the service remembers of a session (4,096), of many threads, whose calls overtake each other. */
    private static void many() throws Exception {
        try (Locks locks = connect()) {
            AtomicInteger next = new AtomicInteger();
            join(threads(14, () -> {
                String name = "many/" + next.getAndIncrement();
                for (int i = 0; i < 300; i++) {
                    locks.mutex(name).tryAcquire().orElseThrow().close();
                }
            }));
        }
    }

    private static void modes() throws Exception {
        try (Locks locks = connect(); Locks other = connect()) {
            try (Hold one = locks.shared("modes/a").acquire(); Hold two = other.shared("modes/a").acquire()) {
                is(other.mutex("modes/a").tryAcquire().isEmpty(), "readers hold it");
                is(one.slots().isEmpty() && two.token() > one.token(), "shared");
            }
            try (Hold one = locks.semaphore(2, "modes/b").acquire();
                    Hold two = other.semaphore(2, "modes/b").acquire()) {
                is(Set.of(one.slots().get(0), two.slots().get(0)).equals(Set.of(0, 1)), "slots");
                is(locks.semaphore(2, "modes/b").tryAcquire().isEmpty(), "no third permit");
            }
            try (Hold both = locks.all("modes/c", "modes/ä b?%").acquire()) {
                is(other.mutex("modes/ä b?%").tryAcquire().isEmpty(), "both are held by " + both);
            }
            try (Hold tree = locks.mutex("modes").subtree().acquire()) {
                is(other.mutex("modes/c").tryAcquire().isEmpty(), "the tree is held by " + tree);
            }
            other.mutex("modes/c").tryAcquire().orElseThrow().close();
        }
    }

    private static void waits() throws Exception {
        try (Locks locks = connect(); Locks other = connect(); Hold held = locks.mutex("waits").acquire()) {
            timesOut(() -> other.mutex("waits").acquire(Duration.ofMillis(100)));
            timesOut(() -> other.mutex("waits").acquireAsync(Duration.ofMillis(100)).get());
            fails(LockException.Busy.class, () -> other.mutex("waits").acquireAsync(Duration.ZERO).get());
            is(waiters(locks, "waits") == 0, "nobody waits");
            Lock few = other.mutex("waits").maxWaiters(1);
            CompletableFuture<Hold> next = few.acquireAsync(PATIENCE);
            waitUntil("it waits", () -> waiters(locks, "waits") == 1);
            fails(LockException.Busy.class, few::acquire);
            is(few.tryAcquire().isEmpty(), "it does not wait");
            fails(LockException.Refused.class, other.mutex("waits").maxWaiters(-1)::acquire);
            held.release();
            next.get(60, TimeUnit.SECONDS).release();
        }
    }

    /** On a busy machine, the first answer may come after the end of the wait. */
    private static void timesOut(Body body) throws InterruptedException {
        waitUntil("it times out", () -> {
            LockException error = fails(LockException.class, body);
            is(error instanceof LockException.TimedOut || error instanceof LockException.Unreachable, error);
            return error instanceof LockException.TimedOut;
        });
    }

    private static void interrupts() throws Exception {
        try (Locks locks = connect(); Locks other = connect()) {
            try (Hold held = locks.mutex("interrupts").acquire()) {
                Lock lock = other.mutex("interrupts");
                List<Thread> waiting = threads(3, () -> fails(InterruptedException.class, lock::acquire));
                waitUntil("they wait", () -> waiters(locks, "interrupts") == 3);
                waiting.forEach(Thread::interrupt);
                join(waiting);
                waitUntil("nobody waits", () -> waiters(locks, "interrupts") == 0);
                // A thread that is interrupted before it releases does not wait for the answer.
                Thread.currentThread().interrupt();
            }
            is(Thread.interrupted(), "the interrupt is not swallowed");
            isFree(locks, "interrupts");
            Thread.currentThread().interrupt();
            fails(InterruptedException.class, other.mutex("interrupts")::acquire);
            is(!Thread.interrupted(), "the interrupt is taken");
        }
    }

    private static void cancels() throws Exception {
        Random random = new Random(1);
        try (Locks locks = connect(); Locks other = connect()) {
            for (int i = 0; i < 300; i++) {
                Locks one = i % 2 == 0 ? locks : other;
                CompletableFuture<Hold> first = one.mutex("cancels").acquireAsync();
                CompletableFuture<Hold> second = locks.mutex("cancels").acquireAsync();
                long until = System.nanoTime() + random.nextInt(3_000_000);
                while (System.nanoTime() < until) {
                    Thread.onSpinWait();
                }
                for (CompletableFuture<Hold> future : List.of(first, second)) {
                    if (!future.cancel(true)) {
                        future.get().release();
                    } else {
                        fails(CancellationException.class, future::join);
                    }
                }
            }
            isFree(locks, "cancels");
            locks.mutex("cancels").acquire(PATIENCE).release();
        }
    }

    private static void breaks() throws Exception {
        try (Locks locks = connect()) {
            for (boolean now : new boolean[] {false, true}) {
                Hold hold = locks.mutex("breaks").acquire();
                CompletableFuture<Void> told = new CompletableFuture<>();
                hold.onLost(() -> told.complete(null));
                Json.Fields call = Json.of("name", "breaks", "token", hold.token(), "reason", "a test", "now", now);
                long until = System.nanoTime() + PATIENCE.toNanos();
                Nodes.Call order = new Nodes.Call("POST", "/v1/break", null, call::toString, null, null);
                is(locks.ask(order, until).status() == 200, "the break");
                is(hold.lost().get(60, TimeUnit.SECONDS) == Cause.BROKEN, "the cause");
                told.get(60, TimeUnit.SECONDS);
                is(hold.validFor().isZero(), hold.validFor());
                is(fails(LockLostException.class, hold::check).reason == Cause.BROKEN, "the cause");
                is(now || shown(locks, "breaks").list("holds").size() == 1, "it is held until it is released");
                fails(LockLostException.class, hold::close);
                isFree(locks, "breaks");
            }
        }
    }

    /** Passes calls on, and loses each fifth call and each fifth answer. */
    private static final class Proxy implements AutoCloseable {
        final ServerSocket listener = new ServerSocket(0, 50, java.net.InetAddress.getLoopbackAddress());
        final AtomicInteger calls = new AtomicInteger();
        final Set<Socket> open = ConcurrentHashMap.newKeySet();

        Proxy() throws IOException {
            new Thread(() -> {
                try {
                    while (true) {
                        Socket client = listener.accept();
                        java.net.URI to = java.net.URI.create(url);
                        Socket server = new Socket(to.getHost(), to.getPort());
                        AtomicBoolean losesAnswer = new AtomicBoolean();
                        open.addAll(List.of(client, server));
                        new Thread(() -> pass(client, server, () -> {
                            int call = calls.incrementAndGet() % 5;
                            losesAnswer.set(call == 2);
                            return call != 0;
                        })).start();
                        new Thread(() -> pass(server, client, () -> !losesAnswer.get())).start();
                    }
                } catch (IOException closed) {
                    // The test is over.
                }
            }).start();
        }

        String url() {
            return "http://127.0.0.1:" + listener.getLocalPort();
        }

        private void pass(Socket from, Socket to, BooleanSupplier passes) {
            byte[] buffer = new byte[1 << 16];
            try (from; to) {
                for (int length; (length = from.getInputStream().read(buffer)) > 0 && passes.getAsBoolean();) {
                    to.getOutputStream().write(buffer, 0, length);
                }
            } catch (IOException cut) {
                // As by a network.
            } finally {
                open.removeAll(List.of(from, to));
            }
        }

        @Override
        public void close() throws IOException {
            listener.close();
            for (Socket socket : open) {
                socket.close();
            }
        }
    }

    private static void lostAnswers() throws Exception {
        try (Proxy proxy = new Proxy(); Locks locks = connect();
                Locks cut = Lockkeeper.at(proxy.url()).ttl(Duration.ofSeconds(10)).connect()) {
            AtomicInteger inside = new AtomicInteger();
            join(threads(4, () -> {
                for (int i = 0; i < 20; i++) {
                    Hold hold = cut.mutex("lost").acquire();
                    is(inside.incrementAndGet() == 1, "two holds");
                    hold.check();
                    inside.decrementAndGet();
                    hold.release();
                }
            }));
            isFree(locks, "lost");
        }
    }

    private static void failsOver() throws Exception {
        int closed;
        try (ServerSocket socket = new ServerSocket(0)) {
            closed = socket.getLocalPort();
        }
        String nodes = "http://127.0.0.1:" + closed + "," + url.substring("http://".length());
        try (Locks locks = Lockkeeper.connect(nodes)) {
            locks.mutex("fails-over").acquire(PATIENCE).release();
        }
        try (Locks locks = Lockkeeper.at("http://127.0.0.1:" + closed).ttl(Duration.ofSeconds(1)).connect()) {
            fails(LockException.Unreachable.class, () -> locks.mutex("fails-over").acquire());
            CompletableFuture<Hold> soon = locks.mutex("fails-over").acquireAsync(Duration.ofMillis(50));
            fails(LockException.Unreachable.class, soon::get);
        }
    }

    private static void elects() throws Exception {
        try (Locks locks = connect(); Locks other = connect()) {
            is(other.election("elects").leader().equals(Optional.empty()), "nobody leads");
            Hold leads = locks.election("elects").campaign("10.0.0.7:80");
            Election.Leader leader = other.election("elects").leader().orElseThrow();
            is(leader.equals(new Election.Leader(leads.token(), "test", "10.0.0.7:80")), leader);
            is(other.election("elects").candidate("b").tryAcquire().isEmpty(), "one leads");
            leads.release();
        }
    }

    private static void refusals() throws Exception {
        for (String wrong : new String[] {"redis://127.0.0.1", "http://", "http://a/b", "http://a b", ""}) {
            fails(IllegalArgumentException.class, () -> Lockkeeper.connect(wrong));
        }
        fails(IllegalArgumentException.class, () -> Lockkeeper.at(url).ttl(Duration.ofMillis(10)));
        try (Locks locks = connect(); Hold one = locks.semaphore(2, "refusals").acquire()) {
            String code = fails(LockException.Refused.class, locks.semaphore(3, "refusals")::acquire).code;
            is(code.equals("failed-precondition"), code);
            Lock large = locks.mutex("refusals").value("x".repeat(5_000));
            code = fails(LockException.Refused.class, large::acquire).code;
            is(code.equals("invalid-argument"), code);
            one.check();
            LockLostException soon = fails(LockLostException.class, () -> one.check(Duration.ofSeconds(10)));
            is(soon.reason == Cause.TOO_SHORT, soon);
        }
    }

    private static void closed() throws Exception {
        Locks locks = connect();
        Hold hold = locks.mutex("closed").acquire();
        CompletableFuture<Hold> waits = locks.mutex("closed").acquireAsync();
        try (Locks other = connect()) {
            waitUntil("it waits", () -> waiters(other, "closed") == 1);
            locks.close();
            fails(LockException.Closed.class, () -> waits.get(60, TimeUnit.SECONDS));
            is(hold.lost().get(60, TimeUnit.SECONDS) == Cause.CLOSED, "the cause");
            fails(LockException.Closed.class, () -> locks.mutex("closed").acquire());
            CompletableFuture<Hold> late = locks.mutex("closed").acquireAsync();
            fails(LockException.Closed.class, () -> late.get(60, TimeUnit.SECONDS));
            fails(LockLostException.class, hold::release);
            isFree(other, "closed");
        }
    }

    /** The node is stopped: the loss is told by the clock, and waiters give up. */
    private static void silentNode() throws Exception {
        try (Locks locks = Lockkeeper.at(url).ttl(Duration.ofSeconds(1)).connect(); Locks other = connect()) {
            Hold hold = locks.mutex("silent").acquire();
            CompletableFuture<Hold> waits = locks.mutex("silent").acquireAsync();
            waitUntil("it waits", () -> waiters(locks, "silent") == 1);
            signal("STOP", node);
            try {
                hold.lost().get(60, TimeUnit.SECONDS);
                fails(LockLostException.class, hold::check);
                fails(LockException.Unreachable.class, () -> waits.get(60, TimeUnit.SECONDS));
            } finally {
                signal("CONT", node);
            }
            isFree(other, "silent");
            locks.mutex("silent").acquire(PATIENCE).release();
        }
    }

    /** After a stop of this program that outlasts the lease, the first check says so, before any answer. */
    private static void stopped() throws Exception {
        try (Locks other = connect(); Locks locks = Lockkeeper.at(url).ttl(Duration.ofSeconds(1)).connect()) {
            Hold hold = locks.mutex("stopped").acquire();
            CompletableFuture<Hold> waits = locks.mutex("stopped").acquireAsync();
            waitUntil("it waits", () -> waiters(other, "stopped") == 1);
            String us = Long.toString(ProcessHandle.current().pid());
            String script = "kill -STOP $0; sleep 2.5; kill -CONT $0";
            Process stop = new ProcessBuilder("sh", "-c", script, us).inheritIO().start();
            waitUntil("it was stopped", () -> {
                try {
                    hold.check();
                    return false;
                } catch (LockLostException lost) {
                    return true;
                }
            });
            is(stop.waitFor() == 0, "kill");
            hold.lost().get(60, TimeUnit.SECONDS);
            // The waiter is served in another session.
            Hold next = waits.get(60, TimeUnit.SECONDS);
            is(next.token() > hold.token(), "tokens rise");
            next.close();
            isFree(other, "stopped");
        }
    }

    private static void signal(String signal, long pid) throws Exception {
        is(new ProcessBuilder("kill", "-" + signal, Long.toString(pid)).inheritIO().start().waitFor() == 0, "kill");
    }
}
