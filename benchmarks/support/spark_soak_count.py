"""Counts what became of the messages of a soak: ``python spark_soak_count.py DIRECTORY`` prints a line of JSON.

A process without Spark. It reads what was acknowledged, the Parquet files that the file sink's log names, all of the target
topic, and Spark's event log. Copies in the topic may be there only where that log shows a cause: a task that was started more
often than once, for the micro-batch and the partition that RMQ_SPARK_ID names, and a row may be there as often as its task was
started. A copy that a producer made because an answer came late has the UNIQ_KEY of its message, and is counted apart. Exits with
1 where something is not as promised.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "spark"))
from faults.checker import listed


@dataclass(frozen=True)
class Soak:
    """A soak's directory and what its processes must know. ``sources``: the topics that are read, to Parquet and to ``target``."""

    directory: str
    namesrv: str
    master: str
    sources: tuple[str, str]
    target: str

    @property
    def place(self) -> Path:
        return Path(self.directory)

    @property
    def out(self) -> Path:
        return self.place / "out"

    @property
    def events(self) -> Path:
        return self.place / "events"

    def save(self) -> None:
        (self.place / "soak.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, place: Path) -> Soak:
        data = json.loads((place / "soak.json").read_text())
        return cls(**{**data, "sources": tuple(data["sources"])})


class Copy(NamedTuple):
    """A message of the target topic. ``identity``: its RMQ_SPARK_ID; ``key``: its UNIQ_KEY."""

    body: str
    identity: str
    key: str


class Attempt(NamedTuple):
    """An attempt of a task, as it ended. ``reason``: of Spark; "" while it has not ended."""

    speculative: bool
    reason: str


Task = tuple[str, str, str]
"""Query, micro-batch and partition, as in RMQ_SPARK_ID."""


@dataclass
class Given:
    """All that is counted. ``acknowledged`` and ``unknown``: bodies by source topic."""

    acknowledged: dict[str, set[str]]
    unknown: dict[str, set[str]]
    parquet: list[str]
    topic: list[Copy]
    tasks: dict[Task, list[Attempt]]
    faults: Counter[str] = field(default_factory=Counter)
    ended: list[str] = field(default_factory=list)


class Verdict(NamedTuple):
    """``twice``: rows of Parquet beyond the first of a body. ``copies``: the same of the target topic; ``retried``: those with the
    UNIQ_KEY of another. ``unequal``: bodies with several ids, and ids that are missing or on several bodies. ``causes``: copies by
    their cause. ``ended``: errors of queries that were started again."""

    acknowledged: int
    unknown: int
    parquet: int
    lost_parquet: int
    twice: int
    topic: int
    lost_topic: int
    copies: int
    retried: int
    unequal: int
    without_cause: int
    extra: int
    causes: dict[str, int]
    faults: dict[str, int]
    attempts: int
    failed: int
    killed: int
    speculative: int
    speculative_first: int
    ended: list[str]

    def wrong(self) -> list[str]:
        """What is not as promised, and why the soak shows nothing."""
        counts = ("lost_parquet", "lost_topic", "twice", "unequal", "without_cause", "extra")
        found = [f"{name} {getattr(self, name)}" for name in counts if getattr(self, name)]
        if not self.acknowledged:
            found.append("void: no message was acknowledged")
        if not self.faults.get("kill executor"):
            found.append("void: no executor was killed")
        if not self.speculative:
            found.append("void: no task was speculative")
        return found


def judge(given: Given, sources: tuple[str, str]) -> Verdict:
    rows = Counter(given.parquet)
    by_body: dict[str, list[Copy]] = defaultdict(list)
    owners: dict[str, str] = {}
    shared: set[str] = set()
    for one in given.topic:
        by_body[one.body].append(one)
        if not one.identity or owners.setdefault(one.identity, one.body) != one.body:
            shared.add(one.identity)
    unequal = len(shared) + sum(len({one.identity for one in each}) > 1 for each in by_body.values())
    copies = {body: each for body, each in by_body.items() if len(each) > 1}
    causes = Counter(cause for each in copies.values() for cause in causes_of(each, given.tasks))
    attempts = [attempt for each in given.tasks.values() for attempt in each]
    wanted = [given.acknowledged[source] for source in sources]
    allowed = [given.acknowledged[source] | given.unknown[source] for source in sources]
    return Verdict(
        acknowledged=sum(map(len, wanted)),
        unknown=sum(map(len, given.unknown.values())),
        parquet=len(given.parquet),
        lost_parquet=len(wanted[0] - rows.keys()),
        twice=sum(rows.values()) - len(rows),
        topic=len(given.topic),
        lost_topic=len(wanted[1] - by_body.keys()),
        copies=sum(len(each) - 1 for each in copies.values()),
        retried=causes["retried by the producer"],
        unequal=unequal,
        without_cause=causes["none"],
        extra=len(rows.keys() - allowed[0]) + len(by_body.keys() - allowed[1]),
        causes=dict(sorted(causes.items())),
        faults=dict(sorted(given.faults.items())),
        attempts=len(attempts),
        failed=sum(attempt.reason not in ("", "Success", "TaskKilled") for attempt in attempts),
        killed=sum(attempt.reason == "TaskKilled" for attempt in attempts),
        speculative=sum(attempt.speculative for attempt in attempts),
        speculative_first=sum(attempt.speculative and attempt.reason == "Success" for attempt in attempts),
        ended=given.ended,
    )


def causes_of(copies: list[Copy], tasks: dict[Task, list[Attempt]]) -> Iterator[str]:
    """The cause of each message of one body beyond the first. Each attempt of a task makes one UNIQ_KEY for a row."""
    keys = {one.key for one in copies}
    yield from ["retried by the producer"] * (len(copies) - len(keys))
    attempts = tasks.get(task_of(copies[0].identity), [])
    known = max(len(attempts), 1)
    if any(attempt.speculative for attempt in attempts):
        cause = "speculative attempt"
    else:
        cause = next((reason for _, reason in attempts if reason not in ("", "Success")), "micro-batch run again")
    yield from [cause] * (min(len(keys), known) - 1)
    yield from ["none"] * (len(keys) - min(len(keys), known))


def task_of(identity: str) -> Task:
    parts = identity.split(":")
    return (parts[0], parts[1], parts[2]) if len(parts) == 4 else ("", "", "")


# -- reading what is there


def attempts_of(lines: Iterable[str]) -> dict[Task, list[Attempt]]:
    """Attempts of the tasks of micro-batches, from an event log."""
    stages: dict[tuple[int, int], tuple[str, str]] = {}
    started: dict[int, Task] = {}
    found: dict[int, Attempt] = {}
    for line in lines:
        event = json.loads(line)
        kind = event["Event"]
        if kind == "SparkListenerStageSubmitted":
            info, properties = event["Stage Info"], event.get("Properties", {})
            if batch := properties.get("streaming.sql.batchId"):
                stages[info["Stage ID"], info["Stage Attempt ID"]] = properties["sql.streaming.queryId"], batch
        elif kind == "SparkListenerTaskStart" and (event["Stage ID"], event["Stage Attempt ID"]) in stages:
            info, stage = event["Task Info"], stages[event["Stage ID"], event["Stage Attempt ID"]]
            started[info["Task ID"]] = (*stage, str(info["Partition ID"]))
            found[info["Task ID"]] = Attempt(info["Speculative"], "")
        elif kind == "SparkListenerTaskEnd" and event["Task Info"]["Task ID"] in found:
            number = event["Task Info"]["Task ID"]
            found[number] = Attempt(found[number].speculative, event["Task End Reason"]["Reason"])
    tasks: dict[Task, list[Attempt]] = defaultdict(list)
    for number, task in started.items():
        tasks[task].append(found[number])
    return dict(tasks)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def gathered(soak: Soak) -> Given:
    import pyarrow.parquet as pq

    acknowledged: dict[str, set[str]] = {source: set() for source in soak.sources}
    unknown: dict[str, set[str]] = {source: set() for source in soak.sources}
    for part in lines_of(soak.place / "sent.jsonl"):
        into = acknowledged if part["outcome"] == "acknowledged" else unknown
        into[part["topic"]] |= {f"{part['topic']}:{serial}" for serial in range(part["first"], part["first"] + part["count"])}
    rows: list[str] = []
    for name in listed(soak.out):
        column = pq.ParquetFile(name).read(columns=["body"]).column("body")
        rows += [identity_of(bytes(body)) for body in column.to_pylist()]
    tasks: dict[Task, list[Attempt]] = {}
    for log in soak.events.iterdir():
        if not log.name.startswith("."):
            with log.open() as lines:
                tasks |= attempts_of(lines)
    faults = Counter(fault["what"] for fault in lines_of(soak.place / "faults.jsonl") if fault["hit"])
    ended = [one["error"][:600] for one in lines_of(soak.place / "driver.jsonl") if one["event"] == "ended"]
    return Given(acknowledged, unknown, rows, asyncio.run(read(soak)), tasks, faults, ended)


async def read(soak: Soak) -> list[Copy]:
    from rmq_async import PullConsumer

    found = []
    async with PullConsumer("counts", namesrv=soak.namesrv) as consumer:
        async for message in consumer.read(soak.target):
            properties = message.properties
            identity, key = properties.get("RMQ_SPARK_ID", ""), properties.get("UNIQ_KEY", "")
            found.append(Copy(identity_of(message.body), identity, key))
    return found


def identity_of(body: bytes) -> str:
    return body.decode().partition(" ")[0]


def main(directory: str) -> int:
    soak = Soak.load(Path(directory))
    verdict = judge(gathered(soak), soak.sources)
    wrong = verdict.wrong()
    print(json.dumps({**verdict._asdict(), "wrong": wrong}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
