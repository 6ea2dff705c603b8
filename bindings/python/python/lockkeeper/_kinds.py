"""What clients of both APIs have in common: the kinds of locks."""

from __future__ import annotations

import sys
from typing import Generic, Iterable, Optional, TypeVar

from . import _lockkeeper
from ._options import Options, Seconds, native, seconds
from .fences import Mode

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

L = TypeVar("L")


class LockKinds(Generic[L]):
    """A client whose locks are of the type ``L``."""

    def __init__(self, native: _lockkeeper.Locks) -> None:
        self._native = native

    def _lock(self, native: _lockkeeper.Lock, mode: Mode) -> L:
        raise NotImplementedError

    @property
    def abilities(self) -> dict[str, bool]:
        """What the lock service can do."""
        return dict(self._native.abilities())

    @property
    def promises(self) -> list[tuple[int, str, str]]:
        """The promises P1 to P12: number, name, and whether the lock service keeps it."""
        return self._native.promises()

    def mutex(self, name: str, **options: Unpack[Options]) -> L:
        """An exclusive lock."""
        return self._lock(self._native.mutex(name, native(options)), "exclusive")

    def read(self, name: str, **options: Unpack[Options]) -> L:
        """The shared side of a lock: of many readers, or one writer."""
        return self._lock(self._native.read(name, native(options)), "shared")

    def write(self, name: str, **options: Unpack[Options]) -> L:
        """The exclusive side of a lock of many readers, or one writer."""
        return self._lock(self._native.write(name, native(options)), "exclusive")

    def semaphore(self, name: str, permits: Optional[int] = None, **options: Unpack[Options]) -> L:
        """One of ``permits`` permits; ``None``: of as many as an operator has set."""
        return self._lock(self._native.semaphore(name, permits, native(options)), "permit")

    def all(self, names: Iterable[str], **options: Unpack[Options]) -> L:
        """All these locks at once, or none."""
        return self._lock(self._native.all(list(names), native(options)), "exclusive")

    def rate(self, name: str, count: int, per: Seconds, **options: Unpack[Options]) -> L:
        """At most ``count`` acquires in ``per`` seconds."""
        return self._lock(self._native.rate(name, count, seconds(per), native(options)), "permit")

    def striped(self, name: str, stripes: int, key: bytes, **options: Unpack[Options]) -> L:
        """The lock of a key, of ``stripes`` locks that all keys share."""
        return self._lock(self._native.striped(name, stripes, key, native(options)), "exclusive")
