"""PullConsumer's life: started and stopped, cancelled, forked, dropped; what stays under way then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from time import monotonic
from typing import Any

import pytest

from rmq_async.client import ClientInstance, route_table
from rmq_async.config import ClientConfig
from rmq_async.consumer import PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import (
    ClientStateError,
    ConfigError,
    ForkedError,
    InvalidMessageError,
    WrongLoopError,
)
from rmq_async.results import PullStatus
from rmq_protocol.message import MessageExt, MessageQueue

from ..client.support import fork, ours, until
from ..support.fakes import silence
from ..support.instances import client_of
from .support import TOPIC, bodies, embedded, put, scripted, under_way

QUEUE = MessageQueue(TOPIC, "broker-a", 0)


async def test_nothing_works_before_start_and_after_stop() -> None:
    async with EmbeddedRocketMQ() as server:
        consumer = PullConsumer("g", namesrv=server.namesrv)
        for _ in range(2):
            with pytest.raises(ClientStateError, match=r"not started|stopped"):
                await consumer.queues(TOPIC)
            with pytest.raises(ClientStateError, match=r"not started|stopped"):
                consumer.read(TOPIC)
            await consumer.start()
            await consumer.start()
            await consumer.stop()
            await consumer.stop()
        await consumer.start()
        await consumer.aclose()
        await PullConsumer("g", namesrv=server.namesrv).stop()


async def test_bad_names_and_unknown_options_are_refused_at_once() -> None:
    with pytest.raises(InvalidMessageError):
        PullConsumer("no spaces")
    with pytest.raises(TypeError, match="retries"):
        PullConsumer("g", retries=3)
    with pytest.raises(ConfigError):
        PullConsumer("g", namesrv="nonsense")


@pytest.mark.virtual_time
async def test_stop_ends_pulls_under_way_at_once() -> None:
    async with embedded() as (server, consumer):
        async with PullConsumer("other", client=consumer.config) as other:
            assert await client_of(other) is await client_of(consumer)
            pull = asyncio.ensure_future(other.pull(QUEUE, 0, wait=30.0))
            await until(lambda: server.requests[11] == 1)
            start = monotonic()
            await other.stop()
            with pytest.raises(ClientStateError):
                await pull
            assert monotonic() - start < 0.01
            assert not under_way(other)
        assert (await consumer.pull(QUEUE, 0)).status is PullStatus.NO_NEW


@pytest.mark.virtual_time
async def test_calls_under_way_at_the_last_stop_end_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "REFRESH_SPACING", 0.05)
    async with embedded() as (server, consumer):
        await consumer.max_offset(QUEUE)
        routes = (await client_of(consumer)).routes
        server.stall()
        calls = [asyncio.ensure_future(consumer.max_offset(QUEUE)) for _ in range(3)]
        await asyncio.sleep(0.05)
        await consumer.stop(0.1)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, ClientStateError) for outcome in outcomes), outcomes
        await asyncio.sleep(0.1)  # a look-up that begins now fails, and the loop hears of that
        assert routes.lookups == 0


async def test_the_group_is_announced_and_taken_back() -> None:
    async with scripted() as (broker, consumer):
        await consumer.max_offset(QUEUE)
        await until(lambda: broker.beats)
        data = broker.beats[0].consumer_data_set[0]
        assert (data.group_name, data.consume_type, data.message_model) == ("g", "CONSUME_ACTIVELY", "CLUSTERING")
        client_id = (await client_of(consumer)).client_id
        await consumer.stop()
        assert broker.farewells == [{"clientID": client_id, "consumerGroup": "g"}]


async def test_the_same_group_twice_is_refused_and_harms_no_other() -> None:
    async with embedded() as (_, consumer):
        twin = PullConsumer("g", client=consumer.config)
        with pytest.raises(ConfigError, match="share that consumer"):
            await twin.start()
        assert (await client_of(consumer)).users == 1
        async with PullConsumer("g", client=consumer.config, instance_name="another"):
            pass
        assert (await consumer.pull(QUEUE, 0)).status is PullStatus.NO_NEW


@pytest.mark.parametrize("steps", range(12))
async def test_cancelling_a_start_leaves_nothing(steps: int) -> None:
    async with EmbeddedRocketMQ() as server:
        consumer = PullConsumer("g", namesrv=server.namesrv)
        start = asyncio.ensure_future(consumer.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        if start.cancelled():
            assert ours() == []
            await consumer.start()
        await consumer.stop()


@pytest.mark.parametrize("steps", range(12))
async def test_cancelling_a_stop_leaves_nothing(steps: int) -> None:
    async with embedded() as (_, consumer):
        await consumer.queues(TOPIC)
        await consumer.pull(QUEUE, 0)
        stop = asyncio.ensure_future(consumer.stop())
        for _ in range(steps):
            await asyncio.sleep(0)
        stop.cancel()
        await asyncio.gather(stop, return_exceptions=True)
        if steps == 0:
            await consumer.stop()
        assert ours() == []


async def test_stop_while_starting_waits_and_leaves_nothing() -> None:
    async with EmbeddedRocketMQ() as server:
        consumer = PullConsumer("g", namesrv=server.namesrv)
        start = asyncio.ensure_future(consumer.start())
        await asyncio.sleep(0)
        await consumer.stop()
        with pytest.raises(ClientStateError):
            await start
        assert ours() == []


async def test_two_stops_at_once_are_one() -> None:
    async with embedded() as (_, consumer):
        await asyncio.gather(consumer.stop(), consumer.stop(), consumer.stop())
        assert ours() == []


@pytest.mark.parametrize("steps", range(10))
async def test_cancelling_a_pull_leaves_no_entry(steps: int) -> None:
    async with scripted() as (broker, consumer):
        await consumer.max_offset(QUEUE)
        broker.serve = silence
        pull = asyncio.ensure_future(consumer.pull(QUEUE, 0, wait=9.0))
        for _ in range(steps):
            await asyncio.sleep(0)
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        connection = (await client_of(consumer)).pool.get(broker.address)
        assert connection is not None
        assert (connection.pending, under_way(consumer)) == (0, set())
        del broker.serve


async def test_another_loop_and_a_forked_child_are_refused() -> None:
    async with embedded() as (_, consumer):

        def calls() -> list[Any]:
            return [
                consumer.queues(TOPIC),
                consumer.pull(QUEUE, 0),
                consumer.max_offset(QUEUE),
                consumer.commit(QUEUE, 0),
                consumer.start(),
                consumer.stop(),
            ]

        async def elsewhere() -> list[Any]:
            return await asyncio.gather(*calls(), return_exceptions=True)

        assert {type(error) for error in await asyncio.to_thread(asyncio.run, elsewhere())} == {WrongLoopError}
        child = fork()
        if child == 0:  # no loop runs here, and none is needed to be refused
            refused = 0
            try:
                for call in calls():
                    try:
                        call.send(None)
                    except ForkedError:
                        refused += 1
            finally:
                os._exit(refused)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 6
        assert (await consumer.pull(QUEUE, 0)).status is PullStatus.NO_NEW


async def rest_of(reading: AsyncGenerator[MessageExt, None]) -> int:
    async with asyncio.timeout(60):
        return len([message async for message in reading])


async def test_reading_in_a_forked_child_ends_and_the_parent_goes_on() -> None:
    async with embedded(queues=1) as (_, consumer):
        await put(consumer, QUEUE, bodies(100))
        reading = consumer.read(TOPIC)
        await anext(reading)
        child = fork()
        if child == 0:
            code = 1
            try:
                asyncio.run(rest_of(reading))
            except ForkedError:
                code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await rest_of(reading) == 99
        assert not under_way(consumer)


async def test_reading_on_another_loop_ends_and_stop_leaves_nothing() -> None:
    async with embedded(queues=1) as (_, consumer):
        await put(consumer, QUEUE, bodies(100))
        reading = consumer.read(TOPIC)
        await anext(reading)
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(asyncio.run, rest_of(reading))
        assert await rest_of(consumer.read(TOPIC)) == 100
        await consumer.stop()
        assert not under_way(consumer)
        assert ours() == []


async def test_a_consumer_that_is_dropped_without_stop_warns() -> None:
    async with EmbeddedRocketMQ() as server:
        consumer = PullConsumer("g", namesrv=server.namesrv)
        await consumer.start()
        instance: ClientInstance = await client_of(consumer)
        with pytest.warns(ResourceWarning, match="without stop"):
            del consumer
        await instance.unregister_consumer("g", 1.0)
        await instance.release()


async def test_a_config_object_and_options_go_together() -> None:
    config = ClientConfig(namesrv="127.0.0.1:1", heartbeat_interval=5.0)
    assert PullConsumer("g", client=config, request_timeout=2.0).config == ClientConfig(
        namesrv="127.0.0.1:1", heartbeat_interval=5.0, request_timeout=2.0
    )
