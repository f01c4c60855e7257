"""One task of a load: sends by a clock, in one mode, and counts the outcome of every message.

The clock does not wait for responses (an open loop): with m messages in a send, send n of a task is due n * m / r seconds after
the start, where r is the task's share of the rate, and its latency counts from then, so that a pause of a broker for a second
affects the latency of all messages of that second, not only of those in flight.
Spark's thread is the clock, because event loops keep time to about a millisecond. A message that was due and not begun at the
end is not sent and counts as missed.

Without a rate a send is due when it begins.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep, time
from typing import Any, Final, NamedTuple

from rmq_async.errors import RocketMQError
from rmq_async.producer import Producer
from rmq_async.results import SendResult, SendStatus
from rmq_async.spark.options import WriteOptions
from rmq_async.spark.pipelines.latencies import bucket_of
from rmq_async.spark.worker import Worker, worker
from rmq_protocol.message import Message

__all__ = [
    "ACKNOWLEDGED",
    "ATTEMPTED",
    "COLUMNS",
    "HANDED_OVER",
    "MODES",
    "SCHEDULED",
    "STORED",
    "LoadPlan",
    "Result",
    "results_of",
]

SCHEDULED: Final = "scheduled"
ATTEMPTED: Final = "attempted"
ACKNOWLEDGED: Final = "acknowledged"
HANDED_OVER: Final = "handed over"
STORED: Final = "stored"

TICK: Final = 0.00025
"""Seconds that the clock sleeps at least between two releases: messages that fall due meanwhile are released together."""
GRACE: Final = 0.1
"""Seconds after the end in which messages that are due may still begin."""
_FILLING: Final = 64 * 1024


@dataclass(frozen=True)
class LoadPlan:
    """The plan of one mode. ``rate``: messages a second of all tasks together; None: without a limit. ``size``: bytes of a body.
    ``seconds``: duration. ``callers``: coroutines of mode sync in each task; ``batch``: messages of a request in mode batch."""

    run: str
    options: WriteOptions
    topic: str
    mode: str
    rate: float | None
    size: int
    seconds: float
    tasks: int
    callers: int
    batch: int


class Result(NamedTuple):
    """One row of the result files: a number of messages of one ``second`` of a task, -1 for "stored".

    ``what``: "scheduled", by the second in which messages were due; "attempted", by the second in which their sends began;
    "acknowledged", "handed over" (one-way, without a confirmation), or the kind of failure, by the second in which their sends
    ended. "stored", of task -1, is the growth of the topic. ``latencies``: messages by bucket; ``longest``: the longest latency
    in seconds. ``began``, ``ended``: of the task, the plan's ``seconds`` or more apart, for "stored" of the mode, in seconds since
    1970.
    """

    run: str
    task: int
    mode: str
    second: int
    what: str
    messages: int
    bytes: int
    latencies: dict[int, int]
    longest: float
    began: float
    ended: float


COLUMNS: Final = (
    "run string, task int, mode string, second int, what string, messages bigint, bytes bigint, latencies map<int,bigint>, "
    "longest double, began double, ended double"
)


def results_of(plan: LoadPlan, task: int, *, fresh: bool, ready: Callable[[], object]) -> list[Result]:
    """Runs a task and returns its results. ``fresh``: True opens new connections. ``ready`` is called before the clock
    starts and may wait for the other tasks."""
    here = worker()
    producer = here.producer(plan.options, fresh=fresh)
    with here.using(producer):
        run = _Run(plan, task, producer)
        ready()
        return run.results(here)


class _Tally:
    """The counts of a task. ``latencies``: messages by bucket, by second and outcome. ``longest``: the longest latency in seconds,
    by second and outcome."""

    def __init__(self) -> None:
        self.attempted: Counter[int] = Counter()
        self.latencies: dict[tuple[int, str], Counter[int]] = defaultdict(Counter)
        self.longest: dict[tuple[int, str], float] = defaultdict(float)


class _Run:
    """The run of one task."""

    def __init__(self, plan: LoadPlan, task: int, producer: Producer) -> None:
        self.plan = plan
        self.producer = producer
        self.timeout = plan.options.timeout
        self._task = task
        self._step = plan.batch if plan.mode == "batch" else 1
        self._interval = None if plan.rate is None else self._step * plan.tasks / plan.rate
        self._tally = _Tally()
        self._filling = random.Random(f"{plan.run} {task}").randbytes(plan.size + _FILLING)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start = 0.0
        self._last = 0.0
        """Seconds from the start to the last outcome."""
        self._due = 0
        """Sends that the clock has released."""
        self._taken = 0
        self._over = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def results(self, here: Worker) -> list[Result]:
        began = time()
        self._start = monotonic()
        self._loop = here.run(_running_loop())
        sending = here.start(MODES[self.plan.mode](self))
        try:
            self._keep_time()
        finally:
            self._loop.call_soon_threadsafe(self._end)
        sending.result()
        # A task of few messages is not over at its last outcome: others run beside it, and its rate is over all its time.
        return list(self._counted(began, began + max(self._last, self.plan.seconds)))

    def _keep_time(self) -> None:
        """Runs the clock on Spark's thread until the time is over."""
        assert self._loop is not None
        until = self._start + self.plan.seconds
        if self._interval is None:
            sleep(self.plan.seconds)
            return
        total = self._total()
        released = 0
        while released < total:
            now = monotonic()
            due = min(int((now - self._start) / self._interval) + 1, total)
            if due > released:
                self._loop.call_soon_threadsafe(self._release, due)
                released = due
            following = self._start + released * self._interval
            sleep(max(following - monotonic(), TICK) if released < total else 0.0)
        sleep(max(until + GRACE - monotonic(), 0.0))

    def _total(self) -> int:
        assert self._interval is not None
        return math.ceil(self.plan.seconds / self._interval - 1e-9)

    # -- on the loop

    def _release(self, due: int) -> None:
        for _ in range(min(due - self._due, len(self._waiting))):
            self._wake()
        self._due = due

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _end(self) -> None:
        self._over = True
        while self._waiting:
            self._wake()

    async def turn(self) -> tuple[int, float] | None:
        """Returns the number of the next send and when it was due; None when the time is over."""
        while not self._over:
            if self._interval is None:
                await asyncio.sleep(0)
                now = monotonic()
                if now >= self._start + self.plan.seconds:
                    return None
                return self._take(), now
            if self._taken < self._due:
                number = self._take()
                return number, self._start + number * self._interval
            assert self._loop is not None
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter
        return None

    def _take(self) -> int:
        self._taken += 1
        self._tally.attempted[int(monotonic() - self._start)] += self._step
        return self._taken - 1

    def messages(self, number: int) -> list[Message]:
        """Returns the messages of one send."""
        first = number * self._step
        return [self._message(each) for each in range(first, first + self._step)]

    def _message(self, number: int) -> Message:
        head = f"{self.plan.run} {self._task} {self.plan.mode} {number} ".encode()
        at = number * 31 % _FILLING
        return Message(self.plan.topic, (head + self._filling[at : at + self.plan.size])[: self.plan.size])

    def answered(self, due: float, result: SendResult) -> None:
        self.ended(due, result.status)

    def ended(self, due: float, status: SendStatus) -> None:
        confirmed = status is SendStatus.SEND_OK or not self.plan.options.confirmed_only
        self.count(due, ACKNOWLEDGED if confirmed else status.value)

    def failed(self, due: float, error: BaseException) -> None:
        self.count(due, type(error).__name__)

    def count(self, due: float, what: str) -> None:
        now = monotonic()
        self._last = now - self._start
        place = int(self._last), what
        self._tally.latencies[place][bucket_of(now - due)] += self._step
        self._tally.longest[place] = max(self._tally.longest[place], now - due)

    # -- afterwards

    def _counted(self, began: float, ended: float) -> Iterator[Result]:
        def result(second: int, what: str, messages: int, latencies: dict[int, int], longest: float) -> Result:
            size = messages * self.plan.size
            return Result(
                self.plan.run, self._task, self.plan.mode, second, what, messages, size, latencies, longest, began, ended
            )

        for second, messages in self._scheduled():
            yield result(second, SCHEDULED, messages, {}, 0.0)
        for second, messages in self._tally.attempted.items():
            yield result(second, ATTEMPTED, messages, {}, 0.0)
        for (second, what), counts in self._tally.latencies.items():
            yield result(second, what, counts.total(), dict(counts), self._tally.longest[second, what])

    def _scheduled(self) -> Iterator[tuple[int, int]]:
        """Yields each second with the number of messages due in it; without a rate, of those begun in it."""
        if self._interval is None:
            yield from self._tally.attempted.items()
            return
        total, before = self._total(), 0
        for second in range(math.ceil(self.plan.seconds)):
            through = min(math.ceil((second + 1) / self._interval - 1e-9), total)
            yield second, (through - before) * self._step
            before = through


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


