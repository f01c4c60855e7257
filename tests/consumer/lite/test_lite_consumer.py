"""Consumers of single lite topics on embedded brokers: order, retries, streams, start positions, takeovers and repairs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rmq_async import (
    Admin,
    BrokerError,
    ClientStateError,
    ConfigError,
    DeadLetter,
    InvalidMessageError,
    LiteConsumer,
    LiteSubscriptionLostError,
    LiteSubscriptionQuotaError,
    Message,
    MessageExt,
    Producer,
    Retry,
    Tail,
    TopicNotFoundError,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from ..group.support import until

pytestmark = pytest.mark.virtual_time

TOPIC = "Chat"
GROUP = "gateways"


class Cluster:
    """An embedded cluster with a parent topic, and a producer."""

    def __init__(self, server: EmbeddedRocketMQ, admin: Admin, producer: Producer) -> None:
        self.server = server
        self.admin = admin
        self.producer = producer

    async def send(self, lite_topic: str, *bodies: bytes) -> None:
        for body in bodies:
            await self.producer.send(Message(TOPIC, body, lite_topic=lite_topic))

    def consumer(self, handler: Any = None, **options: Any) -> LiteConsumer:
        return LiteConsumer(GROUP, TOPIC, handler=handler, namesrv=self.server.namesrv, **options)


@asynccontextmanager
async def chat(*, brokers: int = 2, model: str = "Shared", **options: Any) -> AsyncIterator[Cluster]:
    async with EmbeddedRocketMQ(brokers=brokers, **options) as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=4, attributes={"message.type": "LITE"})
        await admin.create_group(GROUP, attributes={"lite.bind.topic": TOPIC, "lite.sub.model": model})
        async with Producer("chat", namesrv=server.namesrv) as producer:
            yield Cluster(server, admin, producer)


async def take(stream: Any, count: int, timeout: float = 5.0) -> list[bytes]:
    async with asyncio.timeout(timeout):
        return [(await anext(stream)).body for _ in range(count)]


class Seen:
    """A handler that keeps the bodies by lite topic."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = {}

    async def __call__(self, message: MessageExt) -> None:
        self.bodies.setdefault(message.lite_topic or "", []).append(message.body)


async def test_handler_gets_the_messages_of_each_lite_topic_in_order() -> None:
    seen = Seen()
    names = [f"s{number}" for number in range(30)] + ["会話"]
    async with chat() as cluster, cluster.consumer(seen.__call__) as consumer:
        await cluster.send("s3", b"before")
        await consumer.subscribe(*names)
        await cluster.send("other", b"not subscribed")
        for number in range(8):
            for name in names:
                await cluster.send(name, b"%d" % number)
        await consumer.wait_settled(8 * 31 + 1)
        await consumer.wait_idle()
        assert consumer.lite_topics == frozenset(names)
        assert seen.bodies.pop("s3") == [b"before", *(b"%d" % number for number in range(8))]
        assert all(bodies == [b"%d" % number for number in range(8)] for bodies in seen.bodies.values())
        assert len(seen.bodies) == 30
        assert consumer.stats().handled == 249
        assert consumer.health().ready
    assert consumer.lite_topics == frozenset()


async def test_failed_message_is_handled_again_before_those_behind_it() -> None:
    calls: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        calls.append(message.body)
        if message.body == b"1" and calls.count(b"1") < 3:
            raise RuntimeError("twice")

    async with chat() as cluster, cluster.consumer(handle, retry=Retry(delays=[0.5])) as consumer:
        await consumer.subscribe("s")
        await cluster.send("s", b"0", b"1", b"2")
        await consumer.wait_settled(5)
        assert calls == [b"0", b"1", b"1", b"1", b"2"]


