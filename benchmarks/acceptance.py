"""Whether a change of the hot paths may go in: ``python benchmarks/acceptance.py CHECKOUT [--with plain batches pulls]``.

CHECKOUT, an older version, against this one, on one official broker (profile *stock*): awaited sends with 64 in flight, batches of
32 one at a time, and ``PullConsumer.read`` of a whole topic. A round runs the old version, this one and the old one again, in
random order, each in a process of its own. Rounds go on until the 95 % interval of the median ratio of client CPU per message is
narrower than +-3 %, or ``--rounds`` are done. Old against old, in the same rounds, shows what noise alone makes of a ratio.
Exit code 1 when the upper end of an interval is above ``--limit``.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from pull import fill
from send import BenchmarkError, Target, check_disk, create_topic, target

HERE: Final = Path(__file__).resolve().parent
SENDS: Final = "Benchmark"
PULLS: Final = "AcceptancePulls"
SUBJECTS: Final[Mapping[str, str]] = {
    "plain": "await send, 64 in flight",
    "batches": "send_batch of 32, one at a time",
    "pulls": "PullConsumer.read",
}
MODES: Final = {"plain": "depth-64", "batches": "batch-1"}
RUNS: Final = ("old", "new", "old again")
LEAST_ROUNDS: Final = 9
WIDTH: Final = 0.03
"""Half the width of the interval, as a share of the median, at which the rounds end."""


class Interval(NamedTuple):
    """Median of ratios with the ends of its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} - {self.high:.3f})"

    @property
    def narrow(self) -> bool:
        return (self.high - self.low) / 2 < WIDTH * self.median


def interval_of(ratios: Sequence[float]) -> Interval:
    """Returns the median and the order statistics that hold it with a probability of 95 % or more, for any distribution.

    With fewer than six ratios no two of them do; the ends are infinite then.
    """
    ordered, count = sorted(ratios), len(ratios)
    outside, rank = 0.0, 0
    while rank < count // 2 and outside + math.comb(count, rank) / 2**count <= 0.025:
        outside += math.comb(count, rank) / 2**count
        rank += 1
    if not rank:
        return Interval(median(ordered), 0.0, math.inf)
    return Interval(median(ordered), ordered[rank - 1], ordered[count - rank])


def environment_of(checkout: Path) -> dict[str, str]:
    """Returns the environment in which Python imports the packages of ``checkout``."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "protocol")])}


def check_checkout(checkout: Path) -> None:
    """Raises BenchmarkError unless Python imports the package from ``checkout``."""
    code = "import rmq_async, rmq_protocol; print(rmq_async.__file__, rmq_protocol.__file__)"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment_of(checkout), capture_output=True, text=True, check=False
    )
    files = [Path(each).resolve() for each in run.stdout.split()]
    if run.returncode or len(files) != 2 or not all(each.is_relative_to(checkout) for each in files):
        raise BenchmarkError(f"{checkout}: is no checkout of rmq-async: {run.stdout.strip() or run.stderr.strip()[-200:]}")


def measure(subject: str, checkout: Path, place: Target, options: argparse.Namespace) -> float:
    """Returns the microseconds of client CPU per message of one run, of sends those of the loop's thread."""
    if subject == "pulls":
        command = [sys.executable, str(HERE / "one_read.py"), "read", "uvloop", place.namesrv, PULLS, "0", "1", "0"]
    else:
        spec = {"side": "ours", "mode": MODES[subject], "namesrv": place.namesrv, "topic": SENDS, "body": 128}
        spec |= {"seconds": options.seconds, "warm_up": options.seconds / 4, "max_messages": options.messages}
        command = [sys.executable, str(HERE / "one_run.py"), msgspec.json.encode(spec).decode()]
    output = subprocess.check_output(command, env=environment_of(checkout))
    result: dict[str, Any] = msgspec.json.decode(output.splitlines()[-1])
    if result.get("failures"):
        raise BenchmarkError(f"{subject}: sends failed: {result['failures']}")
    if subject != "pulls":
        return float(result["thread_us"])
    if not result["messages"]:
        raise BenchmarkError("pulls: the topic was empty")
    return float(result["client_seconds"] / result["messages"] * 1e6)


def accept(subject: str, options: argparse.Namespace, place: Target, order: random.Random) -> bool:
    """Runs the rounds of one subject and prints them; returns whether the upper end of the interval is within the limit."""
    checkouts = {"old": options.checkout, "new": HERE.parent, "old again": options.checkout}
    ratios: dict[str, list[float]] = {"new": [], "old again": []}
    costs: list[float] = []
    for number in range(-1, options.rounds):  # the first one warms the broker and does not count
        if place.directory is not None:
            check_disk(place.directory)
        names = order.sample(RUNS, len(RUNS))
        found = {name: measure(subject, checkouts[name], place, options) for name in names}
        if number < 0:
            continue
        costs.append(found["new"])
        for name in ratios:
            ratios[name].append(found[name] / found["old"])
        if number + 1 >= LEAST_ROUNDS and all(interval_of(each).narrow for each in ratios.values()):
            break
    change, noise = interval_of(ratios["new"]), interval_of(ratios["old again"])
    accepted = change.high <= options.limit
    print(
        f"{SUBJECTS[subject]:34}{median(costs):8.2f} us   new/old {change}   old/old {noise}   {len(costs)} rounds   "
        f"{'within' if accepted else 'NOT WITHIN'} {options.limit}",
        flush=True,
    )
    return accepted


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="acceptance.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the older version: a folder with rmq_async and protocol")
    parser.add_argument("--with", dest="subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=41, help="at most, of each subject (default: 41)")
    parser.add_argument("--seconds", type=float, default=1.0, help="window of a run of sends (default: 1)")
    parser.add_argument("--messages", type=int, default=60_000, help="of a run at most, and in the topic that is read")
    parser.add_argument("--limit", type=float, default=1.05, help="of the upper end of an interval (default: 1.05)")
    parser.add_argument("--seed", type=int, default=None, help="of the order of runs (default: random, printed)")
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of one of our own")
    parser.add_argument("--broker-pid", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.checkout = options.checkout.resolve()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}, load average {os.getloadavg()[0]:.1f} before the run", flush=True)
    try:
        check_checkout(options.checkout)
        with target(options) as place:
            asyncio.run(create_topic(place.namesrv, SENDS))
            if "pulls" in options.subjects:
                asyncio.run(fill(place.namesrv, PULLS, options.messages, 128))
            order = random.Random(seed)
            accepted = [accept(subject, options, place, order) for subject in options.subjects]
    except (BenchmarkError, OSError, subprocess.CalledProcessError) as error:
        print(f"acceptance.py: {error}", file=sys.stderr)
        return 2
    return 0 if all(accepted) else 1


if __name__ == "__main__":
    sys.exit(main())
