package io.github.lockkeeper;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** A lock that can be acquired, any number of times, by any thread. It is not reentrant. */
public final class Lock {
    private final Locks locks;
    final List<String> names;
    final String mode;
    final Integer permits;
    final boolean subtree;
    final String value;
    final Integer maxWaiters;

    Lock(Locks locks, List<String> names, String mode, Integer permits, boolean subtree, String value,
            Integer maxWaiters) {
        if (names.isEmpty()) {
            throw new IllegalArgumentException("no lock's name is given");
        }
        this.locks = locks;
        this.names = List.copyOf(names);
        this.mode = mode;
        this.permits = permits;
        this.subtree = subtree;
        this.value = value;
        this.maxWaiters = maxWaiters;
    }

    /** The same, with everything below its names: {@code a} covers {@code a/b}, too. Not for permits. */
    public Lock subtree() {
        return new Lock(locks, names, mode, permits, true, value, maxWaiters);
    }

    /** The same; others see this text with the hold, at most 4,096 bytes. */
    public Lock value(String value) {
        return new Lock(locks, names, mode, permits, subtree, value, maxWaiters);
    }

    /** The same; it waits only if fewer than {@code most} wait for each name, and is {@link LockException.Busy} else. */
    public Lock maxWaiters(int most) {
        return new Lock(locks, names, mode, permits, subtree, value, most);
    }

    /**
     * Acquires the lock, and waits as long as it takes. An interrupt ends the wait, and leaves nothing behind.
     *
     * @throws LockException refused, or no node answers for a ttl
     */
    public Hold acquire() throws InterruptedException {
        return new Attempt(locks, this, Long.MAX_VALUE).here();
    }

    /**
     * Acquires the lock, and waits at most for {@code wait}.
     *
     * @throws LockException.TimedOut it was not free for so long
     * @throws LockException refused, or no node answers
     */
    public Hold acquire(Duration wait) throws InterruptedException {
        return new Attempt(locks, this, Math.max(0, wait.toNanos())).here();
    }

    /**
     * Acquires the lock if it is free.
     *
     * @throws LockException refused, or no node answers for a ttl
     */
    public Optional<Hold> tryAcquire() throws InterruptedException {
        try {
            return Optional.of(acquire(Duration.ZERO));
        } catch (LockException.Busy busy) {
            return Optional.empty();
        }
    }

    /** {@link #acquire()} without a thread that waits. To cancel the future abandons the request, or the hold. */
    public CompletableFuture<Hold> acquireAsync() {
        return new Attempt(locks, this, Long.MAX_VALUE).elsewhere();
    }

    /** {@link #acquire(Duration)} without a thread that waits; {@link LockException.Busy} if {@code wait} is zero. */
    public CompletableFuture<Hold> acquireAsync(Duration wait) {
        return new Attempt(locks, this, Math.max(0, wait.toNanos())).elsewhere();
    }

    static String encoded(String name) {
        return URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20").replace("%2F", "/");
    }

    @Override
    public String toString() {
        return String.join(", ", names);
    }
}
