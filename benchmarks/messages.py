"""What messages as services send them cost: ``python benchmarks/messages.py [--with keys signed] [--rounds 5] [--seconds 2]``.

Tags, keys, properties, signatures, hooks, traces and spans, on the official name server and broker (profile *stock*), with 64
awaited sends in flight on uvloop. Each run of a client is a process of its own; all rows take turns with a plain producer and with
the bare loop. What counts is the CPU of the loop's thread beside the plain producer's in the same round, and its median over the
rounds. ``--before CHECKOUT`` runs each row with the package of another checkout, too, in the same rounds. Needs the extra ``test``.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, NamedTuple

import msgspec
from opentelemetry import propagate
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, set_span_in_context

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from support.clusters import BenchmarkError, check_disk, create_topic, target
from support.one_run import Load, bare_load, measure, run_on_loop
from support.runs import RunResult, RunSpec
from support.sides import environment_of

from rmq_async import Credentials, Hook, Message, Producer, SendContext
from rmq_async.otel import OpenTelemetryHook

TOPIC: Final = "Benchmark"
TRACES: Final = "BenchmarkTraces"
KILOBYTE: Final = b"x" * 1024
SMALL: Final = b"x" * 128
PROPERTIES: Final = {"shop": "eu-west-1", "schema": "orders/3"}
SHARDS: Final = [f"customer-{number}" for number in range(1000)]
USER: Final = Credentials("alice", "her password")
BEFORE: Final = " (before)"


class Passing(Hook):
    def before_send(self, context: SendContext) -> None:
        pass

    def after_send(self, context: SendContext) -> None:
        pass


class Discarding(SpanExporter):
    """A batch exporter whose network costs nothing."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def plain() -> Message:
    return Message(TOPIC, SMALL)


def with_keys() -> Message:
    return Message(TOPIC, SMALL, tags="paid", keys="order-17")


def real() -> Message:
    return Message(TOPIC, KILOBYTE, tags="paid", keys="order-17", properties=PROPERTIES)


_shards = itertools.cycle(SHARDS)


def sharded() -> Message:
    return Message(TOPIC, SMALL, sharding_key=next(_shards))


def telemetry() -> tuple[TracerProvider, MeterProvider]:
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(Discarding(), max_queue_size=1 << 16))
    return tracers, MeterProvider([InMemoryMetricReader()])


class Row(NamedTuple):
    """``options``: of the producer."""

    title: str
    message: Callable[[], Message]
    options: Callable[[], dict[str, Any]] = dict


ROWS: Final[Mapping[str, Row]] = {
    "plain": Row("plain", plain),
    "keys": Row("tags and key", with_keys),
    "real": Row("1 KiB, tags, key, two properties", real),
    "sharded": Row("sharding key (1,000 keys, 8 queues)", sharded),
    "signed": Row("plain, signed", plain, lambda: {"credentials": USER}),
    "real-signed": Row("1 KiB, tags, key, two properties, signed", real, lambda: {"credentials": USER}),
    "real-batching": Row("the same with batching=True", real, lambda: {"credentials": USER, "batching": True}),
    "hook": Row("a hook whose two methods pass", plain, lambda: {"hooks": [Passing()]}),
    "trace": Row("trace=True", plain, lambda: {"trace": TRACES}),
    "otel": Row("OpenTelemetry SDK, batch exporter", plain, lambda: {"hooks": [OpenTelemetryHook(*telemetry())]}),
    "otel-hand": Row("send, the same span and metrics by hand", plain),
}
OTHERS: Final = [name for name in ROWS if name != "plain"]


def by_hand(send: Callable[[Message], Any], group: str) -> Callable[[Message], Any]:
    """``send`` with the span, the attributes, the metrics and the trace context that the hook makes, and no hook."""
    tracers, meters = telemetry()
    tracer, meter = tracers.get_tracer("by hand"), meters.get_meter("by hand")
    counter = meter.create_counter("messaging.client.sent.messages", unit="{message}")
    duration = meter.create_histogram("messaging.client.operation.duration", unit="s")
    shared = {
        "messaging.system": "rocketmq", "messaging.operation.name": "send", "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC, "server.address": "127.0.0.1", "server.port": 10911,
    }  # fmt: skip

    async def sending(message: Message) -> Any:
        started = time.perf_counter()
        attributes = {
            **shared, "messaging.rocketmq.client_group": group, "messaging.rocketmq.message.type": "normal",
            "messaging.message.body.size": len(message.body), "rmq_async.attempt": 1, "rmq_async.mode": "sync",
        }  # fmt: skip
        span = tracer.start_span(f"send {TOPIC}", kind=SpanKind.PRODUCER, attributes=attributes)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, set_span_in_context(span))
        result = await send(Message(TOPIC, message.body, properties=carrier))
        span.set_attribute("messaging.message.id", result.msg_id)
        span.set_attribute("messaging.destination.partition.id", f"{result.queue.broker_name}:{result.queue.queue_id}")
        span.set_attribute("rmq_async.send_status", result.status.value)
        span.end()
        duration.record(time.perf_counter() - started, shared)
        counter.add(1, shared)
        return result

    return sending


