"""CPU time of a Spark worker for each row that it reads: ``python benchmarks/spark_cpu.py --against CHECKOUT``.

The worker's own code (pulls on the loop, decoding, Arrow columns, IPC) reads a topic in a plain process, without Spark: once all
columns, once three. What counts is the CPU time of its two threads, which other load on the machine changes less than wall time.
With ``--against`` another checkout takes turns with this one, in processes of their own, on the same topic, round after round.

The official name server and broker are started (profile *stock*) and their directory is deleted afterwards. ``--transfer`` sets how
many messages that broker gives for one pull from memory; a stock one gives 32.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
QUEUES: Final = 8
BATCH: Final = 96
NARROW: Final = ("queueId", "offset", "body")
PARTS: Final = ("spark thread", "loop thread", "sum")


def option_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark_cpu.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000, help="in the topic (default: 100000)")
    parser.add_argument("--body", type=int, default=1024, help="bytes of each message's body (default: 1024)")
    parser.add_argument("--vary", type=int, default=0, help="bodies are up to so many bytes shorter (default: 0)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each checkout takes its turn (default: 5)")
    parser.add_argument("--transfer", type=int, help="maxTransferCountOnMessageInMemory of the broker")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout to take turns with")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of all rounds to FILE")
    parser.add_argument("--one", nargs=2, metavar=("NAMESRV", "TOPIC"), help=argparse.SUPPRESS)
    return parser


# -- in a process of its own


def read_once(namesrv: str, topic: str, columns: tuple[str, ...]) -> dict[str, float]:
    """Reads every queue of the topic as one task does. Figures are microseconds of CPU time for each row, and rows per second."""
    import pyarrow as pa

    from rmq_async.spark.arrow import arrow_schema, record_batches
    from rmq_async.spark.options import read_options
    from rmq_async.spark.planning import Range
    from rmq_async.spark.pulling import Puller
    from rmq_async.spark.worker import worker

    options = read_options({"nameserver": namesrv, "topic": topic, "columns": ",".join(columns)}, streaming=False)
    here = worker()
    reader = here.reader(options.access, options.group)

    async def ends() -> list[Range]:
        queues = await reader.queues(topic)
        return [Range(*queue, 0, await reader.max_offset(queue)) for queue in queues]

    async def loop_time() -> float:
        return thread_time()

    ranges = here.run(ends())
    began, of_loop, of_us = perf_counter(), here.run(loop_time()), thread_time()
    rows = 0
    with pa.ipc.new_stream(pa.MockOutputStream(), arrow_schema(columns)) as stream:
        for batch in record_batches(Puller(here, reader, ranges, options).batches(), columns):
            stream.write_batch(batch)
            rows += batch.num_rows
    of_us, of_loop = thread_time() - of_us, here.run(loop_time()) - of_loop
    wanted = sum(each.size for each in ranges)
    if rows != wanted:
        raise SystemExit(f"{rows} rows were read, the topic holds {wanted}")
    micros = 1e6 / rows
    figures = (of_us * micros, of_loop * micros, (of_us + of_loop) * micros)
    return dict(zip(PARTS, figures, strict=True)) | {"rows/s": rows / (perf_counter() - began)}


def one_process(namesrv: str, topic: str) -> None:
    """Prints the figures of a second read; the first one is for imports, caches and the broker's."""
    from rmq_async.spark.schema import SOURCE_COLUMNS

    found = {}
    for name, columns in (("all columns", tuple(SOURCE_COLUMNS)), ("three columns", NARROW)):
        read_once(namesrv, topic, columns)
        found[name] = read_once(namesrv, topic, columns)
    print(json.dumps(found))


# -- around it


async def fill(namesrv: str, topic: str, options: argparse.Namespace) -> None:
    """Messages as Spark's sink sends them, from two connections, as from two executors."""
    from rmq_async import Admin, Message, MessageQueue, Producer
    from rmq_async.config import ClientConfig

    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    queues = [MessageQueue(topic, "broker-a", number) for number in range(QUEUES)]
    config = ClientConfig(namesrv=[namesrv])
    async with (
        Producer("fills", client=_named(config, "one")) as one,
        Producer("fills", client=_named(config, "two")) as two,
    ):
        for start in range(0, options.messages, BATCH):
            numbers = range(start, min(start + BATCH, options.messages))
            batch = [
                Message(
                    topic,
                    b"%016d" % number + bytes(options.body - 16 - (number * 7919 % (options.vary + 1))),
                    tags="abc"[number % 3],
                    keys=str(number),
                    properties={"RMQ_SPARK_ID": f"{start:032x}:0:{number % 2}:{number}"},
                )
                for number in numbers
            ]
            producer = (one, two)[start // BATCH // QUEUES % 2]
            await producer.send_batch(batch, queue=queues[start // BATCH % QUEUES])


def _named(config: Any, name: str) -> Any:
    from dataclasses import replace

    return replace(config, instance_name=name)


def one_turn(checkout: Path, namesrv: str, topic: str) -> dict[str, dict[str, float]]:
    path = os.pathsep.join((str(checkout), str(checkout / "protocol")))
    command = [sys.executable, str(Path(__file__).resolve()), "--one", namesrv, topic]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def measure(options: argparse.Namespace) -> dict[str, list[dict[str, dict[str, float]]]]:
    from rmq_async.testing.cluster import RealCluster

    conf = {} if options.transfer is None else {"maxTransferCountOnMessageInMemory": str(options.transfer)}
    cluster = RealCluster(profile="stock", small=True, broker_conf=conf)
    checkouts = {"new": ROOT} | ({"old": options.against.resolve()} if options.against else {})
    rounds: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in checkouts}
    asyncio.run(cluster.start())
    try:
        topic = f"SparkCpu-{os.getpid()}"
        asyncio.run(fill(cluster.namesrv, topic, options))
        for number in range(options.rounds):
            for name in sorted(checkouts, reverse=bool(number % 2)):
                rounds[name].append(one_turn(checkouts[name], cluster.namesrv, topic))
    finally:
        asyncio.run(cluster.stop())
    return rounds


def table(rounds: dict[str, list[dict[str, dict[str, float]]]]) -> str:
    lines = [f"{'CPU time per row, us (median)':32}" + "".join(f"{part:>14}" for part in (*PARTS, "rows/s"))]
    for columns in ("all columns", "three columns"):
        for name, found in sorted(rounds.items(), reverse=True):
            figures = [median(each[columns][part] for each in found) for part in (*PARTS, "rows/s")]
            lines.append(f"{columns + ', ' + name:32}" + "".join(f"{figure:14,.2f}" for figure in figures))
        if "old" in rounds:
            pairs = list(zip(rounds["new"], rounds["old"], strict=True))
            quotients = [[new[columns][part] / old[columns][part] for new, old in pairs] for part in (*PARTS, "rows/s")]
            lines.append(f"{columns + ', new/old':32}" + "".join(f"{median(each):14.2f}" for each in quotients))
    return "\n".join(lines)


def main(given: list[str] | None = None) -> int:
    options = option_parser().parse_args(given)
    if options.one:
        one_process(*options.one)
        return 0
    rounds = measure(options)
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1))
    print(table(rounds))
    print(f"load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
