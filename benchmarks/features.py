"""What each thing that can be switched on costs a send: ``python benchmarks/features.py [--with hook tls]``.

The embedded broker runs in a process of its own, plain and with TLS, and each run of a client is a new process. The features
take turns with a plain producer; what counts is the ratio of client CPU within a round, and its median over the rounds.
Needs the extra ``test``.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import trustme
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from one_run import Load, measure, run_on_loop
from runs import RunResult, RunSpec

from rmq_async import Admin, Credentials, Hook, Message, Producer, SendContext, select_best
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.otel import OpenTelemetryHook

TOPIC: Final = "Benchmark"
TRACES: Final = "Traces"


class Watching(Hook):
    def after_send(self, context: SendContext) -> None: ...


def authority_of(directory: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=directory / "ca.pem")


FEATURES: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "plain": dict,
    "latency_fault": lambda: {"latency_fault": True},
    "credentials": lambda: {"credentials": Credentials("alice", "her password")},
    "tls": lambda: {"tls": authority_of(Path(sys.argv[4]))},
    "hook": lambda: {"hooks": [Watching()]},
    "queue_selector": lambda: {"queue_selector": lambda queues, message, key: select_best(queues, message)},
    "trace": lambda: {"trace": TRACES},
    "otel": lambda: {"hooks": [OpenTelemetryHook(TracerProvider(), MeterProvider())]},
}


async def run(spec: RunSpec) -> RunResult:
    producer = Producer("benchmark", namesrv=spec.namesrv, **FEATURES[sys.argv[3]]())
    await producer.start()
    return await measure(spec, Load(producer.send, lambda: Message(TOPIC, b"x" * spec.body), lambda: 0, producer.stop))


async def serve(directory: Path) -> None:
    """Two name servers until the standard input ends; the second one and its broker speak TLS."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(directory / "ca.pem")
    authority.issue_cert("127.0.0.1").configure_cert(context)
    loop: Any = asyncio.get_running_loop()
    async with EmbeddedRocketMQ() as plain:
        async with Admin(namesrv=plain.namesrv) as admin:
            await admin.create_topic(TOPIC)
            await admin.create_topic(TRACES)
        loop.create_server = functools.partial(loop.create_server, ssl=context)
        async with EmbeddedRocketMQ() as secured, Admin(namesrv=secured.namesrv, tls=authority_of(directory)) as admin:
            await admin.create_topic(TOPIC)
            print(plain.namesrv, secured.namesrv, flush=True)
            await asyncio.to_thread(sys.stdin.read)


def compare(options: argparse.Namespace) -> int:
    runs: dict[str, list[RunResult]] = {feature: [] for feature in ["plain", *options.features]}
    with tempfile.TemporaryDirectory(prefix="rmq") as directory:
        command, pipe = [sys.executable, __file__], subprocess.PIPE
        with subprocess.Popen([*command, "serve", directory], stdin=pipe, stdout=pipe, text=True) as server:
            assert server.stdout is not None
            plain, secured = server.stdout.readline().split()
            for number in range(options.rounds):
                for feature in list(runs)[:: -1 if number % 2 else 1]:
                    spec = {"side": "ours", "mode": "depth-64", "topic": TOPIC, "body": 128, "max_messages": 10**9}
                    spec |= {"seconds": options.seconds, "warm_up": options.seconds / 4}
                    spec["namesrv"] = secured if feature == "tls" else plain
                    done = subprocess.check_output([*command, "run", json.dumps(spec), feature, directory])
                    runs[feature].append(msgspec.json.decode(done, type=RunResult))
    print(f"{'':16}client us   x plain (lowest - highest round)")
    for feature, results in runs.items():
        ratios = [result.client_us / plain.client_us for result, plain in zip(results, runs["plain"], strict=True)]
        cost = f"{feature:16}{median(result.client_us for result in results):9.1f}"
        print(f"{cost}   {median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})")
    failed = [f"{feature}: {result.failures}" for feature, results in runs.items() for result in results if result.failures]
    print("\n".join(failed), end="", file=sys.stderr)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="features.py", description=__doc__)
    names = [name for name in FEATURES if name != "plain"]
    parser.add_argument("--with", dest="features", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {names}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="window of one run; a quarter more before it (default: 2)")
    return compare(parser.parse_args())


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(Path(sys.argv[2])))
    elif sys.argv[1:2] == ["run"]:
        print(msgspec.json.encode(run_on_loop(msgspec.json.decode(sys.argv[2], type=RunSpec), run)).decode())
    else:
        sys.exit(main())
