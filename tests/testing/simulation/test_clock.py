"""Machines have monotonic clocks that disagree, and timers run by the clock of their machine."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from pathlib import Path

import pytest

from rmq_async import Message, Producer
from rmq_async.errors import RocketMQError
from rmq_async.testing.simulation import Faults, Scheduler, Simulation, SimulationError
from rmq_async.testing.simulation.machines import USUAL_DRIFT
from rmq_async.testing.simulation.scheduler import MonotonicClock

from .worlds import Processes


def test_clock_shows_the_time_of_a_timer_when_it_is_due() -> None:
    scheduler = Scheduler()
    clock = MonotonicClock(scheduler, booted=734_211.25, drift=-0.0137)
    for step in range(2000):
        clock.set_drift((step % 7 - 3) * 0.003)
        due = clock.time() + 0.001 * step + 1e-9
        scheduler.now = clock.at(due)
        assert due <= clock.time() < due + 3e-9


def test_timers_fire_by_the_clock_of_their_process() -> None:
    processes = Processes()
    other = processes.process("other", booted=5000.0)
    woken: list[tuple[float, float]] = []

    async def sleeps() -> None:
        for _ in range(3):
            await asyncio.sleep(10.0)
            woken.append((other.time(), processes.scheduler.now / 1e9))

    other.create_task(sleeps())

    async def main() -> None:
        other.set_drift(0.25)  # the first timer is set after that
        await asyncio.sleep(12.0)
        other.set_drift(-0.2)  # half of the second one is over
        await asyncio.sleep(100.0)

    processes.run(main)
    assert [shown for shown, _ in woken] == pytest.approx([5010.0, 5020.0, 5030.0], abs=1e-6)
    assert all(shown >= due for (shown, _), due in zip(woken, (5010.0, 5020.0, 5030.0), strict=True))
    assert [at for _, at in woken] == pytest.approx([8.0, 12.0 + 5.0 / 0.8, 18.25 + 12.5], abs=1e-6)


def test_timers_of_one_time_keep_their_order_when_the_clock_changes() -> None:
    processes, order = Processes(), list[int]()
    other = processes.process("other")
    for number in range(50):
        other.call_at(105.0, order.append, number)
    other.call_at(104.0, order.append, -1).cancel()

    async def main() -> None:
        await asyncio.sleep(1.0)
        other.set_drift(0.02)
        await asyncio.sleep(10.0)

    processes.run(main)
    assert order == list(range(50))


def test_each_machine_draws_the_usual_drift_of_its_clock() -> None:
    async def main(simulation: Simulation) -> list[float]:
        async def seconds() -> float:
            began = time.monotonic(), simulation.now
            await asyncio.sleep(1000.0)
            assert time.perf_counter() == time.monotonic() == asyncio.get_running_loop().time()
            return (time.monotonic() - began[0]) / (simulation.now - began[1]) - 1.0

        return list(await asyncio.gather(seconds(), *(simulation.machine(f"m{number}").run(seconds) for number in range(8))))

    own, *drifts = Simulation(3, faults=None).run(main)
    assert own == pytest.approx(0.0, abs=1e-12)  # the function of run() measures by the time of the simulation
    assert len({round(drift * 1e9) for drift in drifts}) == 8
    assert max(map(abs, drifts)) <= USUAL_DRIFT * 1.001
    assert min(drifts) < -USUAL_DRIFT / 10
    assert max(drifts) > USUAL_DRIFT / 10


def test_timeout_of_a_client_ends_by_its_own_clock() -> None:
    took: list[float] = []

    async def main(simulation: Simulation) -> None:
        async def service() -> None:
            async with Producer("shop", namesrv=simulation.namesrv, timeout=10.0, attempt_timeout=10.0) as producer:
                await producer.send(Message("T", b"1"))
                machine.drift_monotonic(-0.5)
                simulation.machine("broker-a").pause()
                began = simulation.now
                with pytest.raises(RocketMQError):
                    await producer.send(Message("T", b"2"))
                took.append(simulation.now - began)
                simulation.machine("broker-a").resume()
                machine.drift_monotonic(None)

        machine = simulation.machine("shop")
        await machine.run(service)

    simulation = Simulation(1, brokers=1, faults=None)
    simulation.run(main)
    simulation.check()  # the call is not late: its own clock showed 10 s
    assert took == [pytest.approx(20.0, abs=0.1)]
    rates = [event.details["rate"] for event in simulation.history if event.what == "drift_monotonic"]
    assert rates == [-0.5, None]


def test_clock_that_cannot_drift_that_much_is_refused() -> None:
    async def main(simulation: Simulation) -> None:
        machine = simulation.machine("shop")
        with pytest.raises(SimulationError, match=r"clock of shop must gain or lose at most 0\.5 s in each second, not -1"):
            machine.drift_monotonic(-1)
        with pytest.raises(SimulationError, match="the clock of shop must be made to drift by a finite number, not 'fast'"):
            machine.drift_monotonic("fast")  # type: ignore[arg-type]
        machine.crash()
        await asyncio.sleep(1.0)
        machine.drift_monotonic(0.01)  # also while no process runs

    Simulation(1, faults=None).run(main)


def test_fault_changes_the_clock_for_a_while() -> None:
    async def main(simulation: Simulation) -> None:
        await asyncio.sleep(300.0)

    simulation = Simulation(2, faults=Faults({"clock-rate"}, rate=10.0))
    simulation.run(main)
    assert simulation.faults_met["clock-rate"] > 10
    rates = [event.details["rate"] for event in simulation.history if event.what == "drift_monotonic"]
    assert all(rate is None or abs(rate) <= 0.02 for rate in rates)
    assert rates.count(None) > 10


def test_module_loaded_during_a_simulation_has_the_real_clock_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a module that is loaded late would keep the clock of a simulation that has ended."""
    (tmp_path / "loaded_late.py").write_text("from time import monotonic\n")
    monkeypatch.syspath_prepend(tmp_path)

    async def main(s: Simulation) -> None:
        loaded = importlib.import_module("loaded_late")
        assert abs(loaded.monotonic() - asyncio.get_running_loop().time()) < 1e-3

    Simulation(1, faults=None).run(main)
    loaded = sys.modules.pop("loaded_late")
    assert loaded.monotonic is time.monotonic
