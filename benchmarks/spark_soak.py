"""Soaks the Spark source and sink: ``python benchmarks/spark_soak.py [--minutes 30] [--seed 1] [--workers 3] [--keep DIRECTORY]``.

A producer sends at rates that change at random. Two streaming queries, topic to Parquet and topic to topic, run with speculation
on a standalone cluster of Spark, of processes on this machine. At random moments its executors and workers are killed (SIGKILL)
and replaced, and executors are stopped for seconds (SIGSTOP). Then the queries take what is left, and a process without Spark
counts what is lost, what is there twice, and whether each copy has a cause that is documented. Prints lines of JSON. Exit code 1
where something is not as promised, and where no executor was killed or no task was speculative. Everything is on a real broker.
Needs the extra ``test``, Java, Linux, and what RealCluster needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from support.spark_soak_cluster import Faults, SparkCluster, descendants
from support.spark_soak_count import Soak, lines_of

from rmq_async import Admin, Message, MessageQueue, Producer, RocketMQError, run
from rmq_async.testing.cluster import RealCluster

QUEUES = 4
SHARES = (6, 2, 1, 1)
"""Of the queues, which change places with each rate: the task of the fullest one is slow, and gets a second attempt."""
TICK = 0.05
RATE_SECONDS = 20.0
IN_FLIGHT = 32
FAULT_SECONDS = (10.0, 35.0)
"""Least and most between the end of a fault and the next one."""
PATIENCE = 1800.0
"""Seconds for the first rows, and for what is left at the end."""


class Feeder:
    """Sends to both topics, and writes down what was acknowledged and what has an unknown outcome. A message is sent by one
    attempt, so that none is in a source topic twice."""

    def __init__(self, soak: Soak, rng: random.Random, rates: tuple[int, int]) -> None:
        self.soak = soak
        self.rng = rng
        self.rates = rates
        self.serials = dict.fromkeys(soak.sources, 0)
        self._places = asyncio.Semaphore(IN_FLIGHT)

    async def feed(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        async with Producer("feeds", namesrv=self.soak.namesrv, retries=0) as producer, asyncio.TaskGroup() as sends:
            while (now := time.monotonic()) < deadline:
                rate = self.rng.randint(*self.rates)
                shares = self.rng.sample(SHARES, len(SHARES))
                note(self.soak, "rates", "rate", rate=rate, shares=shares)
                await self._at_rate(rate, shares, min(now + RATE_SECONDS, deadline), producer, sends)

    async def _at_rate(self, rate: int, shares: list[int], until: float, producer: Producer, sends: asyncio.TaskGroup) -> None:
        """``rate``: messages a second, of both topics together. What could not be sent for more than a second is left out."""
        owed, looked = 0.0, time.monotonic()
        while (now := time.monotonic()) < until:
            owed += rate * min(now - looked, 1.0) / len(self.serials)
            looked, count, owed = now, int(owed), owed % 1
            for topic, first in self.serials.items():
                if not count:
                    break
                await self._places.acquire()
                self.serials[topic] = first + count
                (number,) = self.rng.choices(range(QUEUES), shares)
                sends.create_task(self._send(producer, MessageQueue(topic, "broker-a", number), first, count))
            await asyncio.sleep(TICK)

    async def _send(self, producer: Producer, queue: MessageQueue, first: int, count: int) -> None:
        topic = queue.topic
        bodies = [f"{topic}:{serial} ".encode().ljust(100, b".") for serial in range(first, first + count)]
        outcome = "acknowledged"
        try:
            await producer.send_batch([Message(topic, body) for body in bodies], queue=queue, timeout=30.0)
        except RocketMQError as error:
            outcome = f"unknown: {error}"
        finally:
            self._places.release()
        note(self.soak, "sent", "sent", topic=topic, first=first, count=count, outcome=outcome)


def note(soak: Soak, file: str, event: str, **what: Any) -> None:
    with (soak.place / f"{file}.jsonl").open("a") as lines:
        lines.write(json.dumps({"event": event, "at": round(time.time(), 3), **what}) + "\n")


async def strike(soak: Soak, faults: Faults, seconds: float) -> None:
    """Does faults one after the other."""
    deadline = time.monotonic() + seconds
    while (pause := faults.rng.uniform(*FAULT_SECONDS)) < deadline - time.monotonic():
        await asyncio.sleep(pause)
        done = await asyncio.to_thread(faults.next)
        note(soak, "faults", "fault", **done)
        print(json.dumps(done), flush=True)


def planners(driver: int) -> list[int]:
    """Resident MiB of each of the driver's processes that plan reads."""
    found = []
    for process in descendants(driver):
        try:
            if any("python_streaming_source_runner" in word for word in process.cmdline()):
                found.append(process.memory_info().rss >> 20)
        except psutil.NoSuchProcess:
            continue
    return sorted(found)