# -- the modes


async def _sync(run: _Run) -> None:
    """Sends by ``await producer.send(message)``, in as many coroutines as there are callers."""

    async def calls() -> None:
        while (turn := await run.turn()) is not None:
            number, due = turn
            try:
                result = await run.producer.send(run.messages(number)[0], timeout=run.timeout)
            except RocketMQError as error:
                run.failed(due, error)
            else:
                run.answered(due, result)

    await _side_by_side(calls, run.plan.callers)


async def _async(run: _Run) -> None:
    """Sends by ``await producer.send_async(message, ...)``, in one coroutine."""
    while (turn := await run.turn()) is not None:
        number, due = turn
        try:
            await run.producer.send_async(
                run.messages(number)[0],
                on_success=partial(run.answered, due),
                on_error=partial(run.failed, due),
                timeout=run.timeout,
            )
        except RocketMQError as error:
            run.failed(due, error)
    await run.producer.flush()


async def _oneway(run: _Run) -> None:
    while (turn := await run.turn()) is not None:
        number, due = turn
        try:
            await run.producer.send_oneway(run.messages(number)[0], timeout=run.timeout)
        except RocketMQError as error:
            run.failed(due, error)
        else:
            run.count(due, HANDED_OVER)
    await run.producer.flush()


async def _batch(run: _Run) -> None:
    """Sends batches, each due as a whole, at most 8 at a time."""

    async def calls() -> None:
        while (turn := await run.turn()) is not None:
            number, due = turn
            try:
                result = await run.producer.send_batch(run.messages(number), timeout=run.timeout)
            except RocketMQError as error:
                run.failed(due, error)
            else:
                run.ended(due, result.status)

    await _side_by_side(calls, BATCHES_AT_ONCE)


BATCHES_AT_ONCE: Final = 8
MODES: Final[dict[str, Callable[[_Run], Coroutine[Any, Any, None]]]] = {
    "sync": _sync,
    "async": _async,
    "oneway": _oneway,
    "batch": _batch,
}


async def _side_by_side(work: Callable[[], Awaitable[None]], number: int) -> None:
    async def call() -> None:
        await work()

    async with asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(call())
