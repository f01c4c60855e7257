"""The clocks of the embedded server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock, SystemClock
from rmq_async.embedded.clock import Alarm
from rmq_async.embedded.schedule import SCHEDULE_TOPIC

from ...support.fakes import RawClient
from ...support.waiting import until
from .support import bodies, sent

# ---------------------------------------------------------------------------------------------------------------- the clock


async def test_the_manual_clock_calls_in_the_order_of_times_each_at_its_own() -> None:
    clock = ManualClock(1000)
    calls: list[tuple[str, int]] = []

    def note(name: str) -> None:
        calls.append((name, clock.now_ms()))

    for name, when in (("c", 3000), ("a", 2000), ("b", 2000), ("d", 4001)):
        clock.call_at(when, lambda name=name: note(name))
    clock.call_at(2500, lambda: note("cancelled")).cancel()
    clock.call_at(2000, lambda: clock.call_at(2600, lambda: note("nested")))
    await clock.advance(3)
    assert calls == [("a", 2000), ("b", 2000), ("nested", 2600), ("c", 3000)]
    assert clock.now_ms() == 4000
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="a finite, non-negative number"):
            await clock.advance(seconds)


async def test_what_is_due_already_is_called_by_the_event_loop() -> None:
    clock = ManualClock(1000)
    calls: list[int] = []

    def again() -> None:
        calls.append(len(calls))
        if len(calls) < 3:
            clock.call_at(0, again)

    clock.call_at(1000, again)
    clock.call_at(500, lambda: calls.append(-1)).cancel()
    assert calls == []
    for turns in range(1, 4):
        await asyncio.sleep(0)
        assert len(calls) == turns  # others have their turn between them
    clock.call_at(1001, again)
    await asyncio.sleep(0)
    assert calls == [0, 1, 2]


async def test_an_alarm_rings_at_the_earliest_time_and_not_before_though_the_clock_goes_back() -> None:
    clock = ManualClock(10_000)
    rung: list[int] = []
    alarm = Alarm(clock, lambda: rung.append(clock.now_ms()))
    alarm.by(11_000)  # not on yet
    alarm.start()
    for when in (15_000, 12_000, 13_000):
        alarm.by(when)
    clock._now = 5000  # noqa: SLF001
    await clock.advance(6.999)
    assert rung == []
    await clock.advance(0.001)
    assert rung == [12_000]
    alarm.by(20_000)
    alarm.stop()
    alarm.by(20_000)
    await clock.advance(60)
    assert rung == [12_000]


async def test_system_clock_delivers_delayed_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    set_for: list[int] = []
    call_at = SystemClock.call_at

    def noted(clock: SystemClock, when_ms: int, call: Any) -> Any:
        set_for.append(when_ms)
        return call_at(clock, when_ms, call)

    monkeypatch.setattr(SystemClock, "call_at", noted)
    levels = (0.02, 0.01)
    async with EmbeddedRocketMQ(delay_levels=levels) as server, RawClient(server.brokers["broker-a"]) as broker:
        await sent(broker, b"second", DELAY=1)
        await sent(broker, b"first", DELAY=2)
        await until(lambda: len(bodies(server)) == 2)
        assert set_for
        waits, comes = server.messages(SCHEDULE_TOPIC), server.messages("T")
        assert {message.body for message in comes} == {b"first", b"second"}
        for body, delay in ((b"second", 20), (b"first", 10)):
            stored, came = (next(each for each in where if each.body == body).store_time_ms for where in (waits, comes))
            assert came - stored >= delay
