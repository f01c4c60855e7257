"""The command: what is checked before, how many messages the topic had before and after, and what is told."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

import click

from rmq_async import Admin, ClientConfig, ProducerConfig, RocketMQError, TopicNotFoundError

from ..options import FAILED, client_config, client_options, run
from ..output import Output
from .figures import Part, merged, percentiles
from .load import MODES, LoadSettings
from .processes import run_processes

__all__ = ["bench"]

SETTLE: Final = 10.0
"""Seconds for a broker to index what it has acknowledged, or to store what it was sent one-way."""
QUIET: Final = 1.0
PROCESSES: Final = 64
MESSAGE_OVERHEAD: Final = 64
"""Bytes that a message takes in a batch beside its body, at most."""


@click.command(short_help="Measure how fast messages can be sent.")
@click.option("--topic", required=True, metavar="TOPIC", help="Where to send to. The messages stay in it.")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist; it stays.")
@click.option(
    "--queues", type=click.IntRange(1, 65535), default=8, show_default=True, metavar="N", help="With --create, on each broker."
)
@click.option("--mode", type=click.Choice(list(MODES)), default="send", show_default=True, help="How to send, see above.")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 65535),
    metavar="N",
    help=f"Calls under way in each process; default: {', '.join(f'{number} ({mode})' for mode, number in MODES.items())}.",
)
@click.option("--batch", type=click.IntRange(1, 8192), default=32, show_default=True, metavar="N", help="Messages of a batch.")
@click.option(
    "--body",
    type=click.IntRange(1, ProducerConfig.max_message_size),
    default=128,
    show_default=True,
    metavar="BYTES",
    help="Size of a message's body: random bytes, not compressed.",
)
@click.option(
    "--seconds", type=click.FloatRange(0.0, 86400.0, min_open=True), metavar="S", help="How long to measure; default: 10."
)
@click.option("--messages", type=click.IntRange(1), metavar="N", help="Send so many instead.")
@click.option(
    "--warm-up",
    type=click.FloatRange(0.0, 600.0),
    metavar="S",
    help="Seconds that are not counted before; default: 1, with --messages 0.",
)
@click.option(
    "--processes", type=click.IntRange(1, PROCESSES), default=1, show_default=True, metavar="N", help="That send side by side."
)
@client_options
def bench(
    topic: str,
    create: bool,
    queues: int,
    mode: str,
    in_flight: int | None,
    batch: int,
    body: int,
    seconds: float | None,
    messages: int | None,
    warm_up: float | None,
    processes: int,
    namesrv: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Send to a topic as fast as it goes, and tell the rate, the client's CPU per message and the latencies.

    send: coroutines that await each send. async: send_async with callbacks. batch: send_batch. oneway: send_oneway, which
    nobody acknowledges. adaptive: as send, with a producer that makes batches of what is sent at the same moment.

    The messages stay in the topic until the cluster deletes them: take one that nobody reads, and mind the brokers' disks. What was
    stored is counted by the queues' offsets before and after, so what others send to the topic meanwhile counts too.

    Progress goes to stderr once a second, with --json to stdout. Exit code 1 if a send failed, or if less was stored than was
    acknowledged; one-way messages that a broker dropped are told and are no failure.
    """
    if seconds is not None and messages is not None:
        raise click.UsageError("give --seconds or --messages, not both")
    if mode == "batch" and batch * (body + MESSAGE_OVERHEAD) > ProducerConfig.max_message_size:
        raise click.UsageError(
            f"a batch of {batch} bodies of {body} bytes is larger than {ProducerConfig.max_message_size} bytes"
        )
    if messages is not None and messages < processes:
        raise click.UsageError(f"{messages} messages are too few for {processes} processes")
    settings = LoadSettings(
        topic=topic,
        mode=mode,
        in_flight=in_flight or MODES[mode],
        batch=batch,
        body=body,
        seconds=seconds or 10.0,
        messages=messages,
        warm_up=(1.0 if messages is None else 0.0) if warm_up is None else warm_up,
    )
    client = client_config(namesrv, timeout)
    output = Output(as_json=as_json)
    before = run(_prepared(client, topic, queues if create else None))
    began = monotonic()
    progress = _Progress(output, began)
    whole = merged(run_processes(settings, client, processes, progress.tell))
    stored = None if before is None else run(_stored(client, topic, before, whole.total))
    return _told(output, settings, processes, whole, stored)


async def _prepared(client: ClientConfig, topic: str, create_queues: int | None) -> int | None:
    """Next offsets of all queues together, None where the cluster does not tell them. Raises TopicNotFoundError, unless the topic
    is to be created."""
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
    """Messages stored since ``before``; a broker answers before it indexes, so look until all are there or nothing changes."""
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

    def tell(self, count: int, failed: int) -> None:
        now = monotonic()
        rate = (count - self._count) / (now - self._last)
        self._count, self._last = count, now
        seconds = now - self._began
        self._output.record(
            {"type": "progress", "seconds": round(seconds, 3), "rate": round(rate), "sent": count, "failed": failed}
        )
        if not self._output.as_json:
            click.echo(f"{seconds:6.0f} s  {rate:11,.0f} messages/s  {count:,} sent  {failed:,} failed", err=True)


def _told(output: Output, settings: LoadSettings, processes: int, whole: Part, stored: int | None) -> int:
    rate = whole.messages / whole.seconds if whole.seconds else 0.0
    cpu = whole.cpu / whole.messages * 1e6 if whole.messages else None
    latency = percentiles(whole)
    oneway = settings.mode == "oneway"
    failed = sum(whole.failures.values())
    output.record(
        {
            "type": "result",
            "topic": settings.topic,
            "mode": settings.mode,
            "in_flight": settings.in_flight,
            "batch": settings.batch if settings.mode == "batch" else None,
            "body": settings.body,
            "processes": processes,
            "seconds": round(whole.seconds, 3),
            "messages": whole.messages,
            "rate": round(rate, 1),
            "mb_per_s": round(rate * settings.body / 1e6, 3),
            "client_cpu_us": None if cpu is None else round(cpu, 3),
            "latency_ms": latency,
            "sent": whole.total,
            "acknowledged": None if oneway else whole.total,
            "stored": stored,
            "failed": failed,
            "failures": whole.failures,
        }
    )
    output.line(f"{rate:,.0f} messages/s, {rate * settings.body / 1e6:,.1f} MB/s of bodies, over {whole.seconds:.1f} s")
    output.line(f"client CPU: {'-' if cpu is None else format(cpu, '.2f')} us a message")
    shown = ", ".join(f"{name} {'-' if value is None else format(value, '.2f')}" for name, value in latency.items())
    output.line(f"latency of a {'batch' if settings.mode == 'batch' else 'call'}, ms: {shown}")
    counted = "unknown" if stored is None else f"{stored:,}"
    output.line(f"{'sent' if oneway else 'acknowledged'}: {whole.total:,}, stored: {counted}, failed: {failed:,}")
    for text, number in whole.failures.items():
        output.line(f"  {number:,} x {text}")
    output.line(f"The messages are still in {settings.topic}.")
    missing = stored is not None and stored < whole.total
    if missing:
        assert stored is not None
        output.trouble(f"bench: {whole.total - stored:,} of {whole.total:,} messages were not stored")
    return FAILED if failed or (missing and not oneway) else 0
