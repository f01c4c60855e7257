"""Sends to queues that rows name: those that do not exist, and those of brokers that are in no route for a while."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from rmq_async import Admin, BrokerNotFoundError
from rmq_async.embedded import EmbeddedRocketMQ

from ..conftest import Loop, Topics
from .support import Write, options_of, rows

pytest.importorskip("pyspark")

from rmq_async.spark.rows import blocks_of
from rmq_async.spark.sending import Sending
from rmq_async.spark.worker import Worker


@pytest.mark.parametrize(("broker", "number"), [("broker-x", 0), ("broker-a", 4)])
def test_send_to_a_queue_that_does_not_exist(
    write: Write, topics: Topics, servers: EmbeddedRocketMQ, broker: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.spark.sending.ABSENT_PATIENCE", 0.5)
    topic = topics.make()
    started = monotonic()
    with pytest.raises(BrokerNotFoundError) as caught:
        write(topic, rows(1, brokerName=[broker], queueId=[number]))
    assert monotonic() - started < 25  # sendTimeoutMs is 30 s
    first = ", ".join(f"{topic}/broker-a/{number}" for number in range(4))
    assert f"no queue {topic}/{broker}/{number} to write to" in str(caught.value)
    assert str(caught.value).endswith(f"must name one of {first} and 4 more")
    servers.resize(topic, 5)  # a queue that the producer's own route does not have yet
    assert write(topic, rows(1, brokerName=["broker-a"], queueId=[4])).rows == 1


@pytest.mark.parametrize("known", [True, False], ids=["later micro-batch", "first task"])
def test_send_to_a_queue_of_a_broker_that_comes_back(
    here: Worker, topics: Topics, servers: EmbeddedRocketMQ, loop: Loop, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no route meanwhile. An earlier micro-batch may have sent to it, and then it is waited for in any case."""
    if known:
        monkeypatch.setattr("rmq_async.spark.sending.ABSENT_PATIENCE", 0.0)

    async def make(broker: str) -> None:
        async with Admin(namesrv=servers.namesrv) as admin:
            await admin.create_topic(topic, queues=1, broker=broker)

    topic = f"half-{known}"
    loop.run(make("broker-a"))
    options = options_of(servers.namesrv, topic, {})
    sending = Sending(here, here.producer(options), options, queues_known=known)
    coming = threading.Timer(0.5, lambda: loop.run(make("broker-b")))
    coming.start()
    try:
        for block in blocks_of(iter([rows(1, brokerName=["broker-b"], queueId=[0])]), options, "job", 0):
            sending.send(block)
        sending.finish()
    finally:
        sending.close()
        coming.join()
    assert [message.queue.broker_name for message in topics.read(topic)] == ["broker-b"]
