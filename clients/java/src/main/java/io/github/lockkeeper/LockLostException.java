package io.github.lockkeeper;

/** The lock is not held any more: stop. What was written since may be refused by the resource's fence. */
public final class LockLostException extends LockException {
    /** How a hold is lost. */
    public enum Cause {
        /** The lease has ended: no answer of the service has renewed it in time. */
        EXPIRED("its lease has ended without an answer of the service"),
        /** The session has ended at the service, and with it all its holds. */
        SESSION_ENDED("its session has ended at the service"),
        /** An operator breaks the hold: release it. */
        BROKEN("an operator has broken the hold"),
        /** The client was closed. */
        CLOSED("the client was closed"),
        /** This program has released it. */
        RELEASED("it was released before"),
        /** It is held, but for a shorter time than was asked for. */
        TOO_SHORT("its lease ends too soon");

        private final String text;

        Cause(String text) {
            this.text = text;
        }
    }

    /** How it was lost. */
    public final Cause reason;

    LockLostException(String lock, Cause reason) {
        super("the lock " + lock + " is lost: " + reason.text, null);
        this.reason = reason;
    }
}
