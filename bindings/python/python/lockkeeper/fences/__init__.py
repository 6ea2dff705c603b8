"""Fences: the check of tokens at the resource, on the program's own connections.

A holder that was paused past its lease wakes up and writes, while the next holder writes, too. A resource with a
fence refuses the older token. *Enter before you read*: a check on writes alone still loses updates.

The rule is the resource's own (functions of PostgreSQL, a script of Redis), the same for programs in any language:
the modules here only call it.
"""

from __future__ import annotations

from .._errors import LockkeeperError


class Stale(LockkeeperError):
    """The token is stale: a newer holder has been at the resource. Nothing was done."""

    #: The token that was offered, and the newest one that has been here.
    token: int
    newest: int

    def __init__(self, text: str, *, token: int, newest: int) -> None:
        super().__init__(text)
        self.token, self.newest = token, newest


class Repeated(LockkeeperError):
    """``once`` lets a token through once, and this one has been here. Nothing was done."""

    token: int

    def __init__(self, text: str, *, token: int) -> None:
        super().__init__(text)
        self.token = token


class NotFenced(LockkeeperError):
    """The resource has no fence, or its mode or arguments are wrong. Nothing was done."""


__all__ = ["NotFenced", "Repeated", "Stale"]
