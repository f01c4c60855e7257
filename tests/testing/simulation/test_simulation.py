"""A simulated cluster with clients of the library: one seed gives one run, and what was promised is checked."""

from __future__ import annotations

import asyncio
import datetime
import gc
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rmq_async import Message, Producer, PullConsumer, SendError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.sockets import descriptor_limit
from rmq_async.errors import ClientStateError, RocketMQError
from rmq_async.testing.simulation import Faults, Simulation, SimulationError
from rmq_async.transport.threads import MAX_THREADS, Threads


def quiet(seed: int = 1, **options: Any) -> Simulation:
    return Simulation(seed, faults=None, **options)


async def send(simulation: Simulation, topic: str, count: int, *, pause: float = 0.0) -> list[str]:
    """Returns the unique ids of the messages that were acknowledged."""
    ids = []
    async with Producer("group", namesrv=simulation.namesrv) as producer:
        for number in range(count):
            try:
                ids.append((await producer.send(Message(topic, f"{topic}-{number}".encode()))).msg_id)
            except RocketMQError:
                continue
            finally:
                await asyncio.sleep(pause)
    return ids


def test_simulation_returns_the_result_of_its_function() -> None:
    simulation = quiet()
    assert len(simulation.run(lambda simulation: send(simulation, "T", 100))) == 100
    simulation.check()
    assert simulation.operations == 100
    assert [event.what for event in simulation.history] == ["send"] * 100
    assert all(event.machine == "main" and event.details["results"] for event in simulation.history)
    assert simulation.faults_met == {}


def test_simulation_of_one_seed_repeats_itself() -> None:
    def run(seed: int) -> str:
        simulation = Simulation(seed, faults=Faults.swarm(rate=30))
        simulation.run(lambda simulation: send(simulation, "T", 60, pause=1.0))
        simulation.check()
        return simulation.trace_hash

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_simulation_runs_a_day_in_seconds() -> None:
    async def main(simulation: Simulation) -> float:
        began = time.monotonic()
        await send(simulation, "T", 24, pause=3600.0)
        return time.monotonic() - began

    assert quiet().run(main) > 86_400


def test_machines_are_clients_of_their_own() -> None:
    async def main(simulation: Simulation) -> tuple[str, ...]:
        async def service() -> str:
            async with Producer("group", namesrv=simulation.namesrv) as producer:
                await producer.send(Message("T", b"x"))
                return producer.client_config.resolved().instance_name

        first, second = simulation.machine("orders"), simulation.machine("payments")
        assert first.address != second.address
        return tuple(await asyncio.gather(first.run(service), second.run(service)))

    first, second = quiet().run(main)
    assert first != second


@pytest.mark.parametrize("server", ["broker-a", "namesrv-0"])
def test_crash_of_a_server_loses_nothing(server: str) -> None:
    async def main(simulation: Simulation) -> int:
        sending = asyncio.ensure_future(send(simulation, "T", 200, pause=0.1))
        for _ in range(3):
            await asyncio.sleep(4.0)
            simulation.machine(server).crash()
            await asyncio.sleep(1.0)
            simulation.machine(server).restart()
        return len(await sending)

    simulation = quiet(7)
    assert simulation.run(main) >= 195
    simulation.check()
    assert [event.what for event in simulation.history if event.machine == server] == ["crash", "restart"] * 3


def test_power_loss_takes_what_was_not_flushed_and_check_knows_it() -> None:
    async def main(simulation: Simulation) -> int:
        acknowledged = await send(simulation, "T", 50)
        broker = simulation.brokers[0]
        before = len(broker.stored())
        broker.power_loss()
        await asyncio.sleep(1.0)
        broker.restart()
        await asyncio.sleep(1.0)
        assert len(acknowledged) == 50
        return before - len(broker.stored())

    simulation = quiet(brokers=1)
    assert simulation.run(main) > 0
    simulation.check()
    assert simulation.brokers[0].lost


