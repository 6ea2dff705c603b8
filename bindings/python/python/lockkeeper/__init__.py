"""Distributed locks that keep their promise even when a holder stalls.

    import lockkeeper

    locks = lockkeeper.connect("redis://127.0.0.1:6379").fenced()
    with locks.mutex("orders/42") as guard:
        write(order, token=guard.token)  # the resource refuses older tokens

For ``asyncio``, the same with ``await``: :mod:`lockkeeper.aio`. The pages of the project say which lock
services there are, and what each promises.
"""

from __future__ import annotations

import logging

from . import _lockkeeper
from ._errors import (
    AcquireError,
    AcquireTimeout,
    Ambiguous,
    BackendError,
    Busy,
    ConnectError,
    Deadlock,
    Denied,
    DoneTwice,
    InvalidName,
    InvalidOption,
    InvalidUrl,
    LimitReached,
    LockkeeperError,
    LockLost,
    NeedsOperator,
    NoAnswer,
    NotRecorded,
    Refused,
    Released,
    ReleaseNotConfirmed,
    Unreachable,
    Unsupported,
    UsedAfterFork,
)
from ._info import Broken, HoldInfo, LockInfo, TokenStatus, WaiterInfo, WatchEvent
from ._once import Once, Records
from ._options import Options
from ._sync import (
    Election,
    FencedGuard,
    FencedLocks,
    Guard,
    Leader,
    Lock,
    Locks,
    Lost,
    PartitionMember,
    Partitions,
    connect,
    records,
)

__version__ = _lockkeeper.__version__

__all__ = [
    "AcquireError",
    "AcquireTimeout",
    "Ambiguous",
    "BackendError",
    "Broken",
    "Busy",
    "ConnectError",
    "Deadlock",
    "Denied",
    "DoneTwice",
    "Election",
    "FencedGuard",
    "FencedLocks",
    "Guard",
    "HoldInfo",
    "InvalidName",
    "InvalidOption",
    "InvalidUrl",
    "Leader",
    "LimitReached",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockkeeperError",
    "Locks",
    "Lost",
    "NeedsOperator",
    "NoAnswer",
    "NotRecorded",
    "Once",
    "Options",
    "PartitionMember",
    "Partitions",
    "Records",
    "Refused",
    "ReleaseNotConfirmed",
    "Released",
    "TokenStatus",
    "Unreachable",
    "Unsupported",
    "UsedAfterFork",
    "WaiterInfo",
    "WatchEvent",
    "connect",
    "records",
]


def _log(part: str, level: int, text: str) -> None:
    logging.getLogger(part).log(level, "%s", text)


_lockkeeper.follow_events(_log)
