"""Members of ``(str, Enum)`` and ``(int, Enum)`` as arguments: since Python 3.11 formatting one gives its name, of which it has the
hash too. They count as their texts and numbers."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from rmq_async import (
    Admin,
    ClientConfig,
    Consumer,
    InvalidMessageError,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    Retry,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.message import MAX_DELAY_LEVEL
from rmq_protocol.properties import decode_properties, message_properties

pytestmark = pytest.mark.interpreters


class S(str, Enum):  # noqa: UP042 - the subject: a StrEnum formats as its text
    TOPIC = "Orders"
    GROUP = "billing"
    READERS = "readers"
    NAMESPACE = "shop"
    NAME = "one"
    TAG = "paid"
    KEY = "order-17"
    PROPERTY = "region"
    VALUE = "eu"
    SHARD = "customer-3"
    UNIQUE = "7F00000132EF3E54914F9006811329A0"
    BROKER = "broker-a"
    EARLIEST = "earliest"
    TYPE = "zlib"
    UNIT = "left"
    ATTRIBUTE = "message.type"
    FIFO = "FIFO"
    ORDER = "queue"


class N(int, Enum):
    ZERO = 0
    ONE = 1
    TWO = 2
    FIVE = 5
    MANY = 32


FIELDS: dict[str, Any] = {
    "tags": S.TAG,
    "keys": [S.KEY, "k2"],
    "properties": {S.PROPERTY: S.VALUE},
    "sharding_key": S.SHARD,
    "unique_id": S.UNIQUE,
    "flag": N.FIVE,
    "delay_level": N.TWO,
}


def test_message_holds_plain_values() -> None:
    message = Message(S.TOPIC, b"x", **FIELDS)
    assert type(message.topic) is str
    assert {type(message.flag), type(message.delay_level)} == {int}
    assert message == Message(
        "Orders",
        b"x",
        tags="paid",
        keys=["order-17", "k2"],
        properties={"region": "eu"},
        sharding_key="customer-3",
        unique_id="7F00000132EF3E54914F9006811329A0",
        flag=5,
        delay_level=2,
    )
    assert decode_properties(message_properties(message, "id"))["DELAY"] == "2"
    assert Message(S.TOPIC, b"x", delay_level=N.ZERO) == Message("Orders", b"x")


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("field", ["delay_level", "flag"])
def test_truth_value_is_no_number(field: str, value: bool) -> None:
    with pytest.raises(InvalidMessageError, match=f"{field} must be a.* integer.*, not {value}"):
        Message("T", b"x", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [-1, MAX_DELAY_LEVEL + 1, 1.0, "1"])
def test_level_that_is_none(level: Any) -> None:
    with pytest.raises(InvalidMessageError, match="delay_level must be an integer from 0"):
        Message("T", b"x", delay_level=level)


@pytest.mark.virtual_time
@pytest.mark.parametrize("namespace", [None, S.NAMESPACE])
async def test_arguments_count_as_their_values(namespace: Any) -> None:
    async with EmbeddedRocketMQ() as server:
        config = ClientConfig(
            namesrv=[server.namesrv], namespace=namespace, instance_name=S.NAME, unit_name=S.UNIT, max_frame_size=1 << 20
        )
        wire = "shop%Orders" if namespace else "Orders"
        async with Admin(client=config) as admin:
            await admin.create_topic(S.TOPIC, queues=N.TWO, broker=S.BROKER, attributes={S.ATTRIBUTE: S.FIFO})
            await admin.create_group(S.GROUP, retry_queue_nums=N.ONE)
            async with Producer(
                S.GROUP, client=config, retries=N.ONE, compress_type=S.TYPE, topics=[S.TOPIC], default_topic_queues=N.TWO
            ) as producer:
                sent = [
                    await producer.send(Message(S.TOPIC, b"0", **{**FIELDS, "delay_level": N.ZERO})),
                    await producer.send(Message(S.TOPIC, b"1"), key=S.KEY),
                    await producer.send(Message(S.TOPIC, b"2"), queue=MessageQueue(S.TOPIC, S.BROKER, N.ONE)),
                ]
                assert len(await producer.fetch_publish_queues(S.TOPIC)) == 2
            assert {message.topic for message in server.messages(wire)} == {wire}
            assert len(server.messages(wire)) == 3
            assert {each.topic for each in await admin.query_message(S.TOPIC, S.KEY)} == {"Orders"}
            assert (await admin.view_message(S.TOPIC, S.UNIQUE)).body == b"0"
            assert {each.queue.queue_id for each in sent} == {0, 1}
            assert {type(each.queue.queue_id) for each in sent} == {int}

            for options, subscribing in (
                ({"mode": "pull"}, {}),
                ({"mode": "pop"}, {}),
                ({}, {"order": S.ORDER}),
                ({}, {"batch_size": N.TWO}),
            ):
                taken: list[bytes] = []

                async def handler(given: Any, taken: list[bytes] = taken) -> None:
                    taken.extend([given.body] if isinstance(given, MessageExt) else [message.body for message in given])

                consumer = Consumer(
                    S.GROUP, client=config, start_from=S.EARLIEST, concurrency=N.FIVE, pull_size=N.MANY, retry=Retry(limit=N.ONE),
                    **options,
                )  # fmt: skip
                consumer.subscribe(S.TOPIC, handler, **subscribing)
                async with consumer:
                    await consumer.wait_settled(3)
                    if options.get("mode") != "pop":
                        consumer.pause(S.TOPIC)
                        consumer.resume(S.TOPIC)
                        await consumer.seek(MessageQueue(S.TOPIC, S.BROKER, N.ONE), S.EARLIEST)
                assert sorted(taken)[:1] == [b"0"]
                assert (await admin.group_lag(S.GROUP, S.TOPIC)).messages <= 3
                await admin.reset_offsets(S.GROUP, S.TOPIC, S.EARLIEST)

            async with PullConsumer(S.READERS, client=config) as reader:
                queue = MessageQueue(S.TOPIC, S.BROKER, N.ONE)
                assert (await reader.pull(queue, N.ZERO, max_messages=N.FIVE)).messages
                assert len([each async for each in reader.read(S.TOPIC)]) == 3
                assert [
                    each.queue.queue_id async for each in reader.read(S.TOPIC, start={queue: N.ZERO}, end={queue: N.ONE})
                ] == [1]
            by_hand = Consumer(S.GROUP, client=config, topics=[S.TOPIC])
            async with by_hand:
                taken_by_hand = await by_hand.receive(N.ONE, timeout=5.0)
                assert by_hand.done(*taken_by_hand)
            changes = await admin.reset_offsets(S.GROUP, S.TOPIC, {queue: N.ZERO})
            assert [(change.queue, change.after) for change in changes] == [(MessageQueue("Orders", "broker-a", 1), 0)]
