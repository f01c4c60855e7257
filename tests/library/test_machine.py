"""The library reads clocks and draws numbers through ``rmq_async.machine`` alone, so that a simulation can replace them."""

from __future__ import annotations

import ast
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq_async
from rmq_async import ClientConfig, machine
from rmq_async.client import UniqueIds
from rmq_protocol.ids import unpack_unique_id

PACKAGE = Path(rmq_async.__file__).parent
OUTSIDE = ("cli", "testing", "spark", "machine.py")
"""These run in processes of their own, or beside a simulation."""
READINGS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "random": {"random", "randrange", "randint", "choice", "shuffle", "getrandbits", "uniform", "SystemRandom"},
    "os": {"urandom", "getpid"},
    "uuid": {"uuid1", "uuid4"},
    "secrets": {"token_hex", "token_bytes", "randbits", "choice"},
    "datetime": {"now", "utcnow", "today"},
}


def readings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (
                f"{node.module}.{alias.name}" for alias in node.names if alias.name in READINGS.get(node.module or "", ())
            )
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in READINGS.get(node.value.id, ())
        ):
            yield f"{node.value.id}.{node.attr}"


def test_no_module_reads_a_clock_or_draws_past_the_machine() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {reading}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in OUTSIDE
        for reading in readings(ast.parse(path.read_text()))
    ]
    assert found == [], "take them from rmq_async.machine"


@pytest.mark.parametrize(
    "source", ["from time import monotonic", "time.time()", "random.random()", "datetime.now()", "os.getpid()"]
)
def test_a_reading_past_the_machine_is_found(source: str) -> None:
    assert len(list(readings(ast.parse(source)))) == 1


def test_the_machine_is_this_one_by_default() -> None:
    assert machine.monotonic is time.monotonic
    assert machine.time is time.time
    random.seed(7)
    drawn = machine.random.random()
    random.seed(7)
    assert random.random() == drawn
    assert machine.executor is None


def test_ids_and_names_are_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "instance_name", "")
    monkeypatch.setattr(machine, "process_id", lambda: 4711)
    for _ in range(2):
        monkeypatch.setattr(machine, "entropy", random.Random(1))
        monkeypatch.setattr(machine, "time", lambda: 1_790_000_000.25)
        ids: Any = UniqueIds(bytes([10, 0, 0, 1]))
        unpacked = unpack_unique_id(ids.next())
        assert (unpacked.ip, unpacked.pid) == ("10.0.0.1", 4711)
    drawn = random.Random(1)
    drawn.getrandbits(32), drawn.getrandbits(16)
    assert ClientConfig().instance_name == ClientConfig().instance_name == f"4711#{drawn.getrandbits(32):08x}"
