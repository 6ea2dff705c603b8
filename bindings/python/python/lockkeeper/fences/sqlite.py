"""The fence of SQLite: the marks are in the program's own database, on connections of ``sqlite3``.

    sqlite.install(connection)  # once
    with locks.mutex("stock") as guard:
        sqlite.enter(connection, "stock", guard.token)  # committed
        (pieces,) = connection.execute("SELECT pieces FROM stock").fetchone()
        with connection:
            sqlite.write(connection, "stock", guard.token)  # the transaction's first statement
            connection.execute("UPDATE stock SET pieces = ?", [pieces - 1])

The database is a file of this host: locks of network filesystems are not to be trusted.
"""

from __future__ import annotations

import sqlite3
from typing import Optional

from .. import _lockkeeper
from .._errors import NotFenced
from . import Mode

#: ``PRAGMA synchronous``: a commit is durable in each journal mode.
_EXTRA = 3


def schema_sql() -> str:
    """The table of the marks, as SQL."""
    return _lockkeeper.sqlite_fence_sql()[0]


def install(connection: sqlite3.Connection) -> None:
    """Creates the table of the marks, unless it is there."""
    connection.execute(schema_sql())


def enter(
    connection: sqlite3.Connection,
    resource: str,
    token: int,
    *,
    mode: Mode = "exclusive",
    slot: Optional[int] = None,
) -> None:
    """Checks the token, and marks the resource, durably: older tokens are refused from then on.

    Raises ``Stale``. To be called before anything is read, and outside of a transaction.
    """
    if connection.in_transaction:
        raise NotFenced(
            "enter was called in a transaction; commit it first, or use `enter_within` as the first statement of a "
            "transaction that holds all of the section (as always with `autocommit=False`, which leaves no time between "
            "transactions)"
        )
    (before,) = connection.execute("PRAGMA synchronous").fetchone()
    if before < _EXTRA:
        connection.execute(f"PRAGMA synchronous = {_EXTRA}")
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _pass(connection, "enter", resource, token, mode, slot)
        except BaseException:
            connection.rollback()
            raise
        connection.commit()
    finally:
        if before < _EXTRA:
            connection.execute(f"PRAGMA synchronous = {before}")


def enter_within(
    connection: sqlite3.Connection,
    resource: str,
    token: int,
    *,
    mode: Mode = "exclusive",
    slot: Optional[int] = None,
) -> None:
    """:func:`enter`, as the first statement of a transaction that holds all of the section, reads and writes."""
    _begin(connection)
    _pass(connection, "enter", resource, token, mode, slot)


def write(
    connection: sqlite3.Connection,
    resource: str,
    token: int,
    *,
    mode: Mode = "exclusive",
    slot: Optional[int] = None,
) -> None:
    """Checks the token, as the first statement of a transaction that writes. Begins it, if none is open.

    Raises ``Stale``: roll back.
    """
    _begin(connection)
    _pass(connection, "write", resource, token, mode, slot)


def once(
    connection: sqlite3.Connection,
    resource: str,
    token: int,
    *,
    mode: Mode = "exclusive",
    slot: Optional[int] = None,
) -> None:
    """:func:`write`, but each token passes once, and needs no ``enter``. Raises ``Repeated``, too."""
    _begin(connection)
    _pass(connection, "check_once", resource, token, mode, slot)


def reset(connection: sqlite3.Connection, resource: str, to: int) -> None:
    """Sets the marks, even to a lower token: for a move to another lock service. Stop all writers first."""
    with connection:
        for sql, numbers in _lockkeeper.sqlite_fence_reset(to):
            connection.execute(sql, [resource, *numbers])


def _begin(connection: sqlite3.Connection) -> None:
    if not connection.in_transaction:
        connection.execute("BEGIN IMMEDIATE")


def _pass(
    connection: sqlite3.Connection, action: str, resource: str, token: int, mode: Mode, slot: Optional[int]
) -> None:
    _, lock, read = _lockkeeper.sqlite_fence_sql()
    try:
        connection.execute(lock, [resource, -1 if slot is None else slot])
    except sqlite3.OperationalError as error:
        if "no such table: lockkeeper_fence_marks" in str(error):
            raise NotFenced(f"{error}; call `lockkeeper.fences.sqlite.install(connection)` once") from error
        raise
    rows = connection.execute(read, [resource]).fetchall()
    marked = [(slot_of, any_token, writer) for slot_of, any_token, writer in rows]
    for sql, numbers in _lockkeeper.sqlite_fence_pass(resource, (action, token, mode, slot), marked):
        connection.execute(sql, [resource, *numbers])
