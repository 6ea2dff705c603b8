"""What processes do to each other: stops, kills, forks, signals, and the GIL."""

import ctypes
import os
import signal
import time

import lockkeeper
import pytest


def test_renewals_need_no_gil(url: str, name: str) -> None:
    ttl = 3.0
    guard = lockkeeper.connect(url).mutex(name, ttl=ttl).acquire()
    # A call that does not release the GIL.
    ctypes.PyDLL(None).usleep(int(3 * ttl * 1e6))
    guard.check()
    guard.verify()
    guard.release()


def test_interrupt_ends_a_wait_and_leaves_nothing(url: str, name: str, program) -> None:
    locks = lockkeeper.connect(url)
    guard = locks.mutex(name).acquire()
    waits = program(
        """
        import lockkeeper, sys
        locks = lockkeeper.connect(sys.argv[1])
        try:
            print("waits")
            locks.mutex(sys.argv[2]).acquire()
        except KeyboardInterrupt:
            print("interrupted")
            sys.stdin.readline()
        """,
        url,
        name,
    )
    assert waits.line() == "waits"
    waits.process.send_signal(signal.SIGINT)
    assert waits.line() == "interrupted"
    guard.release()
    # The program lives on, and would have been granted the lock.
    locks.mutex(name).acquire(timeout=30).release()
    waits.go_on()
    assert waits.process.wait(30) == 0


def test_stopped_holder_learns_of_its_loss_before_it_goes_on(url: str, name: str, program) -> None:
    ttl = 3.0
    holds = program(
        """
        import lockkeeper, sys, time
        locks = lockkeeper.connect(sys.argv[1]).fenced()
        guard = locks.mutex(sys.argv[2], ttl=float(sys.argv[3])).acquire()
        print(guard.token)
        sys.stdin.readline()
        try:
            guard.check()
            print("held")
        except lockkeeper.LockLost as lost:
            print(lost.cause)
        """,
        url,
        name,
        str(ttl),
    )
    first = int(holds.line())
    holds.process.send_signal(signal.SIGSTOP)
    guard = lockkeeper.connect(url).fenced().mutex(name).acquire(timeout=60)
    assert guard.token > first
    holds.go_on()
    holds.process.send_signal(signal.SIGCONT)
    assert holds.line() in ("expired", "session-ended", "forgotten")
    guard.verify()
    guard.release()


def test_killed_holder_is_followed_after_its_ttl(url: str, name: str, program) -> None:
    holds = program(
        """
        import lockkeeper, sys
        guard = lockkeeper.connect(sys.argv[1]).mutex(sys.argv[2], ttl=2).acquire()
        print("held")
        sys.stdin.readline()
        """,
        url,
        name,
    )
    assert holds.line() == "held"
    holds.process.kill()
    lockkeeper.connect(url).mutex(name).acquire(timeout=60).release()


def test_fork_is_refused_in_words_and_may_connect_anew(url: str, name: str, program) -> None:
    forks = program(
        """
        import lockkeeper, os, sys
        locks = lockkeeper.connect(sys.argv[1])
        lock = locks.mutex(sys.argv[2])
        guard = lock.acquire()
        child = os.fork()
        if child == 0:
            for use in (guard.check, guard.release, lock.try_acquire, lambda: locks.mutex("a"), lambda: guard.lost):
                try:
                    use()
                    print("used")
                except lockkeeper.UsedAfterFork as error:
                    assert "after the fork" in str(error)
            del guard, lock, locks
            anew = lockkeeper.connect(sys.argv[1])
            print("busy" if anew.mutex(sys.argv[2]).try_acquire() is None else "free")
            with anew.mutex(sys.argv[2] + "/child"):
                print("child locks")
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        guard.verify()
        guard.release()
        print("parent released")
        """,
        url,
        name,
    )
    assert [forks.line() for _ in range(3)] == ["busy", "child locks", "parent released"]
    assert forks.process.wait(30) == 0


def test_fork_leaves_a_block_by_its_own_error_and_logs(own: str, name: str, program) -> None:
    forks = program(
        """
        import logging, lockkeeper, os, sys, threading
        logged = threading.Event()

        class Handler(logging.Handler):
            def emit(self, record):
                if sys.argv[2] + "/child" in record.getMessage():
                    logged.set()

        logging.getLogger("lockkeeper").setLevel(logging.INFO)
        logging.getLogger("lockkeeper").addHandler(Handler())
        with lockkeeper.connect(sys.argv[1]).mutex(sys.argv[2]) as guard:
            child = os.fork()
            if child == 0:
                short = lockkeeper.connect(sys.argv[1]).mutex(sys.argv[2] + "/child", max_hold=0.1).acquire()
                assert short.lost.wait(30) and logged.wait(30)
                sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            guard.verify()
        """,
        own,
        name,
    )
    assert forks.line() == "3"
    assert forks.process.wait(30) == 0


def test_program_that_ends_while_it_holds_ends(url: str, name: str, program) -> None:
    ends = program(
        """
        import lockkeeper, sys, threading
        locks = lockkeeper.connect(sys.argv[1])
        guard = locks.mutex(sys.argv[2]).acquire()
        threading.Thread(target=guard.lost.wait, daemon=True).start()
        print("held")
        """,
        url,
        name,
    )
    assert ends.line() == "held"
    assert ends.process.wait(30) == 0
    lockkeeper.connect(url).mutex(name).acquire(timeout=60).release()
