"""Fences in a real PostgreSQL, by each library; the marks are those that the Rust fence uses."""

import asyncio
import os

import lockkeeper
import psycopg
import pytest
import sqlalchemy
from lockkeeper.fences import NotFenced, Repeated, Stale, postgres
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

URL = os.environ["LOCKKEEPER_TEST_POSTGRES"]


@pytest.fixture(autouse=True)
def installed() -> None:
    with psycopg.connect(URL) as connection:
        connection.execute(postgres.schema_sql())


def test_stale_holder_is_refused_and_its_transaction_does_nothing(own: str, name: str) -> None:
    locks = lockkeeper.connect(own).fenced()
    with psycopg.connect(URL) as setup:
        setup.execute("CREATE TABLE IF NOT EXISTS orders (name text PRIMARY KEY, state text)")
    old = locks.mutex(name, ttl=10).acquire()
    with psycopg.connect(URL) as connection:
        postgres.enter(connection, name, old.token)
        connection.execute("INSERT INTO orders VALUES (%s, 'old')", [name])
    old.release()
    with locks.mutex(name) as new:
        with psycopg.connect(URL) as connection:
            postgres.enter(connection, name, new.token)
        with pytest.raises(Stale) as stale, psycopg.connect(URL) as connection:
            postgres.write(connection, name, old.token)
        assert (stale.value.token, stale.value.newest) == (old.token, new.token)
        with pytest.raises(Stale), psycopg.connect(URL) as connection:
            connection.execute("UPDATE orders SET state = 'stale' WHERE name = %s", [name])
            postgres.write(connection, name, old.token)
    with psycopg.connect(URL) as connection:
        row = connection.execute("SELECT state FROM orders WHERE name = %s", [name]).fetchone()
        assert row == ("old",)


def test_modes_and_what_is_refused(name: str) -> None:
    with psycopg.connect(URL, autocommit=True) as connection:
        with connection.transaction():
            postgres.enter(connection, name, 5, mode="shared")
        with pytest.raises(NotFenced, match="shared may only enter"), connection.transaction():
            postgres.write(connection, name, 5, mode="shared")
        with connection.transaction(), connection.cursor() as cursor:
            postgres.enter(cursor, name, 7, mode="permit", slot=1)
            postgres.enter(cursor, name, 6, mode="permit", slot=2)
        with pytest.raises(Stale), connection.transaction():
            postgres.enter(connection, name, 6, mode="permit", slot=1)
        with connection.transaction():
            postgres.once(connection, name, 8)
        with pytest.raises(Repeated), connection.transaction():
            postgres.once(connection, name, 8)
        with pytest.raises(NotFenced, match="not a token"), connection.transaction():
            postgres.enter(connection, name, 0)
        with pytest.raises(lockkeeper.InvalidOption, match=r"give the number: `guard\.token`"):
            postgres.enter(connection, name, object())
        for alone in [connection, connection.cursor()]:
            for check in [postgres.enter, postgres.write, postgres.once]:
                with pytest.raises(NotFenced, match="no transaction is open"):
                    check(alone, name, 9)
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM no_such_table")


def test_sqlalchemy(name: str) -> None:
    engine = sqlalchemy.create_engine(URL.replace("postgres://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        postgres.enter(connection, name, 7)
    with Session(engine) as session:
        postgres.write(session, name, 7)
        session.commit()
        with pytest.raises(Stale):
            postgres.write(session, name, 6)
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, Session(alone) as session:
        for one in [connection, session]:
            with pytest.raises(NotFenced, match="no transaction is open.* AUTOCOMMIT"):
                postgres.write(one, name, 7)
    engine.dispose()


def test_asyncio(name: str) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(URL) as connection:
            await postgres.enter_async(connection, name, 7)
        engine = create_async_engine(URL.replace("postgres://", "postgresql+psycopg://"))
        async with engine.begin() as connection:
            await postgres.write_async(connection, name, 7)
        with pytest.raises(Stale):
            async with engine.begin() as connection:
                await postgres.once_async(connection, name, 6)
        async with AsyncSession(engine) as session:
            await postgres.write_async(session, name, 7)
        alone = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with alone.connect() as connection, AsyncSession(alone) as session:
            for one in [connection, session]:
                with pytest.raises(NotFenced, match="no transaction is open"):
                    await postgres.write_async(one, name, 7)
        await engine.dispose()

    asyncio.run(main())


def test_django(name: str) -> None:
    import django
    from django.conf import settings

    parts = psycopg.conninfo.conninfo_to_dict(URL)
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": parts["host"],
                "PORT": parts["port"],
                "USER": parts["user"],
                "NAME": parts.get("dbname", "postgres"),
                "PASSWORD": parts.get("password", ""),
            }
        }
    )
    django.setup()
    from django.db import connection, transaction

    with transaction.atomic():
        postgres.enter(connection, name, 7)
    with pytest.raises(Stale), transaction.atomic():
        postgres.write(connection, name, 6)
    with pytest.raises(NotFenced, match="no transaction is open.*atomic"):
        postgres.write(connection, name, 7)
    connection.close()


def test_missing_fence_is_said_with_the_remedy(name: str) -> None:
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute("DROP SCHEMA lockkeeper_fence CASCADE")
        with pytest.raises(NotFenced, match="schema_sql"), connection.transaction():
            postgres.enter(connection, name, 7)
