"""The fence of PostgreSQL, on a transaction of psycopg 3, SQLAlchemy, or Django.

    with psycopg.connect(...) as connection, locks.mutex("orders/42") as guard:
        postgres.enter(connection, "orders/42", guard.token)  # the transaction's first statement
        ...  # read, decide
        connection.execute("UPDATE orders SET ...")

``enter`` in the transaction that reads; ``write`` first in each further transaction that writes. Both end with the
transaction: what they have let through is committed with their marks, or not at all. :func:`schema_sql` has what a
database administrator applies once.

``connection`` is a connection or cursor of psycopg, a ``Connection`` or ``Session`` of SQLAlchemy, or Django's
``django.db.connection``; for asyncio use :func:`enter_async` and the like, with psycopg's ``AsyncConnection`` or
SQLAlchemy's ``AsyncConnection`` and ``AsyncSession``. A connection that commits by itself is refused, unless a
transaction is open: the check would be committed without the write.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from .. import _lockkeeper
from . import Mode, NotFenced, Repeated, Stale


def schema_sql() -> str:
    """The schema of the fence: its table and functions, as plain SQL. Apply it once, as the schema's owner."""
    return _lockkeeper.postgres_fence_sql()


def grants_sql(role: str) -> str:
    """The rights that an application's role needs, as SQL."""
    return _lockkeeper.postgres_fence_grants(role)


def enter(connection: Any, resource: str, token: int, *, mode: Mode = "exclusive", slot: Optional[int] = None) -> None:
    """Checks the token, and marks the resource: older tokens are refused from then on.

    Raises :class:`Stale`. To be called before anything is read.
    """
    _call(connection, "enter", resource, token, mode, slot)


def write(connection: Any, resource: str, token: int, *, mode: Mode = "exclusive", slot: Optional[int] = None) -> None:
    """Checks the token in a transaction that writes, after an ``enter`` in an earlier one. Raises :class:`Stale`."""
    _call(connection, "check_write", resource, token, mode, slot)


def once(connection: Any, resource: str, token: int, *, mode: Mode = "exclusive", slot: Optional[int] = None) -> None:
    """Lets a token through once. Raises :class:`Stale` or :class:`Repeated`."""
    _call(connection, "check_once", resource, token, mode, slot)


async def enter_async(
    connection: Any, resource: str, token: int, *, mode: Mode = "exclusive", slot: Optional[int] = None
) -> None:
    """:func:`enter`, on a connection for asyncio."""
    await _call_async(connection, "enter", resource, token, mode, slot)


async def write_async(
    connection: Any, resource: str, token: int, *, mode: Mode = "exclusive", slot: Optional[int] = None
) -> None:
    """:func:`write`, on a connection for asyncio."""
    await _call_async(connection, "check_write", resource, token, mode, slot)


async def once_async(
    connection: Any, resource: str, token: int, *, mode: Mode = "exclusive", slot: Optional[int] = None
) -> None:
    """:func:`once`, on a connection for asyncio."""
    await _call_async(connection, "check_once", resource, token, mode, slot)


def _statement(
    connection: Any, function: str, resource: str, mode: Mode, slot: Optional[int], token: int
) -> tuple[Any, Any]:
    """The call of a function of the fence, for the library that the connection is of."""
    arguments = (resource, mode, slot, _lockkeeper.fence_token(token))
    if type(connection).__module__.startswith("sqlalchemy."):
        import sqlalchemy

        names = ["resource", "mode", "slot", "token"]
        casts = ["text", "text", "int", "bigint"]
        values = ", ".join(f"CAST(:{name} AS {cast})" for name, cast in zip(names, casts))
        return sqlalchemy.text(f"SELECT lockkeeper_fence.{function}({values})"), dict(zip(names, arguments))
    return f"SELECT lockkeeper_fence.{function}(%s::text, %s::text, %s::int, %s::bigint)", arguments


def _check_transaction(connection: Any) -> None:
    """Refuses a connection whose next statement is a transaction of its own, as far as that can be seen."""
    if hasattr(connection, "in_atomic_block"):  # Django
        is_alone, remedy = not connection.in_atomic_block, "use `with transaction.atomic():`"
    elif type(connection).__module__.startswith("sqlalchemy."):
        connection = getattr(connection, "sync_connection", connection)
        # A session's method, or a connection's property.
        connection = connection.connection() if callable(connection.connection) else connection
        is_alone = getattr(connection.connection.dbapi_connection, "autocommit", False)
        remedy = "use another isolation level than AUTOCOMMIT"
    else:
        connection = getattr(connection, "connection", connection)  # a cursor's
        status = getattr(getattr(connection, "info", None), "transaction_status", None)
        is_alone, remedy = getattr(connection, "autocommit", False) and status == 0, "use `with connection.transaction():`"
    if is_alone:
        raise NotFenced(
            f"no transaction is open, and the connection commits by itself: the check would be committed before the write, "
            f"which could then be stale; {remedy}"
        )


def _call(connection: Any, function: str, resource: str, token: int, mode: Mode, slot: Optional[int]) -> None:
    statement = _statement(connection, function, resource, mode, slot, token)
    _check_transaction(connection)
    try:
        if hasattr(connection, "execute"):
            connection.execute(*statement)
        else:  # Django
            with connection.cursor() as cursor:
                cursor.execute(*statement)
    except Exception as error:
        _refuse(error)
        raise


async def _call_async(
    connection: Any, function: str, resource: str, token: int, mode: Mode, slot: Optional[int]
) -> None:
    statement = _statement(connection, function, resource, mode, slot, token)
    # The connection of a session: opening it begins the transaction.
    _check_transaction(await connection.connection() if hasattr(connection, "sync_session") else connection)
    try:
        await connection.execute(*statement)
    except Exception as error:
        _refuse(error)
        raise


def _refuse(error: BaseException) -> None:
    """Raises the refusal, if the fence's functions have raised one."""
    # SQLAlchemy and Django wrap psycopg's error.
    original: Any = getattr(error, "orig", None) or error.__cause__ or error
    state, text = getattr(original, "sqlstate", None), str(original).partition("\n")[0]
    detail = getattr(getattr(original, "diag", None), "message_detail", None) or ""
    tokens = re.fullmatch(r"offered=(\d+) highest=(\d+)", detail)
    if state == "LK001" and tokens:
        raise Stale(text, token=int(tokens[1]), newest=int(tokens[2])) from error
    if state == "LK002" and tokens:
        raise Repeated(text, token=int(tokens[1])) from error
    if state in ("LK003", "LK004", "LK005"):
        raise NotFenced(text) from error
    if state in ("3F000", "42883", "42501") and "lockkeeper_fence" in text:
        advice = "apply `lockkeeper.fences.postgres.schema_sql()`, and `grants_sql(role)` for the application's role"
        raise NotFenced(f"{text}; {advice}") from error
