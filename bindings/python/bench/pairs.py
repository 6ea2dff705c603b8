"""Pairs of acquire and release on free locks: by this package, and by others on their servers.

    python3 pairs.py lockkeeper lockkeeper://127.0.0.1:5625 --clients 64
    python3 pairs.py redis-py redis://127.0.0.1:6379

Prints the pairs per second of all clients, and the median of one pair in microseconds. Each client has its own lock.
`asyncio` has one task for each client; the others, one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from typing import Any, Callable
from urllib.parse import urlsplit


def lockkeeper(url: str, name: str) -> Callable[[], None]:
    import lockkeeper

    lock = lockkeeper.connect(url).mutex(name)
    return lambda: lock.acquire().release()


def redis_py(url: str, name: str) -> Callable[[], None]:
    import redis

    lock = redis.Redis.from_url(url).lock(name, timeout=30)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def python_redis_lock(url: str, name: str) -> Callable[[], None]:
    import redis
    import redis_lock

    client = redis.Redis.from_url(url)

    def pair() -> None:
        lock = redis_lock.Lock(client, name, expire=30)
        lock.acquire()
        lock.release()

    return pair


def kazoo(url: str, name: str) -> Callable[[], None]:
    from kazoo.client import KazooClient

    client = KazooClient(urlsplit(url).netloc)
    client.start()
    lock = client.Lock("/" + name)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


CLIENTS = {"lockkeeper": lockkeeper, "redis-py": redis_py, "python-redis-lock": python_redis_lock, "kazoo": kazoo}


def in_threads(make: Callable[[str, str], Callable[[], None]], url: str, clients: int, seconds: float) -> list[float]:
    pairs = [make(url, f"bench/{number}") for number in range(clients)]
    times: list[float] = []
    end = time.perf_counter() + seconds

    def run(pair: Callable[[], None]) -> None:
        while (begin := time.perf_counter()) < end:
            pair()
            times.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=run, args=[pair]) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


async def in_tasks(url: str, clients: int, seconds: float) -> list[float]:
    from lockkeeper import aio

    locks: Any = await aio.connect(url)
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def run(number: int) -> None:
        lock = locks.mutex(f"bench/{number}")
        while (begin := time.perf_counter()) < end:
            await (await lock.acquire()).release()
            times.append(time.perf_counter() - begin)

    await asyncio.gather(*[run(number) for number in range(clients)])
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=["asyncio", *CLIENTS])
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5)
    chosen = parser.parse_args()
    if chosen.client == "asyncio":
        times = asyncio.run(in_tasks(chosen.url, chosen.clients, chosen.seconds))
    else:
        times = in_threads(CLIENTS[chosen.client], chosen.url, chosen.clients, chosen.seconds)
    print(f"{len(times) / chosen.seconds:.0f} pairs/s, median {1e6 * statistics.median(times):.0f} us")


if __name__ == "__main__":
    main()
