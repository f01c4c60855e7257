"""How long a simulated day takes: ``python benchmarks/simulated_day.py [--hours 24] [--seeds 3]``; no broker, no network.

One producer sends once a second to two simulated brokers under swarm faults; history and checkers are on. Prints the CPU seconds of
each seed and their median.
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

from rmq_async import Message, Producer
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


def measure(seed: int, hours: float) -> dict[str, object]:
    began = time.process_time()
    simulation = Simulation(seed, faults=Faults.swarm())
    simulation.run(lambda simulation: send(simulation, hours * 3600))
    simulation.check()
    cpu = time.process_time() - began
    failed = sum(event.details.get("error") is not None for event in simulation.history if event.what == "send")
    met = sum(simulation.faults_met.values())
    return {"seed": seed, "cpu": round(cpu, 1), "sends": simulation.operations, "failed": failed, "faults_met": met}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="simulated_day.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=24.0, help="virtual hours (default: 24)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1 on (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(given)
    if options.seeds < 1 or not options.hours > 0:
        parser.error("--seeds and --hours are numbers above 0")
    logging.disable()
    seconds: list[float] = []
    for seed in range(1, options.seeds + 1):
        figures = measure(seed, options.hours)
        seconds.append(float(str(figures["cpu"])))
        print(
            json.dumps(figures) if options.json else "  ".join(f"{name} {value}" for name, value in figures.items()), flush=True
        )
    if not options.json:
        print(f"median {statistics.median(seconds):.1f} s of CPU for {options.hours:g} virtual hours")
    return 0


if __name__ == "__main__":
    sys.exit(main())
