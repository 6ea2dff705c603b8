"""What holds of both APIs have in common: everything that needs no answer of the lock service."""

from __future__ import annotations

from types import FrameType
from typing import Generic, List, NamedTuple, Optional, TypeVar, cast

from . import _lockkeeper
from ._errors import LockkeeperError
from ._options import Seconds, seconds
from .fences import Mode


class Hold:
    """A lock that is held, until it is released, lost, or garbage."""

    __slots__ = ("_mode", "_native", "__weakref__")

    def __init__(self, native: _lockkeeper.Guard, mode: Mode = "exclusive") -> None:
        self._native, self._mode = native, mode

    @property
    def mode(self) -> Mode:
        """How the lock is held: what a fence takes with the token, as ``mode=``."""
        return self._mode

    @property
    def token_hint(self) -> Optional[int]:
        """The token, if the lock service has tokens: for logs. A resource needs that of ``.fenced()``."""
        return self._native.token_hint

    @property
    def slot(self) -> Optional[int]:
        """The number of a semaphore's permit."""
        return self._native.slot

    @property
    def loss(self) -> Optional[str]:
        """Why the lock is lost; ``None`` while it is held."""
        return self._native.loss

    @property
    def valid_until(self) -> Optional[float]:
        """Until when the hold is certain, as ``time.clock_gettime(time.CLOCK_BOOTTIME)`` counts.

        It moves with each renewal. ``None`` if it has no end. Raises :class:`LockLost`.
        """
        return self._native.valid_until

    @property
    def trouble(self) -> Optional[str]:
        """What keeps the lease from being renewed at present."""
        return self._native.trouble

    def check(self, need: Seconds = 0.0) -> None:
        """Raises :class:`LockLost` if the lock is lost, or certain for less than ``need`` seconds.

        Asks nobody: it costs a microsecond.
        """
        self._native.check(seconds(need))

    def __repr__(self) -> str:
        token = self._native.token_hint
        return f"<{type(self).__module__}.{type(self).__qualname__} token={token}>"


G = TypeVar("G", bound=Hold)


class _Block(NamedTuple):
    frame: FrameType
    owner: object
    guard: Hold


class Blocks(Generic[G]):
    """The ``with`` blocks of a lock that are open, and their guards.

    Each belongs to the function that has opened it. A generator may be closed by another thread or task; and one thread
    may have several. A helper such as ``ExitStack`` opens a block in a function that ends before it: then the last block of
    the owner, a thread or task, is meant.
    """

    def __init__(self) -> None:
        self._open: List[_Block] = []

    def opened(self, frame: FrameType, owner: object, guard: G) -> None:
        self._open.append(_Block(frame, owner, guard))

    def closed(self, frame: FrameType, owner: object) -> G:
        """Takes the guard of the block that ends."""
        blocks = self._open.copy()
        mine = [block for block in blocks if block.frame is frame] or [block for block in blocks if block.owner == owner]
        if not mine and len(blocks) == 1:
            mine = blocks
        if not mine:
            raise LockkeeperError(
                f"{len(blocks)} blocks of this lock are open, and none was opened by this function, thread or task: which "
                "one ends is unknown; use `guard = lock.acquire()` and `with guard:`"
            )
        self._open.remove(mine[-1])
        return cast(G, mine[-1].guard)
