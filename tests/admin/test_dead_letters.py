"""Dead letters read and sent again from the outside, on embedded brokers."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_async import Admin, Consumer, DeadLetter, Message, MessageExt, MessageQueue, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import (
    ConfigError,
    InvalidMessageError,
    TopicNotFoundError,
)

from ..consumer.group.support import until
from .support import send, worker


async def test_resend_dead_letters_sends_each_once(server: EmbeddedRocketMQ, admin: Admin) -> None:
    assert await admin.dead_letters("billing") == ()
    assert await admin.resend_dead_letters("billing") == 0
    await send(server, *(b"bad %d" % number for number in range(5)))
    consumer, handled = worker(server)
    async with consumer:
        await consumer.wait_settled(5)
    found = await admin.dead_letters("billing")
    assert sorted(message.body for message in found) == [b"bad %d" % number for number in range(5)]
    assert len(await admin.dead_letters("billing", limit=2)) == 2
    assert await admin.resend_dead_letters("billing", limit=2) == 2
    assert len(await admin.dead_letters("billing")) == 3
    assert await admin.resend_dead_letters("billing") == 3
    assert await admin.dead_letters("billing") == ()
    again = server.messages("OrderTopic")
    assert len(again) == 10
    ids = {message.body: message.unique_id for message in again[:5]}
    for message in again:
        assert (message.tags, message.unique_id) == ("paid", ids.get(message.body, message.unique_id))
        assert message.keys == (f"k{message.body.split()[1].decode()}",)
    assert {message.unique_id for message in again if message.body == b"bad 1"} == {
        message.unique_id for message in found if message.body == b"bad 1"
    }
    assert (await admin.group_lag("billing")).messages == 5
    assert len(handled) == 5


async def dead_letters_of(server: EmbeddedRocketMQ, admin: Admin, *topics: str) -> list[str]:
    """Makes a dead letter of each topic, in this order on one broker; returns their ids."""
    for topic in dict.fromkeys(topics):
        await admin.create_topic(topic, queues=1, broker="broker-a")
    consumer = Consumer("billing", client=admin.config, start_from="earliest")

    async def refuse(message: MessageExt) -> None:
        raise DeadLetter

    for topic in dict.fromkeys(topics):
        consumer.subscribe(topic, refuse)
    ids = []
    async with consumer, Producer("orders", client=admin.config) as producer:
        for topic in topics:
            ids.append((await producer.send(Message(topic, b"bad"))).msg_id)
            await consumer.wait_settled(1)
    return ids


async def test_resend_dead_letters_passes_over_those_of_skipped_topics(
    server: EmbeddedRocketMQ, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await dead_letters_of(server, admin, "RefundTopic", "BillTopic", "RefundTopic", "BillTopic", "RefundTopic")
    await admin.delete_topic("RefundTopic")
    with pytest.raises(TopicNotFoundError, match="RefundTopic"):
        await admin.resend_dead_letters("billing")
    assert await admin.resend_dead_letters("billing", limit=1, skip_topics="RefundTopic") == 1
    assert [message.msg_id for message in await admin.dead_letters("billing")] == ids[2:]
    assert await admin.resend_dead_letters("billing", skip_topics=["OrderTopic", "RefundTopic"]) == 1
    assert await admin.dead_letters("billing") == ()
    assert await admin.resend_dead_letters("billing") == 0
    assert [message.msg_id for message in server.messages("BillTopic")] == [ids[1], ids[3]] * 2
    assert len(server.messages("%DLQ%billing")) == 5
    text = "group billing: {} dead letters were passed over, as skip_topics says; they stay in the dead-letter topic"
    assert [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()] == [
        text.format(1), text.format(2)
    ]  # fmt: skip


async def test_resend_dead_letters_in_a_namespace_passes_over_those_of_skipped_topics(server: EmbeddedRocketMQ) -> None:
    async with Admin(namesrv=server.namesrv, namespace="shop") as admin:
        ids = await dead_letters_of(server, admin, "RefundTopic", "BillTopic")
        await admin.delete_topic("RefundTopic")
        with pytest.raises(TopicNotFoundError) as caught:
            await admin.resend_dead_letters("billing")
        assert "the letters of topic RefundTopic (of namespace shop), give skip_topics" in caught.value.__notes__[0]
        assert await admin.resend_dead_letters("billing", skip_topics="RefundTopic") == 1
        assert [message.msg_id for message in server.messages("shop%BillTopic")] == [ids[1]] * 2


@pytest.mark.parametrize("topics", [None, 7, ["OrderTopic", 7], {"OrderTopic": 1}])
async def test_resend_dead_letters_with_wrong_topics_to_skip_raises(topics: Any, admin: Admin) -> None:
    with pytest.raises(ConfigError, match="skip_topics must be the name of a topic, or a sequence of names, not "):
        await admin.resend_dead_letters("billing", skip_topics=topics)
    with pytest.raises(InvalidMessageError, match="a b"):
        await admin.resend_dead_letters("billing", skip_topics=["a b"])


async def test_resend_dead_letters_of_a_deleted_topic_says_how_many_were_sent(server: EmbeddedRocketMQ, admin: Admin) -> None:
    ids = await dead_letters_of(server, admin, "BillTopic", "RefundTopic", "BillTopic")
    await admin.delete_topic("RefundTopic")
    with pytest.raises(TopicNotFoundError, match="RefundTopic") as caught:
        await admin.resend_dead_letters("billing")
    assert caught.value.__notes__ == [
        f"1 dead letters were sent before {ids[1]}, which the next call begins with; to pass over the letters of topic "
        "RefundTopic, give skip_topics (rmq group resend --skip-topic)"
    ]
    await admin.create_topic("RefundTopic", queues=1)
    assert await admin.resend_dead_letters("billing") == 2


async def test_resend_dead_letters_with_a_sharding_key_goes_to_its_queue(server: EmbeddedRocketMQ, admin: Admin) -> None:
    keys = [f"customer-{number}" for number in range(8)]
    async with Producer("orders", namesrv=server.namesrv) as producer:
        for key in keys:
            await producer.send(Message("OrderTopic", b"bad " + key.encode(), sharding_key=key))
    consumer, _ = worker(server)
    async with consumer:
        await consumer.wait_settled(len(keys))
    assert await admin.resend_dead_letters("billing") == len(keys)
    queues: dict[str | None, set[MessageQueue]] = {}
    for message in server.messages("OrderTopic"):
        queues.setdefault(message.sharding_key, set()).add(message.queue)
    assert queues.keys() == {*keys}
    assert len(server.messages("OrderTopic")) == 2 * len(keys)
    assert all(len(each) == 1 for each in queues.values())
    assert len(set.union(*queues.values())) > 1


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_resend_dead_letters_compresses_what_was_compressed(server: EmbeddedRocketMQ, admin: Admin, kind: str) -> None:
    body = b"bad" + bytes(5 << 20)  # above the broker's limit, unless it is compressed
    async with Producer("orders", namesrv=server.namesrv, compress_type=kind, max_message_size=6 << 20) as producer:
        await producer.send(Message("OrderTopic", body))
    await send(server, b"bad and plain")
    consumer, _ = worker(server)
    async with consumer:
        await consumer.wait_settled(2)
    assert await admin.resend_dead_letters("billing") == 2
    again = server.messages("OrderTopic")
    assert sorted(len(message.body) for message in again) == [13, 13, len(body), len(body)]
    for message in again:
        small = len(message.body) == 13
        assert message.body.startswith(b"bad")
        assert (message.store_size < 100_000, bool(message.sys_flag & 0x700)) == (True, not small)


async def test_resend_dead_letters_ends_beside_a_member_that_dead_letters_them_again(
    server: EmbeddedRocketMQ, admin: Admin
) -> None:
    await send(server, *(b"bad %d" % number for number in range(3)))
    consumer, handled = worker(server)
    async with consumer:
        await consumer.wait_settled(3)
        assert await admin.resend_dead_letters("billing") == 3
        await until(lambda: len(handled) >= 6)
        await consumer.wait_settled(3)
    assert len(await admin.dead_letters("billing")) == 3


@pytest.mark.parametrize("limit", [0, -1, True, "x"])
async def test_dead_letters_with_a_bad_limit_raises(limit: Any, admin: Admin) -> None:
    for call in (admin.dead_letters, admin.resend_dead_letters):
        with pytest.raises(ConfigError, match="limit must be a whole number from 1 to"):
            await call("billing", limit=limit)
