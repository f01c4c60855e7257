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