async def test_message_without_attempts_left_is_dead_lettered_and_not_delivered_again() -> None:
    calls: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        calls.append(message.body)
        if message.body == b"bad":
            raise DeadLetter("on purpose")
        if message.body == b"fails":
            raise RuntimeError("always")

    async with chat() as cluster, cluster.consumer(handle, retry=Retry(limit=1, delays=[0.1])) as consumer:
        await consumer.subscribe("s")
        await cluster.send("s", b"bad", b"fails", b"good")
        await until(lambda: calls == [b"bad", b"fails", b"fails", b"good"])
        await consumer.wait_idle()
        await asyncio.sleep(120)
        assert calls == [b"bad", b"fails", b"fails", b"good"]
        letters = await cluster.admin.dead_letters(GROUP)
        assert sorted((letter.body, letter.lite_topic) for letter in letters) == [(b"bad", "s"), (b"fails", "s")]
        assert all(letter.user_properties == {} for letter in letters)
        again = Message.from_received(letters[0])
        assert (again.topic, again.lite_topic) == (TOPIC, "s")


async def test_stream_settles_a_message_when_the_next_is_asked_for() -> None:
    async with chat() as cluster:
        await cluster.send("s", *(b"%d" % number for number in range(5)))
        async with cluster.consumer() as consumer, consumer.stream("s") as stream:
            assert await take(stream, 3) == [b"0", b"1", b"2"]
            await asyncio.sleep(300)  # the lease of the message in hand is extended
            assert await take(stream, 1) == [b"3"]
        async with cluster.consumer() as consumer, consumer.stream("s") as stream:
            assert await take(stream, 2) == [b"3", b"4"]


async def test_streams_of_one_consumer_get_only_their_lite_topics() -> None:
    async with chat() as cluster, cluster.consumer() as consumer:
        async with consumer.stream("a") as first, consumer.stream("b") as second:
            await cluster.send("b", b"b0", b"b1")
            await cluster.send("a", b"a0")
            assert await take(second, 2) == [b"b0", b"b1"]
            assert await take(first, 1) == [b"a0"]
            with pytest.raises(ConfigError, match="already has an open stream of lite topic a"):
                consumer.stream("a")
            assert consumer.lite_topics == {"a", "b"}
        assert consumer.lite_topics == frozenset()
        async with consumer.stream("a"):
            pass


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("last", [b"3", b"4"]),
        ("earliest", [b"0", b"1", b"2", b"3", b"4"]),
        ("latest", []),
        (2, [b"2", b"3", b"4"]),
        (Tail(1), [b"4"]),
        (Tail(100), [b"0", b"1", b"2", b"3", b"4"]),
        (Tail(0), []),
    ],
)
async def test_stream_begins_at_its_start(start: Any, expected: list[bytes]) -> None:
    """The group has settled the first three messages."""
    async with chat() as cluster:
        await cluster.send("s", *(b"%d" % number for number in range(5)))
        async with cluster.consumer() as consumer:
            async with consumer.stream("s") as stream:
                await take(stream, 4)
            async with consumer.stream("s", start=start) as stream:
                await cluster.send("s", b"new")
                assert await take(stream, len(expected) + 1) == [*expected, b"new"]


async def test_stream_begins_at_a_time() -> None:
    async with chat() as cluster:
        await cluster.send("s", b"old")
        await asyncio.sleep(60)
        moment = datetime.now(UTC) - timedelta(seconds=30)
        await cluster.send("s", b"new")
        async with cluster.consumer() as consumer, consumer.stream("s", start=moment) as stream:
            assert await take(stream, 1) == [b"new"]


async def test_subscribe_again_moves_the_group_to_its_start() -> None:
    seen = Seen()
    async with chat() as cluster, cluster.consumer(seen.__call__) as consumer:
        await consumer.subscribe("s")
        await cluster.send("s", b"0", b"1", b"2")
        await consumer.wait_settled(3)
        await consumer.wait_idle()
        await consumer.subscribe("s")
        await consumer.subscribe("s", start=Tail(1))
        await consumer.wait_settled(1)
        assert seen.bodies == {"s": [b"0", b"1", b"2", b"2"]}


async def test_unsubscribe_ends_deliveries() -> None:
    seen = Seen()
    async with chat() as cluster, cluster.consumer(seen.__call__) as consumer:
        await consumer.subscribe("a", "b")
        await consumer.unsubscribe("a", "unknown")
        await cluster.send("a", b"x")
        await cluster.send("b", b"y")
        await consumer.wait_settled(1)
        await asyncio.sleep(60)
        assert seen.bodies == {"b": [b"y"]}
        assert consumer.lite_topics == {"b"}


