"""A job that APScheduler starts in each process of a service, and that one of them runs each hour."""

from __future__ import annotations

import os

import lockkeeper
from apscheduler.schedulers.background import BackgroundScheduler


def clean(locks: lockkeeper.Locks) -> bool:
    """Returns whether this process did it."""
    # At most one in any 50 minutes, whichever process it is: their clocks differ a little.
    guard = locks.rate("cleaning", 1, per=3000).try_acquire()
    if guard is None:
        return False
    with guard:
        print("cleans")
    return True


def start() -> BackgroundScheduler:
    scheduler = BackgroundScheduler()
    scheduler.add_job(clean, "cron", minute=0, args=[lockkeeper.connect(os.environ["LOCKKEEPER_URL"])])
    scheduler.start()
    return scheduler
