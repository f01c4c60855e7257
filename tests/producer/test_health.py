"""``Producer.health()`` in every state of the producer, its loop, its name servers and its brokers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rmq_async import BrokerHealth, Message, Problem, Producer, ProducerHealth, ProducerState, RocketMQError, machine
from rmq_async.client.loop_monitor import INTERVAL, LATE_AFTER
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import FaultProxy, ScriptedPeer
from rmq_async.testing.scripted import routes_to

from ..support.waiting import until

pytestmark = pytest.mark.virtual_time

TOPIC = "HealthTopic"
SILENT_AFTER = 0.3
"""Seconds, as ``request_timeout``."""


def item(body: bytes = b"x", topic: str = TOPIC) -> Message:
    return Message(topic, body)


def codes(producer: Producer) -> list[tuple[str, str | None]]:
    return [(problem.code, problem.broker) for problem in producer.health().problems]


@asynccontextmanager
async def behind_proxies() -> AsyncIterator[tuple[EmbeddedRocketMQ, ScriptedPeer, FaultProxy]]:
    """One broker behind a proxy that a scripted name server names."""
    async with (
        EmbeddedRocketMQ() as server,
        FaultProxy(server.brokers["broker-a"]) as proxy,
        ScriptedPeer(aside=routes_to(proxy.address)) as names,
    ):
        yield server, names, proxy


async def test_health_through_a_life() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        producer = Producer("group", namesrv=server.namesrv, topics=[TOPIC])
        new = producer.health()
        assert (new.state, new.live, new.ready) == (ProducerState.NEW, True, False)
        assert new.problems == (Problem("not_started", "producer group is not started"),)
        assert (new.last_success_age, new.unanswered, new.brokers) == (None, 0, {})

        starting = asyncio.create_task(producer.start())
        await asyncio.sleep(0)
        assert (producer.health().state, producer.health().ready) == (ProducerState.STARTING, False)
        assert codes(producer) == [("starting", None)]
        await starting

        assert producer.health() == ProducerHealth(
            state=ProducerState.RUNNING,
            live=True,
            ready=True,
            problems=(),
            last_success_age=None,
            unanswered=0,
            brokers={name: BrokerHealth(address, True, True, 0) for name, address in server.brokers.items()},
        )
        await producer.send(item())
        age = producer.health().last_success_age
        assert age is not None
        assert age < 1.0

        server.stall()
        pending = await producer.send_async(item())
        stopping = asyncio.create_task(producer.stop(5.0))
        await asyncio.sleep(0.01)
        health = producer.health()
        assert (health.state, health.live, health.ready, health.unanswered) == (ProducerState.STOPPING, True, False, 1)
        assert codes(producer) == [("stopping", None)]
        server.resume()
        await stopping
        await pending
        ended = producer.health()
        assert (ended.state, ended.live, ended.ready) == (ProducerState.STOPPED, True, False)
        assert codes(producer) == [("stopped", None)]
        assert (ended.unanswered, ended.brokers) == (0, {})


async def test_health_of_a_failed_start() -> None:
    async with EmbeddedRocketMQ() as server, FaultProxy(server.namesrv) as proxy:
        proxy.to_server.stall()
        producer = Producer("group", namesrv=proxy.address, request_timeout=SILENT_AFTER)
        with pytest.raises(RocketMQError):
            await producer.start()
        assert codes(producer) == [("not_started", None)]


async def test_health_while_brokers_stall() -> None:
    async with (
        EmbeddedRocketMQ(brokers=2) as server,
        Producer("group", namesrv=server.namesrv, request_timeout=SILENT_AFTER, topics=[TOPIC]) as producer,
    ):
        queues = {queue.broker_name: queue for queue in await producer.fetch_publish_queues(TOPIC)}
        server.stall("broker-a")
        queue = queues["broker-a"]
        spread = [queue._replace(queue_id=number % 4) for number in range(7)]  # of each queue one request is under way
        sends = [asyncio.create_task(producer.send(item(), queue=each, timeout=20)) for each in spread]
        await asyncio.sleep(0.9 * SILENT_AFTER)
        assert codes(producer) == [], "it is not silent for long enough"
        await asyncio.sleep(0.2 * SILENT_AFTER)
        health = producer.health()
        assert codes(producer) == [("broker_silent", "broker-a")]
        assert (health.live, health.ready, health.unanswered) == (True, True, 7)
        assert (health.brokers["broker-a"].reachable, health.brokers["broker-b"].reachable) == (False, True)
        assert health.brokers["broker-a"].unanswered >= 4
        assert "4 requests are unanswered" in health.problems[0].text

        server.stall("broker-b")
        sends.append(asyncio.create_task(producer.send(item(), queue=queues["broker-b"], timeout=20)))
        await until(lambda: not producer.health().ready)
        assert codes(producer) == [("broker_silent", "broker-a"), ("broker_silent", "broker-b")]
        assert producer.health().live

        server.resume()
        await asyncio.gather(*sends)
        health = producer.health()
        assert (health.ready, health.problems, health.unanswered) == (True, (), 0)


async def test_health_while_the_only_broker_is_gone() -> None:
    async with (
        behind_proxies() as (_, names, proxy),
        Producer("group", namesrv=names.address, heartbeat_interval=1.5, topics=["T"]) as producer,
    ):
        await producer.send(item(topic="T"))
        await proxy.stop()
        await until(lambda: not producer.health().ready)
        assert codes(producer) == [("broker_unreachable", "broker-a")]
        health = producer.health()
        assert health.live
        assert health.brokers["broker-a"] == BrokerHealth(proxy.address, False, False, 0)
        with pytest.raises(RocketMQError):
            await producer.send(item(topic="T"), timeout=0.2)
        assert not producer.health().ready
        age = producer.health().last_success_age
        assert age is not None
        assert age > 0.0, "the connection is gone, its success is not"
        await proxy.start()
        await until(lambda: producer.health().ready, 1.5)  # without a send, and before the next heartbeats
        assert codes(producer) == []


async def test_health_of_a_broker_that_accepts_and_says_nothing() -> None:
    """As a frozen process does: its kernel accepts connections, which must not look like a recovery."""
    async with behind_proxies() as (server, names, proxy):
        options: dict[str, Any] = {"namesrv": names.address, "request_timeout": SILENT_AFTER, "heartbeat_interval": 0.6}
        async with Producer("group", topics=["T"], **options) as producer:
            await producer.send(item(topic="T"))
            server.stall()
            sending = asyncio.create_task(producer.send(item(topic="T"), timeout=20))
            await until(lambda: not producer.health().ready)
            proxy.reset()
            for _ in range(40):
                assert not producer.health().ready
                await asyncio.sleep(0.01)
            server.resume()
            await until(lambda: producer.health().ready)
            await sending


async def test_health_names_a_lost_name_server_between_two_polls() -> None:
    async with (
        EmbeddedRocketMQ() as server,
        FaultProxy(server.namesrv) as proxy,
        Producer("group", namesrv=proxy.address, route_poll_interval=300.0, topics=[TOPIC]) as producer,
    ):
        await proxy.stop()
        await until(lambda: codes(producer) == [("no_name_server", None)])
        await proxy.start()
        await until(lambda: not codes(producer))


async def test_health_while_the_name_server_is_gone() -> None:
    async with (
        EmbeddedRocketMQ() as server,
        FaultProxy(server.namesrv) as proxy,
        Producer("group", namesrv=proxy.address, route_poll_interval=0.1, topics=[TOPIC]) as producer,
    ):
        await proxy.stop()
        await until(lambda: codes(producer))
        health = producer.health()
        assert codes(producer) == [("no_name_server", None)]
        assert (health.live, health.ready) == (True, True)
        assert "known routes stay in use" in health.problems[0].text
        assert proxy.address in health.problems[0].text
        await producer.send(item())
        await proxy.start()
        await until(lambda: not codes(producer))


async def test_health_before_the_cluster() -> None:
    async with EmbeddedRocketMQ() as server, FaultProxy(server.namesrv) as proxy:
        await proxy.stop()
        async with Producer("group", namesrv=proxy.address, start_without_cluster=True) as producer:
            health = producer.health()
            assert (health.state, health.live, health.ready) == (ProducerState.RUNNING, True, False)
            assert codes(producer) == [("no_name_server", None)]
            assert "cannot connect" in health.problems[0].text
            await proxy.start()
            await until(lambda: producer.health().ready)
            assert codes(producer) == []


async def test_health_while_the_loop_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread sees it: the clock goes on, and no timer of the loop runs."""
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv) as producer:
        await asyncio.sleep(5.0)
        clock = machine.monotonic

        def health_after(seconds: float) -> ProducerHealth:
            with monkeypatch.context() as patch:
                patch.setattr(machine, "monotonic", lambda: clock() + seconds)
                return producer.health()

        assert health_after(LATE_AFTER).live
        health = health_after(LATE_AFTER + INTERVAL + 0.001)
        assert (health.live, health.ready) == (False, False)
        assert [problem.code for problem in health.problems] == ["loop_blocked"]
        assert producer.health().ready


