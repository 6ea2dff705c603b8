"""The options of locks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Mapping, Sequence, TypedDict, Union, cast

from ._errors import InvalidOption

#: A time: seconds, or a ``timedelta``.
Seconds = Union[int, float, timedelta]


class Options(TypedDict, total=False):
    """The options of a lock. Times are in seconds, or a ``timedelta``."""

    #: How long the hold outlives a client that is not heard: the lease.
    ttl: Seconds
    #: Whether the lease is renewed while the lock is held (default: yes).
    renew: bool
    #: Whether to wait for the lock (default: yes), or for how long.
    wait: Union[bool, Seconds]
    #: Wait only if fewer requests than this wait for each of the names; else :class:`Busy` at once.
    max_waiters: int
    #: Lock everything below the name too.
    subtree: bool
    #: The longest hold: it is lost then.
    max_hold: Seconds
    #: The shortest hold: a release takes effect no earlier.
    min_hold: Seconds
    #: How long the lock stays closed after a release.
    keep_closed: Seconds
    #: How long the lock stays closed after a holder that has died.
    lock_delay: Seconds
    #: How long the hold outlives a connection that was closed.
    linger: Seconds
    #: How much of the lease must be left when the lock is acquired.
    min_validity: Seconds
    #: Keep the lock between its sections while nobody else wants it: then an acquire needs no round trip.
    cached: bool
    #: How long a cached lock is kept without a section.
    cache_for: Seconds
    #: How long before the lease's end the hold counts as lost.
    grace: Seconds
    #: A value that others see with the hold.
    value: bytes
    #: Names and texts that others see with the hold.
    meta: Mapping[str, str]
    #: Tokens of holds that are kept until this acquire has ended; :class:`Deadlock` if it would wait for one of them.
    holding: Sequence[int]


_TIMES = frozenset(
    ["ttl", "max_hold", "min_hold", "keep_closed", "lock_delay", "linger", "min_validity", "cache_for", "grace"]
)
_KNOWN = _TIMES | {"cached", "renew", "wait", "max_waiters", "subtree", "value", "meta", "holding"}


def seconds(value: Seconds) -> float:
    """A time as a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def wait(value: Union[bool, Seconds, None]) -> Union[bool, float, None]:
    """Whether to wait, as the native module takes it."""
    return value if value is None or isinstance(value, bool) else seconds(value)


def native(options: Options) -> dict[str, Any]:
    """The options as the native module takes them."""
    given = dict(options)
    unknown = given.keys() - _KNOWN
    if unknown:
        text = f"{', '.join(sorted(unknown))}: no option of a lock; there are {', '.join(sorted(_KNOWN))}"
        raise InvalidOption(text, option=unknown.pop(), allowed=", ".join(sorted(_KNOWN)))
    most: Any = given.get("max_waiters", 0)
    if not isinstance(most, int) or not 0 <= most < 2**32:
        allowed = "give a number of requests, 0 to 4294967295"
        text = f"`max_waiters` is {most!r}; {allowed}"
        raise InvalidOption(text, option="max_waiters", value=repr(most), allowed=allowed)
    holding: Any = given.get("holding", ())
    if not isinstance(holding, (list, tuple)) or not all(isinstance(it, int) and 0 < it < 2**53 for it in holding):
        allowed = "give a list of the tokens of guards: 1 to 9007199254740991"
        text = f"`holding` is {holding!r}; {allowed}"
        raise InvalidOption(text, option="holding", value=repr(holding), allowed=allowed)
    made = {**given, "meta": list(options.get("meta", {}).items())}
    made.update((time, seconds(cast(Seconds, given[time]))) for time in given.keys() & _TIMES)
    if "wait" in options:
        made["wait"] = wait(options["wait"])
    return made
