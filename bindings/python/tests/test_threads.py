"""The API for threads."""

import contextlib
import logging
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Iterator

import lockkeeper
import pytest
from conftest import URLS


def test_one_thread_at_a_time_and_tokens_rise(url: str, name: str) -> None:
    locks = lockkeeper.connect(url).fenced()
    lock, inside, tokens = locks.mutex(name), [], []

    def work() -> None:
        for _ in range(20):
            with lock as guard:
                inside.append(guard.token)
                assert inside == [guard.token]
                tokens.append(guard.token)
                inside.clear()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 80 and tokens == sorted(set(tokens))


def test_block_that_raises_releases_and_keeps_its_error(url: str, name: str) -> None:
    lock = lockkeeper.connect(url).mutex(name)
    with pytest.raises(KeyError, match="mine"), lock:
        raise KeyError("mine")
    guard = lock.try_acquire()
    assert guard is not None
    guard.release()
    with pytest.raises(lockkeeper.Released):
        guard.release()


def test_blocks_end_in_other_threads_and_in_any_order(own: str, name: str) -> None:
    semaphore = lockkeeper.connect(own).semaphore(name, 2)

    def guards() -> Iterator[lockkeeper.Guard]:
        with semaphore as guard:
            yield guard

    def all_are_free() -> None:
        for guard in [semaphore.acquire(timeout=30) for _ in range(2)]:
            guard.release()

    def elsewhere(work) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    first, second = guards(), guards()
    one, two = next(first), next(second)
    elsewhere(first.close)
    two.check()
    with pytest.raises(lockkeeper.Released):
        one.check()
    second.close()
    all_are_free()
    # A stack is no block: its last lock is meant, or the only one.
    with contextlib.ExitStack() as stack:
        one, two = [stack.enter_context(semaphore) for _ in range(2)]
    stack.enter_context(semaphore)
    elsewhere(stack.close)
    all_are_free()
    with pytest.raises(lockkeeper.LockkeeperError, match=r"use `guard = lock.acquire\(\)`"):
        semaphore.__exit__(None, None, None)


def test_waits_as_long_as_asked(url: str, own: str, name: str) -> None:
    locks = lockkeeper.connect(url)
    with locks.mutex(name):
        assert locks.mutex(name).try_acquire() is None
        with pytest.raises(lockkeeper.AcquireTimeout) as late:
            locks.mutex(name).acquire(timeout=0.2)
        assert late.value.waited >= 0.2 and isinstance(late.value, TimeoutError)
        with pytest.raises(lockkeeper.Busy):
            locks.mutex(name, wait=False).acquire()
        few = locks.mutex(name, max_waiters=1)
        if url != own:
            with pytest.raises(lockkeeper.Unsupported, match="limit the number of waiters"):
                few.acquire()
            return
        waits = threading.Thread(target=lambda: few.acquire().release())
        waits.start()
        until = time.monotonic() + 60
        while locks.inspect(name).waiter_count < 1:
            assert time.monotonic() < until
        with pytest.raises(lockkeeper.Busy):
            few.acquire()
    waits.join()
    few.acquire(timeout=False).release()


def test_a_cached_lock_stays_with_its_client_until_another_asks(url: str, own: str, name: str) -> None:
    locks = lockkeeper.connect(url)
    lock, tokens = locks.mutex(name, cached=True, cache_for=60), []
    if url != own:
        with pytest.raises(lockkeeper.Unsupported, match="cache a lock"):
            lock.acquire()
        return
    for _ in range(8):
        guard = lock.acquire()
        tokens.append(locks.inspect(name).holds[0].token)
        guard.release()
    assert locks.inspect(name).hold_count == 1
    assert len(set(tokens[3:])) == 1, "one hold for the last sections"
    other = lockkeeper.connect(url).mutex(name).try_acquire()
    assert other is not None
    other.release()
    assert locks.inspect(name).hold_count == 0


def test_loss_is_told_to_all_who_ask(own: str, name: str) -> None:
    locks = lockkeeper.connect(own)
    with pytest.raises(lockkeeper.LockLost) as lost, locks.mutex(name, max_hold=0.3) as guard:
        guard.check()
        assert not guard.lost and guard.valid_until is not None
        assert not guard.lost.wait(0.01)
        assert guard.lost.wait(30)
        assert guard.lost.is_set() and guard.loss == "max-hold"
        with pytest.raises(lockkeeper.LockLost):
            guard.check()
        with pytest.raises(lockkeeper.LockLost):
            guard.verify()
    assert lost.value.cause == "max-hold"
    with pytest.raises(KeyError), locks.mutex(name, max_hold=0.3) as guard:
        guard.lost.wait(30)
        raise KeyError("the block's own error comes first")


def test_check_looks_ahead(own: str, name: str) -> None:
    with lockkeeper.connect(own).mutex(name, ttl=10) as guard:
        guard.check(need=5)
        with pytest.raises(lockkeeper.LockLost):
            guard.check(need=11)
        left = guard.valid_until - time.clock_gettime(time.CLOCK_BOOTTIME)
        assert 5 < left <= 10


