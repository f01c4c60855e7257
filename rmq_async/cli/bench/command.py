"""The command ``rmq bench``: checks its options, runs the load, and counts the messages that were stored in the topic during
that time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Final

import click

from rmq_async import Admin, ClientConfig, ProducerConfig, RocketMQError, TopicNotFoundError

from ..options import ClientOptions, client_config, client_options, number_option, pass_options, seconds_option
from ..output import Output
from ..running import run
from ..signals import exit_code_of
from .figures import merged
from .load import MODES, Ending, LoadSettings
from .processes import run_processes
from .report import BenchResult, print_result

SETTLE: Final = 10.0
"""Maximum seconds to wait until brokers have indexed acknowledged messages or have stored one-way messages."""
QUIET: Final = 1.0
"""Seconds without growth after which the number of stored messages counts as final."""
PROCESSES: Final = 64
MESSAGE_OVERHEAD: Final = 98
"""Bytes that a message takes in a batch in addition to its body, if its id contains an IPv6 address. With an IPv4 address, it
takes 74 bytes.
"""


@dataclass(frozen=True, kw_only=True)
class _BenchOptions(ClientOptions):
    topic: str
    create: bool
    queues: int
    mode: str
    in_flight: int | None
    batch: int
    body: int
    seconds: float | None
    messages: int | None
    warm_up: float | None
    processes: int

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        batch, body, limit = self.batch, self.body, ProducerConfig.max_message_size
        if self.seconds is not None and self.messages is not None:
            raise click.UsageError("give --seconds or --messages, not both")
        if self.mode == "batch" and batch * (body + MESSAGE_OVERHEAD) > limit:
            raise click.UsageError(
                f"a batch of {batch} bodies of {body} bytes may be larger than {limit} bytes; lower --batch or --body"
            )
        if self.messages is not None and self.messages < self.processes:
            raise click.UsageError(
                f"{self.messages} messages are too few for {self.processes} processes; give one or more for each"
            )

    def load(self) -> LoadSettings:
        return LoadSettings(
            topic=self.topic,
            mode=self.mode,
            in_flight=self.in_flight or MODES[self.mode],
            batch=self.batch,
            body=self.body,
            seconds=self.seconds or 10.0,
            messages=self.messages,
            warm_up=(1.0 if self.messages is None else 0.0) if self.warm_up is None else self.warm_up,
        )


@click.command(short_help="Measure how fast messages can be sent.")
@click.option("--topic", required=True, metavar="TOPIC", help="Topic to send to. The messages stay in it.")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist. It is not deleted.")
@number_option("--queues", most=65535, default=8, help="With --create: number of queues on each broker.")
@click.option("--mode", type=click.Choice(list(MODES)), default="send", show_default=True, help="How to send, see above.")
@number_option(
    "--in-flight",
    most=65535,
    help=f"Concurrent calls in each process; default: {', '.join(f'{number} ({mode})' for mode, number in MODES.items())}.",
)
@number_option("--batch", most=8192, default=32, help="Messages of a batch.")
@number_option(
    "--body",
    most=ProducerConfig.max_message_size,
    default=128,
    metavar="BYTES",
    help="Size of a message's body: random bytes, not compressed.",
)
@seconds_option("--seconds", most=86400.0, min_open=True, metavar="S", help="How long to measure; default: 10.")
@number_option("--messages", help="Number of messages to send, instead of a duration.")
@seconds_option(
    "--warm-up", most=600.0, metavar="S", help="Seconds at the start that are not counted; default: 1, or 0 with --messages."
)
@number_option("--processes", most=PROCESSES, default=1, help="Sender processes.")
@client_options
@pass_options(_BenchOptions)
def bench(options: _BenchOptions) -> int:
    """Send to a topic at full speed, and print the rate, the client's CPU time per message, and the latencies.

    send: coroutines that await each send. async: send_async with callbacks. batch: send_batch. oneway: send_oneway, without
    acknowledgements. adaptive: like send, but with a producer that combines concurrent sends into batches.

    The messages stay in the topic until the cluster deletes them. Use a topic without consumers, and make sure that the
    brokers' disks have enough space. Stored messages are counted by the queues' offsets before and after, so messages of other
    producers count too.

    Progress is printed once per second, to stderr or, with --json, to stdout. The exit code is 1 if a send failed, or if fewer
    messages were stored than acknowledged. One-way messages that a broker dropped are reported but do not count as a failure.
    SIGINT and SIGTERM end the command early, and it prints the figures so far.
    """
    options.check()
    settings, topic, processes = options.load(), options.topic, options.processes
    client = client_config(options.namesrv, options.timeout)
    output = Output(as_json=options.as_json)
    before = run(_offsets_before(client, topic, options.queues if options.create else None))
    progress, ending = _Progress(output, monotonic()), Ending()
    whole = merged(run_processes(settings, client, processes, progress.report, ending))
    stored = None if before is None else run(_stored(client, topic, before, whole.total), signalled=ending.number > 0)
    code = print_result(output, BenchResult(settings, processes, whole, stored))
    return code or (exit_code_of(ending.number) if ending.number else 0)


async def _offsets_before(client: ClientConfig, topic: str, create_queues: int | None) -> int | None:
    """Return the sum of all queues' next offsets. Return None if the brokers do not return them.

    Create a missing topic with ``create_queues`` queues on each broker. If ``create_queues`` is None, raise TopicNotFoundError
    instead.
    """
    async with Admin(client=client) as admin:
        try:
            await admin.topic_route(topic)
        except TopicNotFoundError:
            if create_queues is None:
                raise
            await admin.create_topic(topic, queues=create_queues)
        try:
            return await _next_offsets(admin, topic)
        except RocketMQError:
            return None


async def _next_offsets(admin: Admin, topic: str) -> int:
    return sum(queue.max_offset for queue in (await admin.topic_stats(topic)).queues.values())


async def _stored(client: ClientConfig, topic: str, before: int, expected: int) -> int | None:
    """Return the number of messages stored since ``before``. Return None if the brokers do not return the offsets.

    Brokers acknowledge a message before they index it. Therefore, the offsets are read again until all messages are counted,
    for at most 10 s in all and at most 1 s without growth.
    """
    async with Admin(client=client) as admin:
        deadline, found, since = monotonic() + SETTLE, -1, monotonic()
        while True:
            try:
                now = await _next_offsets(admin, topic) - before
            except RocketMQError:
                return None
            if now != found:
                found, since = now, monotonic()
            if found >= expected or monotonic() - since > QUIET or monotonic() > deadline:
                return found
            await asyncio.sleep(0.05)


class _Progress:
    def __init__(self, output: Output, began: float) -> None:
        self._output = output
        self._began = self._last = began
        self._count = 0

    def report(self, count: int, failed: int) -> None:
        now = monotonic()
        rate = (count - self._count) / (now - self._last)
        self._count, self._last = count, now
        seconds = now - self._began
        self._output.record(
            {"type": "progress", "seconds": round(seconds, 3), "rate": round(rate), "sent": count, "failed": failed}
        )
        if not self._output.as_json:
            click.echo(f"{seconds:6.0f} s  {rate:11,.0f} messages/s  {count:,} sent  {failed:,} failed", err=True)
