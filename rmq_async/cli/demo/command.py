"""Defines ``rmq demo``."""

from __future__ import annotations

import logging

import click

from ..options import json_option, namesrv_option, run, timeout_option
from ..output import Output
from ..security import security_given, security_options, security_settings
from ..spark import needs_spark
from .run import run_demo
from .settings import MAX_MESSAGES, MAX_SIZE, MIN_SIZE, MODE_MESSAGES, SPARK_MESSAGES, DemoSettings, spark_too_much

__all__ = ["demo"]


@click.command(short_help="Send in every mode, read back, check that nothing is missing.")
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
    created on that cluster, and deleted again unless the demo fails.

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
    logging.getLogger("rmq_async").setLevel(logging.ERROR)  # warnings of the client would repeat what the demo counts
    return run(run_demo(settings, Output(as_json=as_json)))


def _demo_on_spark(namesrv: str | None, keep_topic: bool, messages: int, size: int, output: Output) -> int:
    if namesrv is not None or keep_topic or security_given():
        raise click.UsageError("--spark uses the broker in this process; leave out --namesrv, --keep-topic, user and TLS")
    if too_much := spark_too_much(messages, size):
        raise click.UsageError(too_much)
    needs_spark()
    logging.getLogger("rmq_async").setLevel(logging.ERROR)
    from .with_spark import run_spark_demo

    return run_spark_demo(messages, size, output)
