"""Everything at once for a long time: ``python benchmarks/stress.py [--world embedded|real] [--seconds 1200] [--first 1]``.

Rounds of 40 seconds of load, each with a seed of its own: all ways to send, four producers, calls cancelled and producers stopped
at random moments, faults of every kind. Then raw requests read what is stored, and each call is held against what it was promised.
Prints one line of JSON for each round; exits with 1 where one broke a promise. The round itself is tests/stress. Needs the extra
``test``, and for real brokers what RealCluster needs.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rmq_async import run
from rmq_async.testing import RealCluster
from tests.stress.run import Report, embedded_run, real_run

ROUND = 40.0


def _show(report: Report) -> bool:
    print(json.dumps(vars(report)), flush=True)
    return not report.broken


async def _on_real_brokers(seeds: Iterator[int]) -> bool:
    good = True
    for seed in seeds:
        async with RealCluster(brokers=2, nameservers=2) as cluster:
            good = _show(await real_run(seed, ROUND, cluster)) and good
    return good


def _seeds(first: int, seconds: float) -> Iterator[int]:
    until = monotonic() + seconds
    while monotonic() < until:
        yield first
        first += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=("embedded", "real"), default="embedded")
    parser.add_argument("--seconds", type=float, default=1200.0, help="no round begins after so many seconds")
    parser.add_argument("--first", type=int, default=1, help="seed of the first round")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    seeds = _seeds(options.first, options.seconds)
    if options.world == "real":
        return 0 if run(_on_real_brokers(seeds)) else 1
    broken = [report for seed in seeds if not _show(report := run(embedded_run(seed, ROUND)))]
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
