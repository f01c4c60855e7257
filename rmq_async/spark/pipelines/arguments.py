"""Checks and converts arguments of pipelines (options, windows of time, columns), and runs requests of an admin client for
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import closing
from datetime import datetime
from typing import Any, Final, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as sql

from rmq_async._text import printable
from rmq_async._threads import ThreadPool
from rmq_async.admin import Admin
from rmq_async.errors import BrokerNotFoundError, ConfigError
from rmq_async.spark.connection import Access, client_config
from rmq_async.spark.options import BY_NAME, Use, read_options
from rmq_async.spark.renewal import current
from rmq_protocol.constants import MASTER_ID

T = TypeVar("T")

_SUBJECTS: Final = frozenset({"topic", "subscribe", "subscribepattern", "assign"})


def options_for(use: Use, options: Mapping[str, str], **over: object) -> dict[str, str]:
    """Return ``options`` without the options of other uses.

    Options in ``over`` that are not None are added, and replace options with the same name.
    """
    others = {name for name, option in BY_NAME.items() if use not in option.uses}
    fitting = {name: value for name, value in options.items() if name.lower() not in others}
    chosen = {name: str(value) for name, value in over.items() if value is not None}
    lower = {name.lower() for name in chosen}
    return {name: value for name, value in fitting.items() if name.lower() not in lower} | chosen


def refuse_topics(options: Mapping[str, str]) -> None:
    """Raise ConfigError for options that name topics, because a pipeline has arguments for topics."""
    if given := sorted(name for name in options if name.lower() in _SUBJECTS):
        raise ConfigError(
            f"option {given[0]} does not apply to this pipeline; name the topics by the arguments of the pipeline"
        )


def refuse_replicas(options: Mapping[str, str], why: str) -> None:
    """Raise ConfigError if the option ``offsetsFromReplicas`` is given.

    Args:
        why: The consequence of missing messages, for the error message.
    """
    if any(name.lower() == "offsetsfromreplicas" for name in options):
        raise ConfigError(
            f"option offsetsFromReplicas does not apply to this pipeline: a replica may lack messages, and {why}; leave it out"
        )


def check_topics(options: Mapping[str, str], topics: Iterable[str]) -> None:
    """Raise TopicNotFoundError for a topic that does not exist. Raise the errors of ``ask``, too."""
    names = tuple(topics)

    async def routes(admin: Admin) -> None:
        for name in names:
            await admin.topic_route(name)

    ask(options, routes)


async def check_masters(admin: Admin, topic: str) -> None:
    """Raise BrokerNotFoundError if a broker of the topic has no master now, because its figures would come from a replica.

    This function reads the list of brokers, because a route may name a replica as an acting master.
    """
    route, known = await admin.topic_route(topic), (await admin.cluster_info()).broker_addr_table
    for data in route.broker_datas:
        if data.broker_name not in known or MASTER_ID not in known[data.broker_name].broker_addrs:
            raise BrokerNotFoundError(
                f"broker {printable(data.broker_name)} of topic {topic} has no master now, and its replicas may lack messages; "
                "run again when it has a master",
                broker=data.broker_name,
            )


def window(since: datetime | None, until: datetime | None) -> dict[str, str]:
    """Return the options of a batch read for messages stored at ``since`` or later and before ``until``.

    Raises:
        ConfigError: For a time without a zone, and for an empty window.
    """
    bounds = {}
    if since is not None:
        bounds = {"startingTimestamp": _epoch_ms(since), "startingOffsetsByTimestampStrategy": "latest"}
    if until is not None:
        bounds["endingTimestamp"] = _epoch_ms(until)
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"the window from {since.isoformat()} to {until.isoformat()} is empty; give a later end")
    return bounds


def _epoch_ms(when: datetime) -> str:
    if when.tzinfo is None:
        raise ConfigError(f"{when.isoformat()} has no time zone; give an aware datetime")
    return str(round(when.timestamp() * 1000))


def ask(options: Mapping[str, str], question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Run ``question`` with an admin client of the options' cluster, and return its result.

    Raises:
        ConfigError: For invalid options, and in the same cases as ``ask_at``.
    """
    return ask_at(read_options(options_for("batch read", options, topic="any"), streaming=False).access, question)


def ask_at(access: Access, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Run ``question`` with an admin client and return its result. This also works while a loop runs in the thread, as in a
    notebook.

    Raise the errors of ``question``, too.

    Raises:
        ConfigError: For settings that cannot be used.
    """

    async def asking() -> T:
        async with Admin(client=client_config(current(access))) as admin:
            return await question(admin)

    with closing(ThreadPool(1, "rmq_async spark question")) as thread:
        return thread.submit(lambda: asyncio.run(asking())).result()


def column(option: str, name: str, columns: Iterable[str]) -> Column:
    """Return the column that an option names. Raise ConfigError, which lists the existing columns, if the column does not
    exist.
    """
    there = list(columns)
    if name.lower() not in (one.lower() for one in there):
        raise ConfigError(f"{option}: there is no column {name!r}, only {', '.join(there)}")
    return sql.col("`" + name.replace("`", "``") + "`")
