package io.github.lockkeeper;

/** Why a lock was not acquired, or its release not confirmed. */
public class LockException extends RuntimeException {
    LockException(String text, Throwable cause) {
        super(text, cause);
    }

    /** The lock is not free, and the call does not wait, or {@link Lock#maxWaiters} wait already. */
    public static final class Busy extends LockException {
        Busy(String text) {
            super(text, null);
        }
    }

    /** The lock was not free for as long as the call was to wait. Nothing is held. */
    public static final class TimedOut extends LockException {
        TimedOut(String text) {
            super(text, null);
        }
    }

    /** The service refuses the call: it is invalid, not permitted, or over a limit. */
    public static final class Refused extends LockException {
        /** The service's code, for programs: {@code permission-denied}, {@code resource-exhausted}, …. */
        public final String code;

        Refused(String code, String text) {
            super(code + ": " + text, null);
            this.code = code;
        }
    }

    /** No node has answered in time. What was requested is undone in the background. */
    public static final class Unreachable extends LockException {
        Unreachable(String text, Throwable cause) {
            super(text, cause);
        }
    }

    /** The client was closed. */
    public static final class Closed extends LockException {
        Closed() {
            super("the client is closed", null);
        }
    }
}
