"""The API for ``asyncio``: that of the package, with ``await``.

    locks = (await lockkeeper.aio.connect("redis://127.0.0.1:6379")).fenced()
    async with locks.mutex("orders/42") as guard:
        await write(order, token=guard.token)

A task that is cancelled while it waits for a lock abandons its request: nothing is left behind. If the lock is
lost inside of an ``async with``, the task is cancelled there, and the ``async with`` raises
:class:`~lockkeeper.LockLost` (as :func:`asyncio.timeout` raises ``TimeoutError``).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from types import FrameType, TracebackType
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generic,
    List,
    Optional,
    Type,
    TypeVar,
    Union,
    cast,
)
from weakref import WeakKeyDictionary, ref

from . import _lockkeeper
from ._errors import LockLost, Released, ReleaseNotConfirmed, UsedAfterFork
from ._hold import Blocks, Hold
from ._info import Broken, LockInfo, TokenStatus, WatchEvent, lock_info, watch_event
from ._kinds import LockKinds
from ._once import Once, Records, found, new_attempt, recorded
from ._options import Options, Seconds, native, seconds, wait
from ._sync import Leader
from .fences import Mode

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

_logger = logging.getLogger("lockkeeper")

__all__ = [
    "Election",
    "FencedGuard",
    "FencedLocks",
    "Guard",
    "Lock",
    "Locks",
    "Lost",
    "PartitionMember",
    "Partitions",
    "connect",
    "records",
]

#: The bridge of each event loop. Only the loop keeps it, as the reader of its descriptor, until it is closed.
_bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_lockkeeper.Bridge]] = WeakKeyDictionary()


def _bridge(loop: asyncio.AbstractEventLoop) -> _lockkeeper.Bridge:
    known = _bridges.get(loop)
    bridge = None if known is None else known()
    if bridge is None:
        bridge = _lockkeeper.Bridge()
        loop.add_reader(bridge.fileno(), bridge.complete)
        _bridges[loop] = ref(bridge)
    return bridge


def _place() -> tuple[_lockkeeper.Bridge, asyncio.Future[Any]]:
    loop = asyncio.get_running_loop()
    return _bridge(loop), loop.create_future()


def _begin(call: Callable[..., object], *arguments: object) -> asyncio.Future[Any]:
    """Begins a call of the native module. Returns the future of its answer."""
    bridge, future = _place()
    call(*arguments, (bridge, future))
    return future


async def connect(url: str, *, label: Optional[str] = None) -> Locks:
    """Connects to the lock service of a URL. ``label`` is what others see of this client."""
    return Locks(await _begin(_lockkeeper.connect, url, label))


async def records(url: str, *, keep_for: Optional[Seconds] = None) -> Records:
    """As :func:`lockkeeper.records`."""
    return Records(await _begin(_lockkeeper.records, url, None if keep_for is None else seconds(keep_for)))


class Lost:
    """Set by the loss of a lock, before another client can have it: like an ``asyncio.Event``."""

    __slots__ = ("_native",)

    def __init__(self, native: _lockkeeper.Lost) -> None:
        self._native = native

    def is_set(self) -> bool:
        """Whether the lock is lost."""
        return self._native.is_set()

    async def wait(self) -> None:
        """Waits until the lock is lost."""
        loop = asyncio.get_running_loop()
        lost = loop.create_future()

        def tell() -> None:
            if not lost.done():
                lost.set_result(None)

        telling = self._native.tell(_bridge(loop), tell)
        try:
            await lost
        finally:
            del telling


class Guard(Hold):
    """A lock that is held by this program.

    As an async context manager, it is released after the block; see :class:`Lock` for its loss.
    """

    __slots__ = ("_body",)

    @property
    def lost(self) -> Lost:
        """Set by the loss of the lock, before another client can have it."""
        return Lost(self._native.lost)

    def verify(self) -> Awaitable[None]:
        """Asks the lock service whether the lock is held. Raises :class:`LockLost` or :class:`NoAnswer`."""
        return _begin(self._native.verify)

    def set_value(self, value: bytes) -> Awaitable[None]:
        """Changes the value that others see with the hold."""
        return _begin(self._native.set_value, value)

    async def downgrade(self) -> None:
        """Makes an exclusive hold a shared one."""
        await _begin(self._native.downgrade)
        self._mode = "shared"

    def release(self) -> Awaitable[None]:
        """Releases the lock.

        Raises :class:`LockLost` if it was lost before, :class:`ReleaseNotConfirmed` if there was no answer. A
        release that is cancelled goes on in the background.
        """
        return _begin(self._native.release)

    @property
    def index(self) -> Optional[int]:
        """The number of a partition."""
        return self._native.index

    @property
    def is_leaving(self) -> bool:
        """Whether another member waits for this partition: stop, and release it."""
        return self._native.is_leaving

    def leaving(self) -> Awaitable[None]:
        """Waits until another member waits for this partition, or it is lost or released."""
        return _begin(self._native.leaving)

    async def __aenter__(self: _Self) -> _Self:
        self._body = _Body(self)
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await self._body.end(error)


_Self = TypeVar("_Self", bound=Guard)


class FencedGuard(Guard):
    """A lock that is held, with its token."""

    __slots__ = ()

    @property
    def token(self) -> int:
        """The fencing token: it rises with every grant of the name, and is below 2**53."""
        return cast(int, self._native.token_hint)


G = TypeVar("G", bound=Guard)


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("`async with` on a lock needs a task: a loss is told by cancelling it")
    return task


def _is_running() -> bool:
    """Whether a loop runs here. A coroutine that is garbage may be closed outside of its loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _owner() -> object:
    """The task that runs here, if any."""
    task = asyncio.current_task() if _is_running() else None
    return None if task is None else ref(task)


