"""Counts what became of the messages of a run: ``python checker.py DIRECTORY...`` prints a line of JSON for each.

A process of its own, without Spark: it reads what the run wrote down, the Parquet files that the file sink's log names (files of
attempts that failed are in no log), or all of the target topic from its first offset to its last.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    __package__ = "faults"

from .history import Run


class Found(NamedTuple):
    """A row or a message that the sink holds. ``identity``: its RMQ_SPARK_ID; None in files."""

    body: str
    identity: str | None = None


class Verdict(NamedTuple):
    """``extra``: rows that were not produced, or from before the start. ``unequal``: bodies whose copies differ in RMQ_SPARK_ID,
    and ids on more than one body."""

    case: str
    seed: int
    produced: int
    read: int
    lost: int
    dup: int
    allowed: int
    unequal: int
    extra: int
    faults: int
    void: str
    failed: str

    @property
    def good(self) -> bool:
        clean = not (self.lost or self.unequal or self.extra or self.void or self.failed)
        return clean and self.dup <= self.allowed


def judge(run: Run, found: Iterable[Found]) -> Verdict:
    """Compares what is there with what must be."""
    wanted = expected(run)
    bodies: Counter[str] = Counter()
    ids: dict[str, set[str | None]] = defaultdict(set)
    owners: dict[str | None, set[str]] = defaultdict(set)
    for one in found:
        bodies[one.body] += 1
        ids[one.body].add(one.identity)
        owners[one.identity].add(one.body)
    unequal = sum(len(each) > 1 for each in ids.values())
    if run.target is not None:
        unequal += sum(len(each) > 1 or identity is None for identity, each in owners.items())
    errors = run.history("failed")
    return Verdict(
        case=run.case,
        seed=run.seed,
        produced=len(wanted),
        read=sum(bodies.values()),
        lost=len(wanted - bodies.keys()),
        dup=sum(count - 1 for count in bodies.values()),
        allowed=allowed(run),
        unequal=unequal,
        extra=len(bodies.keys() - wanted),
        faults=len(run.history("fired")),
        void=void(run) or ("" if wanted else "nothing had to be read"),
        failed=errors[0]["error"][:600] if errors else "",
    )


def expected(run: Run) -> set[str]:
    """The bodies that the sink must hold."""
    start = begun(run) if run.mode == "latest" else {}
    skipped = {(lost["queue"], offset) for lost in run.history("skipped") for offset in range(*lost["range"])}
    wanted = set()
    for part in run.history("produced"):
        if part["old"] and run.mode == "timestamp":
            continue
        for place in range(part["count"]):
            key = part["queue"], part["first"] + place
            if key[1] >= start.get(key[0], 0) and key not in skipped:
                wanted.add(f"{run.topic}:{part['serial'] + place}")
    return wanted


def begun(run: Run) -> dict[str, int]:
    """What the first start that came to write offsets said its initial offsets were; a query that is killed before has not begun,
    and "latest" is the next start's."""
    answer: dict[str, int] = {}
    for event in run.history():
        if event["event"] == "killed" and event["state"]["offsets"]:
            break
        if event["event"] == "initial":
            answer = event["offsets"]["q"]
    return answer


def allowed(run: Run) -> int:
    """Copies that may be: none in files; in a topic the rows that failed attempts had been given."""
    if run.target is None:
        return 0
    fired = run.history("fired")
    count = sum(event["rows"] for event in fired if event["action"] != "wait")
    replayed = {
        event["batch"] for event in fired if event["action"] == "wait" and event["place"] not in ("latest", "partitions")
    }
    replayed |= {number for event in run.history("killed") for number in event["again"]}
    return count + sum(size_of(run, number) for number in replayed)


def size_of(run: Run, batch: int) -> int:
    """Rows of a micro-batch, by the checkpoint's offset log."""

    def ends(number: int) -> dict[str, dict[str, int]]:
        path = run.checkpoint / "offsets" / str(number)
        answer: dict[str, dict[str, int]] = json.loads(path.read_text().splitlines()[2])
        return answer

    if not (run.checkpoint / "offsets" / str(batch)).exists():
        return 0
    last = ends(batch)
    first = last["init"] | (ends(batch - 1)["q"] if batch else {})
    return sum(end - first.get(queue, 0) for queue, end in last["q"].items())


def void(run: Run) -> str:
    """Why the run proves nothing; empty where it does."""
    if noted := run.history("void"):
        return str(noted[0]["why"])
    fired = {(event["place"], event["batch"], event["number"]) for event in run.history("fired")}
    missing = [fault for fault in run.faults if (fault.place, fault.batch, fault.number) not in fired]
    if missing:
        return f"no fault was injected at {missing[0].place} of micro-batch {missing[0].batch}"
    if not run.history("injected") and not fired:
        return "no fault was injected"
    return ""


# -- reading what is there


def parquet(run: Run) -> list[Found]:
    import pyarrow.parquet as pq

    found = []
    for name in listed(run.out):
        column = pq.ParquetFile(name).read(columns=["body"]).column("body")
        found += [Found(_id(bytes(body))) for body in column.to_pylist()]
    return found


def listed(out: Path) -> list[str]:
    """Paths of the Parquet files that the log of Spark's file sink names, and of no others."""
    files = set()
    for part in (out / "_spark_metadata").iterdir():
        if not part.name.startswith("."):
            files |= {urlparse(json.loads(line)["path"]).path for line in part.read_text().splitlines()[1:]}
    return [unquote(name) for name in sorted(files)]


async def topic(run: Run) -> list[Found]:
    from rmq_async import PullConsumer

    assert run.target is not None
    async with PullConsumer("checks", namesrv=run.namesrv) as consumer:
        messages = [message async for message in consumer.read(run.target)]
    return [Found(_id(message.body), message.properties.get("RMQ_SPARK_ID")) for message in messages]


def _id(body: bytes) -> str:
    return body.decode().partition(" ")[0]


def check(directory: Path) -> Verdict:
    run = Run.from_json((directory / "run.json").read_text())
    return judge(run, parquet(run) if run.target is None else asyncio.run(topic(run)))


def main(directories: list[str]) -> None:
    for directory in directories:
        verdict: dict[str, Any] = check(Path(directory))._asdict()
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
