"""Runs the demo: starts a broker, makes a topic, sends in four modes, reads all messages back and checks the result.

Three limits bound its time. It sends no more messages than can be read back in time from a cluster at this distance; a mode
begins no message after its share of the time; and the whole run is cancelled at ``time_limit`` and reports its progress. The
embedded broker runs on the same loop, so its work is part of every figure.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from time import perf_counter
from typing import Final

from rich.progress import Progress, TaskID

from rmq_async import Admin, ClientConfig, Producer, PullConsumer, RocketMQError
from rmq_async.embedded import EmbeddedRocketMQ

from ..output import Output
from .messages import DamagedError, Key, Messages
from .modes import MODES, ModeRun
from .report import LEGEND, ModeReport, problems, report_of, table_of, totals
from .settings import DemoSettings

__all__ = ["run_demo"]

IN_FLIGHT: Final = 256
"""Credits of the demo's producer: what mode async has in flight, and eight batches of 32."""
QUEUES: Final = 8
SHARE: Final = 0.12
"""Share of the time limit for each mode."""
READ_SHARE: Final = 0.28
"""Share of the time limit for reading the messages back."""
PULLED_AT_ONCE: Final = 8 * 32
"""Messages that one round trip reads: 8 concurrent pulls, for each of which a stock broker returns 32 messages at most."""
SETTLE: Final = 2.0
"""Maximum seconds to wait for one-way messages that a broker has received and not stored yet."""
STOP: Final = 0.1
TICK: Final = 0.05


async def run_demo(settings: DemoSettings, output: Output) -> int:
    """Runs the demo and returns the exit code. Raises the errors of starting, of creating the topic and of reading; failed
    sends are counted."""
    began = perf_counter()
    demo = _Demo(settings, output, began)
    try:
        async with asyncio.timeout(settings.time_limit):
            await demo.run()
    except TimeoutError:
        output.trouble(f"demo: not finished after {settings.time_limit:g} s, {demo.phase}")
        return 1
    return demo.verdict(perf_counter() - began)


