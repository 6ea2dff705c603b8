"""The API for asyncio."""

import asyncio
import contextlib
import gc
import random
import time
from pathlib import Path
from typing import Any, AsyncIterator

import lockkeeper
import pytest
from lockkeeper import aio


def test_one_task_at_a_time_and_tokens_rise(url: str, name: str) -> None:
    async def main() -> None:
        lock = (await aio.connect(url)).fenced().mutex(name)
        inside, tokens = [], []

        async def work() -> None:
            for _ in range(10):
                async with lock as guard:
                    inside.append(guard.token)
                    await asyncio.sleep(0)
                    assert inside == [guard.token]
                    tokens.append(guard.token)
                    inside.clear()

        await asyncio.gather(*[work() for _ in range(8)])
        assert len(tokens) == 80 and tokens == sorted(set(tokens))

    asyncio.run(main())


def test_cancelled_acquires_leave_nothing(url: str, name: str) -> None:
    async def main() -> None:
        locks = await aio.connect(url)
        lock = locks.mutex(name)

        async def contend() -> None:
            guard = await lock.acquire()
            await guard.release()

        random.seed(7)
        for _ in range(250):
            tasks = [asyncio.create_task(contend()) for _ in range(4)]
            for task in tasks:
                try:
                    await asyncio.wait_for(task, random.choice([0, 1e-5, 1e-4, 1e-3]))
                except asyncio.TimeoutError:
                    pass
        async with locks.mutex(name, wait=30) as guard:
            guard.check()

    asyncio.run(main())


def test_loss_cancels_the_block_and_raises_lock_lost(own: str, name: str) -> None:
    async def main() -> None:
        locks = await aio.connect(own)
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(lockkeeper.LockLost) as lost:
            async with locks.mutex(name, max_hold=0.2) as guard:
                await asyncio.sleep(60)
        assert lost.value.cause == "max-hold" and guard.lost.is_set()
        assert isinstance(lost.value.__cause__, asyncio.CancelledError)
        await asyncio.sleep(0)
        assert not task.cancelled()
        if hasattr(task, "cancelling"):
            assert task.cancelling() == 0

        # The block never waits: the cancel is not left for those after it.
        with pytest.raises(lockkeeper.LockLost):
            async with locks.mutex(name, max_hold=0.2) as guard:
                while not guard.lost.is_set():
                    time.sleep(0.01)
        await asyncio.sleep(0)

        # The block's own error comes first.
        with pytest.raises(KeyError):
            async with locks.mutex(name, max_hold=0.2):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    raise KeyError("mine") from None
        await asyncio.sleep(0)

        # A cancel by somebody else stays one.
        async def cancelled() -> None:
            async with locks.mutex(name, ttl=10):
                held.set()
                await asyncio.sleep(60)

        held = asyncio.Event()
        other = asyncio.create_task(cancelled())
        await held.wait()
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        async with locks.mutex(name, wait=30):
            pass

    asyncio.run(main())


