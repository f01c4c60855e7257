"""A call for a queue waits for its broker to come back into the route, in simulations: broker-a restarts, broker-b runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from rmq_async import Admin, BrokerNotFoundError, ClientStateError, Message, MessageQueue, Producer, SendResult
from rmq_async.producer.routing import topic_table
from rmq_async.testing.simulation import Simulation

from .support import core_of

pytestmark = pytest.mark.virtual_time

TOPIC = "T"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
POLL = 5.0


@asynccontextmanager
async def used(simulation: Simulation, *topics: str) -> AsyncIterator[Producer]:
    """A producer that has sent to the queue of each topic."""
    async with Producer("group", namesrv=simulation.namesrv, route_poll_interval=POLL) as producer:
        for topic in topics or (TOPIC,):
            async with Admin(namesrv=simulation.namesrv) as admin:
                await admin.create_topic(topic)
            await producer.send(Message(topic, b"0"), queue=QUEUE._replace(topic=topic))
        yield producer


async def away(simulation: Simulation, seconds: float = 3 * POLL) -> None:
    """The broker ends, and the polls of the routes notice it."""
    simulation.machine("broker-a").crash()
    await asyncio.sleep(seconds)


async def back(simulation: Simulation, after: float) -> None:
    await asyncio.sleep(after)
    simulation.machine("broker-a").restart()


async def stored_after(simulation: Simulation, producer: Producer, queue: MessageQueue = QUEUE, timeout: float = 60.0) -> float:
    """Sends to the queue; returns the seconds that the call took."""
    began = simulation.now
    sent: SendResult = await producer.send(Message(queue.topic, b"1"), queue=queue, timeout=timeout)
    assert sent.queue == queue
    return simulation.now - began


@pytest.mark.parametrize("idle", [0.0, 3 * POLL, 12 * POLL], ids=["used", "idle", "forgotten"])
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_send_to_a_queue_waits_for_its_broker(idle: float, restarts: int) -> None:
    async def main(simulation: Simulation) -> float:
        async with used(simulation) as producer:
            await asyncio.sleep(idle)
            for _ in range(restarts):
                await away(simulation)
                await back(simulation, 0.0)
                await asyncio.sleep(3 * POLL)
            await away(simulation)
            returning = asyncio.ensure_future(back(simulation, 5.0))
            seconds = await stored_after(simulation, producer)
            await returning
            return seconds

    assert 5.0 < Simulation(1, faults=None, brokers=2).run(main) < 30.0


def test_send_to_a_broker_that_was_never_in_the_route_does_not_wait() -> None:
    async def main(simulation: Simulation) -> float:
        async with used(simulation) as producer:
            began = simulation.now
            with pytest.raises(BrokerNotFoundError):
                await stored_after(simulation, producer, QUEUE._replace(broker_name="broker-x"))
            return simulation.now - began

    assert Simulation(1, faults=None, brokers=2).run(main) < 1.0


@pytest.mark.parametrize("first", [0.4, 0.45, 0.5, 0.55, 0.6])
def test_call_whose_time_is_over_ends_no_other(first: float) -> None:
    """Its time ends while the last refresh of the route runs, which the next call joins."""

    async def main(simulation: Simulation) -> float:
        async with used(simulation) as producer:
            await away(simulation)
            simulation.link("main", "namesrv-0").slow(0.15)
            with pytest.raises(BrokerNotFoundError):
                await stored_after(simulation, producer, timeout=first)
            returning = asyncio.ensure_future(back(simulation, 3.0))
            seconds = await stored_after(simulation, producer)
            await returning
            return seconds

    assert Simulation(1, faults=None, brokers=2).run(main) > 3.0


@pytest.mark.parametrize(
    "options", [{"queue": QUEUE._replace(broker_name="broker-b")}, {"key": 17}, {}], ids=["queue", "key", "plain"]
)
def test_call_for_a_broker_that_is_away_holds_up_no_other_queue(options: dict[str, Any]) -> None:
    async def main(simulation: Simulation) -> tuple[float, object]:
        async with used(simulation) as producer:
            await away(simulation)
            waits = [asyncio.ensure_future(stored_after(simulation, producer, timeout=20.0)) for _ in range(2)]
            await asyncio.sleep(0.1)
            began = simulation.now
            sent = [producer.send(Message(TOPIC, b"2"), **options) for _ in range(3)]
            assert {result.queue.broker_name for result in await asyncio.gather(*sent)} == {"broker-b"}
            seconds = simulation.now - began
            first, second = await asyncio.gather(*waits, return_exceptions=True)
            assert type(first) is type(second)
            assert not core_of(producer).admission.lines.line(TOPIC).busy
            return seconds, first

    seconds, error = Simulation(1, faults=None, brokers=2).run(main)
    assert isinstance(error, BrokerNotFoundError)
    assert seconds < 0.5


@pytest.mark.parametrize("seed", range(4))
def test_calls_that_waited_for_a_broker_are_stored_in_their_order(seed: int) -> None:
    """Calls that name the queue, and calls whose selector chooses it as soon as its broker is back."""
    chance = Random(seed)

    def back_again(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
        return QUEUE if QUEUE in queues else queues[0]

    async def main(simulation: Simulation) -> list[tuple[int, int]]:
        async with used(simulation) as producer:
            await away(simulation)
            returning = asyncio.ensure_future(back(simulation, 2.0))
            calls = []
            for number in range(200):
                options: dict[str, Any] = {"queue": QUEUE} if chance.random() < 0.6 else {"selector": back_again}
                calls.append(asyncio.ensure_future(producer.send(Message(TOPIC, b"%d" % number), timeout=60.0, **options)))
                if chance.random() < 0.1:
                    calls[-1].cancel()
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.02, 0.1)))
            results = await asyncio.gather(*calls, return_exceptions=True)
            await returning
            return [
                (number, result.queue_offset)
                for number, result in enumerate(results)
                if isinstance(result, SendResult) and result.queue == QUEUE
            ]

    stored = Simulation(seed, faults=None, brokers=2).run(main)
    assert len(stored) > 100
    assert stored == sorted(stored, key=lambda each: each[1])


def test_stop_ends_calls_that_wait_for_a_broker() -> None:
    async def main(simulation: Simulation) -> tuple[list[BaseException], float]:
        async with used(simulation) as producer:
            await away(simulation)
            calls = [asyncio.ensure_future(stored_after(simulation, producer)) for _ in range(5)]
            await asyncio.sleep(0.1)
            began = simulation.now
            await producer.stop(0.5)
            return await asyncio.gather(*calls, return_exceptions=True), simulation.now - began  # type: ignore[return-value]

    ended, seconds = Simulation(1, faults=None, brokers=2).run(main)
    assert {type(error) for error in ended} == {ClientStateError}
    assert seconds < 2.0


def test_brokers_of_few_topics_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_table, "DEPARTED_KEPT", 3)
    topics = [f"T{number}" for number in range(6)]

    async def main(simulation: Simulation) -> list[bool]:
        async with used(simulation, *topics) as producer:
            await asyncio.sleep(3 * POLL)
            await away(simulation)
            calls = [stored_after(simulation, producer, QUEUE._replace(topic=topic)) for topic in topics]
            calls.append(back(simulation, 5.0))  # type: ignore[arg-type]
            return [isinstance(each, BrokerNotFoundError) for each in await asyncio.gather(*calls, return_exceptions=True)]

    assert Simulation(1, faults=None, brokers=2).run(main) == [True] * 3 + [False] * 4
