"""A Django management command that one host runs at a time, and whose transactions are fenced.

    python3 manage.py close_month 2026-11
"""

from __future__ import annotations

from typing import Any

import lockkeeper
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from lockkeeper.fences.django import fenced_atomic


class Command(BaseCommand):
    help = "Closes a month's accounts"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month")

    def handle(self, *args: Any, month: str, **options: Any) -> None:
        name = f"accounts/{month}"
        lock = lockkeeper.connect(settings.LOCKKEEPER_URL).fenced().mutex(name, wait=False)
        try:
            with lock as guard, fenced_atomic(name, guard.token), connection.cursor() as cursor:
                cursor.execute("UPDATE accounts SET is_closed = 1 WHERE month = %s", [month])
                self.stdout.write(f"closed {cursor.rowcount} accounts")
        except lockkeeper.Busy as busy:
            raise CommandError(f"{month} is being closed already: {busy}") from busy
