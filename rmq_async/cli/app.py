"""Lists the commands, and turns each error into one line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Final

import click

import rmq_async
from rmq_async import ConfigError, InvalidMessageError, RocketMQError

from . import INTERRUPTED
from .bench import bench
from .demo import DemoSettings, run_demo
from .demo.settings import MAX_MESSAGES, MAX_SIZE, MIN_SIZE, MODE_MESSAGES, SPARK_MESSAGES, spark_too_much
from .message import message
from .options import FAILED, WRONG_USE, json_option, namesrv_option, needs_command, run, timeout_option
from .outbox import outbox
from .output import Output
from .pull import pull
from .security import security_given, security_options, security_settings
from .send import send
from .server import MAX_BROKERS, MAX_MEGABYTES, run_server
from .simulate import simulate
from .spark import needs_spark, spark
from .topic import topic

__all__ = ["rmq", "run_command"]

TRACEBACK_VARIABLE: Final = "RMQ_TRACEBACK"


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; returns its exit code. Prints an error as one line on stderr."""
    with _logging_to_stderr():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = rmq.main(None if arguments is None else list(arguments), prog_name="rmq", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "rmq"
        return _print_error(f"{error.format_message()} (see {path} --help)", WRONG_USE, path)
    except click.ClickException as error:
        return _print_error(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _print_error("interrupted", INTERRUPTED)
    except (ConfigError, InvalidMessageError) as error:
        return _print_error(str(error), WRONG_USE)
    except (RocketMQError, OSError) as error:
        return _print_error(str(error) or type(error).__name__, FAILED)
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        return _print_error(f"{type(error).__name__}: {error} (a bug; {TRACEBACK_VARIABLE}=1 shows where)", FAILED)
    return code if isinstance(code, int) else 0


def _print_error(message: str, code: int, path: str = "rmq") -> int:
    click.echo(f"{path}: {' '.join(message.split())}", err=True)
    return code


@contextlib.contextmanager
def _logging_to_stderr() -> Iterator[None]:
    """Prints the client's warnings on stderr while a command runs, then restores the logging of the calling program."""
    logger = logging.getLogger("rmq_async")
    before = logger.handlers, logger.level, logger.propagate
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("rmq: %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: logger.warning("%s", message)
            yield
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


def _version() -> str:
    try:
        loop = f"uvloop {metadata.version('uvloop')}"
    except metadata.PackageNotFoundError:
        loop = "without uvloop"
    return f"rmq-async {rmq_async.__version__} (Python {platform.python_version()}, {loop})"


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0, 1 for failure, 2 for wrong use, 130 after Ctrl-C.",
)
@click.version_option(message="%(version)s", version=_version())
@click.pass_context
def rmq(context: click.Context) -> int:
    """Apache RocketMQ from the command line."""
    return needs_command(context)


@rmq.command(short_help="Send in every mode, read back, check that nothing is missing.")
@namesrv_option("Name servers of a cluster to use instead of the broker in this process.")
@timeout_option
@json_option
@security_options
@click.option(
    "--messages",
    type=click.IntRange(1, MAX_MESSAGES),
    metavar="N",
    help=f"Messages in each mode, default {MODE_MESSAGES}; with --spark in all, default {SPARK_MESSAGES}.",
)
@click.option(
    "--size",
    type=click.IntRange(MIN_SIZE, MAX_SIZE),
    default=128,
    show_default=True,
    metavar="BYTES",
    help="Size of a message's body.",
)
@click.option("--keep-topic", is_flag=True, help="Leave the topic and its messages on the cluster.")
@click.option("--spark", "on_spark", is_flag=True, help="Publish, read, archive, replay and reconcile on Spark instead.")
def demo(
    namesrv: str | None, timeout: float, as_json: bool, messages: int | None, size: int, keep_topic: bool, on_spark: bool
) -> int:
    """Send messages in every mode, read all of them back, and check that none is missing.

    Without --namesrv a broker is started inside this process, in memory; $NAMESRV_ADDR is not looked at. With --namesrv a topic is
    created on that cluster and deleted again.

    Ends within ten seconds. Exit code 1 if an acknowledged message is missing or damaged, or anything else failed.

    With --spark (extra `spark` and Java) a DataFrame goes to a topic of the broker in this process, is read back, archived as
    Parquet, replayed to a second topic, and both are reconciled with it; that takes half a minute, a third of it Spark's start.
    """
    if on_spark:
        return _demo_on_spark(namesrv, keep_topic, messages or SPARK_MESSAGES, size, Output(as_json=as_json))
    if namesrv is None and security_given():
        raise click.UsageError("the broker in this process knows neither users nor TLS: give --namesrv too")
    security = {} if namesrv is None else security_settings()
    settings = DemoSettings(
        namesrv=namesrv,
        security=security,
        timeout=timeout,
        messages=messages or MODE_MESSAGES,
        size=size,
        keep_topic=keep_topic,
    )
    too_much = settings.too_much()
    if too_much:
        raise click.UsageError(too_much)
    logging.getLogger("rmq_async").setLevel(logging.ERROR)  # warnings of the client would only say what the demo counts anyway
    return run(run_demo(settings, Output(as_json=as_json)))


def _demo_on_spark(namesrv: str | None, keep_topic: bool, messages: int, size: int, output: Output) -> int:
    if namesrv is not None or keep_topic or security_given():
        raise click.UsageError("--spark runs on the broker in this process: no --namesrv, --keep-topic, user or TLS")
    if too_much := spark_too_much(messages, size):
        raise click.UsageError(too_much)
    needs_spark()
    logging.getLogger("rmq_async").setLevel(logging.ERROR)
    from .demo.with_spark import run_spark_demo

    return run_spark_demo(messages, size, output)


@rmq.command(short_help="Run a name server and brokers in memory.")
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
    help="MiB of messages kept; above it the oldest go.",
)
def server(as_json: bool, host: str, port: int, brokers: int, max_memory: int) -> int:
    """Run a name server and brokers in memory, for development and tests, until SIGTERM or Ctrl-C.

    Brokers listen on free ports; clients find them through the name server. Nothing is written to disk. There is no access
    control: every client that can reach the address can read and write everything.
    """
    return rmq_async.run(run_server(host, port, brokers, max_memory, Output(as_json=as_json)))


for command in (send, pull, bench, topic, message, outbox, simulate, spark):
    rmq.add_command(command)
