"""Fences: the check of tokens at the resource, on the program's own connections.

A holder that was paused past its lease wakes up and writes, while the next holder writes, too. A resource with a
fence refuses the older token. *Enter before you read*: a check on writes alone still loses updates.

The rule is the resource's own (functions of PostgreSQL, a script of Redis), the same for programs in any language:
the modules here only call it.
"""

from __future__ import annotations

from typing import Literal

from .._errors import ConditionFailed, EffectFailed, NotFenced, Repeated, Stale

#: How the lock is held, as ``locks.mutex``, ``locks.read`` or ``locks.semaphore`` have given it.
Mode = Literal["exclusive", "shared", "permit"]

__all__ = ["ConditionFailed", "EffectFailed", "Mode", "NotFenced", "Repeated", "Stale"]
