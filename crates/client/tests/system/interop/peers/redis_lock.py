"""Runs redis-py's own `Lock` for the tests: reads one command per line. Used as `redis_lock.py PORT`.

try NAME TTL_MS       -> held VALUE | busy
acquire NAME TTL_MS   -> held VALUE if the lock is free; otherwise waiting, and later held VALUE
extend NAME TTL_MS    -> held | lost
release NAME          -> released | lost

A ttl of 0 stands for redis-py's own default: a lock without an expiry. The script prints `ready` once the server has
answered a PING. It ends at the end of its input without releasing anything, and with a traceback at any error that is
not a LockError of `extend` or `release`.
"""

import sys

import redis
from redis.exceptions import LockError

WAITING_LOOKS_EVERY_S = 0.02


def main():
    client = redis.Redis(port=int(sys.argv[1]))
    client.ping()
    say("ready")
    held = {}
    # Not `for line in sys.stdin`, which may read ahead and delay a command.
    for line in iter(sys.stdin.readline, ""):
        command, name, *ttl_ms = line.split()
        if command in ("try", "acquire"):
            timeout = int(ttl_ms[0]) / 1000 or None
            lock = client.lock(name, timeout=timeout, sleep=WAITING_LOOKS_EVERY_S)
            got = lock.acquire(blocking=False)
            if not got and command == "acquire":
                say("waiting")
                got = lock.acquire()
            if got:
                held[name] = lock
                say(f"held {lock.local.token.decode()}")
            else:
                say("busy")
        elif command == "extend":
            say(if_ours("held", lambda: held[name].extend(int(ttl_ms[0]) / 1000, replace_ttl=True)))
        elif command == "release":
            say(if_ours("released", held.pop(name).release))
        else:
            raise ValueError(f"unknown command: {line!r}")


def if_ours(done, step):
    """Runs `step`. Returns `done`, or `lost` if redis-py reports that it does not hold the lock."""
    try:
        step()
        return done
    except LockError:
        return "lost"


def say(answer):
    print(answer, flush=True)


main()
