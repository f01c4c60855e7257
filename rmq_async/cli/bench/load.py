"""The load of one sending process: a producer, a number of concurrent calls, and counters.

Every mode uses the public API only and builds its messages in the measured loop, as users do. Counting begins after a warm-up;
the window ends after a time or a number of messages. Only about an eighth of one-way sends, and of single sends with 64 or more
calls in flight, is timed, because reading the clock twice for each message would take a twentieth of the cost of a send.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, process_time
from typing import Any, Final

from rmq_async import ClientConfig, Message, Producer

from ..signals import end_at_once, signals_handled
from .figures import Histogram, Part, failed

MODES: Final = {"send": 64, "async": 1024, "batch": 8, "oneway": 1, "adaptive": 1024}
"""The modes, with the number of calls in flight of each unless --in-flight gives another number."""
GROUP: Final = "rmq_bench"
_SAMPLED: Final = 8
_PAUSE: Final = 0.01
"""Seconds to pause after a failed call: some calls fail immediately."""
_ONEWAY_AT_ONCE: Final = 64
"""Number of one-way sends after which a worker lets others run, because sending does not necessarily suspend the worker."""

Report = Callable[[int, int], None]
"""Called about once per second with the numbers of messages sent and failed so far, including the warm-up."""


@dataclass(frozen=True)
class LoadSettings:
    """The load of one process.

    Attributes:
        messages: Number of messages to send, or None to send for ``seconds``.
        body: Size of a body in bytes.
        warm_up: Seconds of sending before the measured window.
    """

    topic: str
    mode: str
    in_flight: int
    batch: int
    body: int
    seconds: float
    messages: int | None
    warm_up: float


class Ending:
    """The signal that has ended a load early. ``number`` is 0 until a signal arrives.

    A second signal ends the process at once. With ``shares``, which is for the child processes of a load, a second signal is
    ignored, because the parent ends its children.
    """

    def __init__(self, *, shares: bool = False) -> None:
        self.number = 0
        self._shares = shares

    @contextmanager
    def by_signal(self) -> Iterator[asyncio.Event]:
        """Provide an event of the running loop that the first signal sets."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def first(number: int) -> None:
            self.number = number
            loop.call_soon_threadsafe(ended.set)

        with signals_handled(first, _ignore if self._shares else end_at_once):
            yield ended


def _ignore(_: int) -> None:
    """Ignore a signal."""


@dataclass
class _State:
    left: int | None
    """Number of messages that may still be sent. None if there is no limit."""
    count: int = 0
    failed: int = 0
    stop: bool = False
    recording: bool = False
    failures: dict[str, int] = field(default_factory=dict)
    latencies: Histogram = field(default_factory=Histogram)

    def take(self, number: int) -> int:
        """Return the number of messages that the next call may send, at most ``number``. If it is 0, the worker ends."""
        if self.stop:
            return 0
        if self.left is None:
            return number
        number = min(number, self.left)
        self.left -= number
        return number

    def wrong(self, number: int, error: BaseException) -> None:
        self.failed += number
        failed(self.failures, error, number)

    def timed(self, began: float) -> None:
        if self.recording:
            self.latencies.add(perf_counter() - began)


async def run_load(settings: LoadSettings, client: ClientConfig, report: Report, ending: Ending) -> Part:
    """Send messages and count them until the end of the load or until a signal.

    Raise the errors of starting and stopping the producer. Failed sends are only counted.
    """
    limit = max(65535, settings.in_flight * settings.batch)
    adaptive: dict[str, Any] = {"batching": True} if settings.mode == "adaptive" else {}
    producer = Producer(
        GROUP,
        client=client,
        timeout=client.request_timeout,
        async_limit=limit,
        compress_over=settings.body + 1,
        **adaptive,
    )
    with ending.by_signal() as ended:
        async with producer:
            return await _measured(settings, _State(settings.messages), producer, report, ended)


