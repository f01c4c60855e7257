"""The command ``rmq server``: runs the embedded name server and brokers as a separate process."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

import click

import rmq_async
from rmq_async import Admin
from rmq_async.embedded import MAX_BROKERS, SECOND_BELOW, EmbeddedRocketMQ, broker_ports

from .options import json_option, number_option, pass_options
from .output import Output
from .signals import ended_by_signal

MAX_MEGABYTES: Final = 1 << 20
DESCRIPTORS: Final = 65_536
QUEUES: Final = 4
"""Number of queues of a topic on each broker. The first send to a missing topic would create the same number."""


@dataclass(frozen=True, kw_only=True)
class _ServerOptions:
    as_json: bool
    host: str
    port: int
    brokers: int
    broker_port: int
    topics: tuple[str, ...]
    max_memory: int


@click.command(short_help="Run a name server and brokers in memory.")
@json_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@number_option("--port", least=0, most=65535, default=9876, metavar=None, help="Port of the name server; 0: a free one.")
@number_option("--brokers", most=MAX_BROKERS, default=1, metavar=None, help="Number of brokers.")
@number_option(
    "--broker-port",
    least=0,
    most=65535,
    default=0,
    metavar=None,
    help="Port of the first broker, which also uses the port two below. Each further broker's port is ten higher. 0: free ports.",
)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    help=f"Create TOPIC with {QUEUES} queues on each broker at the start; may be given again.",
)
@number_option(
    "--max-memory",
    most=MAX_MEGABYTES,
    default=256,
    metavar=None,
    help="Maximum MiB of messages. Above it, the oldest messages are deleted.",
)
@pass_options(_ServerOptions)
def server(options: _ServerOptions) -> int:
    """Run a name server and brokers in memory, for development and tests, until SIGTERM or Ctrl-C.

    Clients find the brokers through the name server. Nothing is written to disk: after a new start, there are no messages, and
    only the given topics exist. Clients that were already running find the new servers if --port and --broker-port are the same
    as before. There is no access control: every client that can reach the address can read and write everything.
    """
    return rmq_async.run(_serve(options, Output(as_json=options.as_json)))


async def _serve(options: _ServerOptions, output: Output) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code 0.

    Raises:
        UsageError: If --broker-port leads to invalid ports.
        OSError: If a server cannot listen. The message names the address.
        InvalidMessageError: For an invalid topic.
    """
    _allow_many_connections()
    try:
        server = EmbeddedRocketMQ(
            host=options.host,
            port=options.port,
            brokers=options.brokers,
            broker_port=options.broker_port,
            max_memory=options.max_memory << 20,
        )
    except ValueError as error:  # the other numbers have already been checked
        raise click.BadParameter(str(error), param_hint="--broker-port") from None
    with ended_by_signal() as ended:
        try:
            await server.start()
        except OSError as error:
            raise OSError(_refusal(options, len(server.brokers), error)) from error
        try:
            await _create(options.topics, server.namesrv)
            output.record({"namesrv": server.namesrv, "brokers": server.brokers})
            output.line(f"name server {server.namesrv}")
            for name, address in server.brokers.items():
                output.line(f"{name} {address}")
            output.line("Messages are kept in memory until this ends: Ctrl-C or SIGTERM.")
            await ended.wait()
        finally:
            await server.stop()
    return 0


def _refusal(options: _ServerOptions, started: int, error: OSError) -> str:
    """Describe why a server cannot listen.

    Args:
        started: Number of brokers that have started to listen.
    """
    why = error.strerror or error
    if options.broker_port and started < options.brokers:
        port = broker_ports(options.broker_port, options.brokers)[started]
        where = f"{options.host}:{port} and {port - SECOND_BELOW}, the ports of a broker"
        return f"cannot listen on {where}: {why}; give another --broker-port (0: free ones) or --host"
    return f"cannot listen on {options.host}:{options.port}: {why}; give another --port (0: a free one) or --host"


async def _create(topics: tuple[str, ...], namesrv: str) -> None:
    """Create topics.

    Raises:
        InvalidMessageError: For an invalid name.
    """
    if topics:
        async with Admin(namesrv=namesrv) as admin:
            for topic in topics:
                await admin.create_topic(topic, queues=QUEUES)


def _allow_many_connections() -> None:
    """Raise the limit of descriptors, which many shells set to 1024, to 65,536 or to the highest value that the system
    allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
