"""What can go wrong, as one tree: every exception of this package is a :class:`LockkeeperError`.

The texts say what was wrong, the value, the limit, and what to do.
"""

from __future__ import annotations

from typing import Optional


class LockkeeperError(Exception):
    """The base of all."""


class LockLost(LockkeeperError):
    """The lock was lost while it was held: another client may have it."""

    #: Why: ``expired``, ``session-ended``, ``broken``, ``max-hold``, ...
    cause: str
    #: What kept the lease from being renewed, if that is known.
    trouble: Optional[str]
    #: Who broke the hold, if an operator did, and the reason that was given.
    broken_by: Optional[str]
    reason: Optional[str]

    def __init__(
        self,
        text: str,
        *,
        cause: str = "expired",
        trouble: Optional[str] = None,
        broken_by: Optional[str] = None,
        reason: Optional[str] = None,
    ) -> None:
        super().__init__(text)
        self.cause, self.trouble, self.broken_by, self.reason = cause, trouble, broken_by, reason


class InvalidUrl(LockkeeperError, ValueError):
    """The URL names no lock service."""


class InvalidName(LockkeeperError, ValueError):
    """The text can't be a lock's name."""


class InvalidOption(LockkeeperError, ValueError):
    """An option has a value that it can't have."""

    option: str
    value: str
    allowed: str

    def __init__(self, text: str, *, option: str = "", value: str = "", allowed: str = "") -> None:
        super().__init__(text)
        self.option, self.value, self.allowed = option, value, allowed


class Unsupported(LockkeeperError):
    """The lock service can't do this."""

    #: The lock service, what it can't do, and what to do instead.
    backend: Optional[str]
    what: Optional[str]
    instead: Optional[str]

    def __init__(
        self,
        text: str,
        *,
        backend: Optional[str] = None,
        what: Optional[str] = None,
        instead: Optional[str] = None,
        may_pass: bool = False,
    ) -> None:
        super().__init__(text)
        self.backend, self.what, self.instead = backend, what, instead


class BackendError(LockkeeperError):
    """The lock service refused or failed."""

    #: Whether the same call may succeed later, without anybody's help.
    may_pass: bool

    def __init__(self, text: str, *, may_pass: bool = False) -> None:
        super().__init__(text)
        self.may_pass = may_pass


class ConnectError(BackendError):
    """The lock service can't be used."""


class Denied(BackendError):
    """The lock service does not permit it: a password, a certificate, or a permission."""


class NeedsOperator(BackendError):
    """An operator must act first."""


class Refused(BackendError):
    """The lock service refused it."""


class LimitReached(BackendError):
    """A limit of the lock service, or of a lock, is reached."""


class AcquireError(LockkeeperError):
    """A lock was not acquired."""


class Busy(AcquireError):
    """The lock is not free."""

    #: The holder's label, if the lock service knows it, and the requests that wait before this one would.
    holder: Optional[str]
    queued_ahead: int

    def __init__(self, text: str, *, holder: Optional[str] = None, queued_ahead: int = 0) -> None:
        super().__init__(text)
        self.holder, self.queued_ahead = holder, queued_ahead


class Deadlock(AcquireError):
    """The wait would never end: who is in its way waits for a hold in ``holding``. The text names the cycle."""


class AcquireTimeout(AcquireError, TimeoutError):
    """The lock did not become free in time."""

    #: Seconds; and the refusal of the last attempt, if it was refused.
    waited: float
    why: Optional[str]

    def __init__(self, text: str, *, waited: float = 0.0, why: Optional[str] = None) -> None:
        super().__init__(text)
        self.waited, self.why = waited, why


class Unreachable(AcquireError, ConnectError):
    """The lock service does not answer. Nothing was acquired."""

    waited: float
    why: Optional[str]

    def __init__(
        self, text: str, *, waited: float = 0.0, why: Optional[str] = None, may_pass: bool = True
    ) -> None:
        super().__init__(text, may_pass=may_pass)
        self.waited, self.why = waited, why


class Ambiguous(AcquireError):
    """A request was sent and not answered: the lock may be this client's for up to its ttl."""

    waited: float
    why: Optional[str]

    def __init__(self, text: str, *, waited: float = 0.0, why: Optional[str] = None) -> None:
        super().__init__(text)
        self.waited, self.why = waited, why


class ReleaseNotConfirmed(LockkeeperError):
    """The release was not answered: the lock is free once its ttl has passed, at the latest."""


class NoAnswer(LockkeeperError):
    """A question about a hold, or a change of it, was not answered."""


class Released(LockkeeperError):
    """The hold was released before."""


class DoneTwice(LockkeeperError):
    """``once`` did the work although another holder did it, too: the lock was lost meanwhile."""

    #: The outcome of the other holder.
    outcome: bytes

    def __init__(self, text: str, *, outcome: bytes = b"") -> None:
        super().__init__(text)
        self.outcome = outcome


class NotRecorded(LockkeeperError):
    """``once`` did the work, and the records failed: unless it was recorded, it may be done again."""


class UsedAfterFork(LockkeeperError):
    """A client or hold of the parent process was used in a fork: connect after the fork."""


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


class EffectFailed(LockkeeperError):
    """The token passed, and one of the commands of the write failed: those before it took effect."""

    #: The number of commands that took effect.
    done: int

    def __init__(self, text: str, *, done: int) -> None:
        super().__init__(text)
        self.done = done


class ConditionFailed(LockkeeperError):
    """The token passed, but the caller's own condition did not hold. Nothing was done."""
