"""The loop of a simulated process: asyncio's behaviour, under virtual time, for one thread."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from rmq_async.testing.simulation import SimulationError

from .worlds import Processes

pytestmark = pytest.mark.interpreters


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return Processes().run(main)


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time() - began

    began = time.process_time()
    assert run(main) == 86_400
    assert time.process_time() - began < 2


def test_timers_run_in_order_of_time_and_then_of_their_setting() -> None:
    async def main() -> list[str]:
        loop, order = asyncio.get_running_loop(), list[str]()
        for name, delay in (("c", 2.0), ("a", 1.0), ("d", 2.0), ("b", 1.0)):
            loop.call_later(delay, order.append, name)
        loop.call_soon(order.append, "first")
        await asyncio.sleep(3)
        return order

    assert run(main) == ["first", "a", "b", "c", "d"]


@pytest.mark.parametrize("delay", [1e-12, 1e-9, 1 / 3, 0.1, 3600.7])
def test_a_timer_is_never_early(delay: float) -> None:
    """So that code which waits for what is left of a time does not wait again and again."""

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        for _ in range(50):
            at = loop.time() + delay
            due = loop.create_future()
            loop.call_at(at, due.set_result, None)
            await due
            if loop.time() < at:
                return False
        return True

    assert run(main)


def test_a_cancelled_timer_does_not_run_and_is_forgotten() -> None:
    async def main() -> list[int]:
        loop, ran = asyncio.get_running_loop(), list[int]()
        timers = [loop.call_later(1 + number / 1000, ran.append, number) for number in range(2000)]
        for timer in timers[1:]:
            timer.cancel()
            assert timer.cancelled()
        await asyncio.sleep(10)
        return ran

    assert run(main) == [0]


def test_timeouts_tasks_and_locks_of_asyncio_work() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        lock = asyncio.Lock()

        async def work(name: str) -> None:
            async with lock:
                await asyncio.sleep(1)
                seen.append(name)

        await asyncio.gather(*map(work, "ab"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 2)
        seen.append(str(asyncio.get_running_loop().time()))
        return seen

    assert run(main) == ["a", "b", "104.5"]


def test_a_job_of_an_executor_runs_on_the_loop_after_a_delay() -> None:
    async def main() -> tuple[int, float]:
        began = asyncio.get_running_loop().time()
        thread = await asyncio.to_thread(threading.get_ident)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        return thread, asyncio.get_running_loop().time() - began

    thread, took = run(main)
    assert thread == threading.get_ident()
    assert 0 < took < 0.01
    assert run(main)[1] == took, "the delays are drawn from the seed"


async def dropped() -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        await asyncio.sleep(1)
        ended.append("ended")


ended: list[str] = []


def test_a_dropped_generator_is_closed_by_its_loop() -> None:
    async def main() -> None:
        async for _ in dropped():
            break
        gc.collect()
        await asyncio.sleep(2)

    ended.clear()
    hooks = sys.get_asyncgen_hooks()
    run(main)
    assert ended == ["ended"]
    assert sys.get_asyncgen_hooks() == hooks


def test_an_error_in_a_callback_goes_to_the_exception_handler(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[Any]:
        loop, seen = asyncio.get_running_loop(), list[Any]()
        loop.call_soon(divmod, 1, 0)
        await asyncio.sleep(1)
        loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))
        loop.call_soon(divmod, 1, 0)
        await asyncio.sleep(1)
        return seen

    with caplog.at_level(logging.ERROR):
        assert [type(error) for error in run(main)] == [ZeroDivisionError]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


REFUSED: dict[str, Callable[[asyncio.AbstractEventLoop], Any]] = {
    "add_signal_handler": lambda loop: loop.add_signal_handler(2, print),
    "add_reader": lambda loop: loop.add_reader(0, print),
    "subprocess_exec": lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
    "create_datagram_endpoint": lambda loop: loop.create_datagram_endpoint(asyncio.DatagramProtocol),
    "start_tls": lambda loop: loop.start_tls(None, None, None),  # type: ignore[arg-type]
    "run_forever": lambda loop: loop.run_forever(),  # type: ignore[func-returns-value]
    "create_connection": lambda loop: loop.create_connection(asyncio.Protocol, "127.0.0.1", 9876),
    "create_server": lambda loop: loop.create_server(asyncio.Protocol, "127.0.0.1", 9876),
    "getaddrinfo": lambda loop: loop.getaddrinfo("localhost", 9876),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_leaves_the_simulation_is_refused_by_name(name: str) -> None:
    async def main() -> None:
        await REFUSED[name](asyncio.get_running_loop())

    with pytest.raises(SimulationError, match=name):
        run(main)


def test_a_call_from_another_thread_is_refused() -> None:
    async def main() -> list[BaseException]:
        loop, errors = asyncio.get_running_loop(), list[BaseException]()

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except SimulationError as error:
                errors.append(error)

        thread = threading.Thread(target=call, name="a thread of the user")
        thread.start()
        thread.join()
        return errors

    assert "from thread a thread of the user: a simulation has one thread; call it from that one" in str(run(main)[0])


def test_each_process_has_its_own_clock_and_loop() -> None:
    processes = Processes()
    other = processes.process("other", booted=5000.0)

    async def seen() -> tuple[float, asyncio.AbstractEventLoop]:
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time(), asyncio.get_running_loop()

    task = other.create_task(seen())

    async def main() -> float:
        await asyncio.sleep(2)
        return asyncio.get_running_loop().time()

    assert processes.run(main) == 102
    assert task.result() == (5001, other)


def test_a_suspended_process_runs_nothing_until_it_is_resumed() -> None:
    processes, ticks = Processes(), list[float]()
    other = processes.process("other", booted=0.0)

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(other.time())

    other.create_task(tick())

    async def main() -> None:
        await asyncio.sleep(1.5)
        other.suspended = True
        await asyncio.sleep(10)
        processes.scheduler.resume(other)
        await asyncio.sleep(1.2)

    processes.run(main)
    assert ticks == [1.0, 11.5, 12.5]


def test_a_closed_process_does_nothing_any_more(caplog: pytest.LogCaptureFixture) -> None:
    """Not even what its tasks would do at their end: a process that crashes runs no ``finally``."""
    processes, did = Processes(), list[str]()
    other = processes.process("other")

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                did.append("worked")
        finally:
            asyncio.get_running_loop().call_soon(did.append, "a last call")
            asyncio.get_running_loop().create_task(asyncio.sleep(1)).add_done_callback(lambda _: did.append("a last task"))

    other.create_task(work())

    async def main() -> None:
        await asyncio.sleep(2.5)
        other.close()
        gc.collect()
        await asyncio.sleep(10)

    processes.run(main)
    assert did == ["worked", "worked"]
    assert other.is_closed()
    assert not caplog.records


def test_the_result_and_the_error_of_the_main_task_are_the_runs() -> None:
    async def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(fail)
    assert gc.isenabled()