def test_wait_for_a_lock_that_its_caller_holds_is_a_deadlock(own: str, name: str) -> None:
    locks = lockkeeper.connect(own).fenced()
    with locks.mutex(name) as held:
        with pytest.raises(lockkeeper.Deadlock, match="the caller of this request holds"):
            locks.mutex(name, holding=[held.token]).acquire()


def test_errors_say_what_is_allowed(own: str) -> None:
    locks = lockkeeper.connect(own)
    for wrong, error in [
        (lambda: lockkeeper.connect("reddis://x"), lockkeeper.InvalidUrl),
        (lambda: lockkeeper.connect("lockkeeper://127.0.0.1:1"), lockkeeper.BackendError),
        (lambda: locks.mutex("").acquire(), lockkeeper.InvalidName),
        (lambda: locks.mutex("a", ttl=-1), lockkeeper.InvalidOption),
        (lambda: locks.mutex("a", ttl=1e9).acquire(), lockkeeper.LockkeeperError),
        (lambda: locks.mutex("a", ttll=1), lockkeeper.InvalidOption),
        (lambda: locks.mutex("a", ttl=float("inf")), lockkeeper.InvalidOption),
        (lambda: locks.mutex("a", max_waiters=-1), lockkeeper.InvalidOption),
        (lambda: locks.mutex("a", max_waiters=2**32), lockkeeper.InvalidOption),
        (lambda: locks.mutex("a", max_waiters="3"), lockkeeper.InvalidOption),
        (lambda: locks.mutex("a", holding=[0]), lockkeeper.InvalidOption),
        (lambda: locks.mutex("a", holding=7), lockkeeper.InvalidOption),
        (lambda: locks.semaphore("a", 0).acquire(), lockkeeper.LockkeeperError),
    ]:
        with pytest.raises(error) as raised:
            wrong()
        assert isinstance(raised.value, lockkeeper.LockkeeperError) and str(raised.value)


def test_service_without_tokens_says_so() -> None:
    locks = lockkeeper.connect(URLS["redis"].partition("?")[0])
    assert not locks.abilities["fencing"]
    with pytest.raises(lockkeeper.Unsupported) as error:
        locks.fenced()
    assert error.value.backend == "redis" and error.value.instead


def test_modes(own: str, name: str) -> None:
    locks = lockkeeper.connect(own).fenced()
    with locks.read(name) as reader, locks.read(name):
        assert reader.mode == "shared"
        assert locks.write(name).try_acquire() is None
    semaphore = locks.semaphore(name + "/permits", 2)
    with semaphore as one, semaphore as two:
        assert {one.slot, two.slot} == {0, 1} and one.mode == "permit"
        assert semaphore.try_acquire() is None
    with locks.all([name, name + "/other"], value=b"v", meta={"job": "test"}):
        assert locks.mutex(name + "/other").try_acquire() is None
    with locks.mutex(name, subtree=True):
        assert locks.mutex(name + "/below").try_acquire() is None
    rate = locks.rate(name + "/rate", 1, 60)
    rate.acquire().release()
    assert rate.try_acquire() is None
    with locks.write(name) as guard:
        assert guard.mode == "exclusive"
        guard.downgrade()
        assert guard.mode == "shared"
        with locks.read(name):
            pass


def test_inspection_and_break(own: str, name: str) -> None:
    locks = lockkeeper.connect(own, label="first").fenced()
    guard = locks.mutex(name, value=b"v", meta={"job": "test"}).acquire()
    (lock,) = locks.list(name)
    assert lock.name == locks.inspect(name).name == name
    assert (lock.hold_count, lock.waiter_count, lock.permits) == (1, 0, None)
    (hold,) = lock.holds
    assert (hold.token, hold.label, hold.mode) == (guard.token, "first", "exclusive")
    assert (hold.state, hold.value, hold.meta) == ("held", b"v", {"job": "test"})
    assert hold.held_for is not None and hold.since is not None
    assert 0 <= (datetime.now(timezone.utc) - hold.since).total_seconds() < 600
    assert locks.check_token(name, guard.token) == ("current", [guard.token])
    assert locks.check_token(name, 2**53 - 1).status == "never-issued"
    events = locks.watch(name)
    assert [next(events).kind, next(events)] == ["state", ("synced", None)]
    wrong = locks.break_hold(name, guard.token + 1, reason="test", by="operator")
    assert wrong == ("not-current", [guard.token])
    assert locks.break_hold(name, guard.token, reason="test", by="operator") == ("done", [])
    assert guard.lost.wait(30)
    with pytest.raises(lockkeeper.LockLost) as lost:
        guard.check()
    assert (lost.value.cause, lost.value.broken_by, lost.value.reason) == ("broken", "operator", "test")
    with pytest.raises(lockkeeper.LockLost):
        guard.release()
    for event in events:
        if event.lock is not None and not event.lock.holds:
            break
    with pytest.raises(lockkeeper.InvalidOption, match="token"):
        locks.check_token(name, 0)


