"""The command ``rmq server``: runs the embedded name server and brokers as a separate process."""

from __future__ import annotations

import resource
from typing import Final

import click

import rmq_async
from rmq_async.embedded import MAX_BROKERS, EmbeddedRocketMQ

from .options import json_option
from .output import Output
from .signals import ended_by_signal

__all__ = ["server"]

MAX_MEGABYTES: Final = 1 << 20
DESCRIPTORS: Final = 65_536


@click.command(short_help="Run a name server and brokers in memory.")
@json_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9876, show_default=True, help="Port of the name server; 0: a free one."
)
@click.option("--brokers", type=click.IntRange(1, MAX_BROKERS), default=1, show_default=True, help="Number of brokers.")
@click.option(
    "--max-memory",
    type=click.IntRange(1, MAX_MEGABYTES),
    default=256,
    show_default=True,
    help="MiB of messages that are kept; above it the oldest are dropped.",
)
def server(as_json: bool, host: str, port: int, brokers: int, max_memory: int) -> int:
    """Run a name server and brokers in memory, for development and tests, until SIGTERM or Ctrl-C.

    Brokers listen on free ports; clients find them through the name server. Nothing is written to disk. There is no access
    control: every client that can reach the address can read and write everything.
    """
    return rmq_async.run(run_server(host, port, brokers, max_memory, Output(as_json=as_json)))


async def run_server(host: str, port: int, brokers: int, megabytes: int, output: Output) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit code 0. ``megabytes``: MiB of messages that are kept. Raises OSError,
    which names the address, where it cannot listen."""
    _allow_many_connections()
    server = EmbeddedRocketMQ(host=host, port=port, brokers=brokers, max_memory=megabytes << 20)
    with ended_by_signal() as ended:
        try:
            await server.start()
        except OSError as error:
            why = error.strerror or error
            raise OSError(f"cannot listen on {host}:{port}: {why}; give another --port (0: a free one) or --host") from error
        except UnicodeError as error:
            raise OSError(f"cannot listen on {host}:{port}: {host!r} is no host name; give a name or an address") from error
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
    """Raises the limit of descriptors, which many shells set to 1024, to 65,536 or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
