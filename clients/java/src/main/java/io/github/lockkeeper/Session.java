package io.github.lockkeeper;

import io.github.lockkeeper.LockLostException.Cause;
import io.github.lockkeeper.Nodes.Answer;
import io.github.lockkeeper.Nodes.Call;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * One session at the service: its lease, its numbered requests, and what it holds. All state is guarded by the
 * monitor, in which no I/O is done.
 */
final class Session {
    /** The service's limit of requests in the lists of one call. */
    private static final int LIST_MAX = 4_096;
    /** How far {@code done_through} stays behind. The service remembers 4,096 ended requests, and then refuses. */
    private static final int UNANSWERED_MAX = 2_048;
    private static final int DELETES_MAX = 4;

    final long id;
    private final Locks locks;
    private final String secret;
    private final String path;
    /** Acquires are written in its monitor, so that they arrive in the order of their numbers. */
    private final Object order = new Object();
    /** When the lease ends, by {@link Clock}. */
    private volatile long deadline;
    private volatile boolean isOver;
    /** It is over by this client's clock alone: whether its requests have ended is unknown. */
    private boolean isUnconfirmed;
    private long last;
    /** Requests whose acquire or release is not answered: the service has to remember them. */
    private final TreeSet<Long> unanswered = new TreeSet<>();
    private final TreeMap<Long, Attempt> waiting = new TreeMap<>();
    private final Map<Long, Hold> holds = new HashMap<>();
    /** Requests to be deleted in the background; each with who waits for that. */
    private final Map<Long, CompletableFuture<Void>> abandoned = new HashMap<>();
    /** Those of them that no thread deletes at the moment. */
    private final ArrayDeque<Long> undeleted = new ArrayDeque<>();
    private int deleting;
    /** The poll that was begun last; older ones end with their answer. */
    private long poll;
    private boolean isPollBegun;

    Session(Locks locks, long id, String secret, long sent) {
        this.locks = locks;
        this.id = id;
        this.secret = secret;
        path = "/v1/sessions/" + id;
        deadline = sent + locks.leaseNanos;
        watch();
        beginPoll();
    }

    boolean isOver() {
        return isOver;
    }

    // Requests.

    /** A number for a request, which counts as unanswered. */
    synchronized long next() {
        unanswered.add(++last);
        return last;
    }

    /**
     * The number up to which the service may forget how requests have ended, below {@code number}, which it is sent
     * with. One call without an answer does not hold it back for ever: its request is found by its number in any case.
     */
    synchronized long doneThrough(long number) {
        long answered = unanswered.isEmpty() ? last : unanswered.first() - 1;
        return Math.min(number - 1, Math.max(answered, last - UNANSWERED_MAX));
    }

    synchronized void settled(long number) {
        unanswered.remove(number);
    }

    /** Makes an acquire, and repeats it until it is answered. */
    Answer acquire(String name, Supplier<String> body, long until) throws InterruptedException {
        Answer answer = locks.ask(new Call("POST", "/v1/locks/" + name, secret, body, order, "ended"), until);
        answered(answer);
        return answer;
    }

    /** A grant; false if the lease has ended meanwhile. */
    synchronized boolean keep(Hold hold) {
        boolean isLive = !isOver && Clock.now() < deadline;
        if (isLive) {
            holds.put(hold.number, hold);
        }
        return isLive;
    }

    /** The attempt waits for the poll to find its grant. False if it is over, or the session. */
    synchronized boolean enqueue(Attempt attempt, long number) {
        if (isOver || attempt.isOver()) {
            return false;
        } else if (waiting.size() >= LIST_MAX) {
            throw new LockException.Refused("resource-exhausted",
                    LIST_MAX + " acquires of this client wait already, which is the limit; use another client");
        }
        attempt.setAlarm();
        waiting.put(number, attempt);
        beginPoll();
        return true;
    }

    /** An attempt that is over waits no more. */
    synchronized void dequeue(Attempt attempt, long number) {
        if (waiting.remove(number, attempt)) {
            abandon(number);
        }
    }

    /**
     * Deletes a request in the background, whatever its state. The returned future completes with the answer, or
     * exceptionally if there won't be one.
     */
    synchronized CompletableFuture<Void> abandon(long number) {
        if (isOver) {
            return over(new CompletableFuture<>());
        }
        waiting.remove(number);
        unanswered.add(number);
        if (!abandoned.containsKey(number)) {
            abandoned.put(number, new CompletableFuture<>());
            undeleted.add(number);
            if (deleting < DELETES_MAX) {
                deleting++;
                locks.background.execute(this::deleteAbandoned);
            }
        }
        return abandoned.get(number);
    }

