"""The fence of a Django database: PostgreSQL, or SQLite.

    with locks.mutex(f"orders/{pk}") as guard:
        with fenced_atomic(f"orders/{pk}", guard.token):
            order = Order.objects.get(pk=pk)
            ...

Apply the fence's schema by a migration: ``RunSQL(lockkeeper.fences.postgres.schema_sql())``, or that of
:mod:`lockkeeper.fences.sqlite`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Literal, Optional

from .._errors import NotFenced
from . import Mode, postgres, sqlite


@contextmanager
def fenced_atomic(
    resource: str,
    token: int,
    *,
    action: Literal["enter", "write", "once"] = "enter",
    mode: Mode = "exclusive",
    slot: Optional[int] = None,
    using: Optional[str] = None,
    durable: bool = True,
) -> Iterator[None]:
    """``transaction.atomic`` whose first statement is the check of the token.

    ``enter`` for a transaction that reads; ``write`` for a further one that writes what was read in an earlier one;
    ``once`` lets each token through once. Raises ``Stale`` or ``Repeated``, and nothing is done. As ``durable``, it must
    not be inside of another ``atomic``: what was read there was read before the check.
    """
    from django.db import connections, transaction

    connection = connections[using or "default"]
    # Django has no types.
    atomic: Any = transaction.atomic
    with atomic(using=using, durable=durable):
        if connection.vendor == "postgresql":
            getattr(postgres, action)(connection, resource, token, mode=mode, slot=slot)
        elif connection.vendor == "sqlite":
            native: Any = connection.connection
            check = sqlite.enter_within if action == "enter" else getattr(sqlite, action)
            check(native, resource, token, mode=mode, slot=slot)
        else:
            raise NotFenced(f"there is no fence for Django's {connection.vendor}; use PostgreSQL or SQLite")
        yield
