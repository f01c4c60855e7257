"""Settings and their errors, producers that are dropped, other event loops, and the queues of a topic."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest

from rmq_async import ClientConfig, Producer, ProducerConfig, errors
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.fakes import TOPIC, Cluster
from ..support.instances import client_of
from .support import every_call, message, outcomes, producer


def test_unknown_options_are_named() -> None:
    with pytest.raises(TypeError, match="'retires'"):
        Producer("group", retires=1)
    with pytest.raises(TypeError):
        Producer("group", "127.0.0.1:9876")  # type: ignore[misc]


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0}, {"timeout": -1}, {"timeout": "3"}, {"retries": -1}, {"retries": 1.5}, {"compress_type": "rar"},
        {"compress_level": 23}, {"async_limit": 0}, {"oneway_window": -1}, {"namesrv": "nowhere"}, {"namesrv": "host:0"},
        {"serialize_type": "xml"}, {"heartbeat_interval": 0}, {"attempt_timeout": 0}, {"instance_name": ""},
    ],
)  # fmt: skip
def test_settings_that_cannot_work(options: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Producer("group", **options)
    assert isinstance(caught.value, ValueError)
    assert next(iter(options)) in str(caught.value) or "name server" in str(caught.value)


def test_names_of_groups() -> None:
    for name in ("", " ", "a b", "g" * 121, "ü"):
        with pytest.raises(errors.InvalidMessageError) as caught:
            Producer(name)
        assert caught.value.code == -1
    with pytest.raises(errors.ConfigError, match="DEFAULT_PRODUCER"):
        Producer("DEFAULT_PRODUCER")


async def test_settings_come_from_configs_and_keywords(cluster: Cluster) -> None:
    client = ClientConfig(namesrv="127.0.0.1:1", request_timeout=1.0)
    config = ProducerConfig(retries=7, timeout=2.0)
    sender = Producer("group", namesrv=cluster.namesrv, client=client, config=config, timeout=1.5, client_ip="10.0.0.1")
    assert (sender.config.retries, sender.config.timeout) == (7, 1.5)
    assert (sender.client_config.namesrv, sender.client_config.request_timeout) == (cluster.namesrv, 1.0)
    assert sender.client_config.client_ip == "10.0.0.1"
    assert config.timeout == 2.0
    async with sender:
        await sender.send(message())


async def test_a_started_producer_that_is_dropped_warns(cluster: Cluster) -> None:
    sender: Producer | None = producer(cluster)
    assert sender is not None
    await sender.start()
    instance = await client_of(sender)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sender = None
        gc.collect()
    assert [warning.category for warning in caught if "group" in str(warning.message)] == [ResourceWarning]
    await instance.unregister_producer("group", 1)
    await instance.release()


async def test_a_producer_that_was_stopped_or_never_started_does_not_warn(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        await sender.send(message())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del sender
        producer(cluster)
        gc.collect()


async def test_another_loop_is_refused(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        await sender.send(message())

        async def elsewhere() -> list[Any]:
            return [*await every_call(sender), *await outcomes(sender.start(), sender.stop())]

        results = await asyncio.to_thread(asyncio.run, elsewhere())
        assert {type(error) for error in results} == {errors.WrongLoopError}
        await sender.send(message())


async def test_stopped_on_one_loop_and_started_on_another(cluster: Cluster) -> None:
    server = EmbeddedRocketMQ()
    sender = Producer("group", namesrv="127.0.0.1:1")
    with pytest.raises(errors.NameServerError):
        await sender.start()

    async def elsewhere() -> int:
        async with server:
            again = Producer("group", namesrv=server.namesrv)
            async with again:
                await again.send(message())
            async with again:
                return (await again.send(message())).attempts

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == 1


async def test_publish_queues(pair: Cluster) -> None:
    async with producer(pair) as sender:
        queues = await sender.fetch_publish_queues(TOPIC)
        assert queues == tuple(pair.queue(broker, number) for broker in pair.brokers for number in range(2))
        with pytest.raises(errors.TopicNotFoundError, match=r"NOWHERE.*127.0.0.1"):
            await sender.fetch_publish_queues("NOWHERE")
        with pytest.raises(errors.InvalidMessageError):
            await sender.fetch_publish_queues("a/b")
    assert pair.name_server.asked.count(TOPIC) == 1


async def test_a_topic_that_does_not_exist_is_made_by_sending() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        async with Producer("group", namesrv=server.namesrv, default_topic_queues=3) as sender:
            queues = await sender.fetch_publish_queues("NEW")
            assert len(queues) == 6
            await sender.send(message(topic="NEW"))
        assert len(server.messages("NEW")) == 1