def test_health_while_the_loop_does_not_run() -> None:
    loop = asyncio.new_event_loop()
    server = EmbeddedRocketMQ()
    try:
        loop.run_until_complete(server.start())
        producer = Producer("group", namesrv=server.namesrv)
        loop.run_until_complete(producer.start())
        health = producer.health()
        assert (health.live, health.ready) == (False, False)
        assert codes(producer) == [("loop_stopped", None)]
        loop.run_until_complete(producer.stop())
        assert producer.health().live
        loop.run_until_complete(server.stop())
    finally:
        loop.close()


FORKED = """
import asyncio, os
from rmq_async import Message, Producer, ProducerState
from rmq_async.embedded import EmbeddedRocketMQ

async def main():
    async with EmbeddedRocketMQ() as server:
        made = Producer("made", namesrv=server.namesrv)
        async with Producer("group", namesrv=server.namesrv, topics=["T"]) as producer:
            pid = os.fork()
            if pid == 0:
                health = producer.health()
                forked = (health.live, health.ready, [problem.code for problem in health.problems], health.brokers)
                fresh = [problem.code for problem in made.health().problems]
                os._exit(0 if (forked, fresh) == ((False, False, ["forked"], {}), ["not_started"]) else 1)
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), producer.health().ready)

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_health_in_a_forked_child() -> None:
    """Waits for an interpreter of its own, as a fork would copy that of pytest."""
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "0 True\n", ended.stderr


async def test_health_when_no_credit_is_left() -> None:
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv, async_limit=2) as producer:
        await producer.send(item())
        server.stall()
        sends = [asyncio.create_task(producer.send(item(), timeout=20)) for _ in range(5)]
        await until(lambda: codes(producer))
        health = producer.health()
        assert [problem.code for problem in health.problems] == ["no_credits"]
        assert "3 calls wait" in health.problems[0].text
        assert (health.ready, health.unanswered) == (True, 2)
        server.resume()
        await asyncio.gather(*sends)
        assert codes(producer) == []


@pytest.mark.parametrize("serialize_type", ["json", "rocketmq"])
async def test_age_of_the_last_success(serialize_type: str) -> None:
    async with EmbeddedRocketMQ() as server:
        options: dict[str, Any] = {"namesrv": server.namesrv, "serialize_type": serialize_type, "oneway_window": 0}
        async with Producer("group", **options) as producer:

            def age() -> float | None:
                return producer.health().last_success_age

            await producer.send_oneway(item())
            await until(lambda: server.messages(TOPIC))
            server.fail_next(13)
            with pytest.raises(RocketMQError):
                await producer.send(item())
            assert age() is None

            for send in (
                lambda: producer.send(item()),
                lambda: producer.send(Message(TOPIC, b"x", keys="k")),
                lambda: producer.send_batch([item(), item()]),
                lambda: producer.send(item(), key=1),
            ):
                began = time.monotonic()
                await send()  # type: ignore[no-untyped-call]
                newest = age()
                assert newest is not None
                assert newest <= time.monotonic() - began, "it is that of an earlier one"

            await asyncio.sleep(0.05)
            server.fail_next(13)
            with pytest.raises(RocketMQError):
                await producer.send(item())
            server.drop_connections()
            await asyncio.sleep(0.02)
            last = age()
            assert last is not None
            assert last > 0.06


async def test_health_as_json() -> None:
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv, topics=[TOPIC]) as producer:
        plain = json.loads(json.dumps(dataclasses.asdict(producer.health()), default=str))
        assert plain["brokers"]["broker-a"]["reachable"] is True
        assert plain["problems"] == []
