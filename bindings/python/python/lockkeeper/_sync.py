"""The API for threads."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Callable, Generic, Iterator, List, NamedTuple, Optional, Type, TypeVar, Union, cast

from . import _lockkeeper
from ._errors import LockLost, Released, ReleaseNotConfirmed, UsedAfterFork
from ._hold import Blocks, Hold
from ._info import Broken, LockInfo, TokenStatus, WatchEvent, lock_info, watch_event
from ._kinds import LockKinds
from ._lockkeeper import Lost as Lost
from ._once import Once, Records, found, new_attempt, recorded
from ._options import Options, Seconds, native, seconds, wait
from .fences import Mode

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

_logger = logging.getLogger("lockkeeper")


def connect(url: str, *, label: Optional[str] = None) -> Locks:
    """Connects to the lock service of a URL. ``label`` is what others see of this client."""
    return Locks(_lockkeeper.connect(url, label))


def records(url: str, *, keep_for: Optional[Seconds] = None) -> Records:
    """The records of :meth:`Lock.once`: ``file:///dir``, ``redis://host:port`` or ``dynamodb://table``.

    They are deleted after ``keep_for`` seconds (except for files); keep them for longer than any retry can take.
    """
    return Records(_lockkeeper.records(url, None if keep_for is None else seconds(keep_for)))


class Guard(Hold):
    """A lock that is held by this thread's program."""

    __slots__ = ()

    @property
    def lost(self) -> Lost:
        """Set by the loss of the lock, before another client can have it: like a ``threading.Event``."""
        return self._native.lost

    def verify(self) -> None:
        """Asks the lock service whether the lock is held. Raises :class:`LockLost` or :class:`NoAnswer`."""
        self._native.verify()

    def set_value(self, value: bytes) -> None:
        """Changes the value that others see with the hold."""
        self._native.set_value(value)

    def downgrade(self) -> None:
        """Makes an exclusive hold a shared one."""
        self._native.downgrade()
        self._mode = "shared"

    def release(self) -> None:
        """Releases the lock.

        Raises :class:`LockLost` if it was lost before, :class:`ReleaseNotConfirmed` if there was no answer.
        """
        self._native.release()

    @property
    def index(self) -> Optional[int]:
        """The number of a partition."""
        return self._native.index

    @property
    def is_leaving(self) -> bool:
        """Whether another member waits for this partition: stop, and release it."""
        return self._native.is_leaving

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        end(self.release, error)


_Self = TypeVar("_Self", bound=Guard)


class FencedGuard(Guard):
    """A lock that is held, with its token."""

    __slots__ = ()

    @property
    def token(self) -> int:
        """The fencing token: it rises with every grant of the name, and is below 2**53."""
        return cast(int, self._native.token_hint)


G = TypeVar("G", bound=Guard)


def end(release: Callable[[], None], error: Optional[BaseException]) -> None:
    """Releases what a ``with`` block has had. The block's own error comes first."""
    try:
        release()
    except ReleaseNotConfirmed as unconfirmed:
        _logger.warning("%s", unconfirmed)
    except (LockLost, UsedAfterFork):
        # A fork that leaves the block by an error has nothing to release.
        if error is None:
            raise
    except Released:
        pass


class Lock(Generic[G]):
    """A lock that can be acquired, any number of times, by any thread.

    As a context manager, it is acquired for the block, and the block's guard is its value. If the lock is lost
    meanwhile, :class:`LockLost` is raised at the end of the block, unless the block itself raises.
    """

    def __init__(self, native: _lockkeeper.Lock, guard: Type[G], mode: Mode) -> None:
        self._native, self._guard, self._mode = native, guard, mode
        self._blocks: Blocks[G] = Blocks()

    def acquire(self, *, timeout: Union[bool, Seconds, None] = None) -> G:
        """Acquires the lock. ``timeout``: the longest wait, instead of the lock's option ``wait``."""
        return self._guard(self._native.acquire(wait(timeout)), self._mode)

    def try_acquire(self) -> Optional[G]:
        """Acquires the lock if it is free; else ``None``."""
        native = self._native.try_acquire()
        return None if native is None else self._guard(native, self._mode)

    def once(self, key: str, records: Records, work: Callable[[G], bytes]) -> Once:
        """Does the work of a key, unless it is recorded; and records what it returns.

        Whoever does the work of this key must do it under this lock. If the process dies between the work and its record,
        the work is done again. An exception of the work is not recorded.
        """
        attempt, native = new_attempt(), records._native
        done = found(native.get(key))
        if done is not None:
            return done
        outcome: Optional[bytes] = None
        try:
            with self as guard:
                done = found(native.get(key))
                if done is None:
                    outcome = work(guard)
                    done = recorded(attempt, native.put(key, attempt, outcome))
        except LockLost:
            # The work was done; only its record may be missing.
            if done is None and outcome is not None:
                done = recorded(attempt, native.put(key, attempt, outcome))
            if done is None:
                raise
        return done

    def __enter__(self) -> G:
        guard = self.acquire()
        self._blocks.opened(sys._getframe(1), threading.get_ident(), guard)
        return guard

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        end(self._blocks.closed(sys._getframe(1), threading.get_ident()).release, error)


