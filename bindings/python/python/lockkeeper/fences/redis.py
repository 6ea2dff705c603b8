"""The fence of Redis, by the commands of a client of redis-py.

    fence = redis.connect(client)
    with locks.mutex("stock") as guard:
        fence.enter("stock", guard.token)
        pieces = int(client.get("stock"))
        fence.write("stock", guard.token, ["SET", Key("stock"), pieces - 1])

Check and commands are one script. ``client`` is a ``redis.Redis`` of one server, the primary (or a ``valkey.Valkey``);
:func:`connect_async` and :class:`AsyncFence` are for ``redis.asyncio``. Turn off the client's own retries (``retry=None``, or
``Retry(NoBackoff(), 0)`` where that is the default's): a write that is sent twice may be done twice.
"""

from __future__ import annotations

from typing import Any, Generator, List, Optional, Sequence, Tuple, Union

from .. import _lockkeeper
from .._errors import NoAnswer
from . import Mode

#: The start of error replies that redis-py leaves out.
_CODES = {
    "NoScriptError": "NOSCRIPT ",
    "ReadOnlyError": "READONLY ",
    "NoPermissionError": "NOPERM ",
    "OutOfMemoryError": "OOM ",
}


class Key(str):
    """A key among the words of a command: Redis wants to know the keys of a script."""


#: A command: its name, then keys and arguments.
Command = Sequence[Union[str, bytes, int, float, Key]]


def _bytes(word: Union[str, bytes, int, float]) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


def _native(commands: Sequence[Command]) -> List[Tuple[str, List[Tuple[bool, bytes]]]]:
    return [(str(name), [(isinstance(word, Key), _bytes(word)) for word in words]) for name, *words in commands]


def _exchange(call: _lockkeeper.RedisCall) -> Generator[Tuple[Any, ...], Any, Any]:
    """Yields the commands of a call, and takes the replies or the client's exceptions. Returns the call's end."""
    words, result = call.next(None)
    while words is not None:
        # A name in bytes: redis-py then does not parse the reply of `INFO` and the like.
        first = words[0].decode() if words[0].startswith(b"EVAL") else words[0]
        reply: Tuple[Any, ...]
        failure: Optional[Exception] = None
        try:
            reply = ((yield (first, *words[1:])),)
        except Exception as error:
            kinds = {kind.__name__ for kind in type(error).__mro__}
            if "ResponseError" in kinds:
                reply = (True, _CODES.get(type(error).__name__, "") + str(error))
            elif kinds & {"ConnectionError", "TimeoutError", "OSError"}:
                reply = (False, str(error))
            else:
                raise
            failure = error
        try:
            words, result = call.next(reply)
        except NoAnswer as unknown:
            raise unknown from failure
    return result


def _run(client: Any, call: _lockkeeper.RedisCall) -> Any:
    exchange = _exchange(call)
    try:
        command = next(exchange)
        while True:
            try:
                reply = client.execute_command(*command)
            except Exception as error:
                command = exchange.throw(error)
            else:
                command = exchange.send(reply)
    except StopIteration as end:
        return end.value


async def _run_async(client: Any, call: _lockkeeper.RedisCall) -> Any:
    exchange = _exchange(call)
    try:
        command = next(exchange)
        while True:
            try:
                reply = await client.execute_command(*command)
            except Exception as error:
                command = exchange.throw(error)
            else:
                command = exchange.send(reply)
    except StopIteration as end:
        return end.value


def connect(client: Any, *, trusting_no_eviction: bool = False) -> Fence:
    """A fence by this client. Raises ``NotFenced`` if the server may evict keys, or is a replica.

    ``trusting_no_eviction`` is for servers that do not report their policy.
    """
    return Fence(client, _run(client, _lockkeeper.redis_fence(trusting_no_eviction)))


async def connect_async(client: Any, *, trusting_no_eviction: bool = False) -> AsyncFence:
    """:func:`connect`, for ``redis.asyncio``."""
    return AsyncFence(client, await _run_async(client, _lockkeeper.redis_fence(trusting_no_eviction)))


class Fence:
    """Fences of any number of resources, by name."""

    def __init__(self, client: Any, native: _lockkeeper.RedisFence) -> None:
        self._client, self._native = client, native

    def enter(self, resource: str, token: int, *, mode: Mode = "exclusive", slot: Optional[int] = None) -> None:
        """Checks the token, and marks the resource: older tokens are refused from then on.

        Raises ``Stale``. To be called before anything is read.
        """
        _run(self._client, self._native.pass_(resource, ("enter", token, mode, slot), []))

    def write(
        self, resource: str, token: int, *commands: Command, mode: Mode = "exclusive", slot: Optional[int] = None
    ) -> List[Any]:
        """Checks the token and runs the commands, in one step. Returns their replies.

        Raises ``Stale``; ``EffectFailed`` if a command failed; ``NoAnswer`` if it is unknown whether it was done.
        """
        asked = ("write", token, mode, slot)
        replies: List[Any] = _run(self._client, self._native.pass_(resource, asked, _native(commands)))
        return replies

    def once(
        self, resource: str, token: int, *commands: Command, mode: Mode = "exclusive", slot: Optional[int] = None
    ) -> List[Any]:
        """:meth:`write`, but each token passes once, and needs no ``enter``. Raises ``Repeated``, too."""
        asked = ("check_once", token, mode, slot)
        replies: List[Any] = _run(self._client, self._native.pass_(resource, asked, _native(commands)))
        return replies

    def reset(self, resource: str, to: int) -> None:
        """Sets the marks, even to a lower token: for a move to another lock service. Stop all writers first."""
        _run(self._client, self._native.reset(resource, to))


class AsyncFence:
    """:class:`Fence`, for ``redis.asyncio``."""

    def __init__(self, client: Any, native: _lockkeeper.RedisFence) -> None:
        self._client, self._native = client, native

    async def enter(self, resource: str, token: int, *, mode: Mode = "exclusive", slot: Optional[int] = None) -> None:
        """As :meth:`Fence.enter`."""
        await _run_async(self._client, self._native.pass_(resource, ("enter", token, mode, slot), []))

    async def write(
        self, resource: str, token: int, *commands: Command, mode: Mode = "exclusive", slot: Optional[int] = None
    ) -> List[Any]:
        """As :meth:`Fence.write`."""
        asked = ("write", token, mode, slot)
        replies: List[Any] = await _run_async(self._client, self._native.pass_(resource, asked, _native(commands)))
        return replies

    async def once(
        self, resource: str, token: int, *commands: Command, mode: Mode = "exclusive", slot: Optional[int] = None
    ) -> List[Any]:
        """As :meth:`Fence.once`."""
        asked = ("check_once", token, mode, slot)
        replies: List[Any] = await _run_async(self._client, self._native.pass_(resource, asked, _native(commands)))
        return replies

    async def reset(self, resource: str, to: int) -> None:
        """As :meth:`Fence.reset`."""
        await _run_async(self._client, self._native.reset(resource, to))
