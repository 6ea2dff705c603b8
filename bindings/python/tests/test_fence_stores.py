"""The fences of Redis, SQLite, DynamoDB and HTTP, on real servers and beside the Rust fences (`system.rs`)."""

import asyncio
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any, Iterator
from urllib.parse import unquote

import boto3
import lockkeeper
import pytest
import redis as redis_py
import redis.asyncio as redis_asyncio
from conftest import URLS
from lockkeeper.fences import ConditionFailed, EffectFailed, NotFenced, Repeated, Stale, dynamodb, http, redis, sqlite
from lockkeeper.fences.redis import Key

REDIS = URLS["redis"].partition("?")[0]


@pytest.fixture
def client() -> Iterator[Any]:
    with redis_py.Redis.from_url(REDIS, retry=None) as client:
        yield client


def test_redis(client: Any, own: str, name: str) -> None:
    fence = redis.connect(client)
    locks = lockkeeper.connect(own).fenced()
    old = locks.mutex(name, ttl=10).acquire()
    fence.enter(name, old.token)
    assert fence.write(name, old.token, ["SET", Key(name), "old"], ["INCRBY", Key(name + "/n"), 5]) == [b"OK", 5]
    old.release()
    with locks.mutex(name) as new:
        fence.enter(name, new.token)
        with pytest.raises(Stale) as stale:
            fence.write(name, old.token, ["SET", Key(name), "stale"])
        assert (stale.value.token, stale.value.newest) == (old.token, new.token)
    assert client.get(name) == b"old"
    fence.once(name, 2**50, ["SET", Key(name), b"\xff"])
    with pytest.raises(Repeated):
        fence.once(name, 2**50)
    with pytest.raises(lockkeeper.InvalidOption, match=r"`token` is <.*Guard.*give the number: `guard\.token`"):
        fence.enter(name, old)
    with pytest.raises(EffectFailed, match="WRONGTYPE") as failed:
        fence.write(name, 2**50, ["SET", Key(name + "/n"), 1], ["RPUSH", Key(name), "x"], ["DEL", Key(name)])
    assert failed.value.done == 1
    with pytest.raises(NotFenced, match="marks"):
        fence.write(name, 2**50, ["FLUSHALL"])
    with pytest.raises(NotFenced, match="shared may only enter"):
        fence.write(name, 2**50, mode="shared")
    fence.reset(name, 5)
    fence.enter(name, 5, mode="permit", slot=3)


def test_redis_asyncio_and_decoded_replies(name: str) -> None:
    async def main() -> None:
        async with redis_asyncio.Redis.from_url(REDIS, decode_responses=True) as client:
            fence = await redis.connect_async(client)
            await fence.enter(name, 7)
            assert await fence.write(name, 7, ["SET", Key(name), 1], ["GET", Key(name)]) == [b"OK", b"1"]
            with pytest.raises(Stale):
                await fence.once(name, 6)
            await fence.reset(name, 6)
            await fence.enter(name, 6)

    asyncio.run(main())


def test_redis_that_evicts_or_is_away(client: Any, name: str) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(NotFenced, match="noeviction"):
            redis.connect(client)
        redis.connect(client, trusting_no_eviction=True).enter(name, 1)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    away = redis_py.Redis(port=1, retry=None)
    with pytest.raises(lockkeeper.NoAnswer, match="Whether it was done is unknown") as error:
        redis.connect(away)
    assert isinstance(error.value.__cause__, redis_py.ConnectionError)


def test_marks_of_the_rust_fence(client: Any) -> None:
    database = sqlite3.connect(os.environ["LOCKKEEPER_TEST_SQLITE"])
    fence = redis.connect(client)
    # Rust has entered with 7, and expects 9.
    with pytest.raises(Stale):
        fence.enter("beside", 6)
    fence.enter("beside", 9)
    with pytest.raises(Stale):
        sqlite.enter(database, "beside", 6)
    sqlite.enter(database, "beside", 9)


@pytest.mark.parametrize("isolation_level", ["", None])
def test_sqlite(tmp_path: Path, isolation_level: Any) -> None:
    database = sqlite3.connect(tmp_path / "stock", isolation_level=isolation_level)
    with pytest.raises(NotFenced, match="install"):
        sqlite.enter(database, "stock", 7)
    sqlite.install(database)
    database.execute("CREATE TABLE stock (pieces INTEGER)")
    database.execute("INSERT INTO stock VALUES (5)")
    database.commit()
    sqlite.enter(database, "stock", 7)
    assert not database.in_transaction
    with database:
        sqlite.write(database, "stock", 7)
        database.execute("UPDATE stock SET pieces = 4")
    sqlite.enter(database, "stock", 8)
    with pytest.raises(Stale) as stale, database:
        sqlite.write(database, "stock", 7)
        database.execute("UPDATE stock SET pieces = 0")
    assert stale.value.newest == 8 and not database.in_transaction
    assert database.execute("SELECT pieces FROM stock").fetchone() == (4,)
    with database:
        sqlite.once(database, "stock", 9)
        with pytest.raises(NotFenced, match="in a transaction"):
            sqlite.enter(database, "stock", 10)
    with pytest.raises(Repeated), database:
        sqlite.once(database, "stock", 9)
    for slot, token in [(1, 12), (2, 11)]:
        sqlite.enter(database, "stock", token, mode="permit", slot=slot)
    with pytest.raises(Stale):
        sqlite.enter(database, "stock", 11, mode="permit", slot=1)
    with database:
        sqlite.enter_within(database, "stock", 13)
    assert database.execute("SELECT count(*) FROM lockkeeper_fence_marks").fetchone() == (1,)
    sqlite.reset(database, "stock", 5)
    sqlite.enter(database, "stock", 5)


