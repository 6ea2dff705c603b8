package io.github.lockkeeper;

import java.io.IOException;
import java.io.RandomAccessFile;

/**
 * The clock of leases, in nanoseconds. On Linux it is CLOCK_BOOTTIME, which counts the time in which the machine is
 * suspended, read from /proc/uptime: {@link System#nanoTime} is CLOCK_MONOTONIC there, which does not. On Windows
 * nanoTime counts suspend; on macOS, and where there is no /proc/uptime, a lease does not notice it.
 */
final class Clock {
    /** /proc/uptime is in hundredths of a second, rounded down. */
    private static final long STEP = 10_000_000;
    private static final RandomAccessFile UPTIME = open();
    private static final byte[] LINE = new byte[64];

    private Clock() {}

    private static RandomAccessFile open() {
        try {
            return new RandomAccessFile("/proc/uptime", "r");
        } catch (IOException absent) {
            return null;
        }
    }

    /** A time that is not later than now, by less than 10 ms: when something is sent. */
    static long sent() {
        return UPTIME == null ? System.nanoTime() : read();
    }

    /** A time that is not earlier than now, by at most 10 ms: to compare with a deadline. */
    static long now() {
        return UPTIME == null ? System.nanoTime() : read() + STEP;
    }

    private static long read() {
        synchronized (UPTIME) {
            try {
                UPTIME.seek(0);
                int length = UPTIME.read(LINE);
                long hundredths = 0;
                for (int i = 0; i < length && LINE[i] != ' '; i++) {
                    if (LINE[i] != '.') {
                        hundredths = hundredths * 10 + (LINE[i] - '0');
                    }
                }
                return hundredths * STEP;
            } catch (IOException error) {
                throw new IllegalStateException("/proc/uptime can't be read: " + error.getMessage(), error);
            }
        }
    }
}
