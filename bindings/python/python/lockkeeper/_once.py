"""Work that is done once for each key: what both APIs have in common."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple, Optional

from . import _lockkeeper
from ._errors import DoneTwice


class Once(NamedTuple):
    """The result of work that is done once."""

    #: What the work returned, in this call or in an earlier one.
    outcome: bytes
    #: Whether this call did the work.
    is_new: bool


class Records:
    """Where outcomes are recorded."""

    def __init__(self, native: _lockkeeper.Records) -> None:
        self._native = native


def new_attempt() -> str:
    """The id of an attempt."""
    return uuid.uuid4().hex


def found(record: Any) -> Optional[Once]:
    """What an earlier call has recorded."""
    return None if record is None else Once(record[1], False)


def recorded(attempt: str, record: Any) -> Once:
    """What this call has recorded."""
    if record[0] != attempt:
        raise DoneTwice(
            "the work was done twice: the lock was lost, and another holder has recorded its outcome first",
            outcome=record[1],
        )
    return Once(record[1], True)
