"""The broker that a benchmark runs on: one of its own, or a running one, with a topic, and how many messages that holds."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from support.bare_loop import BareError, BareProducer, connect, route_of

if TYPE_CHECKING:
    from rmq_async.testing.cluster import RealCluster
    from rmq_protocol.signing import SessionCredentials

__all__ = [
    "QUEUES",
    "STORED_OVERHEAD",
    "BenchmarkError",
    "Target",
    "check_disk",
    "create_topic",
    "started_cluster",
    "stored_messages",
    "target",
]

QUEUES: Final = 8
DISK_LIMIT: Final = 0.88
"""Fuller than this nothing is started: from 85 % on a broker deletes messages, at 90 % it refuses them."""
STORED_OVERHEAD: Final = 240
"""Bytes a small message takes in the store besides its body, index entry included; rounded up."""
UPDATE_TOPIC: Final = 17


class BenchmarkError(Exception):
    """Why no figures can be given."""


class Target(NamedTuple):
    """``directory``: where the broker's store is, when it is ours. ``credentials``: of a broker that refuses unsigned requests."""

    namesrv: str
    broker_pid: int | None = None
    directory: Path | None = None
    credentials: SessionCredentials | None = None


@contextmanager
def target(options: argparse.Namespace) -> Iterator[Target]:
    """The cluster to measure on; ours is started here and gone afterwards, store included."""
    if options.namesrv:
        yield Target(options.namesrv, options.broker_pid)
        return
    with started_cluster("stock") as cluster:
        broker = cluster.brokers[0]
        yield Target(cluster.namesrv, broker.pid, broker.directory)


@contextmanager
def started_cluster(profile: str, *, small: bool = False) -> Iterator[RealCluster]:
    """A cluster of one broker in its own processes, which ends with the block. Raises BenchmarkError where it does not start."""
    from rmq_async.testing.cluster import ClusterError, RealCluster

    check_disk(Path(tempfile.gettempdir()))
    cluster = RealCluster(profile=profile, small=small)
    try:
        asyncio.run(cluster.start())
    except ClusterError as error:
        raise BenchmarkError(f"no cluster: {error}") from error
    try:
        yield cluster
    finally:
        asyncio.run(cluster.stop())


def check_disk(directory: Path) -> None:
    usage = shutil.disk_usage(directory)
    share = usage.used / (usage.used + usage.free)
    if share > DISK_LIMIT:
        raise BenchmarkError(f"the disk of {directory} is {share:.0%} full; above {DISK_LIMIT:.0%} nothing is measured")


async def create_topic(namesrv: str, topic: str, credentials: SessionCredentials | None = None) -> None:
    """Gives the first broker the topic and waits until the name server knows it."""
    try:
        if (await route_of(namesrv, topic)).queues == QUEUES:
            return
    except BareError:
        pass
    broker = await connect((await route_of(namesrv, "TBW102")).address, credentials)
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES)}
    fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    await broker.ask(UPDATE_TOPIC, fields)
    broker.transport.close()
    deadline = time.monotonic() + 30
    while True:
        try:
            if (await route_of(namesrv, topic)).queues == QUEUES:
                return
        except BareError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


async def stored_messages(
    namesrv: str, topic: str, at_least: int = 0, patience: float = 10.0, *, credentials: SessionCredentials | None = None
) -> int:
    """How many messages the topic holds, by the broker's offsets. The broker indexes after it answers, so look again until
    there are ``at_least`` so many, or nothing has changed for a second, or patience ends."""
    producer = BareProducer(topic, credentials=credentials)
    await producer.start(namesrv)
    deadline = time.monotonic() + patience
    found, since = -1, time.monotonic()
    while True:
        now = time.monotonic()
        count = await producer.max_offsets()
        if count != found:
            found, since = count, now
        if (found >= at_least and now - since > 0.1) or now - since > 1.0 or now > deadline:
            await producer.stop()
            return found
        await asyncio.sleep(0.05)