async def run(spec: RunSpec) -> RunResult:
    name = sys.argv[3]
    if name == "bare":
        return await measure(spec, await bare_load(spec))
    row = ROWS[name]
    producer = Producer("benchmark", namesrv=spec.namesrv, **row.options())
    await producer.start()
    send = by_hand(producer.send, producer.group) if name == "otel-hand" else producer.send
    return await measure(spec, Load(send, row.message, lambda: 0, producer.stop))


def signature_us() -> float:
    """Microseconds of an HMAC-SHA1 and base64 of what a plain send signs: its header's texts and its body."""
    content = b"x" * 230 + SMALL
    key = USER.secret_key.encode()
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for _ in range(20_000):
            base64.b64encode(hmac.digest(key, content, hashlib.sha1))
        best = min(best, (time.process_time() - started) / 20_000)
    return best * 1e6


def compare(options: argparse.Namespace) -> int:
    rows = ["plain", *options.rows]
    names = ["bare", *rows, *[f"{name}{BEFORE}" for name in rows if options.before]]
    runs: dict[str, list[RunResult]] = {name: [] for name in names}
    signatures: list[float] = []
    with target(options) as place:
        asyncio.run(create_topic(place.namesrv, TOPIC))
        asyncio.run(create_topic(place.namesrv, TRACES))
        spec = {"side": "ours", "mode": "depth-64", "namesrv": place.namesrv, "topic": TOPIC, "body": len(SMALL)}
        spec |= {"seconds": options.seconds, "warm_up": options.seconds / 4, "max_messages": options.messages}
        for number in range(-1, options.rounds):  # the first one warms the broker and does not count
            signatures.append(signature_us())
            for name in names[:: -1 if number % 2 else 1]:
                if place.directory is not None:
                    check_disk(place.directory)
                result = run_once(spec | {"side": "bare" if name == "bare" else "ours"}, name, options.before)
                if number >= 0:
                    runs[name].append(result)
    show(runs, median(signatures))
    if options.before:
        show_change(runs)
    failed = [f"{name}: {result.failures}" for name, results in runs.items() for result in results if result.failures]
    print("\n".join(failed), end="", file=sys.stderr)
    if options.json:
        Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode({"runs": runs, "signature_us": signatures})))
    return 1 if failed else 0


def run_once(spec: Mapping[str, Any], name: str, before: str | None) -> RunResult:
    """One run in a process of its own. A name that ends with BEFORE imports the package from the checkout ``before``."""
    environment = environment_of(Path(before)) if before and name.endswith(BEFORE) else None
    command = [sys.executable, __file__, "run", json.dumps(spec), name.removesuffix(BEFORE)]
    return msgspec.json.decode(subprocess.check_output(command, env=environment).splitlines()[-1], type=RunResult)


def show(runs: Mapping[str, list[RunResult]], signature: float) -> None:
    print(f"{'':44}client us  x plain   quartiles      lowest - highest")
    for name, results in runs.items():
        row = name.removesuffix(BEFORE)
        title = (ROWS[row].title if row in ROWS else "bare loop") + name[len(row) :]
        cost = median(result.thread_us for result in results)
        print(f"{title:44}{cost:9.1f}  {spread(results, runs['plain' + name[len(row) :]])}")
    for name in [each for each in runs if each.removesuffix(BEFORE) == "plain"]:
        cost = median(result.thread_us for result in runs[name])
        print(f"a bare HMAC-SHA1 and base64 {signature:.2f} us; {name} and that: {(cost + signature) / cost:.2f} x plain")
        print(f"{name} beside the bare loop: {spread(runs[name], runs['bare'])}")


def show_change(runs: Mapping[str, list[RunResult]]) -> None:
    print(f"\n{'':44}x before  quartiles      lowest - highest")
    for name in [each for each in runs if f"{each}{BEFORE}" in runs]:
        print(f"{ROWS[name].title:44} {spread(runs[name], runs[name + BEFORE])}")


def spread(results: list[RunResult], others: list[RunResult]) -> str:
    """Ratios of CPU within the rounds: median, quartiles, lowest and highest."""
    ratios = [result.thread_us / other.thread_us for result, other in zip(results, others, strict=True)]
    low, _, high = quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    return f"{median(ratios):5.2f}   {low:.2f} - {high:.2f}   {min(ratios):.2f} - {max(ratios):.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="messages.py", description=__doc__)
    parser.add_argument("--with", dest="rows", nargs="+", choices=OTHERS, default=OTHERS, metavar="NAME", help=f"of {OTHERS}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="window of one run; a quarter more before it (default: 2)")
    parser.add_argument("--messages", type=int, default=60_000, help="of one run at most (default: 60,000)")
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of one of our own")
    parser.add_argument("--broker-pid", type=int, help="with --namesrv: the broker's process")
    parser.add_argument("--before", metavar="CHECKOUT", help="a checkout of another version, measured in the same rounds")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    try:
        return compare(options)
    except (BenchmarkError, OSError) as error:
        print(f"messages.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        print(msgspec.json.encode(run_on_loop(msgspec.json.decode(sys.argv[2], type=RunSpec), run)).decode())
    else:
        sys.exit(main())
