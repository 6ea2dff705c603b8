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
import contextlib
import logging
import sys
from types import TracebackType
from typing import Any, AsyncIterator, Awaitable, Generic, Optional, Type, TypeVar, Union, cast
from weakref import WeakKeyDictionary

from . import _lockkeeper
from ._errors import LockLost, Released, ReleaseNotConfirmed
from ._hold import Hold
from ._kinds import LockKinds
from ._options import Options, Seconds, native, seconds, wait
from ._sync import Leader

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
]

#: The bridge of each event loop. The loop itself keeps it, as the reader of its descriptor.
_bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, _lockkeeper.Bridge] = WeakKeyDictionary()


def _bridge(loop: asyncio.AbstractEventLoop) -> _lockkeeper.Bridge:
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _lockkeeper.Bridge()
        loop.add_reader(bridge.fileno(), bridge.complete)
    return bridge


def _place() -> tuple[_lockkeeper.Bridge, asyncio.Future[Any]]:
    loop = asyncio.get_running_loop()
    return _bridge(loop), loop.create_future()


async def connect(url: str, *, label: Optional[str] = None) -> Locks:
    """Connects to the lock service of a URL. ``label`` is what others see of this client."""
    place = _place()
    _lockkeeper.connect(url, label, place)
    return Locks(await place[1])


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
        bridge, lost = _place()

        def tell() -> None:
            if not lost.done():
                lost.set_result(None)

        telling = self._native.tell(bridge, tell)
        try:
            await lost
        finally:
            del telling


class Guard(Hold):
    """A lock that is held by this program."""

    __slots__ = ()

    @property
    def lost(self) -> Lost:
        """Set by the loss of the lock, before another client can have it."""
        return Lost(self._native.lost)

    def verify(self) -> Awaitable[None]:
        """Asks the lock service whether the lock is held. Raises :class:`LockLost` or :class:`NoAnswer`."""
        place = _place()
        self._native.verify(place)
        return place[1]

    def set_value(self, value: bytes) -> Awaitable[None]:
        """Changes the value that others see with the hold."""
        place = _place()
        self._native.set_value(value, place)
        return place[1]

    def downgrade(self) -> Awaitable[None]:
        """Makes an exclusive hold a shared one."""
        place = _place()
        self._native.downgrade(place)
        return place[1]

    def release(self) -> Awaitable[None]:
        """Releases the lock.

        Raises :class:`LockLost` if it was lost before, :class:`ReleaseNotConfirmed` if there was no answer. A
        release that is cancelled goes on in the background.
        """
        place = _place()
        self._native.release(place)
        return place[1]

    @property
    def index(self) -> Optional[int]:
        """The number of a partition."""
        return self._native.index

    @property
    def is_leaving(self) -> bool:
        """Whether another member waits for this partition: stop, and release it."""
        return self._native.is_leaving

    def leaving(self) -> Awaitable[None]:
        """Waits until another member waits for this partition, or it is lost."""
        place = _place()
        self._native.leaving(place)
        return place[1]


class FencedGuard(Guard):
    """A lock that is held, with its token."""

    __slots__ = ()

    @property
    def token(self) -> int:
        """The fencing token: it rises with every grant of the name, and is below 2**53."""
        return cast(int, self._native.token_hint)


G = TypeVar("G", bound=Guard)


#: The text of the cancel with which a task is told of a loss.
_LOST = "a lock was lost"


class _Body(Generic[G]):
    """An ``async with`` block that is under a lock: its task is cancelled if the lock is lost."""

    __slots__ = ("_cancelled", "_cancelling", "_task", "_telling", "guard")

    def __init__(self, guard: G) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("`async with` on a lock needs a task: a loss is told by cancelling it")
        self.guard = guard
        self._task = task
        self._cancelling = task.cancelling() if sys.version_info >= (3, 11) else 0
        self._cancelled = False
        self._telling: object = guard._native.lost.tell(_bridge(task.get_loop()), self._lose)

    def _lose(self) -> None:
        if self._telling is not None:
            self._cancelled = True
            self._task.cancel(_LOST)

    async def _take_cancel(self, error: Optional[BaseException]) -> bool:
        """Takes back the cancel of this block. Returns whether somebody else has cancelled the task, too."""
        if sys.version_info < (3, 11):
            return isinstance(error, asyncio.CancelledError) and error.args != (_LOST,)
        if self._task.uncancel() > self._cancelling:
            return True
        if error is None:
            # The block may have ended before the cancel reached it: nobody else is to meet it.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return False

    async def end(self, error: Optional[BaseException]) -> None:
        """Releases the lock after the block, whose own error comes first. A loss replaces its own cancel."""
        self._telling = None
        is_own = error is None
        if self._cancelled:
            by_others = await self._take_cancel(error)
            is_own = not by_others and (error is None or isinstance(error, asyncio.CancelledError))
        try:
            await self.guard.release()
        except ReleaseNotConfirmed as unconfirmed:
            _logger.warning("%s", unconfirmed)
        except LockLost as lost:
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

    def __init__(self, native: _lockkeeper.Lock, guard: Type[G]) -> None:
        self._native = native
        self._guard = guard
        #: The blocks of each task.
        self._bodies: WeakKeyDictionary[asyncio.Task[Any], list[_Body[G]]] = WeakKeyDictionary()

    async def acquire(self, *, timeout: Union[bool, Seconds, None] = None) -> G:
        """Acquires the lock. ``timeout``: the longest wait, instead of the lock's option ``wait``."""
        place = _place()
        self._native.acquire(wait(timeout), place)
        return self._guard(await place[1])

    async def try_acquire(self) -> Optional[G]:
        """Acquires the lock if it is free; else ``None``."""
        place = _place()
        self._native.try_acquire(place)
        native = await place[1]
        return None if native is None else self._guard(native)

    async def __aenter__(self) -> G:
        body = _Body(await self.acquire())
        self._bodies.setdefault(body._task, []).append(body)
        return body.guard

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        await self._bodies[task].pop().end(error)


