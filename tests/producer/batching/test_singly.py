"""Messages that take no part in batching."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import Message, TransactionProducer, TransactionStatus

from ...support.fakes import TOPIC, Cluster
from ..support import message, messages, outcomes, producer, until
from .support import BATCH, at_rest, numbers

pytestmark = pytest.mark.virtual_time

SINGLE: dict[str, Callable[[], Message]] = {
    "a body over the compression threshold": lambda: message(b"x" * 4096),
    "a delay level": lambda: message(delay_level=3),
    "a delay": lambda: message(delay=5.0),
    "a time": lambda: message(deliver_at=2e9),
    "a retry topic": lambda: message(topic="%RETRY%group"),
}


@pytest.mark.parametrize("kind", SINGLE)
async def test_goes_singly(cluster: Cluster, kind: str) -> None:
    item = SINGLE[kind]()
    cluster.name_server.routes[item.topic] = cluster.route()
    async with producer(cluster, batching=True) as sender:
        await sender.fetch_publish_queues(TOPIC)
        await outcomes(*[sender.send(item) for _ in range(3)], *[sender.send(item, queue=cluster.queue()) for _ in range(3)])
        await outcomes(*[await sender.send_async(item) for _ in range(3)] if item.topic == TOPIC else ())
        assert at_rest(sender)
    assert BATCH not in {sent.code for sent in cluster.sends}
    assert len(cluster.sends) >= 6 or item.topic != TOPIC


async def test_transactional_messages_go_singly(cluster: Cluster) -> None:
    async def commit(*_: Any) -> TransactionStatus:
        return TransactionStatus.COMMIT

    whole = TransactionProducer("group", execute=commit, check=commit, namesrv=cluster.namesrv, batching=True)
    async with whole as sender:
        await outcomes(*[sender.send_in_transaction(item) for item in messages(5)])
    assert numbers(cluster) == [1] * 5


async def test_oneway_sends_do_not_gather(cluster: Cluster) -> None:
    async with producer(cluster, batching=True) as sender:
        await asyncio.gather(*[sender.send_oneway(item) for item in messages(5)])
        await sender.flush()
        await until(lambda: len(cluster.sends) == 5)
    assert numbers(cluster) == [1] * 5


async def test_a_producer_gathers_nothing_unless_it_is_set_to(cluster: Cluster) -> None:
    async with producer(cluster, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(10)])
    assert numbers(cluster) == [1] * 10
