package io.github.lockkeeper;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;

/**
 * HTTP/1.1 calls to the nodes of the service, by connections that are kept.
 *
 * <p>Not by {@code java.net.http}: the requests of a session have to arrive in the order of their numbers, so that they
 * are written in this order, which that client does not promise for calls on several connections. The thread that calls
 * does the I/O; an interrupt ends it.
 */
final class Nodes {
    private static final Pattern URLS = Pattern.compile("(https?://)([^/?#@]+)/?");
    private static final Pattern STATUS = Pattern.compile("HTTP/1\\.1 [2-5][0-9][0-9]( .*)?");
    /** The longest answer, with 1,024 grants of 64 permits each, has some 3 MiB. */
    private static final int ANSWER_BYTES_MAX = 8 << 20;
    private static final int LINE_BYTES_MAX = 8 << 10;
    /** A node closes idle connections after 60 s, so that older ones are not tried. */
    private static final long IDLE_NANOS_MAX = 30_000_000_000L;
    private static final int IDLE_MAX = 256;

    /**
     * A call, which may be repeated, at any node.
     *
     * @param order if not null, the body is made and written in its monitor
     * @param expects a field of the answer, without which it is not the service's; null: it has no body
     */
    record Call(String method, String path, String secret, Supplier<String> body, Object order, String expects) {}

    /** An answer of the service; {@code sent} is when its call was sent, by {@link Clock}. */
    record Answer(int status, Json.Fields body, long sent) {
        /** The code of an error; empty if it is none. */
        String code() {
            String code = status < 400 ? "" : body.text("code");
            return code == null ? "http-" + status : code;
        }

        LockException.Refused refusal(String of) {
            String detail = body.text("detail");
            return new LockException.Refused(code(), of + (detail != null ? detail
                    : "an answer that is not the service's; look at the proxies before it"));
        }

        /** No node leads at the moment, or the answer got lost on the way: the call is repeated. */
        boolean isTransient() {
            return status >= 502 && status <= 504;
        }

        /** One node alone may say so, by its own files or its own proxy: the others are asked before it counts. */
        boolean mayDiffer() {
            return status == 401 || status == 403 || status == 404 || status == 421;
        }
    }

    private final List<URI> nodes = new ArrayList<>();
    private final ArrayDeque<Connection> idle = new ArrayDeque<>();
    private final SSLContext tls;
    private final Supplier<String> bearer;
    private volatile URI node;
    private boolean isClosed;

    /** @param url {@code http://HOST:PORT[,HOST:PORT…]}, or https */
    Nodes(String url, SSLContext tls, Supplier<String> bearer) {
        this.tls = tls;
        this.bearer = bearer;
        Matcher parts = URLS.matcher(url);
        for (String host : parts.matches() ? parts.group(2).split(",", -1) : new String[] {""}) {
            URI uri = host.isBlank() ? null : URI.create(parts.group(1) + host);
            if (uri == null || uri.getHost() == null) {
                throw new IllegalArgumentException("`" + url + "` is not the URL of a service: give http://HOST:PORT,"
                        + " or https, and further nodes after commas: http://HOST:PORT,HOST:PORT");
            }
            nodes.add(uri);
        }
        node = nodes.get(0);
    }

    /**
     * Makes one call of the node that answered last, and changes to the next node if it does not answer, or for itself.
     *
     * @throws IOException no answer of the service within {@code millis}; whether the call had an effect is unknown
     */
    Answer call(Call call, long millis) throws IOException {
        URI asked = node;
        long until = System.nanoTime() + millis * 1_000_000;
        for (Connection connection = pooled(asked);; connection = null) {
            boolean isPooled = connection != null;
            try {
                connection = isPooled ? connection : new Connection(asked, until);
                Answer answer = connection.call(call, until);
                if (answer.isTransient() || answer.mayDiffer()) {
                    leave(asked);
                }
                keep(connection);
                return answer;
            } catch (IOException | RuntimeException error) {
                boolean isStale = isPooled && !connection.hasAnswered && !(error instanceof SocketTimeoutException);
                if (connection != null) {
                    connection.close();
                }
                boolean isInterrupted = Thread.currentThread().isInterrupted();
                if (!isStale || isInterrupted) {
                    leave(isInterrupted ? null : asked);
                    throw error instanceof IOException io ? io : new IOException(asked + ": " + error, error);
                }
                // The node has closed the connection meanwhile; calls may be repeated.
            }
        }
    }

    private void leave(URI failed) {
        synchronized (idle) {
            if (node == failed) {
                node = nodes.get((nodes.indexOf(failed) + 1) % nodes.size());
            }
        }
    }

    private Connection pooled(URI node) {
        synchronized (idle) {
            while (!idle.isEmpty()) {
                Connection last = idle.pop();
                if (last.node == node && System.nanoTime() - last.idleSince < IDLE_NANOS_MAX) {
                    return last;
                }
                last.close();
            }
            return null;
        }
    }

    private void keep(Connection connection) {
        connection.idleSince = System.nanoTime();
        synchronized (idle) {
            if (!isClosed && connection.isReusable && idle.size() < IDLE_MAX) {
                idle.push(connection);
                return;
            }
        }
        connection.close();
    }

    int count() {
        return nodes.size();
    }

    void close() {
        synchronized (idle) {
            isClosed = true;
            idle.forEach(Connection::close);
            idle.clear();
        }
    }

    @Override
    public String toString() {
        return nodes.toString();
    }

