package io.github.lockkeeper;

import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.function.Supplier;
import javax.net.ssl.SSLContext;

/**
 * How to connect to the service.
 *
 * <pre>{@code
 * try (Locks locks = Lockkeeper.connect("http://127.0.0.1:5627");
 *         Hold hold = locks.mutex("orders/42").acquire(Duration.ofSeconds(10))) {
 *     write(order, hold.token()); // the resource refuses older tokens
 * }
 * }</pre>
 */
public final class Lockkeeper {
    final String url;
    Duration ttl = Duration.ofSeconds(30);
    Duration lockDelay = Duration.ZERO;
    String label = ProcessHandle.current().pid() + "@java";
    Supplier<String> bearerToken;
    SSLContext tls;

    private Lockkeeper(String url) {
        this.url = url;
    }

    /** Connects with the default options. */
    public static Locks connect(String url) {
        return at(url).connect();
    }

    /**
     * The options of a client.
     *
     * @param url {@code http://HOST:PORT}, or https; further nodes of a cluster after commas:
     *     {@code https://a:5627,b:5627,c:5627}
     */
    public static Lockkeeper at(String url) {
        return new Lockkeeper(url);
    }

    /** How long the service keeps the locks of a client that is silent: 1 s to 1 h, by default 30 s. */
    public Lockkeeper ttl(Duration ttl) {
        if (ttl.toMillis() < 1_000 || ttl.toMillis() > 3_600_000) {
            throw new IllegalArgumentException("a ttl of " + ttl.toMillis() + " ms; give 1 s to 1 h");
        }
        this.ttl = ttl;
        return this;
    }

    /** How long the locks stay closed if this client is silent for a ttl; by default not at all. */
    public Lockkeeper lockDelay(Duration lockDelay) {
        this.lockDelay = lockDelay;
        return this;
    }

    /** What others see of this client: host, process, purpose. */
    public Lockkeeper label(String label) {
        this.label = label;
        return this;
    }

    /** The token of this client's identity, which is asked for before each call: it may change. */
    public Lockkeeper bearerToken(Supplier<String> bearerToken) {
        this.bearerToken = bearerToken;
        return this;
    }

    /** The authorities to trust, and this client's certificate; by default those of the JVM. */
    public Lockkeeper tls(SSLContext tls) {
        this.tls = tls;
        return this;
    }

    /** Makes the client. It connects when the first lock is acquired. */
    public Locks connect() {
        try {
            return new Locks(this, new Nodes(url, tls == null ? SSLContext.getDefault() : tls, bearerToken));
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }
}