#: The text of the cancel with which a task is told of a loss.
_LOST = "a lock was lost"


class _Body:
    """An ``async with`` block that is under a lock: its task is cancelled if the lock is lost."""

    __slots__ = ("_cancelled", "_cancelling", "_guard", "_task", "_telling", "__weakref__")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        task = _task()
        # Neither a lock, which knows its blocks, nor the library may keep a task alive that nobody else knows.
        self._task = ref(task)
        self._cancelling = task.cancelling() if sys.version_info >= (3, 11) else 0
        self._cancelled = False
        body = ref(self)

        def lose() -> None:
            known = body()
            if known is not None:
                known._lose()

        self._telling: object = guard._native.lost.tell(_bridge(task.get_loop()), lose)

    def _lose(self) -> None:
        task = self._task()
        if self._telling is not None and task is not None:
            self._cancelled = True
            task.cancel(_LOST)

    def _take_cancel(self, error: Optional[BaseException]) -> bool:
        """Takes back the cancel of this block. Returns whether somebody else has cancelled the task, too."""
        if sys.version_info < (3, 11):
            return isinstance(error, asyncio.CancelledError) and error.args != (_LOST,)
        task = self._task()
        return task is not None and task.uncancel() > self._cancelling

    async def end(self, error: Optional[BaseException]) -> None:
        """Releases the lock after the block, whose own error comes first. A loss replaces its own cancel."""
        self._telling = None
        is_own = error is None
        if self._cancelled:
            by_others = self._take_cancel(error)
            is_own = error is None or (not by_others and isinstance(error, asyncio.CancelledError))
        if _is_running():
            await _end(self._guard.release, error, is_own)
        else:
            self._guard._native.abandon()


async def _end(release: Callable[[], Awaitable[None]], error: Optional[BaseException], is_own: bool) -> None:
    """Releases what a block has had. A loss replaces the block's own end only."""
    try:
        await release()
    except ReleaseNotConfirmed as unconfirmed:
        _logger.warning("%s", unconfirmed)
    except (LockLost, UsedAfterFork) as lost:
        if is_own:
            raise lost from error
    except Released:
        pass