def test_loss_is_raised_by_a_block_that_swallows_all_cancels(own: str, name: str) -> None:
    async def section() -> None:
        task = asyncio.current_task()
        assert task is not None
        async with (await aio.connect(own)).mutex(name, max_hold=0.2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            task.cancel("by somebody else")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    async def main() -> None:
        with pytest.raises(lockkeeper.LockLost):
            await asyncio.create_task(section())

    asyncio.run(main())


def test_blocks_end_in_other_tasks_and_in_any_order(own: str, name: str) -> None:
    async def main() -> None:
        semaphore = (await aio.connect(own)).semaphore(name, 2)

        async def guards() -> AsyncIterator[aio.Guard]:
            async with semaphore as guard:
                yield guard

        async def all_are_free() -> None:
            for guard in [await semaphore.acquire(timeout=30) for _ in range(2)]:
                await guard.release()

        # The loop closes the generators, in a task of its own.
        async for one in guards():
            break
        async for two in guards():
            break
        await all_are_free()

        first, second = guards(), guards()
        one, two = await first.__anext__(), await second.__anext__()
        await first.aclose()  # type: ignore[attr-defined]
        two.check()
        with pytest.raises(lockkeeper.Released):
            one.check()
        await second.aclose()  # type: ignore[attr-defined]
        await all_are_free()

        # A stack is no block: its last lock is meant, or the only one.
        async with contextlib.AsyncExitStack() as stack:
            one, two = [await stack.enter_async_context(semaphore) for _ in range(2)]
        await all_are_free()
        stacks = [contextlib.AsyncExitStack() for _ in range(2)]
        for stack in stacks:
            await stack.enter_async_context(semaphore)
        with pytest.raises(lockkeeper.LockkeeperError, match=r"2 blocks of this lock .* use `guard = lock.acquire\(\)`"):
            await asyncio.create_task(stacks[0].aclose())
        await stacks[1].aclose()

    asyncio.run(main())


def until_free(lock: lockkeeper.Lock[Any]) -> None:
    deadline = time.monotonic() + 30
    while (guard := lock.try_acquire()) is None:
        assert time.monotonic() < deadline
        gc.collect()
    guard.release()


def test_closed_loop_keeps_nothing(own: str, name: str) -> None:
    free = lockkeeper.connect(own).mutex(name)
    for is_held in [True, False]:
        loop = asyncio.new_event_loop()
        lock = loop.run_until_complete(aio.connect(own)).mutex(name)
        before = None if is_held else free.acquire()

        async def hold() -> None:
            async with lock:
                entered.set_result(None)
                await loop.create_future()

        entered = loop.create_future()
        task = loop.create_task(hold())
        loop.run_until_complete(entered if is_held else asyncio.wait([task], timeout=0.05))
        loop.close()
        del task, entered
        if before is not None:
            before.release()
        until_free(free)


def test_task_that_is_garbage_is_released(own: str, name: str) -> None:
    async def main() -> None:
        lock = (await aio.connect(own)).mutex(name)

        async def hold() -> None:
            async with lock:
                entered.set()
                await asyncio.get_running_loop().create_future()

        entered = asyncio.Event()
        task = asyncio.create_task(hold())
        await entered.wait()
        del task
        gc.collect()
        await (await lock.acquire(timeout=30)).release()

    asyncio.run(main())


def test_cancelled_release_goes_on(own: str, name: str) -> None:
    async def main() -> None:
        lock = (await aio.connect(own)).mutex(name)
        guard = await lock.acquire()
        changes = [guard.set_value(b"%d" % value) for value in range(64)]
        release = asyncio.ensure_future(guard.release())
        release.cancel()
        await asyncio.gather(*changes)
        await (await lock.acquire(timeout=30)).release()

    asyncio.run(main())


def test_partition_and_member_end_while_they_are_waited_for(own: str, name: str) -> None:
    async def main() -> None:
        member = await (await aio.connect(own)).partitions(name, 1).join()
        partition = await member.next(timeout=30)
        assert partition is not None
        leaving, more = partition.leaving(), asyncio.ensure_future(member.next())
        await asyncio.sleep(0)
        await asyncio.wait_for(partition.release(), 30)
        await asyncio.wait_for(leaving, 30)
        again = await asyncio.wait_for(more, 30)
        assert again is not None and again.index == 0
        more = asyncio.ensure_future(member.next())
        await asyncio.sleep(0)
        await asyncio.wait_for(member.leave(), 30)
        with pytest.raises(lockkeeper.Released, match="has left its group"):
            await more
        await again.release()

    asyncio.run(main())


def test_lost_is_an_event(own: str, name: str) -> None:
    async def main() -> None:
        guard = await (await aio.connect(own)).mutex(name, max_hold=0.2).acquire()
        await asyncio.wait_for(guard.lost.wait(), 30)
        with pytest.raises(lockkeeper.LockLost):
            await guard.verify()
        with pytest.raises(lockkeeper.LockLost):
            await guard.release()

    asyncio.run(main())


def test_leader_is_cancelled_at_its_loss(own: str, name: str) -> None:
    async def main() -> None:
        election = (await aio.connect(own)).election(name, max_hold=0.2)
        with pytest.raises(lockkeeper.LockLost):
            async with await election.campaign():
                await asyncio.sleep(60)

    asyncio.run(main())


def test_work_is_done_once(own: str, name: str, tmp_path: Path) -> None:
    async def main() -> None:
        lock, records = (await aio.connect(own)).mutex(name), await aio.records(f"file://{tmp_path}/records")

        async def work(guard: aio.Guard) -> bytes:
            await asyncio.sleep(0)
            return b"outcome"

        results = await asyncio.gather(*[lock.once(name, records, work) for _ in range(8)])
        assert sorted(result.is_new for result in results) == [False] * 7 + [True]
        assert {result.outcome for result in results} == {b"outcome"}
        lost = (await aio.connect(own)).mutex(name, max_hold=0.1)
        with pytest.raises(lockkeeper.LockLost):
            await lost.once(name + "/lost", records, lambda guard: asyncio.sleep(60, b""))

    asyncio.run(main())


def test_loops_come_and_go(own: str, name: str) -> None:
    async def connect() -> aio.Locks:
        return await aio.connect(own)

    async def use(locks: aio.Locks) -> None:
        async with locks.mutex(name):
            pass

    locks = asyncio.run(connect())
    for _ in range(3):
        asyncio.run(use(locks))


def test_recipes(own: str, name: str) -> None:
    async def main() -> None:
        async with (await aio.connect(own, label="first")) as client:
            locks = client.fenced()
            election = locks.election(name)
            guard = await election.campaign(b"here")
            assert (await election.leader()) == (guard.token, "first", b"here")
            async for leader in election.observe():
                if leader is not None:
                    break
            await guard.set_value(b"there")
            await guard.release()
            async with await locks.partitions(name + "/parts", 2).join() as member:
                mine = {}
                async for partition in member:
                    assert not partition.is_leaving
                    mine[partition.index] = partition
                    if len(mine) == 2:
                        break
                assert await member.next(timeout=0.01) is None
            held = await locks.mutex(name).try_acquire()
            assert held is not None
            with pytest.raises(lockkeeper.AcquireTimeout):
                async with locks.mutex(name, wait=0.05):
                    pass
            lock = (await locks.list(name))[0]
            assert lock.holds[0].token == held.token
            assert (await locks.check_token(name, held.token)).status == "current"
            async for event in locks.watch(name):
                if event.kind == "synced":
                    break
            broken = await locks.break_hold(name, held.token, reason="test", by="operator", now=True)
            assert broken.outcome == "done"
            await held.lost.wait()
            assert (await locks.inspect(name)).holds == []

    asyncio.run(main())