def test_work_is_done_once(own: str, name: str, tmp_path: Path) -> None:
    lock = lockkeeper.connect(own).fenced().mutex(name)
    for url in [f"file://{tmp_path}/records", URLS["redis"].partition("?")[0]]:
        records, done = lockkeeper.records(url), []

        def work(guard: lockkeeper.FencedGuard) -> bytes:
            done.append(guard.token)
            return b"outcome"

        def fail(guard: lockkeeper.FencedGuard) -> bytes:
            raise KeyError("mine")

        with pytest.raises(KeyError):
            lock.once(name, records, fail)
        assert lock.once(name, records, work) == (b"outcome", True)
        assert lock.once(name, records, work) == (b"outcome", False)
        assert len(done) == 1

        def late(guard: lockkeeper.FencedGuard) -> bytes:
            assert guard.lost.wait(30)
            return b"late"

        late_lock = lockkeeper.connect(own).fenced().mutex(name, max_hold=0.1)
        assert late_lock.once(name + "/late", records, late) == (b"late", True), "it was done, and is recorded"
    with pytest.raises(lockkeeper.NotRecorded, match="the work was done"):
        folder = tmp_path / "gone"

        def breaks(guard: lockkeeper.FencedGuard) -> bytes:
            folder.write_text("no folder any more")
            return b"outcome"

        lock.once(name + "/gone", lockkeeper.records(f"file://{folder}"), breaks)
    with pytest.raises(lockkeeper.InvalidOption, match="512"):
        lock.once("k" * 513, records, work)
    with pytest.raises(lockkeeper.InvalidOption, match="redis://"):
        lockkeeper.records("etcd://127.0.0.1")


def test_leaders_follow_each_other(own: str, name: str) -> None:
    election = lockkeeper.connect(own, label="first").fenced().election(name)
    assert election.leader() is None
    seen = election.observe()
    guard = election.campaign(b"at 10.0.0.1")
    leader = election.leader()
    assert leader == (guard.token, "first", b"at 10.0.0.1")
    while next(seen) != leader:
        pass
    guard.release()
    while next(seen) is not None:
        pass


def test_partitions_are_divided(own: str, name: str) -> None:
    # The members' numbers are random: of 64 partitions one of two members has none once in 2**64 runs.
    first = lockkeeper.connect(own).fenced().partitions(name, 64, ttl=10).join()
    mine = {}
    while len(mine) < 64:
        partition = first.next(timeout=30)
        assert partition is not None
        mine[partition.index] = partition
    assert first.next(timeout=0.01) is None
    with lockkeeper.connect(own).fenced().partitions(name, 64, ttl=10).join() as second:
        freed = {}
        while not freed:
            assert first.next(timeout=0.05) is None
            for index, partition in list(mine.items()):
                if partition.is_leaving:
                    freed[index] = mine.pop(index)
                    partition.release()
        theirs = second.next(timeout=30)
        assert theirs is not None and theirs.token > freed[theirs.index].token
        theirs.release()
    first.leave()
    with pytest.raises(lockkeeper.Released):
        first.next()


def test_member_leaves_while_another_thread_waits(own: str, name: str) -> None:
    partitions = lockkeeper.connect(own).partitions(name, 1, ttl=10)
    member = partitions.join()
    mine, raised = member.next(timeout=30), []

    def wait() -> None:
        with pytest.raises(lockkeeper.Released) as released:
            member.next()
        raised.append(str(released.value))

    thread = threading.Thread(target=wait)
    thread.start()
    leaves = threading.Thread(target=member.leave)
    leaves.start()
    leaves.join(30)
    thread.join(30)
    assert raised == ["this member has left its group; join it again"]
    assert mine is not None
    mine.release()
    # The block's own error comes first.
    with pytest.raises(KeyError), lockkeeper.connect(own).partitions(name, 1, max_hold=0.2).join() as short:
        try:
            while True:
                short.next(timeout=30)
        except lockkeeper.LockLost as lost:
            raise KeyError("mine") from lost


def test_shutdown_releases_all(own: str, name: str) -> None:
    with lockkeeper.connect(own) as locks:
        guard = locks.mutex(name).acquire()
    assert guard.lost.wait(30)
    with lockkeeper.connect(own).mutex(name, wait=30):
        pass


def test_guard_that_is_garbage_is_released(url: str, name: str) -> None:
    locks = lockkeeper.connect(url)
    guard = locks.mutex(name).acquire()
    del guard
    locks.mutex(name).acquire(timeout=30).release()


def test_events_reach_logging(own: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lockkeeper"):
        guard = lockkeeper.connect(own).mutex(name, max_hold=0.1).acquire()
        guard.lost.wait(30)
        deadline = time.monotonic() + 30
        while not any(name in record.getMessage() for record in caplog.records):
            assert time.monotonic() < deadline, caplog.records