class Driver:
    """The driver's process, which ends with the cluster."""

    def __init__(self, soak: Soak, group: int) -> None:
        self.soak = soak
        program = Path(__file__).parent / "support" / "spark_soak_driver.py"
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join([root, f"{root}{os.sep}protocol", *filter(None, [os.environ.get("PYTHONPATH")])])
        with (soak.place / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(program), soak.directory], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}, process_group=group,
            )  # fmt: skip

    async def wait(self, event: str, count: int) -> None:
        """Waits until it has written ``event`` down so often. Raises RuntimeError when it ends before, or not in time."""
        deadline = time.monotonic() + PATIENCE
        while sum(each["event"] == event for each in lines_of(self.soak.place / "driver.jsonl")) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.soak.place / "driver.log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the driver did not come to {event!r}; exit code {self.process.poll()}\n{tail}")
            await asyncio.sleep(0.2)


async def soaked(options: argparse.Namespace, place: Path) -> int:
    rng = random.Random(options.seed)
    async with RealCluster(small=False) as real:
        spark = SparkCluster(place / "cluster", workers=options.workers)
        soak = Soak(str(place), real.namesrv, spark.url, ("SoakFiles", "SoakCopied"), "SoakTarget")
        soak.save()
        async with Admin(namesrv=real.namesrv) as admin:
            for topic in (*soak.sources, soak.target):
                await admin.create_topic(topic, queues=QUEUES)
        try:
            await asyncio.to_thread(spark.start)
            driver = Driver(soak, spark.group)
            seeds = [random.Random(rng.random()) for _ in range(3)]
            await Feeder(soak, seeds[0], options.rate).feed(1.0)
            await driver.wait("ready", 2)
            memory = await pressed(soak, spark, driver, seeds[1], seeds[2], options)
            await drained(soak, driver)
        finally:
            await asyncio.to_thread(spark.stop)
        print(json.dumps(memory), flush=True)
        return await asyncio.to_thread(count, place)


async def pressed(
    soak: Soak, spark: SparkCluster, driver: Driver, feed: random.Random, strikes: random.Random, options: argparse.Namespace
) -> dict[str, list[int]]:
    """The soak itself; returns the planners' memory at its begin and end, in MiB."""
    begin = planners(driver.process.pid)
    feeder, faults = Feeder(soak, feed, options.rate), Faults(spark, strikes)
    feeder.serials = dict.fromkeys(soak.sources, 1_000_000_000)  # behind those of the first second
    async with asyncio.TaskGroup() as both:
        both.create_task(feeder.feed(options.minutes * 60))
        both.create_task(strike(soak, faults, options.minutes * 60))
    return {"planners_mib_begin": begin, "planners_mib_end": planners(driver.process.pid)}


async def drained(soak: Soak, driver: Driver) -> None:
    (soak.place / "drain").touch()
    await driver.wait("drained", 2)
    if code := await asyncio.to_thread(driver.process.wait, 120):
        raise RuntimeError(f"the driver ended with {code}\n{(soak.place / 'driver.log').read_text(errors='replace')[-3000:]}")


def count(place: Path) -> int:
    """In a process of its own, which prints the verdict."""
    counter = Path(__file__).parent / "support" / "spark_soak_count.py"
    return subprocess.run([sys.executable, str(counter), str(place)], check=False).returncode


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="spark_soak.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long messages are sent and faults done (default: 30)")
    parser.add_argument("--seed", type=int, default=1, help="of rates, faults and their moments (default: 1)")
    parser.add_argument("--workers", type=int, default=3, help="workers of Spark, with one core each (default: 3)")
    parser.add_argument(
        "--rate", type=int, nargs=2, default=(200, 2000), metavar=("LEAST", "MOST"),
        help="messages a second, of both topics together (default: 200 2000)",
    )  # fmt: skip
    parser.add_argument("--keep", metavar="DIRECTORY", help="keep logs, checkpoints and files here; it must be empty")
    options = parser.parse_args(arguments)
    if options.minutes <= 0:
        parser.error(f"--minutes {options.minutes:g}: give more than 0")
    if options.workers < 2:
        parser.error(f"--workers {options.workers}: give 2 or more; a second attempt of a slow task runs on another worker")
    if not 0 < options.rate[0] <= options.rate[1]:
        parser.error(f"--rate {options.rate[0]} {options.rate[1]}: give two numbers from 1 on, the lower one first")
    if options.keep and Path(options.keep).exists() and any(Path(options.keep).iterdir()):
        parser.error(f"--keep {options.keep}: this directory is not empty; name a new one")
    return options


def main() -> int:
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # all processes are ended on the way out
    with tempfile.TemporaryDirectory(prefix="rmq-soak-") as temporary:
        place = Path(options.keep or temporary).resolve()
        place.mkdir(parents=True, exist_ok=True)
        return run(soaked(options, place))


if __name__ == "__main__":
    sys.exit(main())
