"""How long a simulated day takes: ``python benchmarks/simulated_day.py [--hours 24] [--seeds 3] [--reader]``.

One producer sends once a second to two simulated brokers under swarm faults, and with ``--reader`` a consumer follows the topic;
history and checkers are on. Prints the CPU seconds of each seed and their median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import Sequence

from rmq_async import Message, Producer, PullConsumer
from rmq_async.errors import RocketMQError
from rmq_async.testing.simulation import Faults, Simulation


async def send(simulation: Simulation, seconds: float) -> None:
    """Sends once a second, until the time is over; a new producer after one that could not start."""
    number = 0
    while simulation.now < seconds:
        try:
            async with Producer("day", namesrv=simulation.namesrv) as producer:
                while simulation.now < seconds:
                    number += 1
                    try:
                        await producer.send(Message("Day", b"%d" % number))
                    except RocketMQError:
                        continue
                    finally:
                        await asyncio.sleep(1.0)
        except RocketMQError:
            await asyncio.sleep(1.0)


async def follow(simulation: Simulation, seconds: float) -> int:
    """Reads the topic until the time is over, again from its end after an error; returns the number of messages."""
    number = 0
    while simulation.now < seconds:
        try:
            async with PullConsumer("day", namesrv=simulation.namesrv) as consumer, asyncio.timeout(seconds - simulation.now):
                async for _ in consumer.read("Day", start="latest", end=None):
                    number += 1
        except (RocketMQError, TimeoutError):
            await asyncio.sleep(1.0)
    return number


async def day(simulation: Simulation, seconds: float, reader: bool) -> int:
    """Returns the number of messages that were read."""
    read = simulation.machine("reader").run(lambda: follow(simulation, seconds)) if reader else None
    await send(simulation, seconds)
    return 0 if read is None else await read


def measure(seed: int, hours: float, reader: bool) -> dict[str, object]:
    began = time.process_time()
    simulation = Simulation(seed, faults=Faults.swarm())
    read = simulation.run(lambda simulation: day(simulation, hours * 3600, reader))
    simulation.check()
    cpu = time.process_time() - began
    failed = sum(event.details.get("error") is not None for event in simulation.history if event.what == "send")
    met = sum(simulation.faults_met.values())
    return {
        "seed": seed,
        "cpu": round(cpu, 1),
        "sends": simulation.operations,
        "failed": failed,
        "read": read,
        "faults_met": met,
        "iterations": simulation.scheduler.iterations,
    }


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="simulated_day.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=24.0, help="virtual hours (default: 24)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1 on (default: 3)")
    parser.add_argument("--reader", action="store_true", help="a consumer follows the topic")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(given)
    if options.seeds < 1 or not options.hours > 0:
        parser.error("--seeds and --hours are numbers above 0")
    logging.disable()
    seconds: list[float] = []
    for seed in range(1, options.seeds + 1):
        figures = measure(seed, options.hours, options.reader)
        seconds.append(float(str(figures["cpu"])))
        print(
            json.dumps(figures) if options.json else "  ".join(f"{name} {value}" for name, value in figures.items()), flush=True
        )
    if not options.json:
        print(f"median {statistics.median(seconds):.1f} s of CPU for {options.hours:g} virtual hours")
    return 0


if __name__ == "__main__":
    sys.exit(main())
