"""The quickstart and the tutorial work as they stand: their files are written, their commands run, their outputs compared.

In a page, a block with a ``title`` is a file, or with the title "terminal N" a command that goes on running; ``sh`` blocks without
one run to their end. A ``text`` block is the output of the command above it, where ``...`` stands for any text. Ports are replaced
by free ones, so that pages can run side by side.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from rmq_async.testing._ports import find_ports

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PORT = re.compile(r"\b(9876|8000|8001|10911)\b")
SECONDS = 60.0


class Step(NamedTuple):
    """``output``: of the text block that follows, "" for none."""

    language: str
    title: str
    text: str
    output: str


def steps(page: str) -> list[Step]:
    found = [Step(*block, "") for block in BLOCK.findall((DOCS / page).read_text())]
    following = [*found[1:], Step("", "", "", "")]
    return [
        step._replace(output=after.text if after.language == "text" else "")
        for step, after in zip(found, following, strict=True)
        if step.language != "text"
    ]


class Terminal:
    """A command that runs until the end of the page."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec env {command}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def wait_for(self, pattern: re.Pattern[str] | None, port: int | None) -> None:
        deadline = time.monotonic() + SECONDS
        while not (pattern is None or pattern.search(self.output)) or not (port is None or is_open(port)):
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self._reader.join(60)
            assert self.process.stdout is not None
            self.process.stdout.close()


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def pattern_of(output: str) -> re.Pattern[str] | None:
    return re.compile(re.escape(output.strip()).replace(r"\.\.\.", ".*")) if output else None


@pytest.fixture
def environment() -> dict[str, str]:
    """With the commands of this interpreter, and without what would hide the files of the page."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NAMESRV_ADDR", "PYTHONSAFEPATH")}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def free_ports() -> dict[str, str]:
    """For the ports that pages name."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [each.getsockname()[1] for each in sockets]
    (broker,) = find_ports([(0, -2)])
    return {name: str(port) for name, port in zip(("9876", "8000", "8001", "10911"), [*ports, broker], strict=True)}


@pytest.mark.parametrize(("page", "at_least"), [("quickstart.md", 11), ("tutorial.md", 20)])
def test_a_page_read_from_its_top_works(
    page: str, at_least: int, tmp_path: Path, environment: dict[str, str], free_ports: dict[str, str]
) -> None:
    done = 0
    with contextlib.ExitStack() as stack:
        for step in steps(page):
            text = PORT.sub(lambda found: free_ports[found[0]], step.text) if step.language != "yaml" else step.text
            if step.title == "in the clone" or (text.startswith("curl ") and not has_curl()):
                continue
            done += 1
            if step.language != "sh":
                (tmp_path / step.title).write_text(text)
            elif step.title.startswith("terminal"):
                terminal = Terminal(text.strip(), tmp_path, environment)
                stack.callback(terminal.close)
                port = re.search(r"--port (\d+)", text)
                terminal.wait_for(pattern_of(step.output), int(port[1]) if port else None)
            else:
                ended = subprocess.run(
                    ["/bin/sh", "-ec", text], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS
                )
                assert ended.returncode == 0, ended.stdout + ended.stderr
                expected = pattern_of(step.output)
                assert expected is None or expected.search(ended.stdout), ended.stdout
    assert done >= at_least


def has_curl() -> bool:
    return subprocess.run(["/bin/sh", "-c", "command -v curl"], capture_output=True).returncode == 0


@pytest.mark.parametrize("name", ["send.py", "worker.py"])
def test_a_program_of_the_quickstart_has_ten_lines(name: str) -> None:
    (text,) = [step.text for step in steps("quickstart.md") if step.title == name]
    assert len([line for line in text.splitlines() if line.strip()]) <= 10