class Leader(NamedTuple):
    """Who leads."""

    #: The leader's token, if the lock service has tokens.
    token: Optional[int]
    #: Its label.
    label: str
    #: The value that it campaigned with.
    value: bytes


class Election(Generic[G]):
    """One leader at a time."""

    def __init__(self, locks: _Locks[G], name: str, options: Options) -> None:
        self._locks, self._name, self._options = locks, name, native(options)

    def campaign(self, value: bytes = b"") -> G:
        """Waits until this client leads. It leads until the guard is released or lost."""
        locks = self._locks
        return locks._guard(_lockkeeper.campaign(locks._native, self._name, value, self._options))

    def leader(self) -> Optional[Leader]:
        """Who leads now."""
        leader = _lockkeeper.leader(self._locks._native, self._name)
        return None if leader is None else Leader(*leader)

    def observe(self) -> Iterator[Optional[Leader]]:
        """The leaders, one after another; ``None`` while nobody leads. Ends with an exception only."""
        watch = _lockkeeper.observe(self._locks._native, self._name)
        while True:
            leader = watch.next()
            yield None if leader is None else Leader(*leader)


class PartitionMember(Generic[G]):
    """A member of a group that divides partitions. As an iterator, it waits for each further partition.

    Others' coming and going is noticed while :meth:`next` waits: keep calling it.
    """

    def __init__(self, native: _lockkeeper.PartitionMember, guard: Type[G]) -> None:
        self._native, self._guard = native, guard

    def next(self, *, timeout: Optional[Seconds] = None) -> Optional[G]:
        """Waits until one more partition is this member's; ``None`` if there was none in time."""
        limit = None if timeout is None else seconds(timeout)
        partition = self._native.next(limit)
        return None if partition is None else self._guard(partition)

    def __iter__(self) -> Iterator[G]:
        while True:
            partition = self.next()
            if partition is not None:
                yield partition

    def leave(self) -> None:
        """Leaves the group."""
        self._native.leave()

    def __enter__(self) -> PartitionMember[G]:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        end(self.leave, error)


class Partitions(Generic[G]):
    """Numbered partitions, each of one member of a group at a time."""

    def __init__(self, locks: _Locks[G], name: str, count: int, options: Options) -> None:
        self._locks, self._name, self._count, self._options = locks, name, count, native(options)

    def join(self) -> PartitionMember[G]:
        """Joins the group."""
        locks = self._locks
        member = _lockkeeper.join_partitions(locks._native, self._name, self._count, self._options)
        return PartitionMember(member, locks._guard)


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

    def inspect(self, name: str) -> LockInfo:
        """The holds and waiters of a lock."""
        return lock_info(_lockkeeper.inspect(self._native, name))

    def check_token(self, name: str, token: int) -> TokenStatus:
        """Whether a token is that of a live hold of this lock."""
        return TokenStatus(*_lockkeeper.check_token(self._native, name, token))

    def break_hold(self, name: str, token: int, *, reason: str, by: str, now: bool = False) -> Broken:
        """Ends another client's hold: an operator's last resort.

        Its holder is asked to stop first, unless ``now``. ``reason`` and ``by`` are for the audit log.
        """
        return Broken(*_lockkeeper.break_hold(self._native, name, token, reason, by, now))

    def watch(self, prefix: Optional[str] = None) -> Iterator[WatchEvent]:
        """The locks at and below ``prefix``, or all, and then their changes. Ends with an exception, or the service."""
        watch = _lockkeeper.watch(self._native, prefix)
        while (event := watch.next()) is not None:
            yield watch_event(event)

    def list(self, prefix: Optional[str] = None) -> List[LockInfo]:
        """The locks in use at and below ``prefix``, or all."""
        return [lock_info(lock) for lock in _lockkeeper.list(self._native, prefix)]

    def shutdown(self, limit: Seconds = 5.0) -> None:
        """Ends the client's sessions, which releases all its locks; waits for that at most ``limit`` seconds."""
        self._native.shutdown(seconds(limit))

    def __enter__(self: _SelfLocks) -> _SelfLocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


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
        """The same client, whose holds have tokens. Raises :class:`Unsupported` where there are none."""
        return FencedLocks(self._native.fenced())
