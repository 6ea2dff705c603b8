"""The examples, as programs and modules."""

import asyncio
import importlib
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import lockkeeper
import pytest

EXAMPLES = Path(__file__).parent.with_name("examples")
sys.path.insert(0, str(EXAMPLES))


@pytest.fixture(autouse=True)
def environment(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_URL", own)
    monkeypatch.setenv("RECORDS_URL", f"file://{tmp_path}/records")
    monkeypatch.setenv("FENCE", str(tmp_path / "marks"))


def test_cron_singleton() -> None:
    program = [sys.executable, str(EXAMPLES / "cron_singleton.py")]
    runs = [subprocess.run(program, capture_output=True, text=True, timeout=60) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0]
    assert runs[0].stdout.count("under token") == 3 and runs[1].stdout == ""
    assert "done elsewhere" in runs[1].stderr


def test_celery_task(capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module("celery_task")
    module.app.conf.task_always_eager = True
    assert [module.send_invoice.delay(4711).get() for _ in range(2)] == ["message 4711"] * 2
    assert capsys.readouterr().out == "sends invoice 4711\n"


def test_apscheduler_job(own: str) -> None:
    module = importlib.import_module("apscheduler_job")
    scheduler = module.start()
    (job,) = scheduler.get_jobs()
    assert [job.func(*job.args), module.clean(lockkeeper.connect(own))] == [True, False]
    scheduler.shutdown()


class Shop:
    """The part of `httpx.AsyncClient` that the example needs, on the app itself."""

    def __init__(self, app: Any) -> None:
        self.app, self.body, self.status = app, b"", 0

    async def request(self, method: str, path: str, headers: dict[str, str], query: str = "") -> "Shop":
        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            self.status = message.get("status", self.status)
            self.body += message.get("body", b"")

        self.body, named = b"", [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": named}
        await self.app({**scope, "http_version": "1.1", "scheme": "http", "server": ("shop", 80)}, receive, send)
        return self

    async def get(self, path: str, headers: dict[str, str]) -> "Shop":
        return await self.request("GET", path, headers)

    async def put(self, path: str, params: dict[str, int], headers: dict[str, str]) -> "Shop":
        return await self.request("PUT", path, headers, "&".join(f"{name}={it}" for name, it in params.items()))

    def json(self) -> Any:
        return json.loads(self.body)

    def raise_for_status(self) -> None:
        if self.status >= 400:
            raise ValueError(self.status)


def test_fastapi_fence() -> None:
    module = importlib.import_module("fastapi_fence")

    async def main() -> None:
        shop = Shop(module.app)
        assert [await module.take_one(shop, "screws") for _ in range(2)] == [99, 98]
        assert shop.json()["pieces"] == 98
        old = {"Fencing-Token": str(shop.json()["token"] - 1)}
        await shop.put("/stock/screws", {"pieces": 0}, old)
        assert (shop.status, shop.json()["type"]) == (412, "urn:lockkeeper:fence:stale")
        assert module.stock == {"screws": 98}
        # A newer holder comes between its read and its write.
        get = shop.get

        async def overtaken(path: str, headers: dict[str, str]) -> Shop:
            await get(path, {"Fencing-Token": str(int(headers["Fencing-Token"]) + 1)})
            shop.body = b"98"
            return shop

        shop.get = overtaken  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="412"):
            await module.take_one(shop, "screws")

    asyncio.run(main())


def test_django_command(own: str, tmp_path: Path) -> None:
    import django
    from django.conf import settings
    from django.core.management import CommandError, call_command

    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "accounts"}
    settings.configure(DATABASES={"default": database}, LOCKKEEPER_URL=own)
    django.setup()
    from lockkeeper.fences import Stale, sqlite
    from lockkeeper.fences.django import fenced_atomic

    with sqlite3.connect(tmp_path / "accounts") as accounts:
        sqlite.install(accounts)
        accounts.execute("CREATE TABLE accounts (month TEXT, is_closed INTEGER)")
        accounts.execute("INSERT INTO accounts VALUES ('2026-11', 0)")
    command = importlib.import_module("close_month").Command()
    call_command(command, "2026-11")
    with lockkeeper.connect(own).fenced().mutex("accounts/2026-11") as guard:
        with pytest.raises(CommandError, match="is being closed already"):
            call_command(command, "2026-11")
        with fenced_atomic("accounts/2026-11", guard.token):
            pass
        with pytest.raises(Stale), fenced_atomic("accounts/2026-11", guard.token - 1, action="write"):
            pass
    with sqlite3.connect(tmp_path / "accounts") as accounts:
        assert accounts.execute("SELECT is_closed FROM accounts").fetchall() == [(1,)]


def test_page(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[3] / "docs/languages/python.md"
    blocks = re.findall("```python\n(.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("lockkeeper://127.0.0.1:5625", own), names)
    assert names["stock"].execute("SELECT pieces FROM stock").fetchone() == (4,)