    /** A connection, which carries one call at a time. */
    private final class Connection {
        final URI node;
        final Socket socket;
        final InputStream in;
        long until;
        boolean hasAnswered;
        boolean isReusable;
        long idleSince;

        Connection(URI node, long until) throws IOException {
            this.node = node;
            this.until = until;
            boolean isTls = node.getScheme().equals("https");
            int port = node.getPort() >= 0 ? node.getPort() : isTls ? 443 : 80;
            // Of a channel: its I/O ends by an interrupt.
            Socket plain = SocketChannel.open().socket();
            try {
                String host = node.getHost().replaceAll("[\\[\\]]", "");
                plain.connect(new InetSocketAddress(host, port), left(until));
                plain.setTcpNoDelay(true);
                socket = isTls ? encrypted(plain, host, port) : plain;
                in = new BufferedInputStream(new FilterInputStream(socket.getInputStream()) {
                    @Override
                    public int read(byte[] part, int begin, int length) throws IOException {
                        socket.setSoTimeout(left(Connection.this.until)); // for each read: the peer may trickle
                        return super.read(part, begin, length);
                    }
                });
            } catch (IOException | RuntimeException error) {
                plain.close();
                throw error;
            }
        }

        private Socket encrypted(Socket plain, String host, int port) throws IOException {
            SSLSocket socket = (SSLSocket) tls.getSocketFactory().createSocket(plain, host, port, true);
            SSLParameters parameters = socket.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            socket.setSSLParameters(parameters);
            socket.setSoTimeout(left(until));
            socket.startHandshake();
            return socket;
        }

        Answer call(Call call, long until) throws IOException {
            this.until = until;
            StringBuilder head = new StringBuilder(512).append(call.method).append(' ').append(call.path)
                    .append(" HTTP/1.1\r\nHost: ").append(node.getAuthority()).append("\r\n");
            if (call.secret != null) {
                head.append("Lockkeeper-Secret: ").append(call.secret).append("\r\n");
            }
            if (bearer != null) {
                head.append("Authorization: Bearer ").append(bearer.get()).append("\r\n");
            }
            hasAnswered = false;
            long sent = Clock.sent();
            synchronized (call.order == null ? this : call.order) {
                String content = call.body == null ? "" : call.body.get();
                if (call.body != null) {
                    head.append("Content-Type: application/json\r\nContent-Length: ")
                            .append(content.getBytes(StandardCharsets.UTF_8).length).append("\r\n");
                }
                String whole = head.append("\r\n").append(content).toString();
                socket.getOutputStream().write(whole.getBytes(StandardCharsets.UTF_8));
            }
            return answer(sent, call.expects);
        }

        private Answer answer(long sent, String expects) throws IOException {
            String status = line();
            hasAnswered = true;
            if (!STATUS.matcher(status).matches()) {
                throw new IOException(node + " does not answer in HTTP/1.1: `" + status + "`");
            }
            int code = Integer.parseInt(status, 9, 12, 10);
            int length = 0;
            boolean isChunked = false;
            isReusable = true;
            for (String line = line(); !line.isEmpty(); line = line()) {
                String header = line.toLowerCase(Locale.ROOT);
                String value = header.substring(header.indexOf(':') + 1).strip();
                if (header.startsWith("content-length:")) {
                    length = Integer.parseInt(value);
                } else if (header.startsWith("transfer-encoding:")) {
                    isChunked = true;
                } else if (header.startsWith("connection:")) {
                    isReusable = !value.equals("close");
                }
            }
            ByteArrayOutputStream body = new ByteArrayOutputStream();
            do {
                length = isChunked ? Integer.parseInt(line().replaceFirst(";.*", ""), 16) : length;
                read(length, body);
            } while (isChunked && line().isEmpty() && length > 0);
            String text = body.toString(StandardCharsets.UTF_8);
            Json.Fields fields = text.startsWith("{") ? Json.parse(text) : new Json.Fields();
            // What renews a lease has to be the service's own (P5): proxies redirect, or answer with pages.
            if (code < 400 && (code > 204 || (expects != null && fields.get(expects) == null))) {
                throw new IOException(node + " answers with status " + code + " and without `" + expects
                        + "`, as the service does not; look at the proxies before it");
            }
            return new Answer(code, fields, sent);
        }

        private void read(int length, ByteArrayOutputStream body) throws IOException {
            if (length < 0 || length > ANSWER_BYTES_MAX - body.size()) {
                throw new IOException(node + " answers with more than " + ANSWER_BYTES_MAX + " bytes");
            }
            byte[] part = in.readNBytes(length);
            if (part.length < length) {
                throw new EOFException(node + " has closed the connection");
            }
            body.write(part);
        }

        private String line() throws IOException {
            StringBuilder out = new StringBuilder();
            for (int c = in.read(); c != '\n'; c = in.read()) {
                if (c < 0) {
                    throw new EOFException(node + " has closed the connection");
                } else if (out.append((char) c).length() > LINE_BYTES_MAX) {
                    throw new IOException(node + " answers with a line of more than " + LINE_BYTES_MAX + " bytes");
                }
            }
            return out.toString().stripTrailing();
        }

        void close() {
            try {
                socket.close();
            } catch (IOException ignored) {
                // It is not used any more.
            }
        }
    }

    /** The milliseconds until then. */
    private static int left(long until) throws SocketTimeoutException {
        long left = (until - System.nanoTime()) / 1_000_000;
        if (left <= 0) {
            throw new SocketTimeoutException("no answer in time");
        }
        return (int) Math.min(left, Integer.MAX_VALUE);
    }
}
