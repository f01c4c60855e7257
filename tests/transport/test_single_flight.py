"""SingleFlight: one look-up for all, with each caller's own deadline, error and cancellation."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest

from rmq_async._asyncio import SingleFlight
from rmq_async.broker_answers import broker_error
from rmq_async.errors import ClientStateError, NameServerError

from .support import takes

pytestmark = pytest.mark.interpreters


class Work:
    """A look-up that ends when the test sets its result."""

    def __init__(self) -> None:
        self.runs = 0
        self.result: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> int:
        self.runs += 1
        return await asyncio.shield(self.result)


async def test_a_thousand_callers_share_one_run() -> None:
    flights, work = SingleFlight[int]("test"), Work()
    callers = [asyncio.ensure_future(flights.join("k", work, monotonic() + 5)) for _ in range(1000)]
    await asyncio.sleep(0.01)
    assert len(flights) == 1
    assert "k" in flights
    work.result.set_result(7)
    assert await asyncio.gather(*callers) == [7] * 1000
    assert (work.runs, len(flights)) == (1, 0)


async def test_other_keys_and_later_calls_run_on_their_own() -> None:
    flights, work = SingleFlight[int]("test"), Work()
    work.result.set_result(1)
    await asyncio.gather(*[flights.join(key, work, monotonic() + 5) for key in ("a", "b", "a")])
    await flights.join("a", work, monotonic() + 5)
    assert work.runs == 3


async def test_cancelling_all_callers_leaves_the_look_up_running() -> None:
    flights, work = SingleFlight[int]("test"), Work()
    callers = [asyncio.ensure_future(flights.join("k", work, monotonic() + 5)) for _ in range(10)]
    await asyncio.sleep(0)
    for caller in callers:
        caller.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*callers, return_exceptions=True))
    late = asyncio.ensure_future(flights.join("k", work, monotonic() + 5))
    await asyncio.sleep(0)
    work.result.set_result(3)
    assert await late == 3
    assert work.runs == 1


@pytest.mark.virtual_time
async def test_each_caller_has_its_own_deadline() -> None:
    flights, work = SingleFlight[int]("test"), Work()
    patient = asyncio.ensure_future(flights.join("k", work, monotonic() + 5))
    with takes(0.05), pytest.raises(TimeoutError):
        await flights.join("k", work, monotonic() + 0.05)
    work.result.set_result(1)
    assert await patient == 1


async def test_each_caller_gets_an_error_of_its_own() -> None:
    flights, work = SingleFlight[int]("test"), Work()
    callers = [asyncio.ensure_future(flights.join("k", work, monotonic() + 5)) for _ in range(3)]
    await asyncio.sleep(0)
    cause = OSError("x")
    error = NameServerError("none", address="a:1")
    error.__cause__ = cause
    work.result.set_exception(error)
    errors = await asyncio.gather(*callers, return_exceptions=True)
    assert len({id(each) for each in errors}) == 3
    for each in errors:
        assert isinstance(each, NameServerError)
        assert (str(each), each.address, each.__cause__) == ("none", "a:1", cause)


async def test_a_copied_broker_error_says_the_same() -> None:
    flights = SingleFlight[int]("test")

    async def fail() -> int:
        raise broker_error(2, "too busy", request="X", broker="b", address="a:1")

    with pytest.raises(Exception, match=r"^X: 2 SYSTEM_BUSY: too busy$") as caught:
        await flights.join("k", fail, monotonic() + 5)
    assert (caught.value.code, caught.value.remark, caught.value.broker) == (2, "too busy", "b")  # type: ignore[attr-defined]


async def test_closing_ends_everything() -> None:
    flights, work = SingleFlight[int]("test"), Work()
    caller = asyncio.ensure_future(flights.join("k", work, monotonic() + 5))
    flights.start("l", work)
    await asyncio.sleep(0)
    assert sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("rmq_async")) == [
        "rmq_async test k",
        "rmq_async test l",
    ]
    ended = await asyncio.gather(*flights.close(), return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended)
    with pytest.raises(ClientStateError):
        await caller
    with pytest.raises(ClientStateError):
        await flights.join("k", work, monotonic() + 5)
    assert len(flights) == 0


async def test_a_bug_in_a_look_up_without_a_waiter_is_reported(loop_errors: list[dict[str, Any]]) -> None:
    flights = SingleFlight[int]("test")

    async def broken() -> int:
        raise ZeroDivisionError

    flights.start("k", broken)
    await asyncio.sleep(0.01)
    assert isinstance(loop_errors.pop()["exception"], ZeroDivisionError)


async def test_caller_in_the_turn_in_which_the_work_ends_gets_work_of_its_own() -> None:
    flights, late = SingleFlight[int]("test"), asyncio.get_running_loop().create_future()
    runs: list[int] = []

    async def work() -> int:
        runs.append(len(runs) + 1)
        if runs == [1]:  # runs when this task has ended, and before its end is accounted for
            asyncio.get_running_loop().call_soon(lambda: late.set_result(flights.start("k", work)))
        return len(runs)

    assert await flights.join("k", work, monotonic() + 5) == 1
    flight = await late
    assert "k" in flights
    assert await flight.wait(monotonic() + 5) == 2
    assert (runs, len(flights)) == ([1, 2], 0)