class _Demo:
    def __init__(self, settings: DemoSettings, output: Output, began: float) -> None:
        self.phase = "while starting"
        self._settings = settings
        self._output = output
        self._began = began
        self._namesrv = settings.namesrv or ""
        self._wanted = settings.messages
        self._topic_deleted = False
        self._topic = f"rmq_demo_{secrets.token_hex(4)}"
        self._messages = Messages(self._topic, settings.size)
        self._runs: list[ModeRun] = []
        self._read: dict[str, list[Key]] = defaultdict(list)
        self._read_count = 0
        self._damaged: list[str] = []

    @property
    def _embedded(self) -> bool:
        return self._settings.namesrv is None

    async def run(self) -> None:
        settings = self._settings
        async with AsyncExitStack() as stack:
            if self._embedded:
                self._namesrv = (await stack.enter_async_context(EmbeddedRocketMQ())).namesrv
            group = self._topic
            client = ClientConfig(namesrv=self._namesrv, request_timeout=settings.timeout, **settings.security)
            admin = Admin(client=client)
            producer = Producer(group, client=client, timeout=settings.timeout, async_limit=IN_FLIGHT)
            consumer = PullConsumer(group, client=client)
            for user in (admin, producer, consumer):
                await user.start()
                stack.push_async_callback(user.stop, STOP)
            self.phase = f"while creating topic {self._topic}"
            await stack.enter_async_context(self._topic_on(admin))
            where = f"embedded broker {self._namesrv}" if self._embedded else f"cluster {self._namesrv}"
            self._output.line(f"{where}, topic {self._topic}, bodies of {settings.size} bytes")
            await self._limit_messages(consumer)
            with self._output.progress() as progress:
                for mode in MODES:
                    await self._send(mode, producer, progress)
                await self._read_back(consumer, progress)

    @asynccontextmanager
    async def _topic_on(self, admin: Admin) -> AsyncIterator[None]:
        """Provides a topic for the body. On a cluster it is deleted afterwards, unless it is to be kept or the demo has failed or
        found problems."""
        await admin.create_topic(self._topic, queues=QUEUES)
        yield
        if not self._embedded and not self._settings.keep_topic and not self._problems(self._reports()):
            try:
                await admin.delete_topic(self._topic)
                self._topic_deleted = True
            except RocketMQError as error:
                self._output.line(f"topic {self._topic} stays: {error}")

    async def _limit_messages(self, consumer: PullConsumer) -> None:
        """Lowers the number of messages for a distant cluster: reading them back takes a round trip for every 256."""
        queue = (await consumer.queues(self._topic))[0]
        round_trip = math.inf
        for _ in range(3):
            asked = perf_counter()
            await consumer.max_offset(queue)
            round_trip = min(round_trip, perf_counter() - asked)
        readable = int(READ_SHARE * self._settings.time_limit / round_trip * PULLED_AT_ONCE / len(MODES))
        if readable < self._wanted:
            self._wanted = max(readable, 1)
            self._output.line(f"an answer takes {round_trip * 1000:.0f} ms: {self._wanted} messages in each mode")

    async def _send(self, mode: str, producer: Producer, progress: Progress) -> None:
        self.phase = f"while sending {mode}"
        until = perf_counter() + SHARE * self._settings.time_limit
        run = ModeRun(mode, self._wanted, until, producer, self._messages)
        self._runs.append(run)
        async with _shown(progress, progress.add_task(mode, total=self._wanted), lambda: run.done):
            began = perf_counter()
            await MODES[mode](run)
            run.seconds = perf_counter() - began

    async def _read_back(self, consumer: PullConsumer, progress: Progress) -> None:
        attempted = sum(len(run.attempted) for run in self._runs)
        expected = attempted - sum(len(run.failures) for run in self._runs)
        self.phase = "while waiting for the last messages to be stored"
        await self._settled(consumer, expected)
        self.phase = f"while reading back {attempted} messages"
        async with (
            _shown(progress, progress.add_task("read back", total=attempted), lambda: self._read_count),
            aclosing(consumer.read(self._topic)) as stored,
        ):
            async for message in stored:
                self._read_count += 1
                self.phase = f"after reading back {self._read_count} of {attempted} messages"
                try:
                    key = self._messages.check(message)
                except DamagedError as error:
                    self._damaged.append(str(error))
                else:
                    self._read[key.mode].append(key)

    async def _settled(self, consumer: PullConsumer, expected: int) -> None:
        """Waits until the queues hold all sent messages, ``SETTLE`` seconds at most."""
        queues = await consumer.queues(self._topic)
        until = perf_counter() + SETTLE
        while perf_counter() < until:
            if sum([await consumer.max_offset(queue) for queue in queues]) >= expected:
                return
            await asyncio.sleep(TICK)

    # -- the verdict

    def _reports(self) -> list[ModeReport]:
        return [report_of(run, self._read[run.mode]) for run in self._runs]

    def _problems(self, reports: list[ModeReport]) -> list[str]:
        unknown = [key for report in reports for key in report.account.unknown]
        unknown += [key for mode in self._read.keys() - MODES.keys() for key in self._read[mode]]
        return problems(reports, self._damaged, unknown, oneway_may_be_lost=not self._embedded)

    def verdict(self, seconds: float) -> int:
        """Prints the figures and the problems; returns the exit code."""
        output, reports = self._output, self._reports()
        found = self._problems(reports)
        for report in reports:
            output.record(report.as_fields())
        summary: dict[str, object] = {"type": "summary", "ok": not found, **totals(reports), "damaged": len(self._damaged)}
        place = {
            "namesrv": self._namesrv,
            "embedded": self._embedded,
            "topic": self._topic,
            "topic_deleted": self._topic_deleted,
        }
        output.record({**summary, **place, "seconds": round(seconds, 3), "problems": found})
        output.line()
        output.table(table_of(reports))
        output.line()
        for text in LEGEND:
            output.line(text)
        if self._embedded:
            output.line("The embedded broker shares this process and its CPU: rates of a cluster are another matter.")
        for report in reports:
            if report.cut_short:
                output.line(f"{report.mode}: ended by time after {report.sent} of {self._wanted} messages.")
        if found:
            output.trouble(f"demo: {'; '.join(found)}")
            return 1
        oneway_lost = sum(len(report.lost) for report in reports)
        nothing = f"{oneway_lost} one-way messages lost" if oneway_lost else "nothing lost"
        output.line()
        output.line(
            f"{summary['sent']} messages sent, {self._read_count} read back and checked in {seconds:.1f} s: {nothing}, "
            f"{summary['duplicated'] or 'nothing'} duplicated."
        )
        return 0


@asynccontextmanager
async def _shown(progress: Progress, task: TaskID, count: Callable[[], int]) -> AsyncIterator[None]:
    """Shows ``count()`` as a progress bar while the body runs."""

    async def follow() -> None:
        while True:
            progress.update(task, completed=count())
            await asyncio.sleep(TICK)

    following = asyncio.get_running_loop().create_task(follow(), name="rmq demo progress")
    try:
        yield
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        progress.update(task, completed=count())
