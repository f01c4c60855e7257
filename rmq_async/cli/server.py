"""``rmq server``: runs the embedded name server and brokers as a process of their own."""

from __future__ import annotations

import asyncio
import resource
import signal
from typing import Final

from rmq_async.embedded import MAX_BROKERS, EmbeddedRocketMQ

from .output import Output

__all__ = ["MAX_BROKERS", "MAX_MEGABYTES", "run_server"]

MAX_MEGABYTES: Final = 1 << 20
DESCRIPTORS: Final = 65_536


async def run_server(host: str, port: int, brokers: int, megabytes: int, output: Output) -> int:
    """Serves until SIGTERM or SIGINT. ``megabytes``: MiB of messages that are kept. Raises OSError, which names the address,
    where it cannot listen."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    _allow_many_connections()
    server = EmbeddedRocketMQ(host=host, port=port, brokers=brokers, max_memory=megabytes << 20)
    try:
        await server.start()
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise OSError(f"cannot listen on {host}:{port}: that is no host name") from error
    try:
        output.record({"namesrv": server.namesrv, "brokers": server.brokers})
        output.line(f"name server {server.namesrv}")
        for name, address in server.brokers.items():
            output.line(f"{name} {address}")
        output.line("Messages are kept in memory until this ends: Ctrl-C or SIGTERM.")
        await ended.wait()
    finally:
        await server.stop()
    return 0


def _allow_many_connections() -> None:
    """Raises the limit of descriptors to the largest that the system allows; many shells set 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
