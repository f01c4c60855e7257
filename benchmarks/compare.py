"""Our client beside the others on one real broker: ``python benchmarks/compare.py``.

Builds the Java, Go, Node and the two other Python clients by their own package managers, starts Apache RocketMQ 5.5.0 (name server,
broker, and the proxy that the gRPC client needs), and lets all of them send the same messages to the same topic, one process
after the other, each in every mode it has. All runs of a round follow one another, those that are compared side by side; the order
turns from round to round. What counts is the ratio ours / theirs within a round, and its median over rounds. Absolute
figures belong to the machine they were taken on.

Exit codes: 0; 1 when a send of ours failed or something acknowledged to us was not stored, or, with --check, when one of
the project's criteria is missed; 2 when nothing could be measured. What a peer fails or loses is reported and changes no code.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from support import compare_production as production
from support.bare_loop import BareError
from support.clusters import QUEUES, STORED_OVERHEAD, BenchmarkError, Target, check_disk, create_topic, target
from support.compare_criteria import judge, sentences
from support.compare_peers import CLASS_PATH, CONTENDERS, PEERS, SECTIONS, Built, build, peer_environment
from support.compare_proxy import Proxy, ProxyError, running_proxy
from support.compare_report import OURS, summary, table
from support.compare_runs import Job, Run, our_command, run_once
from support.runs import BATCH, SECRET_KEY, RunSpec

DEFAULT_MODES: Final = tuple(mode for modes in SECTIONS.values() for mode in modes if mode != "async-64")
WEIGHTS: Final = {"depth-1": 1, "adaptive-64": 14, "adaptive-1024": 30, "batch-1": 12, "batch-8": 24}
"""Of our modes; those that are not here have 5. Of the peers': see compare_peers."""
HEATED: Final = ("depth-64", "batch-8")
HEAT_SHARE: Final = 0.03
"""Of the bytes that all runs may write, for each discarded run besides."""
HEATED_SECONDS: Final = 8.0


