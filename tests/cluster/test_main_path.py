"""What is sent is what is read, on real brokers, 5.5.0 and 4.9.7: every way to send, both header forms, all compressions, all
sizes. The old one gets fewer messages: how many are stored is the same code here, what it understands is not.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Iterator

import pytest

from rmq_async import (
    Admin,
    InvalidMessageError,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    SendResult,
    SendStatus,
    run,
)
from rmq_async.testing.cluster import RealCluster

from .accounting import judge, read_all

WORKERS = 64


async def new_topic(namesrv: str, queues: int = 8) -> str:
    topic = f"main-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=queues)
    return topic


def numbered(topic: str, count: int, size: int = 128) -> Iterator[Message]:
    for number in range(count):
        body = f"{number:012d}".encode().ljust(size, b".")
        yield Message(topic, body, tags=f"tag{number % 7}", keys=[f"key{number}", "shared"], properties={"number": str(number)})


@pytest.mark.parametrize(
    ("each_cluster", "form", "count"),
    [
        ("cluster", "json", 6_000),
        ("cluster", "rocketmq", 3_000),
        ("old_cluster", "json", 3_000),
        ("old_cluster", "rocketmq", 2_000),
    ],
    indirect=["each_cluster"],
)
def test_all_messages_sent_64_at_a_time_are_read_back_unchanged(each_cluster: RealCluster, form: str, count: int) -> None:
    async def main() -> None:
        topic = await new_topic(each_cluster.namesrv)
        results: dict[int, SendResult] = {}
        async with Producer("main-path", namesrv=each_cluster.namesrv, serialize_type=form) as producer:
            messages = enumerate(numbered(topic, count))

            async def work() -> None:
                for number, message in messages:
                    results[number] = await producer.send(message, timeout=10)

            await asyncio.gather(*[work() for _ in range(WORKERS)])
        assert len(results) == count
        assert {result.status for result in results.values()} == {SendStatus.SEND_OK}
        read = {(message.queue, message.queue_offset): message for message in await read_all(each_cluster.namesrv, topic)}
        assert len(read) == count
        for number, message in enumerate(numbered(topic, count)):
            result = results[number]
            found = read[result.queue, result.queue_offset]
            assert found.body == message.body
            assert found.tags == message.tags
            assert found.keys == message.keys
            assert found.properties["number"] == str(number)
            assert found.msg_id == result.msg_id
            assert found.offset_msg_id == result.offset_msg_id

    run(main())


@pytest.mark.parametrize("form", ["json", "rocketmq"])
def test_a_batch_is_stored_message_by_message_under_the_ids_of_its_result(each_cluster: RealCluster, form: str) -> None:
    async def main() -> None:
        topic = await new_topic(each_cluster.namesrv)
        async with Producer("batches", namesrv=each_cluster.namesrv, serialize_type=form) as producer:
            sent = [list(part) for part in batched(numbered(topic, 3200), 32)]
            results = [await producer.send_batch(part) for part in sent]
        read = {message.msg_id: message for message in await read_all(each_cluster.namesrv, topic)}
        assert len(read) == 3200
        for part, result in zip(sent, results, strict=True):
            for message, one in zip(part, result.results, strict=True):
                found = read[one.msg_id]
                assert (found.body, found.tags, found.keys) == (message.body, message.tags, message.keys)
                assert (found.queue, found.queue_offset) == (one.queue, one.queue_offset)
                assert found.offset_msg_id == one.offset_msg_id

    run(main())


def batched(messages: Iterator[Message], size: int) -> Iterator[tuple[Message, ...]]:
    while part := tuple(itertools.islice(messages, size)):
        yield part


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_compressed_bodies_come_back_as_they_were(each_cluster: RealCluster, kind: str) -> None:
    async def main() -> None:
        topic = await new_topic(each_cluster.namesrv)
        text = b"the same words again and again, " * 1000
        sizes = [4095, 4096, 10_000, 32_000]
        async with Producer("compressed", namesrv=each_cluster.namesrv, compress_type=kind) as producer:
            for size in sizes:
                await producer.send(Message(topic, text[:size]))
        read = await read_all(each_cluster.namesrv, topic)
        assert sorted(message.body for message in read) == sorted(text[:size] for size in sizes)
        assert sum(message.store_size < len(message.body) for message in read) == 3  # all but the one below the threshold

    run(main())


def test_bodies_of_4_mib_are_stored_and_one_byte_more_is_refused_here(each_cluster: RealCluster) -> None:
    async def main() -> None:
        topic = await new_topic(each_cluster.namesrv)
        body = random.Random(4).randbytes(4 * 1024 * 1024)
        async with Producer("large", namesrv=each_cluster.namesrv) as producer:
            result = await producer.send(Message(topic, body), timeout=10)
            with pytest.raises(InvalidMessageError, match=r"4194305 bytes, the limit is 4194304") as refused:
                await producer.send(Message(topic, body + b"x"))
            assert refused.value.code == 13
        (found,) = await read_all(each_cluster.namesrv, topic)
        assert found.body == body
        assert found.queue_offset == result.queue_offset

    run(main())


def test_what_breaks_a_limit_is_refused_before_anything_is_sent(each_cluster: RealCluster) -> None:
    async def main() -> None:
        topic = await new_topic(each_cluster.namesrv)
        async with Producer("refused", namesrv=each_cluster.namesrv) as producer:
            with pytest.raises(InvalidMessageError, match="limit is 32767"):
                await producer.send(Message(topic, b"x", properties={"p": "v" * 33 * 1024}))
            with pytest.raises(InvalidMessageError, match="limit is 127"):
                await producer.send(Message("t" * 128, b"x"))
            with pytest.raises(InvalidMessageError, match="not allowed"):
                await producer.send(Message("no topic!", b"x"))
            with pytest.raises(InvalidMessageError, match="empty"):
                await producer.send(Message(topic, b""))
        assert await read_all(each_cluster.namesrv, topic) == []

    run(main())


@pytest.mark.parametrize(("each_cluster", "count"), [("cluster", 6_000), ("old_cluster", 2_000)], indirect=["each_cluster"])
def test_thousands_of_sends_with_callbacks_at_once_are_all_acknowledged(each_cluster: RealCluster, count: int) -> None:
    async def main() -> None:
        topic = await new_topic(each_cluster.namesrv)
        acknowledged: list[str] = []
        errors: list[BaseException] = []
        async with Producer("callbacks", namesrv=each_cluster.namesrv, timeout=30) as producer:
            futures = [
                await producer.send_async(
                    message, on_success=lambda result: acknowledged.append(result.msg_id), on_error=errors.append
                )
                for message in numbered(topic, count)
            ]
            results = await asyncio.gather(*futures)
        assert not errors
        assert sorted(acknowledged) == sorted(result.msg_id for result in results)
        read = [message.msg_id for message in await read_all(each_cluster.namesrv, topic)]
        verdict = judge([r.msg_id for r in results], acknowledged, read)
        assert (verdict.lost, verdict.duplicated, verdict.strange) == ((), 0, ()), verdict

    run(main())


def test_messages_with_one_key_stay_in_order_on_one_queue(each_cluster: RealCluster) -> None:
    async def main() -> None:
        topic = await new_topic(each_cluster.namesrv)
        async with Producer("ordered", namesrv=each_cluster.namesrv) as producer:

            async def in_order(key: int) -> None:
                """One send under way at a time: a broker stores what arrives together in any order."""
                for number in range(50):
                    await producer.send(Message(topic, f"{key}:{number}".encode(), sharding_key=f"order-{key}"))

            await asyncio.gather(*[in_order(key) for key in range(20)])
        read = await read_all(each_cluster.namesrv, topic)
        assert len(read) == 1000
        by_key: dict[str, list[MessageExt]] = {}
        for message in sorted(read, key=lambda m: (m.queue, m.queue_offset)):
            by_key.setdefault(message.body.decode().split(":")[0], []).append(message)
        for key, messages in by_key.items():
            assert len({message.queue for message in messages}) == 1, key
            assert [int(message.body.decode().split(":")[1]) for message in messages] == list(range(50)), key

    run(main())


def test_an_explicit_queue_is_the_queue_used(each_cluster: RealCluster) -> None:
    async def main() -> None:
        topic = await new_topic(each_cluster.namesrv, queues=4)
        async with Producer("chosen", namesrv=each_cluster.namesrv) as producer:
            queues = await producer.fetch_publish_queues(topic)
            assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
            for queue in queues:
                result = await producer.send(Message(topic, b"x"), queue=queue)
                assert result.queue == queue
                assert (await producer.send_batch([Message(topic, b"y")] * 3, queue=queue)).queue == queue
        async with PullConsumer("chosen", namesrv=each_cluster.namesrv) as consumer:
            for queue in queues:
                assert len([message async for message in consumer.read(topic, queues=[queue])]) == 4

    run(main())


def test_a_new_topic_is_created_by_the_first_send(each_cluster: RealCluster) -> None:
    async def main() -> None:
        topic = f"auto-{uuid.uuid4().hex[:12]}"
        async with Producer("auto", namesrv=each_cluster.namesrv) as producer:
            result = await producer.send(Message(topic, b"first"))
            assert isinstance(result.queue, MessageQueue)
            assert result.queue.queue_id < 4
        (found,) = await read_all(each_cluster.namesrv, topic)
        assert found.body == b"first"

    run(main())
