package io.github.lockkeeper;

import io.github.lockkeeper.Nodes.Answer;
import io.github.lockkeeper.Nodes.Call;
import java.io.IOException;
import java.math.BigInteger;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionHandler;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;

/** A client of the service, safe for threads. Its holds are in one session, which the first acquire opens. */
public final class Locks implements AutoCloseable {
    final Nodes nodes;
    final long ttlMillis;
    /** The time that a session is valid after a call was sent: the ttl, less 1 % for the rate of clocks. */
    final long leaseNanos;
    /** The limit of one attempt of a call, so that a node that hangs leaves time for another one. */
    final long attemptMillis;
    /** Acquires without a thread of their own. After {@link #close} they fail at once, on the caller's. */
    final ExecutorService attempts = pool("attempts", 32, (task, closed) -> task.run());
    /** Polls and releases in the background, at most six at a time for each session. */
    final ExecutorService background = pool("background", 16, new ThreadPoolExecutor.DiscardPolicy());
    /** The user's actions after a loss. */
    final ExecutorService losses = pool("losses", 8, new ThreadPoolExecutor.DiscardPolicy());
    final ScheduledThreadPoolExecutor timer =
            new ScheduledThreadPoolExecutor(1, threads("timer"), new ThreadPoolExecutor.DiscardPolicy());
    private final String open;
    private final ReentrantLock opening = new ReentrantLock();
    /** Of the next session: an open without an answer is repeated for the same one. */
    private String secret = secret();
    private volatile Session session;
    private volatile boolean isClosed;

    Locks(Lockkeeper options, Nodes nodes) {
        this.nodes = nodes;
        ttlMillis = options.ttl.toMillis();
        leaseNanos = ttlMillis * 990_000;
        attemptMillis = Math.min(5_000, ttlMillis / 3);
        long lockDelay = options.lockDelay.toMillis();
        open = Json.of("ttl_ms", ttlMillis, "lock_delay_ms", lockDelay, "label", options.label).toString();
        timer.setRemoveOnCancelPolicy(true);
    }

    /** A lock that one holds at a time. */
    public Lock mutex(String name) {
        return all(name);
    }

    /** Several locks at once, at most 64: all or none. */
    public Lock all(String... names) {
        return new Lock(this, List.of(names), "exclusive", null, false, null, null);
    }

    /** Locks that are held together with others that want them shared, and without any {@link #mutex}. */
    public Lock shared(String... names) {
        return new Lock(this, List.of(names), "shared", null, false, null, null);
    }

    /** Locks that {@code permits} hold at a time. All clients have to give the same number. */
    public Lock semaphore(int permits, String... names) {
        return new Lock(this, List.of(names), "permit", permits, false, null, null);
    }

    /** An election: one leads at a time. */
    public Election election(String name) {
        return new Election(this, name);
    }

    /** Ends the session, which releases everything. Waits at most 5 s for the answer; else it ends by its ttl. */
    @Override
    public void close() {
        isClosed = true;
        Session last = session;
        if (last != null) {
            last.close();
        }
        timer.shutdownNow();
        List.of(attempts, background, losses).forEach(ExecutorService::shutdown);
        nodes.close();
    }

    /**
     * The live session, which is opened if there is none.
     *
     * @param until by {@link System#nanoTime}
     */
    Session session(long until) throws InterruptedException {
        if (isClosed) {
            throw new LockException.Closed();
        }
        Session live = session;
        if (live != null && !live.isOver()) {
            return live;
        }
        if (!opening.tryLock(until - System.nanoTime(), TimeUnit.NANOSECONDS)) {
            throw new LockException.Unreachable("no answer of " + nodes + " in time to the opening of a session", null);
        }
        try {
            while (session == null || session.isOver()) {
                if (isClosed) {
                    throw new LockException.Closed();
                }
                Answer answer = ask(new Call("POST", "/v1/sessions", secret, () -> open, null, "session"), until);
                if (answer.status() < 400) {
                    session = new Session(this, answer.body().number("session"), secret, answer.sent());
                    secret = secret();
                } else if (answer.code().equals("session-gone")) {
                    secret = secret(); // of an open that got lost
                } else {
                    throw answer.refusal("");
                }
            }
            if (isClosed) {
                session.close();
                throw new LockException.Closed();
            }
            return session;
        } finally {
            opening.unlock();
        }
    }

    /**
     * Repeats a call until it is answered.
     *
     * @throws LockException.Unreachable there is no answer until then
     */
    Answer ask(Call call, long until) throws InterruptedException {
        long begin = System.nanoTime();
        for (int tries = 0, refusals = 0;; tries++) {
            String why;
            Exception cause = null;
            try {
                long left = (until - System.nanoTime()) / 1_000_000;
                Answer answer = nodes.call(call, Math.max(1, Math.min(left, attemptMillis)));
                if (answer.mayDiffer() && ++refusals < nodes.count()) {
                    continue;
                } else if (!answer.isTransient()) {
                    return answer;
                }
                why = answer.refusal("").getMessage();
            } catch (IOException error) {
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
                cause = error;
                why = error.getMessage();
            }
            long pause = pause(tries);
            if (until - System.nanoTime() <= pause * 1_000_000) {
                long waited = (System.nanoTime() - begin) / 1_000_000;
                throw new LockException.Unreachable("no answer of " + nodes + " within " + waited + " ms: " + why
                        + "; is the service up, and does it have a leader?", cause);
            }
            Thread.sleep(pause);
        }
    }

    /** Milliseconds between attempts. */
    static long pause(int tries) {
        return Math.min(1_000, 20L << Math.min(tries, 10));
    }

    private static String secret() {
        return String.format("%032x", new BigInteger(128, new SecureRandom()));
    }

    private static ExecutorService pool(String name, int threads, RejectedExecutionHandler closed) {
        ThreadPoolExecutor pool = new ThreadPoolExecutor(threads, threads, 10, TimeUnit.SECONDS,
                new LinkedBlockingQueue<>(), threads(name), closed);
        pool.allowCoreThreadTimeOut(true);
        return pool;
    }

    private static ThreadFactory threads(String name) {
        return task -> {
            Thread thread = new Thread(task, "lockkeeper-" + name);
            thread.setDaemon(true);
            return thread;
        };
    }
}
