"""The only broker is at another address, and a client that was idle has not noticed: its next call, in simulations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rmq_async import Admin, ConnectError, Message, MessageQueue, Producer, TransactionProducer, TransactionStatus
from rmq_async.testing.simulation import Simulation

TOPIC = "T"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
WITHIN = 1.6
"""Seconds: a third of the default timeout is for the connection to the old address, and the route has to be asked for."""


def message() -> Message:
    return Message(TOPIC, b"1")


async def by_future(producer: Producer, **options: Any) -> object:
    return await (await producer.send_async(message(), **options))


CALLS: dict[str, Callable[[Producer], Awaitable[object]]] = {
    "send": lambda producer: producer.send(message()),
    "timeout": lambda producer: producer.send(message(), timeout=20.0),
    "key": lambda producer: producer.send(message(), key="k"),
    "queue": lambda producer: producer.send(message(), queue=QUEUE),
    "send_async": by_future,
    "send_async_queue": lambda producer: by_future(producer, queue=QUEUE),
    "batch": lambda producer: producer.send_batch([message(), message()]),
}


async def moves(simulation: Simulation, after: float = 0.0) -> None:
    """The broker ends without a word, and begins at another address."""
    broker = simulation.machine("broker-a")
    broker.power_loss()
    broker.move("10.7.7.7")
    await asyncio.sleep(after)
    broker.restart()


@pytest.mark.parametrize("batching", [False, True], ids=["plain", "batching"])
@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("call", CALLS)
def test_first_call_after_the_broker_has_moved(call: str, retries: int, batching: bool) -> None:
    """The connection was closed because it was idle; the known route has the old address, where nothing answers."""

    async def main(simulation: Simulation) -> None:
        async with Admin(namesrv=simulation.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)
        async with Producer(
            "group",
            namesrv=simulation.namesrv,
            route_poll_interval=3600.0,
            heartbeat_interval=3600.0,
            retries=retries,
            async_retries=retries,
            batching=batching,
        ) as producer:
            await producer.send(Message(TOPIC, b"0"))
            await asyncio.sleep(300.0)
            await moves(simulation)
            await asyncio.sleep(5.0)
            began = simulation.now
            await CALLS[call](producer)
            assert simulation.now - began < WITHIN
            await asyncio.sleep(1.0)
        stored = [each for each in simulation.machine("broker-a").stored() if each.topic == TOPIC]
        assert len(stored) == (3 if call == "batch" else 2)

    simulation = Simulation(1, brokers=1, faults=None)
    simulation.run(main)
    simulation.check()


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"queue": QUEUE}], ids=["plain", "key", "queue"])
@pytest.mark.parametrize("window", [0, 64])
def test_one_way_message_after_the_broker_has_moved(options: dict[str, Any], window: int) -> None:
    async def main(simulation: Simulation) -> None:
        async with Producer(
            "group", namesrv=simulation.namesrv, route_poll_interval=3600.0, heartbeat_interval=3600.0, oneway_window=window
        ) as producer:
            await producer.send(Message(TOPIC, b"0"))
            await asyncio.sleep(300.0)
            await moves(simulation)
            await asyncio.sleep(5.0)
            began = simulation.now
            await asyncio.gather(*(producer.send_oneway(message(), **options) for _ in range(10)))
            assert simulation.now - began < WITHIN
            await producer.send_oneway(message(), **options)  # the new address is known
            assert simulation.now - began < WITHIN
            await asyncio.sleep(1.0)
        stored = [each for each in simulation.machine("broker-a").stored() if each.topic == TOPIC]
        assert len(stored) == 12

    simulation = Simulation(1, brokers=1, faults=None)
    simulation.run(main)
    simulation.check()


def test_one_way_message_to_a_broker_that_is_away_has_its_error_at_once() -> None:
    async def main(simulation: Simulation) -> None:
        async with Producer("group", namesrv=simulation.namesrv) as producer:
            await producer.send(Message(TOPIC, b"0"))
            simulation.machine("broker-a").crash()
            await asyncio.sleep(1.0)
            for _ in range(5):
                began = simulation.now
                with pytest.raises(ConnectError):
                    await producer.send_oneway(message(), queue=QUEUE)
                assert simulation.now - began < 1.2  # the longest back-off, and one question to the name server

    Simulation(1, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("knows", [False, True], ids=["asks for the route", "knows the route"])
@pytest.mark.parametrize("status", [TransactionStatus.COMMIT, TransactionStatus.ROLLBACK])
def test_end_of_a_transaction_goes_where_the_broker_has_moved(status: TransactionStatus, knows: bool) -> None:
    took: list[float] = []

    async def main(simulation: Simulation) -> None:
        async def execute(half: Message, _: object) -> TransactionStatus:
            broker = simulation.machine("broker-a")
            broker.crash()  # the client looks at its routes 0.5 s after it has lost the connection
            await asyncio.sleep(0.1 if knows else 1.0)
            broker.move("10.7.7.7")
            broker.restart()
            await asyncio.sleep(2.0 if knows else 0.3)
            took.append(simulation.now)
            return status

        async with TransactionProducer(
            "group", execute=execute, check=lambda _: pytest.fail("a check"), namesrv=simulation.namesrv,
            route_poll_interval=3600.0, heartbeat_interval=3600.0,
        ) as producer:  # fmt: skip
            await producer.send(Message(TOPIC, b"0"))
            result = await producer.send_in_transaction(message())
            assert result.local_status is status
            assert simulation.now - took[0] < (0.1 if knows else WITHIN)
        stored = [each for each in simulation.machine("broker-a").stored() if each.unique_id == result.msg_id]
        assert [each.topic for each in stored if each.topic == TOPIC] == [TOPIC] * (status is TransactionStatus.COMMIT)

    Simulation(1, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("after", [0.2, 1.5, 4.0, 9.0])
def test_call_while_the_broker_moves_goes_on_soon_after_its_start(after: float) -> None:
    """The name server learns the new address while the call waits for a connection to the old one."""

    async def main(simulation: Simulation) -> None:
        options = {"route_poll_interval": 3600.0, "heartbeat_interval": 3600.0}
        async with Producer("group", namesrv=simulation.namesrv, timeout=20.0, **options) as producer:
            await producer.send(Message(TOPIC, b"0"))
            await asyncio.sleep(300.0)
            began = simulation.now
            moving = asyncio.create_task(moves(simulation, after))
            await asyncio.sleep(0.001)
            await producer.send(message())
            assert (
                simulation.now - began < max(after, 1.0) + 2.0
            )  # it registers within a second, and is asked for once a second
            await moving

    simulation = Simulation(1, brokers=1, faults=None)
    simulation.run(main)
    simulation.check()


def test_call_without_a_new_route_has_all_its_time_for_the_connection() -> None:
    """The address is the right one; its machine answers after 2.5 of the 3 seconds of the call."""

    async def main(simulation: Simulation) -> None:
        async with Producer("group", namesrv=simulation.namesrv) as producer:
            await producer.send(Message(TOPIC, b"0"))
            await asyncio.sleep(300.0)
            link = simulation.link("main", "broker-a")
            link.cut()
            asyncio.get_running_loop().call_later(1.5, link.heal)
            began = simulation.now
            await producer.send(message())
            assert 1.5 < simulation.now - began < 3.0

    simulation = Simulation(1, brokers=1, faults=None)
    simulation.run(main)
    simulation.check()
