"""What is refused before anything is sent, and the errors that say why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rmq_async import ConfigError, InvalidMessageError, Message, MessageQueue, Producer, SelectorError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.validation import NOT_ALLOWED_SEND_TOPICS

from ..support.fakes import TOPIC, Cluster
from .support import message, messages, producer

pytestmark = pytest.mark.virtual_time

MAX = 4 * 1024 * 1024
Way = Callable[[Producer, Message], Awaitable[Any]]
WAYS: list[Way] = [
    lambda sender, item: sender.send(item),
    lambda sender, item: sender.send(item, key="k"),
    lambda sender, item: sender.send_async(item),
    lambda sender, item: sender.send_oneway(item),
    lambda sender, item: sender.send_batch([item]),
    lambda sender, item: sender.send_batch([message(), item]),
]


async def test_numbers_of_thousands_of_digits_are_no_trouble_of_python(cluster: Cluster) -> None:
    huge = 10**5000
    async with producer(cluster) as sender:
        for way in (sender.send, sender.send_oneway):
            await way(message(), timeout=10**400)
            await way(message(), key="k", timeout=huge)
        await (await sender.send_async(message(), timeout=huge))
        await sender.send_batch([message()], timeout=huge)
        await sender.flush(huge)
        for call in (sender.send(message(), timeout=-huge), sender.flush(-huge)):
            with pytest.raises(ValueError, match="timeout must be above 0 seconds"):
                await call
        with pytest.raises(ConfigError):
            await sender.send(message(), queue=MessageQueue(TOPIC, "a", huge))
        with pytest.raises(SelectorError):
            await sender.send(message(), selector=lambda *_: huge)
    for options in ({"flag": huge}, {"delay_level": huge}, {"delay": huge}, {"deliver_at": huge}):
        with pytest.raises(InvalidMessageError, match=next(iter(options))):
            message(**options)


def bad_messages() -> list[tuple[str, Message, int, str]]:
    return [
        ("empty", Message(TOPIC, b""), 13, "empty"),
        ("too large", Message(TOPIC, b"x" * (MAX + 1)), 13, str(MAX)),
        ("properties", Message(TOPIC, b"x", properties={"p": "v" * 33_000}), 13, "32767"),
        ("properties in UTF-8", Message(TOPIC, b"x", properties={"p": "ü" * 16_400}), 13, "32767"),
        ("many keys", Message(TOPIC, b"x", keys=["k" * 999] * 33), 13, "32767"),
        ("blank topic", Message(" ", b"x"), -1, "blank"),
        ("no topic", Message("", b"x"), -1, "blank"),
        ("long topic", Message("t" * 128, b"x"), -1, "127"),
        ("illegal topic", Message("a/b", b"x"), -1, "not allowed"),
        ("dots", Message("../../x", b"x"), -1, "not allowed"),
        ("system topic", Message("SCHEDULE_TOPIC_XXXX", b"x"), -1, "belongs to the broker"),
        ("bytearray", Message(TOPIC, bytearray(b"x")), 13, "bytes, not bytearray"),  # type: ignore[arg-type]
        ("bytearray", Message(TOPIC, bytearray(b"x")), 13, "bytes, not bytearray"),  # type: ignore[arg-type]
        ("memoryview", Message(TOPIC, memoryview(b"x")), 13, "bytes, not memoryview"),  # type: ignore[arg-type]
        ("None", Message(TOPIC, None), 13, "bytes, not NoneType"),  # type: ignore[arg-type]
        ("topic None", Message(None, b"x"), -1, "topic must be a str"),  # type: ignore[arg-type]
        ("topic list", Message([TOPIC], b"x"), -1, "topic must be a str, not list"),  # type: ignore[arg-type]
        ("topic bytes", Message(b"T", b"x"), -1, "topic must be a str, not bytes"),  # type: ignore[arg-type]
        ("topic and body", Message({}, 5), -1, "topic must be a str, not dict"),  # type: ignore[arg-type]
        ("list", Message(TOPIC, ["x"]), 13, "bytes, not list"),  # type: ignore[arg-type]
        ("number", Message(TOPIC, 5), 13, "bytes, not int"),  # type: ignore[arg-type]
    ]


async def test_bad_messages_are_refused_before_anything_is_sent(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        before = cluster.received
        for name, item, code, text in bad_messages():
            for way in WAYS:
                with pytest.raises(InvalidMessageError) as caught:
                    await way(sender, item)
                if way is not WAYS[-1] or item.topic == TOPIC:
                    assert (caught.value.code, text in str(caught.value)) == (code, True), (name, str(caught.value))
                assert isinstance(caught.value, ValueError)
        assert cluster.received == before
        assert sender.health().unanswered == 0
        assert not cluster.name_server.asked


async def test_the_same_once_the_topic_is_known(cluster: Cluster) -> None:
    """The path with a cached route checks as much."""
    async with producer(cluster) as sender:
        await sender.send(message())
        sent = len(cluster.sends)
        for name, item, code, text in bad_messages():
            with pytest.raises(InvalidMessageError, match=text) as caught:
                await sender.send(item)
            assert caught.value.code == code, name
        assert len(cluster.sends) == sent


async def test_topics_of_the_broker(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        for topic in NOT_ALLOWED_SEND_TOPICS:
            cluster.name_server.routes[topic] = cluster.route()
            with pytest.raises(InvalidMessageError, match=topic):
                await sender.send(message(topic=topic))
    assert not cluster.sends


async def test_a_topic_of_the_broker_stays_refused_once_its_queues_were_asked_for(cluster: Cluster) -> None:
    topic = "SCHEDULE_TOPIC_XXXX"
    cluster.name_server.routes[topic] = cluster.route()
    async with producer(cluster) as sender:
        assert await sender.fetch_publish_queues(topic)
        for way in WAYS[:5]:
            with pytest.raises(InvalidMessageError, match=topic):
                await way(sender, message(topic=topic))
    assert not cluster.sends


async def test_the_largest_that_is_allowed(cluster: Cluster) -> None:
    cluster.name_server.routes["T" * 127] = cluster.route()
    async with producer(cluster, compress_over=1 << 30) as sender:
        await sender.send(Message(TOPIC, b"x" * MAX))
        await sender.send(Message(TOPIC, b"x", properties={"p": "v" * (32767 - 63)}))
        await sender.send(message(topic="T" * 127))
    assert [len(body) for body in cluster.a.bodies] == [MAX, 1, 4]
    assert len(cluster.sends[1].fields["i"].encode()) <= 32767
    assert len(cluster.sends[1].fields["i"].encode()) > 32700


async def test_the_own_limit_of_bodies(cluster: Cluster) -> None:
    async with producer(cluster, max_message_size=100) as sender:
        await sender.send(message(b"x" * 100))
        with pytest.raises(InvalidMessageError, match="100"):
            await sender.send(message(b"x" * 101))
        with pytest.raises(InvalidMessageError, match=r"is 100; send it in parts \(split_batches\)"):
            await sender.send_batch([message(b"x" * 30)] * 2)
        with pytest.raises(InvalidMessageError, match=r"is 100; send its only message with send\(\)"):
            await sender.send_batch([message(b"x" * 99)])
    assert len(cluster.sends) == 1


async def test_what_is_no_message(cluster: Cluster) -> None:
    things: list[Any] = [None, "text", b"bytes", (TOPIC, b"x"), object()]
    async with producer(cluster) as sender:
        await sender.send(message())
        for thing in things:
            for way in WAYS[:4]:
                with pytest.raises(TypeError, match="Message"):
                    await way(sender, thing)
            with pytest.raises(TypeError):
                await sender.send_batch([thing])
    assert len(cluster.sends) == 1


async def test_batch_rules(cluster: Cluster) -> None:
    bad = [
        ([], "at least one"),
        ([message(), message(topic="U")], "one topic"),
        ([message(), message(wait_store=False)], "wait_store"),
        ([message(delay_level=1)], "delayed"),
        ([message(), message(delay=1.0)], "delayed"),
        ([message(deliver_at=2e9)], "delayed"),
        ([message(topic="%RETRY%g")], "retry topic"),
        ([message(b"x" * 3_000_000), message(b"x" * 2_000_000)], str(MAX)),
    ]
    async with producer(cluster) as sender:
        before = cluster.received
        for batch, text in bad:
            with pytest.raises(InvalidMessageError, match=text):
                await sender.send_batch(batch)
        with pytest.raises(TypeError):
            await sender.send_batch(message())  # type: ignore[arg-type]
        assert cluster.received == before


async def test_a_batch_may_be_any_iterable(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        result = await sender.send_batch(item for item in messages(3))
    assert len(result.msg_ids) == 3


async def test_batches_are_not_compressed(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        await sender.send_batch([message(b"x" * 10_000)] * 3)
    assert cluster.sends[0].sys_flag == 0
    assert [record.body for record in cluster.sends[0].batch] == [b"x" * 10_000] * 3


async def test_timeouts_that_cannot_be(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        before = cluster.received
        for timeout in (0, -1, -0.5, float("nan")):
            for call in (
                sender.send(message(), timeout=timeout),
                sender.send_async(message(), timeout=timeout),
                sender.send_oneway(message(), timeout=timeout),
                sender.send_batch([message()], timeout=timeout),
                sender.flush(timeout),
            ):
                with pytest.raises(ValueError, match="timeout"):
                    await call
        assert cluster.received == before


async def test_a_timeout_without_end(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        assert (await sender.send(message(), timeout=float("inf"))).attempts == 1
        assert (await sender.send(message(), key=1, timeout=float("inf"))).attempts == 1
        await sender.send_oneway(message(), timeout=float("inf"))
        await (await sender.send_async(message(), timeout=float("inf")))
        await sender.flush(float("inf"))


async def test_names_that_java_accepts_are_accepted() -> None:
    """Though brokers and consumers use them themselves; DEFAULT_PRODUCER and topics of the broker stay refused."""
    async with EmbeddedRocketMQ() as server, Producer("CLIENT_INNER_PRODUCER", namesrv=server.namesrv) as sender:
        await sender.send(Message("TBW102", b"x"))
        with pytest.raises(InvalidMessageError, match="SCHEDULE_TOPIC_XXXX"):
            await sender.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
    with pytest.raises(ConfigError, match="DEFAULT_PRODUCER"):
        Producer("DEFAULT_PRODUCER", namesrv=server.namesrv)


def test_size_of_messages_follows_frames() -> None:
    beside, default = 128 * 1024, 16 * 1024 * 1024
    Producer("g", max_message_size=default - beside)
    Producer("g", max_message_size=default - beside, max_frame_size=1 << 20)  # of what comes
    Producer("g", max_message_size=8 * default - beside, max_frame_size=8 * default)
    with pytest.raises(
        ConfigError, match=r"max_message_size must be at most 16646144 .*not 16646145.*max_frame_size=16777217 or more"
    ):
        Producer("g", max_message_size=default - beside + 1)
    with pytest.raises(ConfigError, match="must be at most 16646144 for frames of 16777216 bytes"):
        Producer("g", max_message_size=default, max_frame_size=1 << 20)
    with pytest.raises(ConfigError, match="max_message_size"):
        Producer("g", max_message_size=8 * default, max_frame_size=8 * default)
