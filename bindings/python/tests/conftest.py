"""The lock services that the Rust test beside this file (`system.rs`) has started."""

import json
import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

URLS: dict[str, str] = json.loads(os.environ["LOCKKEEPER_TEST_URLS"])


@pytest.fixture(params=sorted(URLS))
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a lock service; the test runs once on each."""
    return URLS[request.param]


@pytest.fixture
def own() -> str:
    """The URL of our own service."""
    return URLS["lockkeeper"]


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"tests/{uuid.uuid4().hex}"


class Program:
    """A Python program of its own, that prints lines."""

    def __init__(self, path: Path, text: str, *args: str) -> None:
        file = path / f"{uuid.uuid4().hex}.py"
        file.write_text(textwrap.dedent(text))
        self.process = subprocess.Popen(
            [sys.executable, "-u", file, *args], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        """Sends it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def program(tmp_path: Path):
    """Starts programs, and ends them after the test."""
    programs: list[Program] = []

    def start(text: str, *args: str) -> Program:
        programs.append(Program(tmp_path, text, *args))
        return programs[-1]

    yield start
    for one in programs:
        one.process.kill()
        one.process.wait()
