"""A driver of this package for `lockkeeper-lab conformance`: commands on stdin and answers on stdout, one JSON a line.

    python3 driver.py            # the API for threads
    python3 driver.py --asyncio  # the API for asyncio
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import threading
import time
from typing import Any, Optional

import lockkeeper
from lockkeeper import aio

Command = dict[str, Any]

SCHEMES = (
    "dynamodb etcd etcds file lockkeeper lockkeepers memory postgres postgresql redis rediss redis+unix redlock redlocks "
    "zookeeper zookeepers"
)
FIELDS = {
    "connect": {"url", "ttl_ms", "label"},
    "acquire": {"hold", "lock", "mode", "permits", "wait_ms", "also", "subtree"},
    "lead": {"hold", "election", "wait_ms"},
    "cancel": {"acquire"},
    "release": {"hold"},
    "check": {"hold"},
    "stall": {"ms"},
    "die": set(),
}
_printing = threading.Lock()


class Wrong(Exception):
    """A command that can't be done."""


def say(line: dict[str, Any]) -> None:
    with _printing:
        print(json.dumps(line), flush=True)


def kind(error: BaseException) -> str:
    for errors, name in [
        ((lockkeeper.Busy,), "busy"),
        ((lockkeeper.AcquireTimeout,), "timed-out"),
        ((lockkeeper.LockLost,), "lost"),
        ((lockkeeper.Unreachable, lockkeeper.Ambiguous, lockkeeper.ReleaseNotConfirmed), "unreachable"),
        ((lockkeeper.ConnectError,), "unreachable"),
        ((asyncio.CancelledError, Cancelled), "cancelled"),
    ]:
        if isinstance(error, errors):
            return name
    return "refused"


def answer(command: Command, ok: Optional[dict[str, Any]] = None, error: Optional[BaseException] = None) -> None:
    if error is None:
        say({"id": command.get("id"), "ok": ok or {}})
    else:
        text = str(error) or type(error).__name__
        say({"id": command.get("id"), "error": {"kind": kind(error), "text": text}})


def valid_ms(guard: Any) -> Optional[int]:
    until = guard.valid_until
    return None if until is None else max(0, int(1000 * (until - time.clock_gettime(time.CLOCK_BOOTTIME))))


def granted(guard: Any) -> dict[str, Any]:
    return {"token": guard.token_hint, "valid_ms": valid_ms(guard)}


def check_fields(command: Command) -> None:
    fields = FIELDS.get(command.get("do", ""))
    if fields is None:
        raise Wrong(f"unknown command {command.get('do')!r}")
    unknown = command.keys() - fields - {"id", "do"}
    if unknown:
        raise Wrong(f"unknown field {sorted(unknown)[0]!r} of {command['do']}")


def stall(ms: int) -> None:
    """Blocks the thread, and keeps the GIL."""
    ctypes.PyDLL(None).usleep(int(ms * 1000))


class Driver:
    """What both have in common: one client, and its locks."""

    locks: Any = None

    def __init__(self) -> None:
        #: The holds whose release was called; their guards are kept, for another one.
        self.released: set[str] = set()

    def client(self) -> Any:
        if self.locks is None:
            raise Wrong("connect first")
        return self.locks

    def connected(self, locks: Any, command: Command) -> None:
        """The fenced client, if the lock service has tokens."""
        if self.locks is not None:
            raise Wrong("connected already")
        if not 1_000 <= command["ttl_ms"] <= 3_600_000:
            raise Wrong("ttl_ms is 1,000 to 3,600,000")
        self.locks = locks.fenced() if locks.abilities["fencing"] else locks
        self.ttl = command["ttl_ms"] / 1000

    def wanted(self, command: Command) -> Any:
        """The function that acquires what a command asks for."""
        wait_ms = command.get("wait_ms")
        wait = True if wait_ms is None else False if wait_ms == 0 else wait_ms / 1000
        options: dict[str, Any] = {"ttl": self.ttl, "wait": wait}
        if command["do"] == "lead":
            return self.client().election(command["election"], **options).campaign
        if command.get("subtree"):
            options["subtree"] = True
        name, mode, locks = command["lock"], command.get("mode", "exclusive"), self.client()
        if command.get("also"):
            if mode != "exclusive":
                raise Wrong("several names are exclusive only")
            return locks.all([name, *command["also"]], **options).acquire
        if mode == "permit":
            return locks.semaphore(name, command["permits"], **options).acquire
        if mode not in ("exclusive", "shared"):
            raise Wrong(f"unknown mode {mode!r}")
        return (locks.mutex if mode == "exclusive" else locks.read)(name, **options).acquire


class Cancelled(Exception):
    """Raised in a thread that waits, as time limits of job runners do."""


