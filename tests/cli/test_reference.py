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
