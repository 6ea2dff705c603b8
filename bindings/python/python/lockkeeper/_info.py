"""What operators see of locks."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Dict, List, Literal, NamedTuple, Optional


class HoldInfo(NamedTuple):
    """A hold."""

    #: ``None`` if the lock service has no tokens.
    token: Optional[int]
    #: ``None`` for a closed hold, or if the lock service has no ids of sessions.
    session: Optional[int]
    mode: Literal["exclusive", "shared", "permit"]
    #: Whether it covers all names below its own.
    subtree: bool
    #: The number of its permit.
    slot: Optional[int]
    #: The client's label; empty for a closed hold.
    label: str
    #: Who the client is, as the service has authenticated it; empty if that is unknown.
    identity: str
    #: Seconds, if the lock service knows.
    held_for: Optional[float]
    #: When it was acquired, by the clock of the lock service.
    since: Optional[datetime]
    #: ``revoked``: an operator breaks it. ``closed``: it has ended, and the lock stays closed for a time.
    state: Literal["held", "revoked", "closed", "unknown"]
    #: Of a revoked hold: why, and by whom.
    reason: Optional[str]
    by: Optional[str]
    #: Of a closed hold: the remaining seconds.
    left: Optional[float]
    meta: Dict[str, str]
    value: bytes


class WaiterInfo(NamedTuple):
    """A request that waits."""

    session: Optional[int]
    mode: Literal["exclusive", "shared", "permit"]
    subtree: bool
    label: str
    identity: str
    #: Seconds, if the lock service knows.
    waiting_for: Optional[float]
    #: When it was queued, by the clock of the lock service.
    since: Optional[datetime]
    meta: Dict[str, str]


class LockInfo(NamedTuple):
    """The holds and waiters of a lock."""

    name: str
    #: By token; only the first ones if there are very many.
    holds: List[HoldInfo]
    hold_count: int
    #: The first ones, in the order of the queue.
    waiters: List[WaiterInfo]
    waiter_count: int
    #: A semaphore's number of permits, and whether an operator has set it.
    permits: Optional[int]
    permits_stored: bool


class TokenStatus(NamedTuple):
    """What a token is at a name, when it was asked. Only a fence gives a guarantee."""

    status: Literal["current", "not-current", "never-issued"]
    #: The tokens of live holds.
    live: List[int]


class Broken(NamedTuple):
    """What came of a break."""

    #: ``done``: the holder was asked to stop, or the hold has ended. ``not-current``: no live hold has the token.
    #: ``still-closed``: it has ended, but stays closed; only ``now`` opens it.
    outcome: Literal["done", "not-current", "still-closed", "unknown"]
    #: The tokens of live holds, if the given one is not current.
    live: List[int]


class WatchEvent(NamedTuple):
    """First the locks in use (``state``), then ``synced``, then each lock that has changed."""

    kind: Literal["state", "synced", "changed"]
    #: Without holds, it is free. ``None`` with ``synced``.
    lock: Optional[LockInfo]


def _converted(native: Dict[str, Any]) -> Dict[str, Any]:
    since = native["since"]
    return {
        **native,
        "meta": dict(native["meta"]),
        "since": None if since is None else datetime.fromtimestamp(since, timezone.utc),
    }


def lock_info(native: Dict[str, Any]) -> LockInfo:
    """From what the native module returns."""
    holds = [HoldInfo(**_converted(hold)) for hold in native["holds"]]
    waiters = [WaiterInfo(**_converted(waiter)) for waiter in native["waiters"]]
    return LockInfo(**{**native, "holds": holds, "waiters": waiters})


def watch_event(native: Any) -> WatchEvent:
    """From what the native module returns."""
    kind, lock = native
    return WatchEvent(kind, None if lock is None else lock_info(lock))