class Lock(Generic[G]):
    """A lock that can be acquired, any number of times, by any task.

    As an async context manager, it is acquired for the block, and the block's guard is its value. If the lock
    is lost meanwhile, the task is cancelled in the block, and :class:`~lockkeeper.LockLost` is raised at its
    end.
    """

    def __init__(self, native: _lockkeeper.Lock, guard: Type[G], mode: Mode) -> None:
        self._native, self._guard, self._mode = native, guard, mode
        self._blocks: Blocks[G] = Blocks()

    async def acquire(self, *, timeout: Union[bool, Seconds, None] = None) -> G:
        """Acquires the lock. ``timeout``: the longest wait, instead of the lock's option ``wait``."""
        return self._guard(await _begin(self._native.acquire, wait(timeout)), self._mode)

    async def try_acquire(self) -> Optional[G]:
        """Acquires the lock if it is free; else ``None``."""
        native = await _begin(self._native.try_acquire)
        return None if native is None else self._guard(native, self._mode)

    async def once(self, key: str, records: Records, work: Callable[[G], Awaitable[bytes]]) -> Once:
        """Does the work of a key, unless it is recorded; and records what it returns.

        Whoever does the work of this key must do it under this lock. If the process dies between the work and its record,
        the work is done again. An exception of the work is not recorded.
        """
        attempt, native = new_attempt(), records._native
        done = found(await _begin(native.get, key))
        if done is not None:
            return done
        outcome: Optional[bytes] = None
        try:
            async with self as guard:
                done = found(await _begin(native.get, key))
                if done is None:
                    outcome = await work(guard)
                    done = recorded(attempt, await _begin(native.put, key, attempt, outcome))
        except LockLost:
            # The work was done; only its record may be missing.
            if done is None and outcome is not None:
                done = recorded(attempt, await _begin(native.put, key, attempt, outcome))
            if done is None:
                raise
        return done

    def __aenter__(self) -> Coroutine[Any, Any, G]:
        return self._enter(sys._getframe(1))

    async def _enter(self, block: FrameType) -> G:
        guard = await (await self.acquire()).__aenter__()
        self._blocks.opened(block, _owner(), guard)
        return guard

    def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> Coroutine[Any, Any, None]:
        return self._blocks.closed(sys._getframe(1), _owner()).__aexit__(kind, error, traceback)


class Election(Generic[G]):
    """One leader at a time."""

    def __init__(self, locks: _Locks[G], name: str, options: Options) -> None:
        self._locks, self._name, self._options = locks, name, native(options)

    async def campaign(self, value: bytes = b"") -> G:
        """Waits until this client leads. It leads until the guard is released or lost."""
        return self._locks._guard(await _begin(_lockkeeper.campaign, self._locks._native, self._name, value, self._options))

    async def leader(self) -> Optional[Leader]:
        """Who leads now."""
        leader = await _begin(_lockkeeper.leader, self._locks._native, self._name)
        return None if leader is None else Leader(*leader)

    async def observe(self) -> AsyncIterator[Optional[Leader]]:
        """The leaders, one after another; ``None`` while nobody leads. Ends with an exception only."""
        watch = _lockkeeper.observe(self._locks._native, self._name)
        while True:
            leader = await _begin(watch.next)
            yield None if leader is None else Leader(*leader)


class PartitionMember(Generic[G]):
    """A member of a group that divides partitions. As an iterator, it waits for each further partition.

    Others' coming and going is noticed while :meth:`next` waits: keep calling it.
    """

    def __init__(self, native: _lockkeeper.PartitionMember, guard: Type[G]) -> None:
        self._native, self._guard = native, guard

    async def next(self, *, timeout: Optional[Seconds] = None) -> Optional[G]:
        """Waits until one more partition is this member's; ``None`` if there was none in time."""
        partition = await _begin(self._native.next, None if timeout is None else seconds(timeout))
        return None if partition is None else self._guard(partition)

    async def __aiter__(self) -> AsyncIterator[G]:
        while True:
            partition = await self.next()
            if partition is not None:
                yield partition

    async def leave(self) -> None:
        """Leaves the group."""
        await _begin(self._native.leave)

    async def __aenter__(self) -> PartitionMember[G]:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await _end(self.leave, error, error is None)


