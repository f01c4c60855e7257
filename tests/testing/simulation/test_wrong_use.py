"""Wrong use of a simulation: one sentence that says what is wrong, where it is called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import Message, Producer, SendError
from rmq_async.testing.simulation import Faults, Simulation, SimulationError

from ...simulation import run_seed


def quiet(seed: int = 1, **options: Any) -> Simulation:
    return Simulation(seed, faults=None, **options)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: Simulation(1, brokers=0), "brokers must be an int from 1 to 26, not 0"),
        (lambda: Simulation(1, name_servers=True), "name_servers must be an int from 1 to 8, not True"),
        (lambda: Simulation("1"), "seed must be an int, not '1'"),  # type: ignore[arg-type]
        (lambda: Faults(frozenset(["fire"])), "there is no kind of fault 'fire'"),
        (lambda: Faults(rate=-1.0), "faults need a finite, non-negative rate and 0 <= start <= end, not rate=-1.0"),
        (lambda: Faults(rate="8"), "0 <= start <= end, not rate='8', start=0.0, end=inf"),  # type: ignore[arg-type]
        (lambda: Faults(rate=float("inf")), "a finite, non-negative rate and 0 <= start <= end, not rate=inf"),
        (lambda: Faults(start=True), "0 <= start <= end, not rate=4.0, start=True, end=inf"),
        (lambda: quiet().run(None), "run\\(\\) takes a coroutine function"),  # type: ignore[arg-type]
        (lambda: quiet().check(), "check\\(\\) was called before the end of run\\(\\); call it afterwards"),
        (lambda: quiet().machine("broker-a"), "outside of run\\(\\)"),
        (lambda: quiet().link("main", "broker-a"), "there is no machine 'main'"),
        (lambda: run_seed("none", 1), "there is no scenario 'none'"),
        (lambda: Simulation(1, faults="swarm"), "faults must be an object such as Faults.swarm\\(\\), or None, not 'swarm'"),  # type: ignore[arg-type]
        (lambda: Faults("broker-crash"), "kinds of faults must be a set of names, not 'broker-crash'"),  # type: ignore[arg-type]
        (lambda: quiet().run(asyncio.sleep(1)), "not a coroutine: leave out its parentheses"),  # type: ignore[arg-type]
        (lambda: quiet().run(lambda simulation: None), "not a function that returns None; define it with async def"),  # type: ignore[arg-type, return-value]
    ],
)
def test_wrong_use_gets_one_sentence(use: Callable[[], object], text: str) -> None:
    with pytest.raises(SimulationError, match=text) as raised:
        use()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda simulation: simulation.machine(7), "the name of a machine must be a str, not 7"),
        (lambda simulation: simulation.machine(""), "there is no machine ''; there are main, namesrv-0, broker-a, broker-b"),
        (lambda simulation: simulation.machine("localhost"), "there is no machine 'localhost'"),
        (lambda simulation: simulation.link("main", "broker-c"), "there is no machine 'broker-c'"),
        (lambda simulation: simulation.link("main", ["broker-a"]), r"there is no machine \['broker-a'\]"),
        (lambda simulation: simulation.machine("a").run(7), r"run\(\) of a takes a coroutine function, not 7"),
        (lambda simulation: simulation.machine("a").run(asyncio.sleep(1)), "not a coroutine: leave out its parentheses"),
        (
            lambda simulation: simulation.machine("a").move("broker-b"),
            "a cannot move to 'broker-b': give an IPv4 address, such",
        ),
        (lambda simulation: simulation.machine("a").move(7), "a cannot move to 7: give an IPv4 address, such"),
        (
            lambda simulation: simulation.machine("a").move("127.0.0.1"),
            "127.0.0.1, which no other machine can reach",
        ),
        (lambda simulation: simulation.machine("a").move("10.0.0.1"), "a cannot move to 10.0.0.1: main has it; choose another"),
        (
            lambda simulation: simulation.link("main", "broker-a").slow("x"),
            "a finite, non-negative number of seconds, not 'x'",
        ),
        (
            lambda simulation: simulation.link("main", "broker-a").slow(-1),
            "slowed by a finite, non-negative number of seconds, not -1",
        ),
        (
            lambda simulation: simulation.machine("a").skew("1"),
            "the clock of a must be skewed by a finite number of seconds, not '1'",
        ),
        (lambda simulation: simulation.machine("a").skew(float("nan")), "by a finite number of seconds, not nan"),
    ],
)
def test_wrong_use_inside_a_run_gets_one_sentence_where_it_is_called(use: Callable[[Simulation], object], text: str) -> None:
    async def main(simulation: Simulation) -> None:
        with pytest.raises(SimulationError, match=text) as raised:
            use(simulation)
        assert "\n" not in str(raised.value)

    quiet().run(main)


def test_service_that_is_no_coroutine_function_is_named() -> None:
    async def main(simulation: Simulation) -> None:
        await simulation.machine("orders").run(lambda: None)  # type: ignore[arg-type, return-value]

    with pytest.raises(
        SimulationError, match=r"orders failed at .* takes a coroutine function, not a function that returns None"
    ):
        quiet().run(main)


def test_unknown_server_is_no_machine() -> None:
    async def main(simulation: Simulation) -> None:
        simulation.machine("broker-z")

    with pytest.raises(SimulationError, match=r"there is no machine 'broker-z'; there are main, namesrv-0, broker-a, broker-b"):
        quiet().run(main)


async def test_simulation_does_not_run_inside_an_event_loop() -> None:
    async def main(simulation: Simulation) -> None: ...

    with pytest.raises(SimulationError, match="inside a running event loop"):
        quiet().run(main)


def test_simulation_runs_once() -> None:
    async def main(simulation: Simulation) -> None:
        await asyncio.sleep(1.0)

    simulation = quiet()
    simulation.run(main)
    with pytest.raises(SimulationError, match=r"run\(\) was called before; make a new Simulation"):
        simulation.run(main)


def test_check_of_a_run_that_failed_says_that_nothing_was_checked() -> None:
    async def main(simulation: Simulation) -> None:
        raise ValueError("no")

    simulation = quiet()
    with pytest.raises(ValueError, match="no"):
        simulation.run(main)
    with pytest.raises(SimulationError, match="the run failed before its end, so nothing was checked"):
        simulation.check()


def test_simulation_that_failed_at_once_has_met_no_fault() -> None:
    simulation = Simulation(1, faults=Faults.swarm())
    with pytest.raises(SimulationError, match="takes a coroutine function"):
        simulation.run(None)  # type: ignore[arg-type]
    assert dict(simulation.faults_met) == {}
    assert simulation.faults_unmet == []


@pytest.mark.parametrize("name", ["send", "send_oneway", "send_async"])
def test_call_with_its_message_by_name_is_in_the_history(name: str) -> None:
    async def main(simulation: Simulation) -> None:
        async with Producer("group", namesrv=simulation.namesrv) as producer:
            await getattr(producer, name)(message=Message("T", b"x"))
            await producer.flush()

    simulation = quiet()
    simulation.run(main)
    simulation.check()
    assert [(event.what, event.details["topic"]) for event in simulation.history] == [(name, "T")]


def test_call_without_a_message_raises_what_it_raises_outside() -> None:
    async def main(simulation: Simulation) -> None:
        async with Producer("group", namesrv=simulation.namesrv) as producer:
            with pytest.raises(TypeError, match="message"):
                await producer.send()  # type: ignore[call-arg]
            with pytest.raises(SendError.__bases__[0]):
                await producer.send_batch(messages=[])

    quiet().run(main)
