"""A job of cron on several hosts, which one of them runs.

    0 3 * * *  python3 cron_singleton.py
"""

from __future__ import annotations

import os
import sys

import lockkeeper


def report(guard: lockkeeper.FencedGuard) -> None:
    for part in range(3):
        guard.check()  # raises LockLost: another host may be at work
        print(f"part {part} under token {guard.token}")


def main() -> int:
    locks = lockkeeper.connect(os.environ["LOCKKEEPER_URL"]).fenced()
    # Closed for a while after the job, for hosts whose clock is late.
    lock = locks.mutex("reports/nightly", wait=False, keep_closed=600)
    try:
        with lock as guard:
            report(guard)
    except lockkeeper.Busy as busy:
        print(f"done elsewhere: {busy}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