def test_dynamodb(name: str) -> None:
    client = boto3.client(
        "dynamodb",
        endpoint_url=os.environ["LOCKKEEPER_TEST_DYNAMODB"],
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    client.create_table(
        TableName="stock",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    fence, key = dynamodb.Fence(client), {"id": {"S": name}}
    assert fence.content("stock", key, fence.enter("stock", key, 7)) is None
    some = {"pieces": {"N": "5"}, "B": {"B": b"\xff"}, "tags": {"BS": [b"a"]}}
    fence.write("stock", key, 7, dynamodb.Put(some))
    assert fence.content("stock", key, fence.enter("stock", key, 8)) == some
    with pytest.raises(Stale) as stale:
        fence.write("stock", key, 7, dynamodb.Delete())
    assert stale.value.newest == 8
    less = dynamodb.Update(
        set=["#p = #p - :one"], when="#p >= :one", names={"#p": "pieces"}, values={":one": {"N": "5"}}
    )
    fence.write("stock", key, 8, less)
    with pytest.raises(ConditionFailed, match="#p >= :one"):
        fence.write("stock", key, 8, less)
    with pytest.raises(NotFenced, match="lk_any"):
        fence.write("stock", key, 8, dynamodb.Update(remove=["lk_any"]))
    with pytest.raises(lockkeeper.InvalidOption, match="their types"):
        fence.write("stock", key, 8, dynamodb.Put({"pieces": 5}))
    fence.once("stock", key, 9, dynamodb.Delete())
    with pytest.raises(Repeated):
        fence.once("stock", key, 9, dynamodb.Delete())
    for slot, token in [(1, 12), (2, 11)]:
        fence.enter("stock", key, token, mode="permit", slot=slot)
    fence.reset("stock", key, 5, client.get_item(TableName="stock", Key=key)["Item"])
    fence.enter("stock", key, 5, mode="permit", slot=1)


def asgi(app: Any, method: str, path: str, **headers: str) -> tuple[int, bytes]:
    """A request to an ASGI app: the status and the body of its response."""
    sent: list[Any] = []

    async def main() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": unquote(path), "raw_path": path.encode(), "query_string": b"", "headers": named}
        await app(scope, receive, send)

    asyncio.run(main())
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def test_http_of_asgi(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope.get(http.KEY))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    fenced = http.ASGIMiddleware(app, fence=http.Fence(tmp_path / "marks"))
    assert asgi(fenced, "GET", "/a") == (200, b"done")
    assert asgi(fenced, "PUT", "/a")[0] == 428
    assert asgi(fenced, "GET", "/a", fencing_token="7") == (200, b"done")
    assert asgi(fenced, "PUT", "/a", fencing_token="7") == (200, b"done")
    assert seen[-1] == http.Fenced("/a", "write", 7, "exclusive", None)
    assert asgi(fenced, "POST", "/a", fencing_token="8", fencing_action="enter") == (204, b"")
    status, body = asgi(fenced, "PUT", "/%61", fencing_token="7")
    assert (status, b'"highest":8' in body.replace(b" ", b"")) == (412, True), body
    assert asgi(fenced, "PUT", "/b", fencing_token="x")[0] == 400
    assert len(seen) == 3
    named = http.ASGIMiddleware(app, fence=http.Fence(tmp_path / "named"), guarded=[], resource_by=lambda scope: "all")
    assert asgi(named, "PUT", "/a") == (200, b"done")
    assert asgi(named, "PUT", "/a", fencing_token="2")[0] == 200
    assert asgi(named, "PUT", "/b", fencing_token="1")[0] == 412
    fence = http.Fence(tmp_path / "guarded")
    guarded = http.ASGIMiddleware(app, fence=fence, guarded=["put"], resource_by=lambda scope: None)
    with pytest.raises(NotFenced, match="`resource_by` has returned None"):
        asgi(guarded, "PUT", "/a")
    guarded = http.ASGIMiddleware(app, fence=fence, guarded=["put"])
    assert asgi(guarded, "PUT", "/a")[0] == 428
    with pytest.raises(lockkeeper.InvalidOption, match="guarded"):
        http.ASGIMiddleware(app, fence=fence, guarded="PUT")


def test_http_of_wsgi_waits_for_older_writes(tmp_path: Path) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def app(environ: Any, start: Any) -> Any:
        start("200 OK", [])
        yield b"first "
        if environ[http.KEY].token == 7:
            arrived.set()
            assert go_on.wait(30)
        yield str(environ[http.KEY].token).encode()

    fenced = http.WSGIMiddleware(app, fence=http.Fence(tmp_path / "marks", wait=30))
    statuses: list[str] = []

    def request(token: str) -> bytes:
        environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/gr\xc3\xb6\xc3\x9fe", "HTTP_FENCING_TOKEN": token}
        body = fenced(environ, lambda status, headers: statuses.append(status))
        try:
            return b"".join(body)
        finally:
            getattr(body, "close", lambda: None)()

    bodies: list[bytes] = []
    old = threading.Thread(target=lambda: bodies.append(request("7")))
    old.start()
    assert arrived.wait(30)
    new = threading.Thread(target=lambda: bodies.append(request("8")))
    new.start()
    assert b"stale" in request("6")
    assert bodies == [], "the new one waits for the old one"
    go_on.set()
    old.join()
    new.join()
    assert bodies == [b"first 7", b"first 8"]
    assert statuses[0].startswith("200") and statuses[1].startswith("412")
    assert b"stale" in request("7")
    # A file of marks is of one process.
    with pytest.raises(NotFenced, match="marks"):
        http.Fence(tmp_path / "marks")
