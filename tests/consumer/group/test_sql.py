"""Subscriptions by SQL92 conditions."""

from __future__ import annotations

import logging
from typing import Literal

import pytest

from rmq_async import ConfigError, Consumer, Message, MessageQueue, Producer, RequestTimeoutError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from .support import Seen, create, until


async def numbers(namesrv: str, first: int, last: int, topic: str = "T") -> None:
    async with Producer("senders", namesrv=namesrv) as producer:
        for number in range(first, last):
            properties = {"a": str(number), "region": "eu" if number % 2 else "us"}
            await producer.send(Message(topic, b"%d" % number, properties=properties))


def consumer_of(server: EmbeddedRocketMQ, seen: Seen, sql: str, **options: str) -> Consumer:
    consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", **options)  # type: ignore[arg-type]
    consumer.subscribe("T", seen, sql=sql)
    return consumer


async def test_only_what_matches_is_handled(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=2)
        await numbers(server.namesrv, 0, 40)
        seen = Seen()
        async with consumer_of(server, seen, "a > 5 AND region = 'eu'") as consumer:
            await consumer.wait_idle()
            assert sorted(seen.bodies) == sorted(b"%d" % number for number in range(7, 40, 2))
            await numbers(server.namesrv, 40, 44)
            await until(lambda: {b"41", b"43"} <= set(seen.bodies))
            await consumer.wait_idle()
            assert consumer.lag().messages == 0
            assert consumer.health().problems == ()
        assert (seen.twice, len(seen.bodies)) == (0, 19)
        assert sum(offset for queue, offset in server.progress("g").items() if queue.topic == "T") == 44
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []  # gaps are no losses


@pytest.mark.virtual_time
async def test_failed_message_is_delivered_again() -> None:
    async with EmbeddedRocketMQ(delay_levels=(0.1,) * 18) as server:
        await create(server.namesrv)
        await numbers(server.namesrv, 0, 4)
        attempts: list[int] = []

        async def handle(message: Message) -> None:
            attempts.append(message.reconsume_times)  # type: ignore[attr-defined]
            if len(attempts) == 1:
                raise ValueError("not now")

        async with consumer_of(server, handle, "a = 3"):  # type: ignore[arg-type]
            await until(lambda: attempts == [0, 1])


async def test_condition_that_cannot_be_read_fails_the_start() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        consumer = consumer_of(server, Seen(), "a > 5 AND")
        with pytest.raises(ConfigError) as failed:
            await consumer.start()
        text = str(failed.value)
        assert "broker broker-a cannot parse the sql filter 'a > 5 AND' of topic T; correct it: " in text
        assert "a value is expected, not the end" in text
        assert (failed.value.code, failed.value.broker, failed.value.retriable) == (23, "broker-a", False)
        assert not server.progress("g")


async def test_broker_without_property_filter_fails_the_start() -> None:
    async with EmbeddedRocketMQ(property_filter=False) as server:
        await create(server.namesrv)
        with pytest.raises(ConfigError) as failed:
            await consumer_of(server, Seen(), "a > 5").start()
        text = str(failed.value)
        assert "broker broker-a does not filter by properties, so the sql filter 'a > 5' of topic T cannot work" in text
        assert "enablePropertyFilter=true" in text
        assert (failed.value.code, failed.value.address) == (1, server.brokers["broker-a"])


async def test_each_broker_is_asked() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv)
        async with consumer_of(server, Seen(), "a > 5"):
            assert server.requests[RequestCode.CHECK_CLIENT_CONFIG] == 2


@pytest.mark.virtual_time
@pytest.mark.parametrize("mode", ["pull", "pop"])
async def test_start_beside_a_broker_that_does_not_say_whether_it_filters(
    mode: Literal["pull", "pop"], caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv)
        server.stall("broker-a")
        seen = Seen()
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", mode=mode)
        consumer.subscribe("T", seen, sql="a > 5")
        async with consumer, Producer("p", namesrv=server.namesrv) as producer:
            for number in range(4, 8):
                queue = MessageQueue("T", "broker-b", 0)
                await producer.send(Message("T", b"%d" % number, properties={"a": str(number)}), queue=queue)
            await until(lambda: len(seen.bodies) == 2)
        assert set(seen.bodies) == {b"6", b"7"}
        assert "the sql filter of topic T could not be checked at brokers that do not respond" in caplog.text
        server.stall("broker-b")
        consumer = Consumer("g", namesrv=server.namesrv, mode=mode)
        consumer.subscribe("T", seen, sql="a > 5")
        with pytest.raises(RequestTimeoutError, match="CHECK_CLIENT_CONFIG"):
            await consumer.start()


async def test_no_broker_is_asked_without_condition() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", Seen())
        async with consumer:
            assert server.requests[RequestCode.CHECK_CLIENT_CONFIG] == 0


@pytest.mark.virtual_time
async def test_topic_that_comes_later_is_filtered(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        seen = Seen()
        async with consumer_of(server, seen, "a > 5"):
            await numbers(server.namesrv, 0, 8)
            await until(lambda: len(seen.bodies) == 2)
        assert set(seen.bodies) == {b"6", b"7"}


@pytest.mark.parametrize(("ours", "theirs"), [({"sql": "a > 5"}, {"sql": "a > 6"}), ({"sql": "a"}, {"tags": "a"})])
async def test_another_condition_in_the_group_is_a_conflict(ours: dict[str, str], theirs: dict[str, str]) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        one = Consumer("g", namesrv=server.namesrv, instance_name="one")
        one.subscribe("T", Seen(), **ours)  # type: ignore[arg-type]
        two = Consumer("g", namesrv=server.namesrv, instance_name="two", on_conflict="raise")
        two.subscribe("T", Seen(), **theirs)  # type: ignore[arg-type]
        async with one:
            with pytest.raises(ConfigError, match=r"topic T: this member subscribes to .* another one to 'SQL92: a"):
                await two.start()


@pytest.mark.parametrize("sql", ["", "  ", 5, b"a > 5"])
def test_subscribe_refuses_what_is_no_condition(sql: object) -> None:
    with pytest.raises(ConfigError, match="sql must be a condition over properties"):
        Consumer("g", namesrv="127.0.0.1:9876").subscribe("T", Seen(), sql=sql)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tags", "sql"])
def test_subscribe_refuses_a_text_without_utf8(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}='a\\ud800' has a lone surrogate"):
        Consumer("g", namesrv="127.0.0.1:9876").subscribe("T", Seen(), **{name: "a\ud800"})  # type: ignore[arg-type]


def test_subscribe_refuses_tags_beside_a_condition() -> None:
    consumer = Consumer("g", namesrv="127.0.0.1:9876")
    with pytest.raises(ConfigError, match=r"tags='a' and sql='b' exclude each other"):
        consumer.subscribe("T", Seen(), tags="a", sql="b")
    assert repr(consumer.subscribe("T", Seen(), sql="b > 1")).startswith("<Subscription T 'b > 1' to ")
