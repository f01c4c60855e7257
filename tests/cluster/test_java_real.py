"""The same Java program against the real 5.5.0 and against the embedded broker: it must see the same, ids and times aside."""

from __future__ import annotations

import asyncio
import json

import pytest

from rmq_async.testing.cluster import RealCluster

from ..support.java.allocations import VECTORS, computed
from ..support.java.expected import KEY_LINES, missing_key_lines
from ..support.java.program import (
    CHECK_INTERVAL,
    CHECK_MAX,
    CHECK_TIMEOUT,
    Record,
    against_embedded,
    observe,
    require_javac,
    start_against_embedded,
    strange_replies,
)

TRANSACTIONS = {
    "transactionTimeOut": f"{CHECK_TIMEOUT * 1000:.0f}",
    "transactionCheckInterval": f"{CHECK_INTERVAL * 1000:.0f}",
    "transactionCheckMax": str(CHECK_MAX),
    # Without these two a broker spins one core from the first ended transaction on.
    "transactionOpMsgMaxSize": "1",
    "transactionOpBatchInterval": "3600000",
}


@pytest.fixture(scope="module")
def real() -> Record:
    require_javac()
    start_against_embedded()

    async def run() -> Record:
        async with RealCluster(broker_conf={**TRANSACTIONS, "recallMessageEnable": "true"}) as cluster:
            return await observe(cluster.namesrv)

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(run())


@pytest.mark.parametrize("case", KEY_LINES)
def test_the_java_program_sees_the_same_on_a_real_broker_and_on_the_embedded_one(case: str, real: Record) -> None:
    assert not missing_key_lines(case, real.lines.get(case, [])), "\n".join([*real.lines.get(case, []), real.errors[-6000:]])
    assert against_embedded().lines[case] == real.lines[case]


def test_both_give_our_consumer_the_same_messages_from_java(real: Record) -> None:
    def content(record: Record) -> list[tuple[object, ...]]:
        return sorted((each.body, each.tags or "", each.keys, each.flag, each.queue.queue_id) for each in record.received)

    assert content(real) == content(against_embedded())
    assert len(real.received) == 8


def test_java_replies_to_what_our_producer_asks(real: Record) -> None:
    assert not strange_replies(real)


async def test_shares_of_queues_are_those_of_the_official_strategies() -> None:
    """Those that our strategies are compared with, made anew."""
    require_javac()
    assert await computed() == json.loads(VECTORS.read_text())
