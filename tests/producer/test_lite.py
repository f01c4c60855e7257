"""Sends to lite topics, and with priorities, to scripted brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import Message, Producer, TransactionStatus, errors
from rmq_protocol.constants import RequestCode
from rmq_protocol.java_types import string_hash
from rmq_protocol.lite import consistent_hash

from ..support.fakes import TOPIC, Answer, Broker, Cluster, each, refuse, silence, stored
from .support import message, producer
from .transactions.support import transactions

pytestmark = pytest.mark.virtual_time

CONFIG = int(RequestCode.GET_BROKER_CONFIG)
PARENT = int(RequestCode.GET_PARENT_TOPIC_INFO)
WAYS: dict[str, Callable[..., Any]] = {
    "awaited": lambda sender, message, **options: sender.send(message, **options),
    "asynchronous": lambda sender, message, **options: _accepted(sender.send_async(message, **options)),
}


async def _accepted(call: Any) -> Any:
    return await (await call)


def config(*lines: str) -> Answer:
    return lambda link, request: link.reply(request, body="\n".join(("brokerName=a", *lines, "")).encode())


ON = config("enableLmq=true", "enableMultiDispatch=true")


def serve(*brokers: Broker) -> None:
    for broker in brokers:
        broker.answers[CONFIG] = ON


def shard(cluster: Cluster, name: str) -> tuple[str, str]:
    """The broker and queue id that official senders choose."""
    places = [(broker.name, str(number)) for broker in cluster.brokers for number in range(cluster.queues)]
    return places[consistent_hash(string_hash(name), len(places))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"timeout": 2.0}], ids=["fast", "general"])
async def test_lite_messages_go_to_the_queue_of_the_consistent_hash(way: str, options: dict[str, float]) -> None:
    names = [f"session-{number}" for number in range(40)] + ["会話", "größe"]
    async with Cluster(brokers=2, queues=4) as cluster, producer(cluster) as sender:
        serve(*cluster.brokers)
        for name in names * 2:
            result = await WAYS[way](sender, message(name.encode(), lite_topic=name, tags="t"), **options)
            assert (result.queue.broker_name, str(result.queue.queue_id)) == shard(cluster, name)
        assert len({shard(cluster, name) for name in names}) == 8
        sent = {(each.body.decode(), each.properties["__LITE_TOPIC"]) for each in cluster.sends}
        assert sent == {(name, name) for name in names}
        assert [broker.codes[CONFIG] for broker in cluster.brokers] == [1, 1]
        assert [broker.codes[PARENT] for broker in cluster.brokers] == [1, 1]


async def test_oneway_lite_messages_go_to_the_queue_of_the_consistent_hash() -> None:
    names = [f"s{number}" for number in range(30)]
    async with Cluster(brokers=2, queues=4) as cluster, producer(cluster) as sender:
        serve(*cluster.brokers)
        for name in names * 2:
            await sender.send_oneway(message(name.encode(), lite_topic=name))
        await sender.flush()
    assert len(cluster.sends) == 60
    for sent in cluster.sends:
        assert (sent.broker.name, sent.fields["e"]) == shard(cluster, sent.body.decode())


async def test_lite_messages_of_a_batching_producer_are_sent_singly() -> None:
    async with Cluster() as cluster, producer(cluster, batching=True) as sender:
        serve(cluster.a)
        futures = [await sender.send_async(message(b"%d" % number, lite_topic="s")) for number in range(20)]
        futures += [await sender.send_async(message(b"p%d" % number, priority=number)) for number in range(20)]
        for future in futures:
            await future
        assert {sent.code for sent in cluster.sends} == {RequestCode.SEND_MESSAGE_V2}
        assert len(cluster.sends) == 40


@pytest.mark.parametrize(
    ("parent", "settings", "error", "text"),
    [
        (refuse(3), ON, errors.ConfigError, "has no lite topics, which need RocketMQ 5.5.0 or later"),
        (refuse(29), ON, errors.ConfigError, "is not of the type LITE"),
        (refuse(17), ON, errors.TopicNotFoundError, "does not have topic T; create it with the attribute message.type=LITE"),
        (None, config("enableLmq=false", "enableMultiDispatch=true"), errors.ConfigError, "has enableLmq=false, so"),
        (
            None,
            config("enableLmq=false", "enableMultiDispatch=false"),
            errors.ConfigError,
            "has enableLmq=false and enableMultiDispatch=false, so",
        ),
    ],
    ids=["4.9", "type", "topic", "one setting", "both settings"],
)
@pytest.mark.parametrize("way", WAYS)
async def test_lite_send_is_refused_before_a_broker_would_lose_it(
    way: str, parent: Answer | None, settings: Answer, error: type[Exception], text: str
) -> None:
    async with Cluster() as cluster, producer(cluster) as sender:
        cluster.a.answers[CONFIG] = settings
        if parent is not None:
            cluster.a.answers[PARENT] = parent
        for _ in range(2):
            with pytest.raises(error, match=text) as caught:
                await WAYS[way](sender, message(lite_topic="s"))
            assert not caught.value.maybe_stored
        with pytest.raises(error, match=text):
            await sender.send_oneway(message(lite_topic="s"))
        assert cluster.sends == []
        assert (await sender.send(message())).queue.topic == TOPIC


async def test_lite_send_to_a_broker_that_permits_no_question_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Cluster() as cluster, producer(cluster) as sender:
        cluster.a.answers |= {CONFIG: refuse(16, "no permission"), PARENT: refuse(16, "no permission")}
        for _ in range(3):
            await sender.send(message(lite_topic="s"))
        assert len(cluster.sends) == 3
    assert [record.message for record in caplog.records if "does not permit the question" in record.message] == [
        caplog.records[0].message
    ]


async def test_lite_send_asks_again_after_a_reconnect() -> None:
    async with Cluster() as cluster, producer(cluster) as sender:
        serve(cluster.a)
        await sender.send(message(lite_topic="s"))
        cluster.a.answers[CONFIG] = config("enableLmq=false", "enableMultiDispatch=true")
        for link in [*cluster.a.links]:
            link.close()
        await asyncio.sleep(0.1)
        with pytest.raises(errors.RocketMQError, match="enableLmq=false") as caught:
            await sender.send(message(lite_topic="s"))
        assert not caught.value.maybe_stored
        assert len(cluster.sends) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_lite_send_is_retried_only_at_its_broker(way: str) -> None:
    async with Cluster(brokers=2, queues=1) as cluster, producer(cluster, timeout=5.0) as sender:
        serve(*cluster.brokers)
        name = next(name for name in map(str, range(99)) if shard(cluster, name)[0] == "b")
        cluster.b.answer = each(refuse(2), refuse(14), stored)
        result = await WAYS[way](sender, message(lite_topic=name))
        assert (result.queue.broker_name, result.attempts) == ("b", 3)
        assert cluster.a.sends == []


async def test_lite_send_follows_its_shard_when_the_route_changes() -> None:
    async with Cluster(brokers=2, queues=1) as cluster, producer(cluster, timeout=5.0) as sender:
        serve(*cluster.brokers)
        name = next(name for name in map(str, range(99)) if shard(cluster, name)[0] == "b")
        await sender.send(message(lite_topic=name))
        await cluster.b.stop()
        cluster.name_server.routes[TOPIC] = cluster.route(cluster.a)
        result = await sender.send(message(lite_topic=name))
        assert result.queue.broker_name == "a"


async def test_lite_send_at_a_silent_check_ends_in_its_time() -> None:
    async with Cluster() as cluster, producer(cluster, timeout=1.0) as sender:
        cluster.a.answers[PARENT] = silence
        with pytest.raises(errors.RocketMQError) as caught:
            await sender.send(message(lite_topic="s"))
        assert not caught.value.maybe_stored
        assert cluster.sends == []


@pytest.mark.parametrize("given", [{"lite_topic": "s"}, {"priority": 1}])
async def test_choice_of_a_queue_is_refused_with_a_lite_topic_or_priority(given: dict[str, Any]) -> None:
    async with Cluster() as cluster, producer(cluster) as sender:
        what = next(iter(given))
        queue = cluster.queue()
        for options in ({"queue": queue}, {"key": "k"}, {"selector": lambda queues, *_: queues[0]}):
            with pytest.raises(errors.InvalidMessageError, match=f"the {what} of a message determines its queue; leave out"):
                await sender.send(message(**given), **options)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidMessageError, match="cannot be sent in a batch"):
            await sender.send_batch([message(), message(**given)])
        assert cluster.sends == []


@pytest.mark.parametrize("given", [{"lite_topic": "s"}, {"priority": 1}])
async def test_transaction_refuses_a_lite_topic_and_a_priority(given: dict[str, Any], cluster: Cluster) -> None:
    async with transactions(cluster, lambda *_: TransactionStatus.COMMIT) as sender:
        with pytest.raises(errors.InvalidMessageError, match="a message of a transaction cannot have a"):
            await sender.send_in_transaction(message(**given))
    assert cluster.sends == []


async def test_priority_is_sent_on_the_fast_path_without_a_check() -> None:
    async with Cluster() as cluster, producer(cluster) as sender:
        await sender.send(message(priority=7, keys="k"))
        assert cluster.sends[0].properties["_SYS_MSG_PRIORITY_"] == "7"
        assert cluster.a.codes[CONFIG] == 0


async def test_lite_sends_with_a_selector_of_the_producer_ignore_it() -> None:
    async with Cluster(queues=8) as cluster, producer(cluster, queue_selector=lambda queues, *_: queues[0]) as sender:
        serve(cluster.a)
        for name in map(str, range(20)):
            result = await sender.send(Message(TOPIC, b"x", lite_topic=name))
            assert str(result.queue.queue_id) == shard(cluster, name)[1]
        assert isinstance(sender, Producer)