def option_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers = ", ".join(f"{name} ({peer.title} {peer.version})" for name, peer in PEERS.items())
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {peers}; none: ours alone (default: all)")
    parser.add_argument(
        "--modes",
        help=f"of ours, each with the peers' modes it is held against: {', '.join(CONTENDERS)} (default: all but async-64; "
        "with --namesrv and no --access-key without those that are signed)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often everything runs (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="longest window of one run (default: 3)")
    parser.add_argument(
        "--warm-up", type=float, default=1.0, help="seconds before the window (default: 1; Java at least 6, gRPC 2)"
    )
    parser.add_argument("--body", type=int, default=128, help="bytes of each message's body (default: 128)")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="our event loop")
    parser.add_argument(
        "--max-gb", type=float, default=20.0, help="what all runs together may write to the store (default: 20)"
    )
    parser.add_argument("--topic", default="Comparison", help=f"created with {QUEUES} queues (default: Comparison)")
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of one of our own")
    parser.add_argument("--access-key", help="with --namesrv: of production messages; the secret is in RMQ_SECRET_KEY")
    parser.add_argument("--broker-pid", type=int, help="with --namesrv: the broker's process, for its CPU")
    parser.add_argument(
        "--small-servers", action="store_true", help="production messages to servers with small heaps: a trial, no figures"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    parser.add_argument("--keep-builds", action="store_true", help="keep the peers' builds in the cache directory and use them")
    parser.add_argument("--build-dir", type=Path, metavar="DIR", help="keep them in DIR")
    parser.add_argument("--check", action="store_true", help="exit 1 when a criterion of the project is missed")
    return parser


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = option_parser()
    options = parser.parse_args(given)
    given_modes = options.modes is not None
    options.modes = options.modes if given_modes else ",".join(DEFAULT_MODES)
    for name, known in (("peers", PEERS), ("modes", CONTENDERS)):
        chosen = [each.strip() for each in getattr(options, name).split(",") if each.strip()]
        if name == "peers" and chosen == ["none"]:
            chosen = []
        elif unknown := [each for each in chosen if each not in known]:
            _refuse(f"--{name}: {', '.join(unknown)} is unknown; there are {', '.join(known)}{', none' * (name == 'peers')}")
        elif not chosen:
            _refuse(f"--{name}: none given; there are {', '.join(known)}")
        setattr(options, name, [each for each in known if each in chosen])
    if options.rounds < 1 or options.body < 1 or options.seconds <= 0 or options.warm_up < 0 or options.max_gb <= 0:
        _refuse("--rounds, --body, --seconds and --max-gb must be above 0, --warm-up not below")
    options.secret_key = os.environ.get(SECRET_KEY)
    if options.namesrv and not (options.access_key and options.secret_key):
        if given_modes and set(options.modes) & set(production.MODES):
            _refuse(f"--namesrv: production messages need --access-key, and {SECRET_KEY} in the environment")
        options.modes = [mode for mode in options.modes if mode not in production.MODES]
    if set(options.modes) <= set(production.MODES):
        options.body = production.BODY
    return options


def _refuse(reason: str) -> None:
    print(f"compare.py: {reason}", file=sys.stderr)
    raise SystemExit(2)


# -- builds


@contextmanager
def build_place(options: argparse.Namespace) -> Iterator[Path]:
    if options.build_dir or options.keep_builds:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmq-async" / "peers"
        place = (options.build_dir or cache).resolve()
        place.mkdir(parents=True, exist_ok=True)
        yield place
    else:
        with tempfile.TemporaryDirectory(prefix="rmq-peers-") as name:
            yield Path(name)


def build_all(names: Sequence[str], place: Path) -> dict[str, Built]:
    found = {}
    for name in names:
        found[name] = build(name, place)
        said = "left out: " + found[name].reason if found[name].command is None else f"built in {found[name].seconds:.0f} s"
        print(f"{PEERS[name].title} {PEERS[name].version}: {said}", file=sys.stderr, flush=True)
    return found


# -- runs


class Course:
    """All runs of a comparison: what is run, with what, in which order."""

    def __init__(
        self, options: argparse.Namespace, place: Target, builds: Mapping[str, Built], proxy: Proxy | None, home: Path
    ) -> None:
        self.options = options
        self.place = place
        self.builds = builds
        self.proxy = proxy
        self.environment = peer_environment(home)
        self.sections = [keys for modes in SECTIONS.values() if (keys := self._keys(modes))]
        weights = sum(self._weight(key) for keys in self.sections for key in keys)
        self._share = options.max_gb * 1e9 / options.rounds / weights / (options.body + STORED_OVERHEAD)

    def _keys(self, modes: Sequence[str]) -> list[str]:
        ours = [mode for mode in modes if mode in self.options.modes]
        others = dict.fromkeys(key for mode in ours for key in CONTENDERS[mode] if self._runs(key.partition(":")[0]))
        return [*(OURS + mode for mode in ours), *others]

    def _runs(self, name: str) -> bool:
        built = self.builds.get(name)
        return built is not None and built.command is not None

    @staticmethod
    def _weight(key: str) -> int:
        side, _, mode = key.partition(":")
        return WEIGHTS.get(mode, 5) if side == "ours" else PEERS[side].modes[mode].weight

    def job(self, key: str) -> Job:
        side, _, mode = key.partition(":")
        peer = PEERS.get(side)
        by_proxy = peer is not None and peer.through_proxy and self.proxy is not None
        spec = RunSpec(
            side=side,
            mode=mode,
            namesrv=self.proxy.address if by_proxy and self.proxy else self.place.namesrv,
            topic=self.options.topic,
            body=self.options.body,
            seconds=self.options.seconds,
            warm_up=max(self.options.warm_up, peer.warm_up if peer else 0.0),
            max_messages=max(5 * BATCH, int(self._share * self._weight(key))),
            loop=self.options.loop,
            broker_pid=self.place.broker_pid,
            edges=True,
            attributes=production.ATTRIBUTES if self.options.production else None,
            access_key=self.place.credentials.access_key if self.place.credentials else "",
        )
        return Job(
            key=key,
            command=our_command() if peer is None else self.builds[side].command or [],
            spec=spec,
            environment=None if peer is None else self.environment,
            proxy_pid=self.proxy.pid if by_proxy and self.proxy else None,
            namesrv=self.place.namesrv,
            credentials=self.place.credentials,
        )

    def heat(self) -> None:
        """A broker that has just started is slow: some discarded runs of the bare loop. So is a proxy: one through it."""
        if self.options.production:
            job = self.job(OURS + production.MODES[0])
            heated = HEATED_SECONDS if self.place.directory else 0.0
            asyncio.run(
                run_once(msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, warm_up=heated, seconds=0.1)))
            )
            return
        for mode in HEATED * (2 if self.place.directory else 1):
            share = max(5 * BATCH, int(HEAT_SHARE * self.options.max_gb * 1e9 / (self.options.body + STORED_OVERHEAD)))
            spec = msgspec.structs.replace(self.job(OURS + mode).spec, side="bare", max_messages=share)
            asyncio.run(run_once(Job(key=mode, command=our_command(), spec=spec, namesrv=self.place.namesrv)))
        if self.proxy is not None and (behind := [key for keys in self.sections for key in keys if self.job(key).proxy_pid]):
            job = self.job(behind[-1])
            spec = msgspec.structs.replace(job.spec, warm_up=HEATED_SECONDS, seconds=0.1)
            asyncio.run(run_once(msgspec.structs.replace(job, spec=spec)))

    def round(self, number: int) -> dict[str, Run]:
        """Sections begin with another one each round. Within a section another side begins too, and the order is turned, so that
        ours stands in all places and next to others each time."""
        turn = number % len(self.sections)
        once = production.run_checked if self.options.production else run_once
        runs: dict[str, Run] = {}
        for keys in self.sections[turn:] + self.sections[:turn]:
            first = number * len(keys) // self.options.rounds
            order = keys[first:] + keys[:first]
            for key in order if number % 2 == 0 else order[::-1]:
                if self.place.directory is not None:
                    check_disk(self.place.directory)
                run = runs[key] = asyncio.run(once(self.job(key)))
                delays = f"p50 {(run.p50_us or 0) / 1000:.2f} ms, p99 {(run.p99_us or 0) / 1000:.2f} ms"
                said = run.error or f"{run.rate:,.0f}/s, {run.client_us:.2f} us, {delays}, {run.lost:,} lost"
                print(f"round {number + 1}/{self.options.rounds} {key}: {said}", file=sys.stderr, flush=True)
        return runs


