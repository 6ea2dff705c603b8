package io.github.lockkeeper;

import static io.github.lockkeeper.ClientTest.fails;
import static io.github.lockkeeper.ClientTest.is;
import static io.github.lockkeeper.ClientTest.isFree;
import static io.github.lockkeeper.ClientTest.join;
import static io.github.lockkeeper.ClientTest.threads;
import static io.github.lockkeeper.ClientTest.waitUntil;
import static io.github.lockkeeper.ClientTest.waiters;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.github.lockkeeper.LockLostException.Cause;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/** Tests of {@link ClientTest} with nodes that answer wrongly, or not at all. */
final class Faults {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final String PROBLEM = "{\"code\":\"misplaced\",\"detail\":\"not by me\"}";
    private static final Reply SILENCE = new Reply(0, "");
    /** What no node of the service says of a session, or not each of them. */
    private static final Map<String, Reply> REPLIES = Map.of(
            "a redirect", new Reply(302, ""), "an empty answer", new Reply(200, ""), "no content", new Reply(204, ""),
            "a page", new Reply(200, "<html>Sign in</html>"), "another JSON", new Reply(200, "{\"ok\":true}"),
            "unauthenticated", new Reply(401, PROBLEM), "a proxy's refusal", new Reply(403, "<html>No</html>"),
            "not found", new Reply(404, PROBLEM), "misdirected", new Reply(421, PROBLEM), "silence", SILENCE);

    private static final HttpClient HTTP = HttpClient.newHttpClient();

    private record Reply(int status, String body) {}

    private interface Fault {
        /** The reply to a call; null: the node's. */
        Reply to(String call, String body);
    }

    private Faults() {}

    /** Passes calls on to the node, except for those that have a fault. */
    private static final class Node implements AutoCloseable {
        final HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        final AtomicInteger faults = new AtomicInteger();
        volatile Fault fault = (call, body) -> null;

        Node() throws IOException {
            server.setExecutor(Executors.newCachedThreadPool(task -> {
                Thread thread = new Thread(task);
                thread.setDaemon(true);
                return thread;
            }));
            server.createContext("/", this::handle);
            server.start();
        }

        String url() {
            return "http://127.0.0.1:" + server.getAddress().getPort();
        }

        Locks connect(int ttl, String others) {
            return Lockkeeper.at(url() + others).ttl(Duration.ofSeconds(ttl)).connect();
        }

        private void handle(HttpExchange exchange) throws IOException {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            String path = exchange.getRequestURI().toString();
            Reply reply = fault.to(exchange.getRequestMethod() + " " + path, body);
            if (reply == SILENCE) {
                faults.incrementAndGet();
                return;
            } else if (reply != null) {
                faults.incrementAndGet();
            } else {
                String secret = exchange.getRequestHeaders().getFirst("Lockkeeper-Secret");
                HttpRequest call = HttpRequest.newBuilder(URI.create(ClientTest.url + path))
                        .header("Lockkeeper-Secret", secret).header("Content-Type", "application/json")
                        .method(exchange.getRequestMethod(), HttpRequest.BodyPublishers.ofString(body)).build();
                try {
                    HttpResponse<String> answer = HTTP.send(call, HttpResponse.BodyHandlers.ofString());
                    reply = new Reply(answer.statusCode(), answer.body());
                } catch (InterruptedException closed) {
                    return;
                }
            }
            byte[] content = reply.body.getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(reply.status, content.length == 0 ? -1 : content.length);
            if (content.length > 0) {
                exchange.getResponseBody().write(content);
            }
            exchange.close();
        }

        @Override
        public void close() {
            server.stop(0);
        }
    }

    private static String andTheNode() {
        return "," + ClientTest.url.substring("http://".length());
    }

    static void badNodes() throws Exception {
        List<Thread> all = new ArrayList<>(threads(1, Faults::longTtl));
        REPLIES.forEach((what, reply) -> all.addAll(threads(1, () -> changesTheNode(what, reply))));
        REPLIES.forEach((what, reply) -> all.addAll(threads(1, () -> renewsNothing(what, reply))));
        join(all);
    }

