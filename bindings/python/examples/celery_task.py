"""A Celery task that is done once for each invoice, however often it is delivered."""

from __future__ import annotations

import os
from functools import lru_cache

import celery
import lockkeeper

app = celery.Celery("invoices", broker=os.environ.get("CELERY_BROKER", "memory://"))
app.conf.task_acks_late = True  # a task of a worker that dies is delivered again


@lru_cache
def client() -> tuple[lockkeeper.Locks, lockkeeper.Records]:
    """Connected in the worker: a client can't be used after a fork."""
    return lockkeeper.connect(os.environ["LOCKKEEPER_URL"]), lockkeeper.records(os.environ["RECORDS_URL"])


@app.task(autoretry_for=(lockkeeper.AcquireError, lockkeeper.LockLost), retry_backoff=True)
def send_invoice(number: int) -> str:
    locks, records = client()

    def send(guard: lockkeeper.Guard) -> bytes:
        print(f"sends invoice {number}")
        return f"message {number}".encode()

    lock = locks.mutex(f"invoices/{number}", ttl=30, wait=60)
    return lock.once(f"invoice-{number}-sent", records, send).outcome.decode()