class Partitions(Generic[G]):
    """Numbered partitions, each of one member of a group at a time."""

    def __init__(self, locks: _Locks[G], name: str, count: int, options: Options) -> None:
        self._locks, self._name, self._count, self._options = locks, name, count, native(options)

    async def join(self) -> PartitionMember[G]:
        """Joins the group."""
        locks = self._locks
        return PartitionMember(await _begin(_lockkeeper.join_partitions, locks._native, self._name, self._count, self._options), locks._guard)


class _Locks(LockKinds[Lock[G]], Generic[G]):
    def __init__(self, native: _lockkeeper.Locks, guard: Type[G]) -> None:
        super().__init__(native)
        self._guard = guard

    def _lock(self, native: _lockkeeper.Lock, mode: Mode) -> Lock[G]:
        return Lock(native, self._guard, mode)

    def election(self, name: str, **options: Unpack[Options]) -> Election[G]:
        """One leader at a time."""
        return Election(self, name, options)

    def partitions(self, name: str, count: int, **options: Unpack[Options]) -> Partitions[G]:
        """``count`` partitions, which a group divides among its members."""
        return Partitions(self, name, count, options)

    async def inspect(self, name: str) -> LockInfo:
        """The holds and waiters of a lock."""
        return lock_info(await _begin(_lockkeeper.inspect, self._native, name))

    async def check_token(self, name: str, token: int) -> TokenStatus:
        """Whether a token is that of a live hold of this lock."""
        return TokenStatus(*await _begin(_lockkeeper.check_token, self._native, name, token))

    async def break_hold(self, name: str, token: int, *, reason: str, by: str, now: bool = False) -> Broken:
        """Ends another client's hold: an operator's last resort.

        Its holder is asked to stop first, unless ``now``. ``reason`` and ``by`` are for the audit log.
        """
        return Broken(*await _begin(_lockkeeper.break_hold, self._native, name, token, reason, by, now))

    async def watch(self, prefix: Optional[str] = None) -> AsyncIterator[WatchEvent]:
        """The locks at and below ``prefix``, or all, and then their changes. Ends with an exception, or the service."""
        watch = _lockkeeper.watch(self._native, prefix)
        while True:
            event = await _begin(watch.next)
            if event is None:
                return
            yield watch_event(event)

    async def list(self, prefix: Optional[str] = None) -> List[LockInfo]:
        """The locks in use at and below ``prefix``, or all."""
        return [lock_info(lock) for lock in await _begin(_lockkeeper.list, self._native, prefix)]

    async def shutdown(self, limit: Seconds = 5.0) -> None:
        """Ends the client's sessions, which releases all its locks; waits for that at most ``limit`` seconds."""
        await _begin(self._native.shutdown, seconds(limit))

    async def __aenter__(self: _SelfLocks) -> _SelfLocks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()


_SelfLocks = TypeVar("_SelfLocks", bound="_Locks[Guard]")


class FencedLocks(_Locks[FencedGuard]):
    """A client of a lock service, whose holds have tokens."""

    def __init__(self, native: _lockkeeper.Locks) -> None:
        super().__init__(native, FencedGuard)


class Locks(_Locks[Guard]):
    """A client of a lock service."""

    def __init__(self, native: _lockkeeper.Locks) -> None:
        super().__init__(native, Guard)

    def fenced(self) -> FencedLocks:
        """The same client, whose holds have tokens. Raises :class:`~lockkeeper.Unsupported` where there are none."""
        return FencedLocks(self._native.fenced())
