"""Connections cut at every byte of a request and of its answer: sends, batches, route look-ups and pulls.

What a change must pass cuts at every third byte, the deep tier at each. The bytes go through a ``ClusterProxy`` to the embedded
broker. One call without retries (cut by FIN) shows what the client says of its only attempt, one with retries (cut by RST) that
it mends it. All that was sent is read back and held against what the calls said.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rmq_async import (
    ConnectionLostError,
    Hook,
    Message,
    NameServerError,
    Producer,
    PullConsumer,
    RocketMQError,
    SendContext,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import ClusterProxy, Direction
from rmq_protocol.command import RemotingCommand

from ..cluster.history import Copy, copies
from ..support.cuts import CutSends, Judge, Send, again, length_of, send_one, send_two
from ..support.instances import client_of

pytestmark = pytest.mark.virtual_time

OFFSET_GROWS = 8
"""Bytes by which an answer may become longer while a test runs: it has queue offsets in decimals."""

LANES = 4
"""Clients at once, each with proxies of its own."""

TIMEOUT = 2.0

each_byte_or_third = pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.deep)])


@asynccontextmanager
async def served() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as server, Producer("maker", namesrv=server.namesrv) as maker:
        await maker.send(Message("T", b"first"))
        yield server


@asynccontextmanager
async def proxied(server: EmbeddedRocketMQ, lane: int, **options: Any) -> AsyncIterator[tuple[ClusterProxy, Producer]]:
    async with (
        ClusterProxy(server.namesrv) as cluster,
        Producer("cut", namesrv=cluster.namesrv, instance_name=f"lane-{lane}", timeout=TIMEOUT, **options) as producer,
    ):
        yield cluster, producer


def read_back(server: EmbeddedRocketMQ, topic: str) -> list[Copy]:
    return copies(server.messages(topic))


@each_byte_or_third
@pytest.mark.parametrize("way", ["to_server", "to_client"])
@pytest.mark.parametrize("send", [send_one, send_two])
async def test_a_send_cut_anywhere_fails_truly_or_is_sent_again(send: Send, way: str, step: int) -> None:
    cuts = CutSends(Judge(TIMEOUT), send, way)

    async def lane(server: EmbeddedRocketMQ, number: int, retries: int) -> None:
        async with proxied(server, 2 * number + bool(retries), retries=retries) as (cluster, producer):
            (broker,) = cluster.brokers.values()
            await cuts.run(producer, broker, "T", lambda length: range(step * number, length + OFFSET_GROWS, step * LANES))

    async with served() as server:
        async with asyncio.TaskGroup() as lanes:
            for number in range(LANES):
                for retries in (0, 2):
                    lanes.create_task(lane(server, number, retries))
        cuts.hold_against(read_back(server, "T"))


class Counting(Hook):
    """What begins has to end, once."""

    def __init__(self) -> None:
        self.open = self.seen = 0

    def before_send(self, context: SendContext) -> None:
        self.open += 1
        self.seen += 1

    def after_send(self, context: SendContext) -> None:
        self.open -= 1

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.open += 1

    def after_request(self, address: str, command: RemotingCommand, *_: Any) -> None:
        self.open -= 1


async def send_later(producer: Producer, topic: str, name: str) -> Any:
    return await (await producer.send_async(Message(topic, name.encode())))


async def send_with_key(producer: Producer, topic: str, name: str) -> Any:
    return await producer.send(Message(topic, name.encode()), key=name)


FORMS: list[tuple[Send, dict[str, Any]]] = [
    (send_later, {}),
    (send_later, {"hooks": True}),
    (send_with_key, {"retry_same_queue": True}),
    (send_one, {"hooks": True}),
    (send_one, {"send_smart_msg": False}),
    (send_one, {"serialize_type": "rocketmq"}),
    (send_one, {"latency_fault": True}),
    (send_one, {"namespace_v2": "mine"}),
]


@pytest.mark.parametrize("way", ["to_server", "to_client"])
async def test_every_form_of_a_send_is_cut_at_every_ninth_byte(way: str) -> None:
    runs = [(CutSends(Judge(TIMEOUT), send, way), options) for send, options in FORMS]
    hooks: list[Counting] = []

    async def lane(server: EmbeddedRocketMQ, number: int, retries: int) -> None:
        cuts, options = runs[number]
        hooks.append(Counting())
        own = options | {"hooks": [hooks[-1]] if "hooks" in options else (), "retries": retries, "async_retries": retries}
        topic = f"T{number}"
        async with proxied(server, 2 * number + bool(retries), **own) as (cluster, producer):
            (broker,) = cluster.brokers.values()
            await cuts.run(producer, broker, topic, lambda length: range(number, length + OFFSET_GROWS, 9))

    async with served() as server:
        async with asyncio.TaskGroup() as lanes:
            for number in range(len(runs)):
                for retries in (0, 2):
                    lanes.create_task(lane(server, number, retries))
        for number, (cuts, _) in enumerate(runs):
            cuts.hold_against(read_back(server, f"T{number}"))
    assert {hook.open for hook in hooks} == {0}
    assert sum(hook.seen > 60 for hook in hooks) == 4


@each_byte_or_third
async def test_a_first_send_whose_route_look_up_is_cut_anywhere(step: int) -> None:
    """Each to a topic of its own, which it creates, so that two requests go to the name server: for the topic, and for TBW102."""
    judge = Judge(TIMEOUT)

    async def lane(server: EmbeddedRocketMQ, number: int, way: str, times: int) -> None:
        async with proxied(server, 4 * number + 2 * (way == "to_client") + times, retries=0) as (cluster, producer):
            direction: Direction = getattr(cluster.name_servers[0], way)
            prefix = f"{way}-{times}-"
            counter = iter(range(2))
            length = await length_of(direction, lambda: send_one(producer, f"{prefix}{next(counter):04}-warm", "warm"))
            routes = (await client_of(producer)).routes
            apart = LANES * (step if times == 1 else 3)
            for at in range(step * number, length + 1, apart):
                name = f"{prefix}{at:04}"
                await routes.fetch("T", TIMEOUT)  # connects anew
                direction.cut_after(at, reset=times == 2, times=times)
                outcome = await judge.call(name, send_one(producer, f"{name}-cold", name))
                direction.clear()
                assert not isinstance(outcome, RocketMQError) or (type(outcome) is NameServerError and times == 2), name
                assert not outcome.maybe_stored if isinstance(outcome, RocketMQError) else outcome.attempts == 1
            assert direction.injected["cut"] >= len(range(step * number, length, apart))

    async with served() as server:
        async with asyncio.TaskGroup() as lanes:
            for number in range(LANES):
                for way in ("to_server", "to_client"):
                    lanes.create_task(lane(server, number, way, 1))
                    if not number:  # twice, so that it fails: every twelfth byte
                        lanes.create_task(lane(server, number, way, 2))
        read = [copy for name in judge.history.requests for copy in read_back(server, f"{name}-cold")]
    judge.close("first send, look-up cut", read)
    assert {copy.name for copy in read} == judge.history.acknowledged.keys()
    assert set(judge.outcomes) == {"SendResult", "NameServerError"}


@pytest.mark.parametrize("way", ["to_server", "to_client"])
async def test_a_pull_cut_anywhere_fails_in_time_and_the_next_one_gets_all(way: str) -> None:
    async with served() as server, ClusterProxy(server.namesrv) as cluster:
        (stored,) = server.messages("T")
        (broker,) = cluster.brokers.values()
        direction: Direction = getattr(broker, way)
        async with PullConsumer("cut", namesrv=cluster.namesrv, request_timeout=TIMEOUT) as consumer:
            length = await length_of(direction, lambda: consumer.pull(stored.queue, 0))
            for at in range(length + 1):
                direction.cut_after(at, reset=at % 2 == 1)
                try:
                    result = await consumer.pull(stored.queue, 0)
                except ConnectionLostError:
                    assert way == "to_server" or at < length
                else:
                    assert (at >= length, [each.body for each in result.messages]) == (True, [b"first"])
                direction.clear()
                await again(lambda: consumer.pull(stored.queue, 0))
                result = await consumer.pull(stored.queue, 0)
                assert [each.msg_id for each in result.messages] == [stored.msg_id]
            assert direction.injected["cut"] == length + 1