    private CompletableFuture<Void> over(CompletableFuture<Void> deleted) {
        if (isUnconfirmed) {
            deleted.completeExceptionally(new IllegalStateException("the session is over by the clock"));
        }
        deleted.complete(null);
        return deleted;
    }

    /** Those that are not answered, or refused, as for a bearer token that has expired, come again after the others. */
    private void deleteAbandoned() {
        for (int failed = 0;;) {
            Long number;
            synchronized (this) {
                number = undeleted.poll();
                if (isOver || number == null) {
                    deleting--;
                    return;
                }
            }
            boolean isDone = false;
            try {
                Thread.sleep(failed == 0 ? 0 : Locks.pause(failed - 1));
                isDone = delete(number, System.nanoTime() + locks.attemptMillis * 1_000_000).status() < 400;
            } catch (RuntimeException | InterruptedException silence) {
                // Again, until the service has answered or ended the session.
            }
            failed = isDone ? 0 : failed + 1;
            synchronized (this) {
                if (isOver) {
                    continue;
                } else if (isDone) {
                    unanswered.remove(number);
                    abandoned.remove(number).complete(null);
                } else {
                    undeleted.add(number);
                }
            }
        }
    }

    private Answer delete(long number, long until) throws InterruptedException {
        String call = path + "/requests/" + number + "?done_through=" + doneThrough(number);
        Answer answer = locks.ask(new Call("DELETE", call, secret, null, null, "ended"), until);
        answered(answer);
        return answer;
    }

    // Holds.

    /** The nanoseconds for which a hold is valid. */
    long left(Hold hold) {
        if (hold.over == null && deadline - Clock.now() <= 0) {
            expire();
        }
        return hold.over != null ? 0 : Math.max(0, deadline - Clock.now());
    }

    /** Releases a hold that nobody has got. */
    synchronized void drop(Hold hold) {
        hold.over = Cause.RELEASED;
        holds.remove(hold.number);
        abandon(hold.number);
    }

    void release(Hold hold) {
        expire();
        Cause before;
        synchronized (this) {
            before = hold.over;
            hold.over = before == null ? Cause.RELEASED : before;
            holds.remove(hold.number);
            unanswered.add(hold.number);
        }
        if (before != null) {
            abandon(hold.number); // for the service to forget it
            throw new LockLostException(hold.lock().toString(), before);
        }
        boolean isAnswered = false;
        try {
            Answer answer = delete(hold.number, System.nanoTime() + 2 * locks.attemptMillis * 1_000_000);
            Cause end = switch (answer.code()) {
                case "" -> "broken".equals(answer.body().text("end")) ? Cause.BROKEN : Cause.RELEASED;
                case "session-gone" -> Cause.SESSION_ENDED;
                default -> throw answer.refusal("");
            };
            isAnswered = true;
            if (end != Cause.RELEASED) {
                throw new LockLostException(hold.lock().toString(), end);
            }
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
        } finally {
            if (isAnswered) {
                settled(hold.number);
            } else {
                abandon(hold.number);
            }
        }
    }

    private void lose(Hold hold, Cause cause) {
        if (hold.over == null) {
            hold.over = cause;
            locks.losses.execute(() -> hold.tellLoss(cause));
        }
    }

    // The lease.

    /** Ends the holds whose lease has ended. */
    private synchronized void expire() {
        if (!holds.isEmpty() && Clock.now() >= deadline) {
            for (Hold hold : holds.values()) {
                lose(hold, Cause.EXPIRED);
                abandon(hold.number);
            }
            holds.clear();
        }
    }

    /** Tells losses at the deadline, whatever happens to calls. Each second, since the machine may be suspended. */
    private void watch() {
        expire();
        if (Clock.now() - deadline > locks.leaseNanos) {
            end(Cause.EXPIRED); // The service has ended it, too, if it was up; its errors may not say so.
        } else if (!isOver) {
            long left = Math.max(1_000_000, Math.min(deadline - Clock.now(), 1_000_000_000));
            locks.timer.schedule(this::watch, left, TimeUnit.NANOSECONDS);
        }
    }

    /** What an answer says about the whole session. */
    private void answered(Answer answer) {
        if (answer.code().equals("session-gone")) {
            end(Cause.SESSION_ENDED);
        } else if (answer.status() < 400) {
            long until = answer.sent() + locks.leaseNanos;
            if (until - deadline > locks.leaseNanos / 100) {
                expire(); // First: no answer may hide a deadline that has passed.
                synchronized (this) {
                    deadline = Math.max(deadline, until);
                }
            }
            for (Object number : answer.body().list("revoked")) {
                // The hold stays, until its holder has stopped and releases it, or for a ttl.
                notice((Long) number, false);
            }
            for (Object item : answer.body().list("ended")) {
                notice(((Json.Fields) item).number("request"), true);
            }
        }
    }

