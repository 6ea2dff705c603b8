package io.github.lockkeeper;

import io.github.lockkeeper.LockLostException.Cause;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** A lock that is held, until it is released or lost. All methods may be called by any thread. */
public final class Hold implements AutoCloseable {
    final Session session;
    final long number;
    private final Lock lock;
    private final long token;
    private final List<Integer> slots;
    private final CompletableFuture<Cause> lost = new CompletableFuture<>();
    /** Why it is over; null while it is held. Written under the session's monitor. */
    volatile Cause over;

    Hold(Session session, long number, Lock lock, long token, List<Integer> slots) {
        this.session = session;
        this.number = number;
        this.lock = lock;
        this.token = token;
        this.slots = slots;
    }

    /** The lock. */
    public Lock lock() {
        return lock;
    }

    /**
     * The fencing token, which rises with every grant of the lock and is below 2^53. Send it to the resource, which
     * has to refuse older ones: nothing else protects it from a holder that was paused.
     */
    public long token() {
        return token;
    }

    /** Of permits: their numbers, from 0, one for each name of the lock, in the byte order of the names. */
    public List<Integer> slots() {
        return slots;
    }

    /** The time that is left of the lease, by this program's clock; zero once the lock is lost. Renewals go on. */
    public Duration validFor() {
        return Duration.ofNanos(session.left(this));
    }

    /**
     * Returns if the lock is held for at least {@code need} more. Decides by the clock alone: after a pause of the
     * program, of any length, it is right before any answer of the service.
     *
     * @throws LockLostException the lock is lost, or the lease ends too soon
     */
    public void check(Duration need) {
        long left = session.left(this);
        if (left <= 0 || left < need.toNanos()) {
            throw new LockLostException(lock.toString(), over != null ? over : Cause.TOO_SHORT);
        }
    }

    /**
     * Returns if the lock is held.
     *
     * @throws LockLostException the lock is lost
     */
    public void check() {
        check(Duration.ZERO);
    }

    /**
     * Completed by the loss, at the latest when the lease ends, before another client can have the lock. Never
     * completed if the lock is released before.
     */
    public CompletableFuture<Cause> lost() {
        return lost.copy();
    }

    /** Runs {@code action} on a thread of the client once the lock is lost. */
    public void onLost(Runnable action) {
        lost.thenRun(action);
    }

    /**
     * Releases the lock.
     *
     * @throws LockLostException it was lost before
     * @throws LockException.Unreachable no answer in time: it is released in the background
     */
    public void release() {
        session.release(this);
    }

    /**
     * Releases the lock; does nothing if {@link #release} was called before. Without an answer it is released in the
     * background.
     *
     * @throws LockLostException it was lost before, so that what was done under it may have been done without it
     */
    @Override
    public void close() {
        if (over != Cause.RELEASED) {
            try {
                release();
            } catch (LockException.Unreachable unconfirmed) {
                System.getLogger("lockkeeper").log(System.Logger.Level.WARNING, unconfirmed.getMessage());
            }
        }
    }

    /** Called on a thread that may run the user's code. */
    void tellLoss(Cause cause) {
        lost.complete(cause);
    }
}