class Threads(Driver):
    """A thread for each command."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: dict[str, Any] = {}
        #: The threads of acquires, by the id of the command; `None` before the thread has begun.
        self.waiting: dict[int, Optional[int]] = {}
        self.turn = threading.Lock()

    def run(self) -> None:
        for line in sys.stdin:
            command: Command = {}
            try:
                command = json.loads(line)
                check_fields(command)
                if command["do"] == "die":
                    os._exit(9)
                if command["do"] in ("acquire", "lead"):
                    # Here, in the order of the commands: a cancel must find it.
                    with self.turn:
                        self.waiting[command["id"]] = None
                threading.Thread(target=self.serve, args=(command,), daemon=True).start()
            except (AttributeError, KeyError, ValueError, Wrong) as error:
                answer(command if isinstance(command, dict) else {}, error=error)
        self.holds.clear()
        if self.locks is not None:
            self.locks.shutdown()

    def serve(self, command: Command) -> None:
        try:
            answer(command, getattr(self, command["do"], self.acquire)(command))
        except Exception as error:
            answer(command, error=error)

    def connect(self, command: Command) -> None:
        self.connected(lockkeeper.connect(command["url"], label=command.get("label")), command)

    def acquire(self, command: Command) -> dict[str, Any]:
        try:
            acquire = self.wanted(command)
            with self.turn:
                if command["id"] not in self.waiting:
                    raise Cancelled
                self.waiting[command["id"]] = threading.get_ident()
            guard = acquire()
        finally:
            with self.turn:
                self.waiting.pop(command["id"], None)
        with self.turn:
            self.holds[command["hold"]] = guard
        threading.Thread(target=self.watch, args=(command["hold"], guard), daemon=True).start()
        return granted(guard)

    def watch(self, hold: str, guard: Any) -> None:
        while not guard.lost.wait(0.1):
            if hold in self.released or hold not in self.holds:
                return
        if hold not in self.released and hold in self.holds:
            say({"event": "lost", "hold": hold})

    def cancel(self, command: Command) -> None:
        with self.turn:
            thread = self.waiting.pop(command["acquire"], None)
            if thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Cancelled))

    def release(self, command: Command) -> dict[str, Any]:
        with self.turn:
            guard, is_again = self.holds[command["hold"]], command["hold"] in self.released
            self.released.add(command["hold"])
        try:
            guard.release()
            return {"was": "released" if is_again else "held"}
        except lockkeeper.LockLost:
            return {"was": "lost"}

    def check(self, command: Command) -> dict[str, Any]:
        guard = self.holds[command["hold"]]
        guard.check()
        return {"valid_ms": valid_ms(guard)}

    def stall(self, command: Command) -> None:
        stall(command["ms"])


class Tasks(Driver):
    """A task for each hold: the loss cancels it."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: dict[str, tuple[Any, asyncio.Future[Command]]] = {}
        #: The tasks of commands that are not answered, and those of holds (a loop keeps no task alive).
        self.waiting: dict[int, asyncio.Task[None]] = {}
        self.holding: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read() -> None:
            for line in iter(sys.stdin.readline, ""):
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

        threading.Thread(target=read, daemon=True).start()
        while line := await lines.get():
            command: Command = {}
            try:
                command = json.loads(line)
                check_fields(command)
                if command["do"] == "die":
                    os._exit(9)
                self.waiting[command["id"]] = asyncio.create_task(self.serve(command))
            except (AttributeError, KeyError, ValueError, Wrong) as error:
                answer(command if isinstance(command, dict) else {}, error=error)
        self.holds.clear()
        if self.locks is not None:
            await self.locks.shutdown()

    async def serve(self, command: Command) -> None:
        do = getattr(self, command["do"], self.acquire)
        try:
            ended = await do(command)
            if do not in (self.acquire, self.release):
                answer(command, ended)
        except (Exception, asyncio.CancelledError) as error:
            answer(command, error=error)
        finally:
            self.waiting.pop(command["id"], None)
            self.holding.discard(aio._task())

    async def connect(self, command: Command) -> None:
        self.connected(await aio.connect(command["url"], label=command.get("label")), command)

    async def acquire(self, command: Command) -> None:
        hold, released = command["hold"], asyncio.get_running_loop().create_future()
        guard = await self.wanted(command)()
        try:
            async with guard:
                self.holds[hold] = guard, released
                self.holding.add(self.waiting.pop(command["id"]))
                answer(command, granted(guard))
                await asyncio.shield(released)
            answer(released.result(), {"was": "held"})
        except lockkeeper.LockLost:
            if released.done():
                answer(released.result(), {"was": "lost"})
            elif hold in self.holds:
                say({"event": "lost", "hold": hold})

    async def cancel(self, command: Command) -> None:
        task = self.waiting.get(command["acquire"])
        if task is not None:
            task.cancel()

    async def release(self, command: Command) -> None:
        guard, released = self.holds[command["hold"]]
        if command["hold"] in self.released:
            await guard.release()
            answer(command, {"was": "released"})
            return
        self.released.add(command["hold"])
        if guard.lost.is_set():
            answer(command, {"was": "lost"})
        else:
            released.set_result(command)

    async def check(self, command: Command) -> dict[str, Any]:
        guard, _ = self.holds[command["hold"]]
        if guard.lost.is_set():  # its `async with` has ended
            raise lockkeeper.LockLost("the lock was lost")
        guard.check()
        return {"valid_ms": valid_ms(guard)}

    async def stall(self, command: Command) -> None:
        stall(command["ms"])


def main() -> None:
    is_asyncio = sys.argv[1:] == ["--asyncio"]
    say(
        {
            "driver": "python-asyncio" if is_asyncio else "python",
            "version": lockkeeper.__version__,
            "protocol": 1,
            "schemes": SCHEMES.split(),
            "modes": ["exclusive", "shared", "permit"],
            "features": ["election", "all", "subtree"],
        }
    )
    if is_asyncio:
        asyncio.run(Tasks().run())
    else:
        Threads().run()


if __name__ == "__main__":
    main()