class Election(Generic[G]):
    """One leader at a time."""

    def __init__(self, locks: _Locks[G], name: str, options: Options) -> None:
        self._locks, self._name, self._options = locks, name, native(options)

    async def campaign(self, value: bytes = b"") -> G:
        """Waits until this client leads. It leads until the guard is released or lost."""
        place = _place()
        _lockkeeper.campaign(self._locks._native, self._name, value, self._options, place)
        return self._locks._guard(await place[1])

    async def leader(self) -> Optional[Leader]:
        """Who leads now."""
        place = _place()
        _lockkeeper.leader(self._locks._native, self._name, place)
        leader = await place[1]
        return None if leader is None else Leader(*leader)

    async def observe(self) -> AsyncIterator[Optional[Leader]]:
        """The leaders, one after another; ``None`` while nobody leads. Ends with an exception only."""
        watch = _lockkeeper.observe(self._locks._native, self._name)
        while True:
            place = _place()
            watch.next(place)
            leader = await place[1]
            yield None if leader is None else Leader(*leader)


class PartitionMember(Generic[G]):
    """A member of a group that divides partitions. As an iterator, it waits for each further partition.

    Others' coming and going is noticed while :meth:`next` waits: keep calling it.
    """

    def __init__(self, native: _lockkeeper.PartitionMember, guard: Type[G]) -> None:
        self._native, self._guard = native, guard

    async def next(self, *, timeout: Optional[Seconds] = None) -> Optional[G]:
        """Waits until one more partition is this member's; ``None`` if there was none in time."""
        place = _place()
        self._native.next(None if timeout is None else seconds(timeout), place)
        partition = await place[1]
        return None if partition is None else self._guard(partition)

    async def __aiter__(self) -> AsyncIterator[G]:
        while True:
            partition = await self.next()
            if partition is not None:
                yield partition

    async def leave(self) -> None:
        """Leaves the group."""
        place = _place()
        self._native.leave(place)
        await place[1]

    async def __aenter__(self) -> PartitionMember[G]:
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(Released):
            await self.leave()


class Partitions(Generic[G]):
    """Numbered partitions, each of one member of a group at a time."""

    def __init__(self, locks: _Locks[G], name: str, count: int, options: Options) -> None:
        self._locks, self._name, self._count, self._options = locks, name, count, native(options)

    async def join(self) -> PartitionMember[G]:
        """Joins the group."""
        place = _place()
        locks = self._locks
        _lockkeeper.join_partitions(locks._native, self._name, self._count, self._options, place)
        return PartitionMember(await place[1], locks._guard)


class _Locks(LockKinds[Lock[G]], Generic[G]):
    def __init__(self, native: _lockkeeper.Locks, guard: Type[G]) -> None:
        super().__init__(native)
        self._guard = guard

    def _lock(self, native: _lockkeeper.Lock) -> Lock[G]:
        return Lock(native, self._guard)

    def election(self, name: str, **options: Unpack[Options]) -> Election[G]:
        """One leader at a time."""
        return Election(self, name, options)

    def partitions(self, name: str, count: int, **options: Unpack[Options]) -> Partitions[G]:
        """``count`` partitions, which a group divides among its members."""
        return Partitions(self, name, count, options)

    async def shutdown(self, limit: Seconds = 5.0) -> None:
        """Ends the client's sessions, which releases all its locks; waits for that at most ``limit`` seconds."""
        place = _place()
        self._native.shutdown(seconds(limit), place)
        await place[1]

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
