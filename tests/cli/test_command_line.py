"""What holds for every command: help, version, exit codes, errors in one line."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points

import pytest

import rmq_async
from rmq_async import cli
from rmq_async.cli import app
from rmq_async.cli.demo import demo
from rmq_async.errors import BrokerError

from .support import Rmq, one_line, rmq


def test_the_command_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="rmq")
    assert script.load() is cli.main


def test_the_version_is_the_packages(rmq_alone: Rmq) -> None:
    ended = rmq_alone("--version")
    assert (ended.code, ended.err) == (0, "")
    assert one_line(ended.out).startswith(f"rmq-async {rmq_async.__version__} (Python ")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_the_commands(option: str, rmq_alone: Rmq) -> None:
    ended = rmq_alone(option)
    assert (ended.code, ended.err) == (0, "")
    for part in ("demo", "server", "--version", "Exit codes"):
        assert part in ended.out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("demo", ["--namesrv", "--timeout", "--json", "--messages", "--size"]),
        ("server", ["--host", "--port", "--brokers", "--json"]),
    ],
)
def test_help_of_a_command_names_its_options(command: str, options: list[str], rmq_alone: Rmq) -> None:
    ended = rmq_alone(command, "--help")
    assert (ended.code, ended.err) == (0, "")
    for option in options:
        assert f"{option} " in ended.out


def test_without_a_command_help_is_shown_and_the_exit_code_is_2(rmq_alone: Rmq) -> None:
    ended = rmq_alone()
    assert (ended.code, ended.out) == (2, "")
    assert "Commands:" in ended.err


@pytest.mark.parametrize(
    "wrong",
    [
        ["nothing-of-the-kind"],
        ["--nothing"],
        ["demo", "--nothing"],
        ["demo", "surplus"],
        ["demo", "--messages", "0"],
        ["demo", "--messages", "100000", "--size", "100000"],
        ["demo", "--size", "1"],
        ["demo", "--timeout", "0"],
        ["demo", "--timeout", "nan"],
        ["top", "--namesrv", "127.0.0.1:1", "--once", "--interval", "nan"],
        ["demo", "--namesrv", "no-port"],
        ["demo", "--namesrv"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_one_line_and_code_2(wrong: list[str], rmq_alone: Rmq) -> None:
    ended = rmq_alone(*wrong)
    assert (ended.code, ended.out) == (2, "")
    assert one_line(ended.err).startswith("rmq")


@pytest.mark.parametrize("missing", ["click", "rich"])
async def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from rmq_async.cli import main; main(['demo'])"
    ended = await rmq(command=[sys.executable, "-W", "error", "-c", program])
    assert (ended.code, ended.out) == (2, "")
    assert "pip install 'rmq-async[cli]'" in one_line(ended.err)


async def test_a_command_imports_no_other_one() -> None:
    """Nor what a third of its start would go to: tables and the versions of packages."""
    program = (
        "import sys; from rmq_async.cli.app import run_command; run_command(['topic', '--help']); "
        "sys.exit(','.join(sorted({'embedded', 'testing', 'outbox', 'rich', 'metadata'} & {part for name in sys.modules "
        "if name.startswith(('rmq_async.', 'rich', 'importlib.')) for part in name.split('.')[:2]})))"
    )
    ended = await rmq(command=[sys.executable, "-W", "error", "-c", program])
    assert (ended.err.strip(), "Usage: rmq topic" in ended.out) == ("", True)


async def test_a_reader_who_went_away_gets_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = await rmq("demo", "--json", "--messages", "10", stdout=writing)
    finally:
        os.close(writing)
    assert (ended.code, ended.err) == (1, "")


class TestErrorsOfTheLibrary:
    """Any error of a command becomes a line and a code."""

    def reported(
        self, error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> tuple[int, str]:
        def fail(**_: object) -> int:
            raise error

        monkeypatch.setattr(demo, "callback", fail)
        code = app.run_command(["demo"])
        return code, one_line(capsys.readouterr().err)

    def test_an_error_of_ours(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        code, line = self.reported(BrokerError("no\nspace", code=14, request="SEND_MESSAGE"), monkeypatch, capsys)
        assert code == 1
        assert "SERVICE_NOT_AVAILABLE" in line

    def test_an_error_of_the_system(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.reported(OSError(28, "No space left"), monkeypatch, capsys) == (1, "rmq: [Errno 28] No space left")

    def test_a_bug(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.delenv("RMQ_TRACEBACK", raising=False)
        code, line = self.reported(KeyError("x"), monkeypatch, capsys)
        assert code == 1
        assert "KeyError" in line

    def test_a_bug_that_is_looked_for(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("RMQ_TRACEBACK", "1")
        with pytest.raises(KeyError):
            self.reported(KeyError("x"), monkeypatch, capsys)


@pytest.mark.parametrize("option", ["--keys", "--tags"])
def test_argument_that_the_locale_cannot_read(option: str, rmq_here: Rmq) -> None:
    code, out, err = rmq_here("send", "T", "--body", "x", option, os.fsdecode("\u00e9".encode("latin-1")))
    assert (code, out) == (2, "")
    assert "the locale's encoding, utf-8, cannot read the argument '\\udce9': set LC_ALL=C.UTF-8 or PYTHONUTF8=1" in err
