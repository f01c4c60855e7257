"""An outbox in a file of SQLite, and the commands on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support import Rmq
from .support import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(f"sqlite+aiosqlite:///{tmp_path}/service.db")


@pytest.fixture
def rmq_outbox(table: Table, rmq_here: Rmq) -> Rmq:
    """Runs a command of the group in this process, on ``table``."""
    return lambda *arguments: rmq_here("outbox", *arguments, "--database", table.url)
