"""docs/cli.md says what the commands say."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_async.cli.reference import reference


def test_the_page_is_what_help_says() -> None:
    """Up to spaces and line ends: click's versions break lines differently."""
    pytest.importorskip("pyspark")
    pytest.importorskip("pyarrow")
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert page.split() == reference().split(), "write it anew: python -m rmq_async.cli.reference > docs/cli.md"


def test_the_page_has_shared_options_once() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert page.count("--server-name NAME") == 1
    assert page.count("All of the [shared options](#shared-options).") > 20
    of_demo = page.partition("## rmq demo\n")[2].partition("\n## ")[0]
    assert "--namesrv HOST:PORT[;...]  Name servers of a cluster to use" in of_demo
    assert "`--timeout`" in of_demo
    assert "`--namesrv`" not in of_demo
