"""What holds of both APIs have in common: everything that needs no answer of the lock service."""

from __future__ import annotations

from typing import Optional

from . import _lockkeeper
from ._options import Seconds, seconds


class Hold:
    """A lock that is held, until it is released, lost, or garbage."""

    __slots__ = ("_native", "__weakref__")

    def __init__(self, native: _lockkeeper.Guard) -> None:
        self._native = native

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
