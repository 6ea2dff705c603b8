"""The drivers that `lockkeeper-lab conformance` starts: each command and each event, once."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import lockkeeper
import pytest

Line = dict[str, Any]


class Driver:
    def __init__(self, *arguments: str) -> None:
        program = [sys.executable, str(Path(__file__).with_name("driver.py")), *arguments]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[Line] = []
        self.id = 0

    def line(self, wanted: Line) -> Line:
        """The next line that has these fields."""
        while True:
            for line in self.lines:
                if wanted.items() <= line.items():
                    self.lines.remove(line)
                    return line
            assert self.process.stdout is not None
            text = self.process.stdout.readline()
            assert text, f"the driver ended without {wanted}"
            self.lines.append(json.loads(text))

    def send(self, do: str, **fields: Any) -> int:
        assert self.process.stdin is not None
        self.id += 1
        print(json.dumps({"id": self.id, "do": do, **fields}), file=self.process.stdin, flush=True)
        return self.id

    def call(self, do: str, **fields: Any) -> Any:
        return self.answer(self.send(do, **fields))

    def answer(self, id: int) -> Any:
        """What is in ``ok``, or the kind of the error."""
        line = self.line({"id": id})
        return line["ok"] if "ok" in line else line["error"]["kind"]


@pytest.fixture(params=["threads", "asyncio"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = Driver(*["--asyncio"] * (request.param == "asyncio"))
    assert driver.line({"protocol": 1})["version"] == lockkeeper.__version__
    yield driver
    driver.process.kill()
    driver.process.wait()


def test_commands(driver: Driver, own: str, name: str) -> None:
    one = {"lock": name, "mode": "exclusive"}
    assert driver.call("acquire", hold="a", wait_ms=0, **one) == "refused", "not connected"
    assert driver.call("connect", url=own, ttl_ms=2000) == {}
    first = driver.call("acquire", hold="a", wait_ms=None, **one)
    assert 0 < first["valid_ms"] <= 2000
    assert driver.call("acquire", hold="b", wait_ms=0, **one) == "busy"
    assert driver.call("acquire", hold="b", wait_ms=50, **one) == "timed-out"
    waits = driver.send("acquire", hold="b", wait_ms=None, **one)
    assert 0 < driver.call("check", hold="a")["valid_ms"] <= 2000
    assert driver.call("cancel", acquire=waits) == {}
    assert driver.answer(waits) == "cancelled"
    waits = driver.send("acquire", hold="c", wait_ms=None, **one)
    assert driver.call("stall", ms=10) == {}
    assert driver.call("release", hold="a") == {"was": "held"}
    assert driver.answer(waits)["token"] > first["token"], "the cancelled one is not in between"
    assert driver.call("acquire", hold="d", lock=name, mode="other", wait_ms=0) == "refused"
    assert driver.call("fly") == "refused"
    assert driver.call("check", hold="c", depth=1) == "refused"

    below = {"lock": name + "/x", "mode": "shared"}
    driver.call("acquire", hold="r", wait_ms=0, **below)
    assert driver.call("acquire", hold="s", wait_ms=0, **below)["token"]
    assert driver.call("acquire", hold="p", lock=name + "/p", mode="permit", permits=1, wait_ms=0)["token"]
    assert driver.call("lead", hold="l", election=name + "/e")["token"]
    both = driver.call("acquire", hold="t", lock=name + "/y", mode="exclusive", also=[name + "/z"], wait_ms=0)
    assert both["token"]
    assert driver.call("acquire", hold="u", lock=name + "/y", mode="exclusive", subtree=True, wait_ms=0) == "busy"


def test_loss_and_ends(driver: Driver, own: str, name: str) -> None:
    driver.call("connect", url=own, ttl_ms=2000)
    token = driver.call("acquire", hold="a", lock=name, mode="exclusive", wait_ms=0)["token"]
    driver.process.send_signal(signal.SIGSTOP)
    with lockkeeper.connect(own).fenced().mutex(name, ttl=10, wait=60) as guard:
        assert guard.token > token
        driver.process.send_signal(signal.SIGCONT)
        driver.line({"event": "lost", "hold": "a"})
        assert driver.call("release", hold="a") == {"was": "lost"}
    assert driver.call("acquire", hold="b", lock=name, mode="exclusive", wait_ms=None)["token"] > token
    driver.send("die")
    assert driver.process.wait(30) == 9


def test_end_of_input_ends_it(driver: Driver, own: str, name: str) -> None:
    driver.call("connect", url=own, ttl_ms=2000)
    driver.call("acquire", hold="a", lock=name, mode="exclusive", wait_ms=0)
    driver.process.stdin.close()
    assert driver.process.wait(30) == 0
    assert not [line for line in driver.process.stdout if "event" in line], "a release is no loss"
    lockkeeper.connect(own).mutex(name).acquire(timeout=60).release()
