"""docs/cli.md says what the commands say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_help_says() -> None:
    """Up to spaces and line ends: click's versions break lines differently."""
    pytest.importorskip("pyspark")
    pytest.importorskip("pyarrow")
    page = (ROOT / "docs" / "cli.md").read_text()
    made = subprocess.run([sys.executable, str(ROOT / "tools" / "cli_page.py")], capture_output=True, text=True, check=True)
    assert page.split() == made.stdout.split(), "write it anew: python tools/cli_page.py > docs/cli.md"


def test_the_page_has_shared_options_once() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert page.count("--server-name NAME") == 1
    assert page.count("All of the [shared options](#shared-options).") > 20
    of_demo = page.partition("## rmq demo\n")[2].partition("\n## ")[0]
    assert "--namesrv HOST:PORT[;...]  Name servers of a cluster to use" in of_demo
    assert "`--timeout`" in of_demo
    assert "`--namesrv`" not in of_demo


HELP = """
import os
os.environ["COLUMNS"] = "80"
import click
from click.testing import CliRunner
from rmq_async.cli.app import rmq

def texts(command, path):
    yield path, CliRunner().invoke(rmq, [*path, "--help"]).output
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from texts(command.get_command(click.Context(command), name), [*path, name])

for path, text in texts(rmq, []):
    print(*path, max(map(len, text.splitlines())))
"""


def test_help_fits_80_columns() -> None:
    pytest.importorskip("pyspark")
    made = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    widths = {path: int(width) for path, _, width in (line.rpartition(" ") for line in made.stdout.splitlines())}
    assert {"simulate", "spark archive", "group reset"} <= widths.keys()
    assert {path: width for path, width in widths.items() if width > 80} == {}
