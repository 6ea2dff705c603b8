"""The fence of an HTTP service: middleware that checks ``Fencing-Token``, for ASGI and for WSGI.

    fence = http.Fence("/var/lib/shop/fence")
    app.add_middleware(http.ASGIMiddleware, fence=fence)  # FastAPI, Starlette
    application = http.WSGIMiddleware(application, fence=fence)  # Flask, Django

A request with a token reads by ``GET``, ``HEAD`` and ``OPTIONS``, which enters; every other method writes, and needs a
token. While a write runs, no request with a lower token starts, and one with a higher token waits for its end. The
headers and the answers are those of the project's page on the HTTP fence.

The marks are in one file, for one process: a service of several processes needs one fence in front of all, such as
``lockkeeper gate``.
"""

from __future__ import annotations

import asyncio
from os import PathLike, fspath
from typing import (
    Any,
    Awaitable,
    Callable,
    Dict,
    Generic,
    Iterable,
    Iterator,
    List,
    MutableMapping,
    NamedTuple,
    Optional,
    Tuple,
    TypeVar,
    Union,
)
from urllib.parse import quote

from .. import _lockkeeper
from .._errors import InvalidOption, NotFenced
from .._options import Seconds, seconds
from ..aio import _bridge
from . import Mode

#: Where the app finds the :class:`Fenced` of a request with a token: in ASGI's scope, or WSGI's environ.
KEY = "lockkeeper.fenced"

_HEADERS = ("fencing-token", "fencing-resource", "fencing-mode", "fencing-action")


class Fenced(NamedTuple):
    """What was checked, for a handler that checks the token at its own resources, too."""

    resource: str
    action: str
    token: int
    mode: Mode
    slot: Optional[int]


class Fence:
    """The marks of an HTTP service, in the file ``path``, which is created.

    ``wait``: how long a request waits for those with lower tokens to end, before it gets 503.
    """

    def __init__(self, path: Union[str, "PathLike[str]"], *, wait: Seconds = 5.0) -> None:
        self._native = _lockkeeper.HttpFence(fspath(path), seconds(wait))


#: Names the resource of a request, by ASGI's scope or WSGI's environ. Without it: `Fencing-Resource`, or the path.
ResourceBy = Callable[[MutableMapping[str, Any]], str]


_App = TypeVar("_App")


def _fenced(admitted: _lockkeeper.HttpPass) -> Fenced:
    mode: Any = admitted.mode
    return Fenced(admitted.resource, admitted.action, admitted.token, mode, admitted.slot)


class _Middleware(Generic[_App]):
    """An app behind a fence. ``guarded``: the methods that need a token (else: all but reads)."""

    def __init__(
        self,
        app: _App,
        *,
        fence: Fence,
        guarded: Optional[Iterable[str]] = None,
        resource_by: Optional[ResourceBy] = None,
    ) -> None:
        if isinstance(guarded, str):
            text = f"`guarded` is {guarded!r}; give methods, as in [{guarded!r}]"
            raise InvalidOption(text, option="guarded", value=guarded, allowed="methods")
        self._app, self._fence, self._resource_by = app, fence, resource_by
        self._guarded = None if guarded is None else frozenset(method.upper() for method in guarded)

    def _resource(self, request: MutableMapping[str, Any]) -> Optional[str]:
        if self._resource_by is None:
            return None
        resource = self._resource_by(request)
        if not isinstance(resource, str):
            # Without one, the client could choose.
            raise NotFenced(f"`resource_by` has returned {resource!r}; it must name the resource of each request")
        return resource

    def _admit(
        self, method: str, path: bytes, headers: List[Tuple[bytes, bytes]], request: MutableMapping[str, Any], *place: Any
    ) -> Any:
        """Asks the fence. Only ASGI has a ``place`` in its event loop for the answer."""
        return self._fence._native.admit(
            method.encode(),
            path,
            headers,
            None if self._guarded is None else method.upper() in self._guarded,
            self._resource(request),
            *place,
        )


class ASGIMiddleware(_Middleware[Callable[..., Awaitable[None]]]):
    """An ASGI app behind a fence. ``guarded``: the methods that need a token (else: all but reads)."""

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        headers = [(name, value) for name, value in scope["headers"] if name.startswith(b"fencing-")]
        self._admit(scope["method"], path, headers, scope, (_bridge(loop), result))
        admitted = await result
        if isinstance(admitted, tuple):
            status, headers, body = admitted
            length = (b"content-length", str(len(body)).encode())
            await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
            await send({"type": "http.response.body", "body": body})
        elif admitted is None:
            await self._app(scope, receive, send)
        else:
            await self._guard(admitted, scope, receive, send)

    async def _guard(
        self,
        admitted: _lockkeeper.HttpPass,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        async def sending(message: MutableMapping[str, Any]) -> None:
            # A read changes nothing: a slow client of it does not keep the next holder waiting.
            if admitted.action == "enter" and message["type"] == "http.response.start":
                admitted.end()
            await send(message)

        try:
            await self._app({**scope, KEY: _fenced(admitted)}, receive, sending)
        finally:
            admitted.end()


class WSGIMiddleware(_Middleware[Callable[..., Iterable[bytes]]]):
    """A WSGI app behind a fence. ``guarded``: the methods that need a token (else: all but reads)."""

    def __call__(self, environ: Dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        names = [(name, "HTTP_" + name.upper().replace("-", "_")) for name in _HEADERS]
        path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1")
        headers = [(name.encode(), environ[key].encode("latin-1")) for name, key in names if key in environ]
        admitted = self._admit(environ["REQUEST_METHOD"], quote(path).encode() or b"/", headers, environ)
        if admitted is None:
            return self._app(environ, start_response)
        if isinstance(admitted, tuple):
            status, headers, body = admitted
            start_response(
                f"{status} Fence",
                [(name.decode(), value.decode("latin-1")) for name, value in headers] + [("Content-Length", str(len(body)))],
            )
            return [body]
        environ[KEY] = _fenced(admitted)
        try:
            return _Body(self._app(environ, start_response), admitted)
        except BaseException:
            admitted.end()
            raise


class _Body:
    """The body of an app's response. A write ends with it; a read, with its first part."""

    def __init__(self, body: Iterable[bytes], admitted: _lockkeeper.HttpPass) -> None:
        self._body, self._admitted = body, admitted

    def __iter__(self) -> Iterator[bytes]:
        for part in self._body:
            if self._admitted.action == "enter":
                self._admitted.end()
            yield part

    def close(self) -> None:
        try:
            getattr(self._body, "close", lambda: None)()
        finally:
            self._admitted.end()
