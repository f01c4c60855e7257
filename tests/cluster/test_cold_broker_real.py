"""Many first sends at once to a stock broker that has just started and refuses what waits there for 200 ms."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest

from rmq_async import Admin, Message, Producer, run
from rmq_async.testing.cluster import DEFAULT_VERSION, OLD_VERSION, RealCluster

from .accounting import stored_count
from .conftest import NO_TIMERS, started

SENDS = 20_000
RETRIED = SENDS // 2
"""Without a window that begins small, more of them are sent more than once. With it 82 are on a quiet machine (``benchmarks/cold.py
--check`` has that limit); a busy machine stops the broker for 200 ms at times, which then refuses all that waits."""


@pytest.mark.parametrize("version", [DEFAULT_VERSION, pytest.param(OLD_VERSION, marks=pytest.mark.deep)])
def test_first_sends_to_a_stock_broker_that_has_just_started(version: str) -> None:
    """The time is 25 times what the sends take on a quiet machine."""

    async def main(cluster: RealCluster) -> None:
        async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
            await admin.create_topic("Cold", queues=8)
        async with Producer("cold", namesrv=cluster.namesrv, timeout=60.0) as producer:
            results = await asyncio.gather(*[producer.send(Message("Cold", b"x" * 128)) for _ in range(SENDS)])
        retried = sum(result.attempts > 1 for result in results)
        print(f"{version}: {retried} of {SENDS} sends were sent more than once")
        assert retried < RETRIED
        assert await stored_count(cluster.namesrv, "Cold", SENDS) == SENDS

    with contextmanager(started)(RealCluster(version=version, profile="stock", broker_conf=NO_TIMERS)) as cluster:
        run(main(cluster))