def test_check_finds_a_message_that_a_broker_forgot() -> None:
    async def main(simulation: Simulation) -> None:
        await send(simulation, "T", 20)
        log = simulation.brokers[0].log
        log.truncate(log.end // 2, "broker-a")

    simulation = quiet(brokers=1)
    simulation.run(main)
    with pytest.raises(SimulationError, match=r"seed 1: .*violations\nlost: send"):
        simulation.check()


def test_cut_link_lets_a_send_try_the_other_broker() -> None:
    async def main(simulation: Simulation) -> tuple[set[str], float]:
        async with Producer("group", namesrv=simulation.namesrv, timeout=5.0, attempt_timeout=1.0) as producer:
            for _ in range(8):
                await producer.send(Message("T", b"x"))
            link = simulation.link("main", "broker-a")
            link.cut()
            began = simulation.now
            results = [await producer.send(Message("T", b"y")) for _ in range(8)]
            took = simulation.now - began
            link.heal()
            return {result.queue.broker_name for result in results}, took

    brokers, took = quiet().run(main)
    assert brokers == {"broker-b"}
    assert 1.0 <= took < 4.0


def test_paused_client_sends_after_it_resumes() -> None:
    async def main(simulation: Simulation) -> float:
        async def service() -> float:
            await send(simulation, "T", 1)
            await asyncio.sleep(1.0)
            return simulation.now

        orders = simulation.machine("orders")
        ended = orders.run(service)
        await asyncio.sleep(0.5)
        orders.pause()
        await asyncio.sleep(30.0)
        orders.resume()
        return float(await ended)

    assert quiet().run(main) > 30.0


def test_clock_of_one_machine_is_skewed() -> None:
    async def main(simulation: Simulation) -> tuple[float, float]:
        async def service() -> float:
            return time.time()

        skewed = simulation.machine("skewed")
        skewed.skew(-3600.0)
        return time.time(), await skewed.run(service)

    here, there = quiet().run(main)
    assert 3599 < here - there < 3601


def test_restarted_machine_runs_its_service_again() -> None:
    starts: list[float] = []

    async def main(simulation: Simulation) -> str:
        async def service() -> str:
            starts.append(simulation.now)
            await asyncio.sleep(10.0)
            return "ended"

        machine = simulation.machine("orders")
        ended = machine.run(service)
        await asyncio.sleep(5.0)
        machine.restart()
        return str(await ended)

    assert quiet().run(main) == "ended"
    assert len(starts) == 2
    assert starts[1] - starts[0] == pytest.approx(5.0, abs=0.01)


def test_error_of_a_service_ends_the_run_and_names_its_machine() -> None:
    async def main(simulation: Simulation) -> None:
        async def service() -> None:
            raise KeyError("order 7")

        simulation.machine("orders").run(service)
        await asyncio.sleep(10.0)

    with pytest.raises(SimulationError, match=r"seed 1: orders failed at .* KeyError\('order 7'\)") as raised:
        quiet().run(main)
    assert isinstance(raised.value.__cause__, KeyError)


def test_error_of_a_service_on_the_main_machine_ends_the_run() -> None:
    async def fail() -> None:
        raise ValueError("no stock")

    async def main(simulation: Simulation) -> None:
        simulation.machine("main").run(fail)
        await asyncio.sleep(3600.0)

    with pytest.raises(SimulationError, match=r"seed 1: main failed at .*: ValueError\('no stock'\)"):
        quiet().run(main)


@pytest.mark.parametrize("end", ["crash", "power_loss", "restart"])
def test_end_of_the_main_process_ends_the_run(end: str) -> None:
    async def main(simulation: Simulation) -> None:
        getattr(simulation.machine("main"), end)()
        await asyncio.sleep(3600.0)

    with pytest.raises(SimulationError, match=r"main failed at .*its process was ended, and with it the function of run\(\)"):
        quiet().run(main)


def test_simulation_has_no_links_before_its_run() -> None:
    assert quiet().links == ()


def test_error_of_the_function_names_the_seed() -> None:
    async def main(simulation: Simulation) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as raised:
        quiet(4711).run(main)
    assert raised.value.__notes__[0].startswith("seed 4711, ")


def test_error_that_no_code_handles_is_a_violation() -> None:
    async def main(simulation: Simulation) -> None:
        def fail() -> None:
            raise RuntimeError("in a callback")

        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(1.0)

    simulation = quiet()
    simulation.run(main)
    with pytest.raises(SimulationError, match=r"unhandled: main at .*in a callback"):
        simulation.check()


def test_standard_library_shows_virtual_time_and_is_restored() -> None:
    async def main(simulation: Simulation) -> list[object]:
        seen: list[object] = []
        for _ in range(2):
            seen += [time.time(), time.monotonic(), datetime.datetime.now().timestamp(), time.localtime().tm_hour]
            await asyncio.sleep(7200.0)
        draws = [random.random(), uuid.uuid4(), os.urandom(4), random.Random().random()]
        return [*seen, *draws, isinstance(datetime.datetime.now(), datetime.datetime)]

    functions = time.time, time.monotonic, time.sleep, random.random, os.urandom, datetime.datetime, threading.Thread.start
    first, again, other = quiet(1).run(main), quiet(1).run(main), quiet(2).run(main)
    assert first == again
    assert first[8:12] != other[8:12]
    assert [first[4 + index] - first[index] for index in range(3)] == pytest.approx([7200.0] * 3)  # type: ignore[operator]
    assert first[3] != first[7]
    assert first[12] is True
    after = time.time, time.monotonic, time.sleep, random.random, os.urandom, datetime.datetime, threading.Thread.start
    assert after == functions
    assert abs(time.time() - datetime.datetime.now().timestamp()) < 5


def test_dates_are_those_of_the_virtual_clock() -> None:
    async def main(simulation: Simulation) -> list[datetime.date]:
        assert issubclass(datetime.datetime, datetime.date)
        assert isinstance(datetime.datetime.now(), datetime.date)
        days = [datetime.date.today(), datetime.date(2025, 6, 15)]
        await asyncio.sleep(36_000.0)
        return [*days, datetime.date.today(), datetime.date.fromisoformat("2025-06-16")]

    real = datetime.date
    days = quiet().run(main)
    assert days == [datetime.date(2025, 6, 15)] * 2 + [datetime.date(2025, 6, 16)] * 2
    assert {type(day) for day in days} == {real}
    assert datetime.date is real


@pytest.mark.parametrize(
    ("forbidden", "name"),
    [
        (lambda: time.sleep(1), "time.sleep"),
        (lambda: threading.Thread(target=print).start(), "Thread.start"),
        (lambda: socket.socket(), "socket.socket"),
        (lambda: subprocess.Popen(["true"]), "subprocess.Popen"),
        (lambda: os.fork(), "os.fork"),
    ],
)
def test_what_leaves_the_simulation_is_refused(forbidden: Callable[[], object], name: str) -> None:
    async def main(simulation: Simulation) -> None:
        forbidden()

    with pytest.raises(SimulationError, match=rf"{name}\(\) was called in a simulation: .+; (use|run|await) "):
        quiet().run(main)


def test_machine_runs_nothing_when_the_simulation_is_over() -> None:
    async def main(simulation: Simulation) -> Any:
        return simulation.machine("orders")

    with pytest.raises(
        SimulationError, match=r"run\(\) of orders was called outside of the simulation; call it in the function given to"
    ):
        quiet().run(main).run(main)


def test_service_that_never_ends_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", left.append)

    async def main(simulation: Simulation) -> int:
        read = 0

        async def reader() -> None:
            nonlocal read
            while True:
                async with PullConsumer("readers", namesrv=simulation.namesrv) as consumer:
                    async for _ in consumer.read("T", start="earliest", end=None):
                        read += 1

        await send(simulation, "T", 5)
        simulation.machine("reader").run(reader)
        await asyncio.sleep(10.0)
        return read

    assert quiet().run(main) == 5
    gc.collect()
    assert left == []


def test_run_leaves_neither_connections_nor_users_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are counted for the whole process, where other tests and services of it need them."""

    async def main(simulation: Simulation) -> None:
        async def service() -> None:
            await send(simulation, "T", 5, pause=1.0)

        machine = simulation.machine("orders")
        machine.run(service)
        await asyncio.sleep(2.5)
        machine.crash()
        simulation.machine("namesrv-0").crash()
        async with Producer("group", namesrv=simulation.namesrv, start_without_cluster=True):
            await asyncio.sleep(1.0)
            simulation.machine("namesrv-0").restart()
            await asyncio.sleep(5.0)
            simulation.machine("other").run(service)
            await asyncio.sleep(2.5)

    async def one_connection() -> None:
        monkeypatch.setattr("rmq_async.embedded.server.RESERVED_DESCRIPTORS", descriptor_limit() - 2)
        async with EmbeddedRocketMQ() as server:
            reader, writer = await asyncio.open_connection(*server.namesrv.split(":"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.2)  # it was not refused
            writer.close()
            await writer.wait_closed()

    async def stopped_threads() -> None:
        threads, ends = Threads(), threading.Event()
        work = [asyncio.ensure_future(threads.run(ends.wait, time.monotonic() + 30)) for _ in range(MAX_THREADS + 1)]
        await asyncio.sleep(0)
        threads.close()
        with pytest.raises(ClientStateError):
            await work[-1]
        ends.set()
        await asyncio.gather(*work, return_exceptions=True)

    quiet().run(main)
    asyncio.run(one_connection())
    asyncio.run(stopped_threads())


def refusing(cluster: Simulation) -> Callable[[Simulation], Awaitable[Any]]:
    async def main(simulation: Simulation) -> Any:
        async with Producer("group", namesrv=cluster.namesrv, retries=2) as producer:
            await producer.send(Message("T", b"x"))
            for broker in simulation.brokers:
                broker.broker.failures.add(2, 10, 310)
            with pytest.raises(SendError) as raised:
                await producer.send(Message("T", b"y"))
            return len(raised.value.attempts)

    return main


def test_refused_send_is_in_the_history_with_its_attempts() -> None:
    simulation = quiet()
    assert simulation.run(refusing(simulation)) == 3
    simulation.check()
    assert [type(event.details["error"]).__name__ for event in simulation.history] == ["NoneType", "SendError"]