    /** Only the service's own answers renew a lease, and the calls of a client that gets no others are few. */
    private static void renewsNothing(String what, Reply reply) throws Exception {
        try (Node node = new Node(); Locks locks = node.connect(4, "");
                Locks other = Lockkeeper.connect(ClientTest.url);
                Hold held = other.mutex("renews-nothing/held/" + what).acquire()) {
            Hold hold = locks.mutex("renews-nothing/" + what).acquire();
            CompletableFuture<Hold> waits = locks.mutex(held.lock().names.get(0)).acquireAsync();
            waitUntil("it waits", () -> waiters(other, Lock.encoded(held.lock().names.get(0))) == 1);
            node.fault = (call, body) -> reply;
            is(hold.lost().get(60, TimeUnit.SECONDS) == Cause.EXPIRED, what);
            LockException error = fails(LockException.class, () -> waits.get(60, TimeUnit.SECONDS));
            is(node.faults.get() < 300, what + ": " + node.faults + " calls");
            if (reply.status >= 400) {
                String code = reply.body.equals(PROBLEM) ? "misplaced" : "http-403";
                is(error instanceof LockException.Refused refused && refused.code.equals(code), error);
                is(!code.equals("misplaced") || error.getMessage().contains("not by me"), error);
            } else {
                is(error instanceof LockException.Unreachable, error);
                is(reply == SILENCE || error.getMessage().contains("status " + reply.status), error);
            }
            node.fault = (call, sent) -> null;
        }
    }

    /** A node that hangs, or answers so, costs no hold and no acquire if there is another one. */
    private static void changesTheNode(String what, Reply reply) throws Exception {
        try (Node node = new Node(); Locks locks = node.connect(10, andTheNode())) {
            Hold hold = locks.mutex("changes/" + what).acquire();
            node.fault = (call, body) -> reply;
            waitUntil("a bad answer", () -> node.faults.get() > 0);
            long end = System.nanoTime() + hold.validFor().toNanos();
            waitUntil("it is renewed", () -> System.nanoTime() + hold.validFor().toNanos() > end + 500_000_000);
            hold.release();
        }
        try (Node node = new Node(); Locks locks = node.connect(30, andTheNode())) {
            node.fault = (call, body) -> reply;
            locks.mutex("changes/new/" + what).acquire().release();
        }
    }

    /** The limit of an attempt does not grow with the ttl. */
    private static void longTtl() throws Exception {
        try (Node node = new Node(); Locks locks = node.connect(3_600, andTheNode())) {
            node.fault = (call, body) -> SILENCE;
            locks.mutex("changes/slow").acquireAsync().get(60, TimeUnit.SECONDS).release();
        }
    }

    /** The end of the wait comes while the request is made anew, under a number that it has not got yet. */
    static void timesOutBetweenRequests() throws Exception {
        AtomicBoolean blocks = new AtomicBoolean();
        CountDownLatch blocked = new CountDownLatch(1);
        CountDownLatch goesOn = new CountDownLatch(1);
        try (Node node = new Node(); Locks other = Lockkeeper.connect(ClientTest.url);
                Hold held = other.mutex("between").acquire();
                Locks locks = Lockkeeper.at(node.url()).ttl(Duration.ofSeconds(10)).bearerToken(() -> {
                    // The token is asked for before the number is taken.
                    if (blocks.get() && Thread.currentThread().getName().equals("lockkeeper-attempts")) {
                        blocked.countDown();
                        try {
                            goesOn.await();
                        } catch (InterruptedException unused) {
                            throw new AssertionError(unused);
                        }
                    }
                    return "token";
                }).connect()) {
            node.fault = (call, body) -> {
                boolean isBroken = call.endsWith("/keep-alive") && body.contains("\"waiting\":[1]");
                blocks.set(isBroken || blocks.get());
                return isBroken
                        ? new Reply(200, "{\"revoked\":[],\"ended\":[{\"request\":1,\"end\":\"broken\"}]}") : null;
            };
            CompletableFuture<Hold> waits = locks.mutex("between").acquireAsync(Duration.ofSeconds(3));
            is(blocked.await(60, TimeUnit.SECONDS), "it is requested again");
            fails(LockException.Unreachable.class, () -> waits.get(60, TimeUnit.SECONDS));
            Hold hold = locks.mutex("between/other").acquire(PATIENCE);
            goesOn.countDown();
            waitUntil("nobody waits", () -> waiters(other, "between") == 0);
            hold.release();
            held.release();
            isFree(other, "between");
        }
    }

