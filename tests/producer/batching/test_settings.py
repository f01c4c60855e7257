"""The settings of batching, and batching beside other settings of a producer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import Batching, ConfigError, Credentials, Message, MessageQueue, Producer

from ...support.fakes import TOPIC, Cluster
from ..support import message, messages, producer
from .support import at_rest, numbers


async def test_batches_are_signed(cluster: Cluster) -> None:
    credentials = Credentials("access", "secret-of-the-batching-tests")
    async with producer(cluster, batching=True, topics=[TOPIC], credentials=credentials) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(5)])
        await sender.send(message())
    assert numbers(cluster) == [5, 1]
    assert all("Signature" in (sent.command.ext_fields or {}) for sent in cluster.sends)


async def test_namespaces(cluster: Cluster) -> None:
    cluster.name_server.routes["ns%T"] = cluster.route()
    async with producer(cluster, batching=True, namespace="ns", topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert numbers(cluster) == [5]
    assert cluster.sends[0].fields["b"] == "ns%T"
    assert {result.queue.topic for result in results} == {TOPIC}


async def test_a_selector_of_the_producer_is_asked_for_each_message(cluster: Cluster) -> None:
    asked: list[bytes] = []

    def choose(queues: Any, item: Message, key: Any) -> MessageQueue:
        asked.append(item.body)
        return queues[int(item.body) % len(queues)]

    async with producer(cluster, batching=True, queue_selector=choose, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(10)])
        assert at_rest(sender)
    assert asked == [item.body for item in messages(10)]
    assert [result.queue.queue_id for result in results] == [0, 1] * 5
    assert numbers(cluster) == [5, 5]


def test_settings_are_checked() -> None:
    for wrong in (
        {"max_bytes": 0}, {"max_messages": 0}, {"linger": -1.0}, {"max_pending_bytes": 0}, {"lanes_per_broker": 0},
        {"max_bytes": True},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            Batching(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batching"):
        Producer("group", namesrv="127.0.0.1:1", batching=1)
    assert Batching() == Batching(max_bytes=256 * 1024, max_messages=1024, linger=0.0, max_pending_bytes=32 * 1024 * 1024)