def without_proxy(builds: dict[str, Built], reason: str) -> None:
    for name in builds:
        if PEERS[name].through_proxy and builds[name].command is not None:
            builds[name] = Built(None, reason)


@contextmanager
def course(options: argparse.Namespace) -> Iterator[Course]:
    with ExitStack() as stack:
        place = stack.enter_context(build_place(options))
        builds = build_all(options.peers, place)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-peers-home-", ignore_cleanup_errors=True)))
        cluster = stack.enter_context((production.production_target if options.production else target)(options))
        if options.production:
            said = asyncio.run(production.refuse_unsigned(cluster.namesrv, options.topic))
            print(f"a send without a signature is refused: {said}", file=sys.stderr, flush=True)
        else:
            asyncio.run(create_topic(cluster.namesrv, options.topic))
        proxy = None
        needing = [name for name in builds if PEERS[name].through_proxy and builds[name].command is not None]
        if needing:
            try:
                class_path = (place / needing[0] / CLASS_PATH).read_text().strip()
                proxy = stack.enter_context(running_proxy(class_path, cluster.namesrv))
            except (ProxyError, OSError) as error:
                without_proxy(builds, str(error))
        yield Course(options, cluster, builds, proxy, home)


# -- results


def document(
    options: argparse.Namespace, rounds: Sequence[Mapping[str, Run]], builds: Mapping[str, Built], found: Mapping[str, Any]
) -> dict[str, Any]:
    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    names = ("modes", "peers", "body", "rounds", "seconds", "warm_up", "loop", "max_gb")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            **{package: installed(package) for package in ("uvloop", "msgspec", "rmq-async")},
        },
        "settings": {name: getattr(options, name) for name in names} | {"queues": QUEUES, "batch": BATCH},
        "peers": {
            name: {"title": PEERS[name].title, "version": PEERS[name].version, "left_out": built.reason or None}
            for name, built in builds.items()
        },
        **found,
        "criteria": judge(rounds, options.modes, options.peers),
        "runs": [
            {"round": number, **msgspec.to_builtins(run)} for number, each in enumerate(rounds, 1) for run in each.values()
        ],
    }


def problems_of(rounds: Sequence[Mapping[str, Run]]) -> list[str]:
    """Of our own runs."""
    found = []
    for number, each in enumerate(rounds, 1):
        for key, run in each.items():
            if not key.startswith(OURS):
                continue
            where = f"{key.removeprefix(OURS)}, round {number}"
            if run.error:
                found.append(f"{where}: {run.error}")
            found += [f"{where}: failed: {count:,} x {text}" for text, count in run.failures.items()]
            if run.lost:
                found.append(f"{where}: {run.total:,} acknowledged, {run.stored:,} stored")
    return found


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    try:
        rounds: list[dict[str, Run]] = [{} for _ in range(options.rounds)]
        builds: dict[str, Built] = {}
        with build_place(options) as options.build_dir:
            for part in production.parts(options):
                with course(part) as runs:
                    runs.heat()
                    for number, each in enumerate(rounds):
                        each |= runs.round(number)
                    builds = {**runs.builds, **builds}
    except (BenchmarkError, BareError, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    if not any(run.usable for each in rounds for run in each.values()):
        print("compare.py: no run has figures", *problems_of(rounds)[:3], sep="\n", file=sys.stderr)
        return 2
    found = summary(rounds)
    result = document(options, rounds, builds, found)
    reasons = {name: built.reason for name, built in builds.items()}
    said = sentences(result["criteria"])
    if options.json == "-":
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        print(table(found, reasons, said))
        if options.json:
            Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    problems = problems_of(rounds) + ([each for each in said if not each.startswith("met")] if options.check else [])
    for problem in problems:
        print(f"compare.py: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