async def test_unsubscribe_keeps_the_backoff_of_other_lite_topics() -> None:
    times: list[float] = []

    async def handle(message: MessageExt) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise RuntimeError("once")

    async with chat(brokers=1) as cluster, cluster.consumer(handle, retry=Retry(delays=[30.0])) as consumer:
        await consumer.subscribe("a", "b")
        await cluster.send("a", b"x")
        await until(lambda: len(times) == 1)
        await consumer.unsubscribe("b")
        await asyncio.sleep(40)
        assert [round(each - times[0]) for each in times] == [0, 30]


async def test_stream_whose_start_is_cancelled_leaves_no_subscription() -> None:
    async with chat(brokers=1) as cluster, cluster.consumer() as consumer:
        cluster.server.stall("broker-a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), consumer.stream("s"):
                pass
        cluster.server.resume("broker-a")
        await asyncio.sleep(5)
        assert consumer.lite_topics == frozenset()
        await cluster.send("s", b"x")
        await asyncio.sleep(30)
        assert cluster.server.in_flight(GROUP) == []
        async with consumer.stream("s") as stream, asyncio.timeout(5):
            assert (await anext(stream)).reconsume_times == 0


async def test_subscription_that_a_broker_refuses_is_raised_and_not_kept() -> None:
    async with chat(brokers=1) as cluster, cluster.consumer(Seen().__call__) as consumer:
        cluster.server.fail_next(1, request=RequestCode.LITE_SUBSCRIPTION_CTL, n=1)
        await consumer.subscribe("retried")  # code 1 may pass: the next attempt repeats it
        assert consumer.lite_topics == {"retried"}
        cluster.server.fail_next(16, request=RequestCode.LITE_SUBSCRIPTION_CTL, n=1)
        await consumer.subscribe("permission")
        cluster.server.fail_next(29, request=RequestCode.LITE_SUBSCRIPTION_CTL, n=1)
        with pytest.raises(BrokerError, match="29"):
            await consumer.subscribe("refused")
        assert consumer.lite_topics == {"retried", "permission"}


async def test_newer_client_of_an_exclusive_group_takes_over() -> None:
    async with (
        chat(model="Exclusive") as cluster,
        cluster.consumer() as older,
        cluster.consumer() as newer,
        older.stream("s") as stream,
    ):
        await cluster.send("s", b"0", b"1")
        assert await take(stream, 1) == [b"0"]
        async with newer.stream("s") as other:
            await until(lambda: not older.lite_topics)
            with pytest.raises(LiteSubscriptionLostError, match="another client of the group has subscribed to lite topic s"):
                await take(stream, 1)
            assert newer.lite_topics == {"s"}
            await cluster.send("s", b"2")
            assert await take(other, 3, 90.0) == [b"0", b"1", b"2"]
            await asyncio.sleep(90)  # complete sets do not take the lite topic back
            await cluster.send("s", b"3")
            assert await take(other, 1) == [b"3"]


async def test_takeover_while_a_stream_opens_ends_it() -> None:
    """Its first broker has subscribed it, and its second one does not respond yet."""
    async with chat(model="Exclusive") as cluster, cluster.consumer() as older, cluster.consumer() as newer:
        server = cluster.server
        shard, other = ("broker-a", "broker-b")
        await cluster.send("s", b"0")
        if server.messages(TOPIC)[0].queue.broker_name != shard:
            shard, other = other, shard
        server.stall(other)
        opening = asyncio.ensure_future(older.stream("s").__aenter__())
        await asyncio.sleep(0.2)
        taking = asyncio.ensure_future(newer.stream("s").__aenter__())
        await until(lambda: not older.lite_topics)
        server.resume(other)
        stream, other_stream = await opening, await taking
        with pytest.raises(LiteSubscriptionLostError):
            await take(stream, 1)
        assert await take(other_stream, 1, 90.0) == [b"0"]


async def test_members_of_a_shared_group_share_a_lite_topic() -> None:
    seen = Seen()
    async with chat() as cluster, cluster.consumer(seen.__call__) as first, cluster.consumer(seen.__call__) as second:
        for consumer in (first, second):
            await consumer.subscribe("s")
        await cluster.send("s", *(b"%d" % number for number in range(20)))
        await until(lambda: len(seen.bodies.get("s", ())) == 20)
        assert seen.bodies["s"] == [b"%d" % number for number in range(20)]
        assert first.stats().handled + second.stats().handled == 20


async def test_subscriptions_are_repaired_after_a_restart_of_the_brokers() -> None:
    seen = Seen()
    names = [f"s{number}" for number in range(10)]
    async with chat() as cluster, cluster.consumer(seen.__call__) as consumer:
        await consumer.subscribe(*names)
        await cluster.server.stop()  # no process keeps subscriptions
        await asyncio.sleep(5)
        await cluster.server.start()
        await asyncio.sleep(40)
        for name in names:
            await cluster.send(name, b"after")
        await until(lambda: len(seen.bodies) == 10)


async def test_subscription_beyond_the_quota_is_refused_and_not_kept() -> None:
    async with chat(brokers=1, max_lite_subscriptions=2) as cluster, cluster.consumer(Seen().__call__) as consumer:
        await consumer.subscribe("a", "b")
        with pytest.raises(LiteSubscriptionQuotaError, match="2018"):
            await consumer.subscribe("c")
        assert consumer.lite_topics == {"a", "b"}


async def test_stop_gives_messages_that_wait_back_to_others() -> None:
    begun = asyncio.Event()

    async def slow(message: MessageExt) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async with chat() as cluster:
        async with cluster.consumer(slow, handover_timeout=1.0) as consumer:
            await consumer.subscribe("s")
            await cluster.send("s", b"0", b"1")
            await begun.wait()
        async with cluster.consumer() as consumer, consumer.stream("s") as stream:
            assert await take(stream, 2, 10.0) == [b"0", b"1"]


async def test_wrong_uses_are_refused() -> None:
    async with chat() as cluster:
        with_handler, without = cluster.consumer(Seen().__call__), cluster.consumer()
        with pytest.raises(ClientStateError):
            await with_handler.subscribe("s")
        async with with_handler, without:
            with pytest.raises(ConfigError, match="has a handler"):
                with_handler.stream("s")
            with pytest.raises(ConfigError, match="has no handler"):
                await without.subscribe("s")
            with pytest.raises(ConfigError, match="has no handler"):
                await without.unsubscribe("s")
            with pytest.raises(InvalidMessageError, match="may have"):
                await with_handler.subscribe("a$b")
            with pytest.raises(InvalidMessageError):
                without.stream("a$b")
            for start in ("first", -1, True, datetime.now(), None):
                with pytest.raises(ConfigError, match="start must be"):
                    await with_handler.subscribe("s", start=start)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="the count of a Tail"):
                Tail(-1)
            stream = without.stream("s")
            with pytest.raises(ClientStateError, match="is not open"):
                await anext(stream)
            assert with_handler.lite_topics == frozenset()


async def test_start_names_a_group_that_is_not_bound_and_a_topic_that_is_not_lite() -> None:
    async with chat() as cluster:
        await cluster.admin.create_group("plain")
        await cluster.admin.create_topic("Plain")
        consumer = LiteConsumer("plain", TOPIC, namesrv=cluster.server.namesrv)
        with pytest.raises(ConfigError, match=r"group plain at broker .* is bound to no topic; create it with the attribute"):
            await consumer.start()
        consumer = LiteConsumer(GROUP, "Plain", namesrv=cluster.server.namesrv)
        with pytest.raises(ConfigError, match=r"topic Plain at broker .* is not of the type LITE"):
            await consumer.start()
        consumer = LiteConsumer(GROUP, "Unknown", namesrv=cluster.server.namesrv)
        with pytest.raises(TopicNotFoundError):
            await consumer.start()


async def test_stop_ends_streams() -> None:
    async with chat() as cluster:
        consumer = cluster.consumer()
        await consumer.start()
        async with consumer.stream("s") as stream:
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.1)
            await consumer.stop()
            with pytest.raises(ClientStateError, match="is stopping"):
                await waiting