    /** What is deleted does not wait for what can't be. */
    static void refusedDeletes() throws Exception {
        int refused = 6;
        try (Node node = new Node(); Locks other = Lockkeeper.connect(ClientTest.url);
                Hold held = other.all("deletes/refused", "deletes/last").acquire();
                Locks locks = Lockkeeper.at(node.url()).connect()) {
            List<CompletableFuture<Hold>> waiting = new ArrayList<>();
            for (int i = 1; i <= refused; i++) {
                waiting.add(locks.mutex("deletes/refused").acquireAsync());
                long count = i;
                waitUntil("it waits", () -> waiters(other, "deletes/refused") == count);
            }
            Set<String> calls = ConcurrentHashMap.newKeySet();
            node.fault = (call, body) -> {
                boolean isRefused = call.startsWith("DELETE") && !call.contains("/requests/7?");
                return isRefused && (calls.add(call.replaceAll("\\?.*", "")) || true) ? new Reply(403, PROBLEM) : null;
            };
            waiting.forEach(future -> future.cancel(true));
            waitUntil("each is refused", () -> calls.size() == refused);
            CompletableFuture<Hold> last = locks.mutex("deletes/last").acquireAsync();
            waitUntil("it waits", () -> waiters(other, "deletes/last") == 1);
            last.cancel(true);
            waitUntil("it has left", () -> waiters(other, "deletes/last") == 0);
            is(waiters(other, "deletes/refused") == refused, "the others could not");
            node.fault = (call, body) -> null;
            waitUntil("all have left", () -> waiters(other, "deletes/refused") == 0);
        }
    }

    /** The service remembers 4,096 answers: one call that is never answered must not keep it from forgetting. */
    static void forgets() throws Exception {
        try (Locks locks = Lockkeeper.connect(ClientTest.url)) {
            Session session = locks.session(System.nanoTime() + PATIENCE.toNanos());
            long hung = session.next();
            for (int i = 0; i < 5_000; i++) {
                long number = session.next();
                session.settled(number);
                is(session.doneThrough(number) >= number - 2_049 && session.doneThrough(number) < number, number);
                is(number > 2_000 || session.doneThrough(number) < hung, "its answer is still wanted");
            }
            is(session.doneThrough(hung) == hung - 1, "a number is not done before its own call");
            locks.mutex("forgets").tryAcquire().orElseThrow().release();
        }
    }

    /** Its own limit ends an acquire, whatever others of the client wait for. */
    static void limits() throws Exception {
        try (ServerSocket silent = new ServerSocket(0, 200, InetAddress.getLoopbackAddress());
                Locks locks = Lockkeeper.at("http://127.0.0.1:" + silent.getLocalPort())
                        .ttl(Duration.ofHours(1)).connect()) {
            for (int i = 0; i < 40; i++) {
                locks.mutex("limits").acquireAsync();
            }
            CompletableFuture<Hold> soon = locks.mutex("limits").acquireAsync(Duration.ofMillis(50));
            fails(LockException.Unreachable.class, () -> soon.get(60, TimeUnit.SECONDS));
            join(threads(1, () -> fails(LockException.Unreachable.class,
                    () -> locks.mutex("limits").acquire(Duration.ofMillis(50)))));
        }
    }

    /** Answers that are too long, or come byte by byte. */
    static void endlessAnswers() throws Exception {
        String large = "HTTP/1.1 200 OK\r\nContent-Length: 2000000000\r\n\r\n";
        for (String answer : List.of(large, "HTTP/1.1 200 OK\r\nTrickle: ")) {
            try (ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
                    Locks locks = Lockkeeper.connect("http://127.0.0.1:" + listener.getLocalPort())) {
                Thread server = new Thread(() -> {
                    while (true) {
                        try (Socket socket = listener.accept()) {
                            socket.getOutputStream().write(answer.getBytes(StandardCharsets.US_ASCII));
                            while (true) {
                                socket.getOutputStream().write('a');
                                Thread.sleep(20);
                            }
                        } catch (IOException | InterruptedException closed) {
                            if (listener.isClosed()) {
                                return;
                            }
                        }
                    }
                });
                server.start();
                join(threads(1, () -> {
                    LockException error = fails(LockException.Unreachable.class,
                            () -> locks.mutex("endless").acquire(Duration.ofMillis(300)));
                    is(!answer.equals(large) || error.getMessage().contains("more than 8388608 bytes"), error);
                }));
            }
        }
    }

    /** A grant that can't be read fails its acquire, and is given back. */
    static void brokenGrants() throws Exception {
        for (String grant : List.of("", "\"token\":7,\"slots\":[1],")) {
            try (Node node = new Node(); Locks locks = node.connect(30, "")) {
                AtomicInteger deletes = new AtomicInteger();
                node.fault = (call, body) -> {
                    deletes.addAndGet(call.startsWith("DELETE") ? 1 : 0);
                    return call.startsWith("POST /v1/locks/")
                            ? new Reply(200, "{\"state\":\"held\"," + grant + "\"revoked\":[],\"ended\":[]}") : null;
                };
                CompletableFuture<Hold> future = locks.mutex("broken-grants").acquireAsync();
                fails(LockException.Refused.class, () -> future.get(60, TimeUnit.SECONDS));
                waitUntil("it is given back", () -> deletes.get() > 0);
            }
        }
    }
}