    /** A request is broken; or has ended, although it was not deleted. */
    private synchronized void notice(long number, boolean isEnded) {
        Hold hold = isEnded ? holds.remove(number) : holds.get(number);
        Attempt attempt = waiting.remove(number);
        if (hold != null) {
            lose(hold, Cause.BROKEN);
        }
        if (attempt != null || (isEnded && (hold != null || !unanswered.contains(number)))) {
            abandon(number);
        }
        if (attempt != null) {
            locks.attempts.execute(attempt::again);
        }
    }

    private synchronized void end(Cause cause) {
        isUnconfirmed = !isOver && cause == Cause.EXPIRED;
        isOver = true;
        holds.values().forEach(hold -> lose(hold, cause));
        holds.clear();
        // In another session, unless the client is closed.
        waiting.values().forEach(attempt -> locks.attempts.execute(attempt::again));
        waiting.clear();
        abandoned.values().forEach(this::over);
        abandoned.clear();
    }

    void close() {
        end(Cause.CLOSED);
        boolean isInterrupted = Thread.interrupted();
        try {
            locks.ask(new Call("DELETE", path, secret, null, null, null), System.nanoTime() + 5_000_000_000L);
        } catch (LockException.Unreachable | InterruptedException silence) {
            isInterrupted |= silence instanceof InterruptedException; // It ends by its ttl.
        }
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
    }

    // One call keeps the session alive, and waits for what happens to all its requests.

    private synchronized void beginPoll() {
        if (!isPollBegun) { // else it has not read `waiting` yet
            isPollBegun = true;
            locks.background.execute(this::poll);
        }
    }

    private void poll() {
        long mine = 0;
        Long failing = null;
        for (int tries = 0;; ) {
            List<Long> awaited;
            List<Long> known = new ArrayList<>();
            synchronized (this) {
                if (isOver || (mine > 0 && mine < poll)) {
                    return; // The service answers the earlier call of two at once.
                }
                if (mine == 0) {
                    mine = ++poll;
                    isPollBegun = false;
                }
                awaited = new ArrayList<>(waiting.keySet());
                known.addAll(unanswered);
                holds.values().stream().filter(hold -> hold.over != null).forEach(hold -> known.add(hold.number));
            }
            // At most ttl / 5, and ttl / 6 for the answer: a node that hangs leaves time for another one.
            long wait = tries > 0 ? 0 : Math.min(60_000, locks.ttlMillis / 5);
            List<Long> left = known.subList(0, Math.min(LIST_MAX, known.size()));
            String body = Json.of("poll_ms", wait, "waiting", awaited, "known", left).toString();
            LockException error;
            try {
                long limit = wait + Math.max(100, Math.min(5_000, locks.ttlMillis / 6));
                Answer answer = locks.nodes.call(
                        new Call("POST", path + "/keep-alive", secret, () -> body, null, "ended"), limit);
                answered(answer);
                if (answer.status() < 400) {
                    grants(answer.body());
                    tries = 0;
                    failing = null;
                    continue;
                }
                error = answer.refusal("the session is not kept alive: ");
                if (answer.isTransient()) {
                    throw error;
                } else if (tries == 0 && !isOver) {
                    System.getLogger("lockkeeper").log(System.Logger.Level.WARNING, error.getMessage());
                }
            } catch (Exception silence) {
                error = new LockException.Unreachable("no answer of " + locks.nodes + " for a ttl, of "
                        + locks.ttlMillis + " ms: " + silence.getMessage() + "; is the service up?", silence);
            }
            failing = failing == null ? (Long) System.nanoTime() : failing;
            if (System.nanoTime() - failing > locks.ttlMillis * 1_000_000) {
                giveUp(error);
            }
            try {
                Thread.sleep(Math.min(Locks.pause(tries++), locks.ttlMillis / 12));
            } catch (InterruptedException interrupt) {
                return;
            }
        }
    }

    private synchronized void grants(Json.Fields body) {
        for (Object item : body.list("granted")) {
            Json.Fields granted = (Json.Fields) item;
            long number = granted.number("request");
            Attempt attempt = waiting.get(number);
            if (attempt == null) {
                continue;
            }
            Hold hold = attempt.hold(this, number, granted);
            waiting.remove(number);
            if (keep(hold)) {
                attempt.granted(hold);
            } else {
                abandon(number);
                locks.attempts.execute(attempt::again);
            }
        }
    }

    /** Waiters give up after a ttl without an answer. */
    private synchronized void giveUp(LockException error) {
        new TreeMap<>(waiting).forEach((number, attempt) -> {
            abandon(number);
            attempt.failed(error);
        });
    }
}
