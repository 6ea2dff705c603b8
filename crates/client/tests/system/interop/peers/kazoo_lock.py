"""Runs one of kazoo's own locks for the tests: reads one command per line. Used as `kazoo_lock.py PORT KIND`; KIND is
`Lock`, `ReadLock` or `WriteLock`.

try NAME TTL_MS       -> held VALUE | busy
acquire NAME TTL_MS   -> held VALUE if the lock is free; otherwise waiting, and later held VALUE
extend NAME TTL_MS    -> held | lost
release NAME          -> released | lost

A lock of kazoo has no ttl of its own: it lasts as long as the session of its client, here four seconds after a crash. The
locks are as kazoo makes them, without settings, and a name has one for as long as the script runs. The script prints
`ready` once it has a session. It ends at the end of its input without releasing anything.
"""

import os
import sys

from kazoo.client import KazooClient

SESSION_S = 4


def main():
    client = KazooClient(hosts=f"127.0.0.1:{sys.argv[1]}", timeout=SESSION_S)
    client.start()
    say("ready")
    identifier = f"kazoo-{os.getpid()}"
    make = getattr(client, sys.argv[2])
    locks = {}
    # Not `for line in sys.stdin`, which may read ahead and delay a command.
    for line in iter(sys.stdin.readline, ""):
        command, name, *_ = line.split()
        if name not in locks:
            locks[name] = make("/" + name, identifier=identifier)
        lock = locks[name]
        if command in ("try", "acquire"):
            got = lock.acquire(blocking=False)
            if not got and command == "acquire":
                say("waiting")
                got = lock.acquire()
            say(f"held {identifier}" if got else "busy")
        elif command == "extend":
            say("held" if exists(client, lock) else "lost")
        elif command == "release":
            there = exists(client, lock)
            lock.release()
            say("released" if there else "lost")
        else:
            raise ValueError(f"unknown command: {line!r}")


def exists(client, lock):
    return client.exists(f"{lock.path}/{lock.node}") is not None


def say(answer):
    print(answer, flush=True)


main()