async def _measured(settings: LoadSettings, state: _State, producer: Producer, report: Report, ended: asyncio.Event) -> Part:
    workers = [asyncio.ensure_future(each) for each in _workers(settings, state, producer)]
    ending = asyncio.ensure_future(ended.wait())
    reporting = asyncio.ensure_future(_report_progress(state, report))
    try:
        if settings.warm_up:
            await _all_or_first(workers, ending, settings.warm_up)
        state.recording = True
        count, began, cpu = state.count, perf_counter(), process_time()
        await _all_or_first(workers, ending, settings.seconds if settings.messages is None else None)
        messages, seconds, cpu = state.count - count, perf_counter() - began, process_time() - cpu
        state.recording, state.stop = False, True
        await asyncio.gather(*workers)
    finally:
        for task in (*workers, reporting, ending):
            task.cancel()
        await asyncio.wait([*workers, reporting, ending])
    return Part(
        messages, seconds, cpu, state.count, state.failures, dict(state.latencies.counts), state.latencies.longest
    )  # fmt: skip


async def _all_or_first(workers: Iterable[Awaitable[None]], ending: asyncio.Future[Any], timeout: float | None) -> None:
    """Wait for all workers or for the signal, up to ``timeout`` seconds."""
    working = asyncio.ensure_future(asyncio.wait([*workers]))  # type: ignore[type-var]
    try:
        await asyncio.wait([working, ending], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        await asyncio.wait([working])


async def _report_progress(state: _State, report: Report) -> None:
    while True:
        await asyncio.sleep(1.0)
        report(state.count, state.failed)


def _workers(settings: LoadSettings, state: _State, producer: Producer) -> list[Awaitable[None]]:
    message = partial(Message, settings.topic, os.urandom(settings.body))
    number = settings.in_flight
    every = _SAMPLED if number >= 64 else 1
    if settings.mode == "async":
        return [_callbacks(state, producer, message, number, every)]
    if settings.mode == "oneway":
        return [_oneway(state, producer, message) for _ in range(number)]
    if settings.mode == "batch":
        return [_batches(state, producer, message, settings.batch) for _ in range(number)]
    return [_awaited(state, producer, message, timed=each % every == 0) for each in range(number)]


async def _awaited(state: _State, producer: Producer, message: Callable[[], Message], *, timed: bool) -> None:
    while state.take(1):
        began = perf_counter() if timed else 0.0
        try:
            await producer.send(message())
        except Exception as error:  # noqa: BLE001 - every failure is counted by its text and reported
            state.wrong(1, error)
            await asyncio.sleep(_PAUSE)
            continue
        state.count += 1
        if timed:
            state.timed(began)


async def _batches(state: _State, producer: Producer, message: Callable[[], Message], batch: int) -> None:
    while number := state.take(batch):
        began = perf_counter()
        try:
            await producer.send_batch([message() for _ in range(number)])
        except Exception as error:  # noqa: BLE001 - as above
            state.wrong(number, error)
            await asyncio.sleep(_PAUSE)
            continue
        state.count += number
        state.timed(began)


async def _oneway(state: _State, producer: Producer, message: Callable[[], Message]) -> None:
    number = 0
    while state.take(1):
        began = perf_counter()
        number += 1
        try:
            await producer.send_oneway(message())
        except Exception as error:  # noqa: BLE001 - as above
            state.wrong(1, error)
            await asyncio.sleep(_PAUSE)
            continue
        state.count += 1
        if number % _SAMPLED == 0:
            state.timed(began)
        if number % _ONEWAY_AT_ONCE == 0:
            await asyncio.sleep(0)


async def _callbacks(state: _State, producer: Producer, message: Callable[[], Message], depth: int, every: int) -> None:
    """Keep ``depth`` sends in flight from one coroutine, and count their outcomes in callbacks. One of ``every`` sends is
    timed.
    """
    under_way = number = 0
    room = asyncio.Event()

    def over() -> None:
        nonlocal under_way
        under_way -= 1
        room.set()

    def stored(_: object) -> None:
        state.count += 1
        over()

    def timed(began: float, _: object) -> None:
        state.timed(began)
        stored(_)

    def wrong(error: BaseException) -> None:
        state.wrong(1, error)
        over()

    while True:
        while under_way >= depth:
            room.clear()
            await room.wait()
        if not state.take(1):
            break
        under_way += 1
        number += 1
        try:
            await producer.send_async(
                message(), on_success=stored if number % every else partial(timed, perf_counter()), on_error=wrong
            )
        except Exception as error:  # noqa: BLE001 - as above
            wrong(error)
            await asyncio.sleep(_PAUSE)
    while under_way:
        room.clear()
        await room.wait()
