package io.github.lockkeeper;

import io.github.lockkeeper.Nodes.Answer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/** One acquire, from its call to its outcome. In each session that it needs it is one request, or several. */
final class Attempt {
    final Lock lock;
    private final Locks locks;
    /** Nanoseconds; 0: not at all; {@link Long#MAX_VALUE}: without end. */
    private final long wait;
    /** The end of the wait, by {@link System#nanoTime}; null: none. */
    private final Long until;
    private final CompletableFuture<Hold> result = new CompletableFuture<>();
    /** Whoever sets it decides the outcome: a grant, the end of the wait, or a cancellation. */
    private final AtomicBoolean isOver = new AtomicBoolean();
    private boolean isAsync;
    private Future<?> alarm;
    /** The last one, of the thread in {@link #begin}, then of its session. */
    private volatile Request request;

    /** A request in a session. It counts there once its body is made: before that, {@code number} is 0. */
    private final class Request {
        final Session session;
        volatile long number;

        Request(Session session) {
            this.session = session;
        }

        /** Made in the order of the numbers, which is the order in which the calls are written. */
        String body() {
            if (number == 0) {
                number = session.next();
            }
            return Json.of("session", session.id, "request", number, "done_through", session.doneThrough(number),
                    "mode", lock.mode, "permits", lock.permits, "subtree", lock.subtree ? true : null, "also",
                    lock.names.size() > 1 ? lock.names.subList(1, lock.names.size()) : null, "wait", wait > 0,
                    "poll_ms", wait > 0 ? 0 : null, "max_waiters", wait > 0 ? lock.maxWaiters : null,
                    "value", lock.value).toString();
        }
    }

    /** @param wait nanoseconds; {@link Long#MAX_VALUE}: without end */
    Attempt(Locks locks, Lock lock, long wait) {
        this.locks = locks;
        this.lock = lock;
        this.wait = wait;
        until = wait == Long.MAX_VALUE || wait == 0 ? null : System.nanoTime() + wait;
    }

    /** Acquires on the caller's thread. */
    Hold here() throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        try {
            Hold hold = begin();
            return hold != null ? hold : result.get();
        } catch (InterruptedException interrupt) {
            abandon();
            throw interrupt;
        } catch (ExecutionException error) {
            throw (RuntimeException) error.getCause();
        }
    }

    /** Acquires on threads of the client. */
    CompletableFuture<Hold> elsewhere() {
        isAsync = true;
        result.whenComplete((hold, error) -> {
            if (result.isCancelled()) {
                abandon();
            }
        });
        setAlarm();
        locks.attempts.execute(this::again);
        return result;
    }

    /** Requests the lock, for the first time or in another session. */
    void again() {
        try {
            Hold hold = begin();
            if (hold != null) {
                granted(hold);
            }
        } catch (RuntimeException error) {
            failed(error);
        } catch (InterruptedException unused) {
            failed(new LockException.Closed());
        }
    }

    /** Returns null if the request waits in its session's queue, or is over. */
    private Hold begin() throws InterruptedException {
        for (int tries = 0; !isOver.get(); tries++) {
            if (tries > 1) {
                Thread.sleep(Locks.pause(tries - 2));
            }
            long silent = System.nanoTime() + locks.ttlMillis * 1_000_000;
            silent = until == null ? silent : Math.min(silent, until);
            Session session = locks.session(silent);
            Request mine = new Request(session);
            request = mine;
            boolean isSettled = false;
            try {
                Answer answer = session.acquire(Lock.encoded(lock.names.get(0)), mine::body, silent);
                switch (answer.code()) {
                    case "":
                        String state = answer.body().text("state");
                        if ("held".equals(state)) {
                            Hold hold = hold(session, mine.number, answer.body());
                            isSettled = session.keep(hold);
                            if (isSettled) {
                                return hold;
                            }
                        } else if ("queued".equals(state) && session.enqueue(this, mine.number)) {
                            isSettled = true;
                            return null;
                        }
                        break;
                    case "session-gone":
                        isSettled = true;
                        break;
                    case "ended":
                        // A later number arrived before this one, so that it is not used; or an operator's break.
                        isSettled = "gone".equals(answer.body().text("end"));
                        break;
                    case "busy":
                        isSettled = true;
                        throw new LockException.Busy(lock + ": " + answer.body().text("detail"));
                    default:
                        // An earlier attempt of the same call may have been granted.
                        throw answer.refusal(lock + ": ");
                }
            } finally {
                if (mine.number > 0 && isSettled) {
                    session.settled(mine.number);
                } else if (mine.number > 0) {
                    session.abandon(mine.number);
                }
            }
        }
        return null;
    }

    /** The hold that an answer of the service describes. */
    Hold hold(Session session, long number, Json.Fields granted) {
        try {
            List<Integer> slots = new ArrayList<>();
            for (Object slot : granted.list("slots")) {
                slots.add(((Json.Fields) slot).number("slot").intValue());
            }
            return new Hold(session, number, lock, granted.number("token"), slots);
        } catch (ClassCastException | NullPointerException error) {
            throw new LockException.Refused("internal", "a grant of " + lock + " that can't be read: " + granted);
        }
    }

    boolean isOver() {
        return isOver.get();
    }

    /** For the end of the wait, which the thread in {@link #begin} looks after if it is the caller's. */
    void setAlarm() {
        if (until != null && alarm == null) {
            alarm = locks.timer.schedule(this::timeOut, until - System.nanoTime(), TimeUnit.NANOSECONDS);
        }
    }

    private void timeOut() {
        if (isOver.compareAndSet(false, true)) {
            Request last = request;
            // Only the answer shows for certain that nothing is held.
            CompletableFuture<Void> left = last == null || last.number == 0
                    ? CompletableFuture.failedFuture(new IllegalStateException("nothing is requested at the moment"))
                    : last.session.abandon(last.number).copy();
            String within = " within " + TimeUnit.NANOSECONDS.toMillis(wait) + " ms";
            left.orTimeout(2 * locks.attemptMillis, TimeUnit.MILLISECONDS).whenComplete((done, silence) ->
                    complete(() -> result.completeExceptionally(silence == null
                            ? new LockException.TimedOut("the lock " + lock + " was not free" + within
                                    + "; wait longer, or see who holds it: lockkeeper show " + lock.names.get(0))
                            : new LockException.Unreachable("no answer of " + locks.nodes + within
                                    + " whether the lock " + lock + " was free; is the service up?", silence))));
        }
    }

    void granted(Hold hold) {
        boolean isFirst = isOver.compareAndSet(false, true);
        complete(() -> {
            if (!isFirst || !result.complete(hold)) {
                hold.session.drop(hold);
            }
        });
    }

    void failed(RuntimeException error) {
        if (isOver.compareAndSet(false, true)) {
            complete(() -> result.completeExceptionally(error));
        }
    }

    /** The caller waits no more. */
    private void abandon() {
        if (!isOver.compareAndSet(false, true)) {
            result.thenAccept(hold -> hold.session.drop(hold));
        } else if (request != null) {
            request.session.dequeue(this, request.number);
        }
    }

    /** What the user has attached to the future runs on the common pool. */
    private void complete(Runnable outcome) {
        if (alarm != null) {
            alarm.cancel(false);
        }
        if (isAsync) {
            ForkJoinPool.commonPool().execute(outcome);
        } else {
            outcome.run();
        }
    }
}
