"""When brokers may have removed the id of a client whose connection fell silent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import machine
from rmq_async.client import heartbeat as heartbeat_module
from rmq_async.client.heartbeat import FormerConnections
from rmq_async.testing.simulation import Simulation
from rmq_async.transport import CloseReason

BROKER = "10.0.0.9:10911"


@pytest.mark.parametrize(
    ("answered_after", "first", "last"),
    [
        (1.0, 120, 156),  # the heartbeats that follow on the old connection are what counts
        (40.0, 120, 171),  # the broker pushed replies to the old connection for 40 s (seed 801439 of the mixed scenario)
        (400.0, 120, 531),  # it pushed them through a failure of the network
    ],
)
def test_silent_connection_is_doubted_until_its_broker_has_closed_it(answered_after: float, first: int, last: int) -> None:
    async def main(simulation: Simulation) -> None:
        reports: list[float] = []
        began = simulation.now
        former = FormerConnections(lambda address: reports.append(simulation.now - began))
        silent: Any = SimpleNamespace(
            address=BROKER, closed=asyncio.get_running_loop().create_future(), close_reason=CloseReason.DEAD
        )
        former.add(silent, machine.monotonic())
        await asyncio.sleep(answered_after)
        for _ in range(3):
            former.answered(BROKER)
            await asyncio.sleep(300.0)
        former.close()
        assert first <= reports[0] < first + 1
        assert last - 6 < reports[-1] < last

    Simulation(1, faults=None).run(main)


def test_addresses_that_never_answer_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "MOST_UNREPLACED", 2)

    async def main(simulation: Simulation) -> None:
        reports: list[str] = []
        former = FormerConnections(reports.append)
        for number in range(3):
            silent: Any = SimpleNamespace(
                address=f"10.0.0.{number}:1", closed=asyncio.get_running_loop().create_future(), close_reason=CloseReason.DEAD
            )
            former.add(silent, machine.monotonic())
        await asyncio.sleep(200.0)
        reports.clear()
        for number in range(3):
            former.answered(f"10.0.0.{number}:1")
        await asyncio.sleep(200.0)
        former.close()
        assert {*reports} == {"10.0.0.1:1", "10.0.0.2:1"}

    Simulation(1, faults=None).run(main)


def test_connection_that_ended_in_order_is_not_doubted() -> None:
    async def main(simulation: Simulation) -> None:
        reports: list[float] = []
        began = simulation.now
        former = FormerConnections(lambda address: reports.append(simulation.now - began))
        ended: Any = SimpleNamespace(address=BROKER, closed=asyncio.get_running_loop().create_future(), close_reason=None)
        former.add(ended, machine.monotonic())
        ended.closed.set_result(None)
        former.answered(BROKER)
        await asyncio.sleep(300.0)
        former.close()
        assert reports == [pytest.approx(0.5)]

    Simulation(1, faults=None).run(main)
