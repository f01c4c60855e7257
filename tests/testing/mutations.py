"""Small changes of the library, at places that a seed draws: a test is to fail with each one.

    python -m tests.testing.mutations [--seed N] [--count N]    draws and prints
    python -m tests.testing.mutations --run                     also looks for a test that fails, and notes it in mutations.json

A draw is a file and a line of producer, consumer, client or transport. The first change of that line in the order of ``KINDS`` is
taken, except the ones that mutations.json calls equivalent, with the reason. Its lines are those of the commit that it names.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
RECORD: Final = Path(__file__).with_suffix(".json")
PACKAGES: Final = ("producer", "consumer", "client", "transport")
NEGATE, OFF_BY_ONE, DROP = "negate a condition", "off by one", "drop a call"
SWAP, FORGET = "swap arguments", "drop an await's result"
KINDS: Final = (NEGATE, OFF_BY_ONE, DROP, SWAP, FORGET)
SIGNS: Final = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class Change(NamedTuple):
    """``start``, ``end``: the bytes that ``new`` stands for."""

    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str


def changes(source: bytes) -> list[Change]:
    """Returns all changes of a module, in the order of lines, kinds and places."""
    rows, found = [0], []
    for row in source.splitlines(keepends=True):
        rows.append(rows[-1] + len(row))

    def span(node: Any) -> tuple[int, int]:
        return rows[node.lineno - 1] + node.col_offset, rows[node.end_lineno - 1] + node.end_col_offset

    def text(node: ast.AST) -> str:
        return source[slice(*span(node))].decode()

    def add(kind: str, line: int, start: int, end: int, new: str) -> None:
        found.append(Change(line, kind, start, end, source[start:end].decode(), new))

    for node in ast.walk(ast.parse(source)):
        conditions: list[ast.expr] = []
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                conditions = [test]
            case ast.comprehension(ifs=conditions):
                pass
            case ast.Return(value=ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) as value):
                conditions = [value]
            case ast.Compare(left=left, ops=ops, comparators=others):
                for before, operator, after in zip([left, *others], ops, others, strict=False):
                    if signs := SIGNS.get(type(operator)):
                        start, end = span(before)[1], span(after)[0]
                        add(OFF_BY_ONE, before.lineno, start, end, source[start:end].decode().replace(*signs))
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                add(OFF_BY_ONE, node.lineno, *span(node), str(value + 1))
            case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
                add(DROP, node.lineno, *span(node), "pass")
            case ast.Call(args=[first, second, *_]) if not isinstance(second, ast.Starred) and text(first) != text(second):
                add(SWAP, first.lineno, span(first)[0], span(second)[1], f"{text(second)}, {text(first)}")
        for each in conditions:
            if text(each) != "TYPE_CHECKING":
                add(NEGATE, each.lineno, *span(each), f"not ({text(each)})")
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Await) and not isinstance(node, ast.Expr):
                add(FORGET, child.lineno, *span(child), f"({text(child)}, None)[1]")
    return sorted(found, key=lambda each: (each.line, KINDS.index(each.kind), each.start))


def draws(root: Path, seed: int) -> list[tuple[str, list[Change]]]:
    """Returns the lines that have changes in the order in which the seed draws them, each once: the file, and the changes."""
    paths = sorted(path for package in PACKAGES for path in (root / "rmq_async" / package).rglob("*.py"))
    files = [(str(path.relative_to(root)), changes(path.read_bytes())) for path in paths]
    lines = [(path, [*each]) for path, found in files for _, each in groupby(found, key=lambda change: change.line)]
    random.Random(seed).shuffle(lines)
    return lines


def stages(root: Path, path: str, change: Change) -> Iterator[list[str]]:
    """Yields files of tests: five of the package, with most of the change's words, its others, simulation, others, servers."""
    package, stem = path.split("/")[1], Path(path).stem
    words = {stem, *re.findall(r"[a-z]\w{3,}", change.old)}
    turns = {package: 1, "testing": 2, "cluster": 4, "spark": 4, "benchmarks": 4}
    ranks = []
    for file in (root / "tests").rglob("test_*.py"):
        name, content = str(file.relative_to(root)), file.read_text()
        weight = 5 * (stem in name) + sum(min(content.count(word), 3) for word in words)
        ranks.append((turns.get(name.split("/")[1], 3), -weight, name))
    ranks.sort()
    yield [name for _, _, name in ranks[:5]]
    for _, each in groupby(ranks[5:], key=lambda rank: rank[0]):
        yield [name for _, _, name in each]


def failure(tree: Path, tests: list[str]) -> str:
    """Returns the first of the tests that fails in ``tree``, or nothing."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", "--timeout=120", *tests]
    paths = f"{tree}{os.pathsep}{tree / 'protocol'}"
    # Python knows a compiled module by the size of its source and the second of its time: one of the change would count for both.
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    found = FAILED.search(done.stdout)
    return "" if done.returncode == 0 else found[1] if found else f"{tests[0]}: pytest ended with {done.returncode}"


def finder(tree: Path, path: str, change: Change) -> str:
    """Returns a test that fails in ``tree`` with the change, and passes without it; nothing where there is none."""
    file, source = tree / path, (tree / path).read_bytes()
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    for tests in stages(tree, path, change):
        file.write_bytes(source[: change.start] + change.new.encode() + source[change.end :])
        test = failure(tree, tests)
        file.write_bytes(source)
        os.utime(file, ns=times)  # so that a module that was compiled before counts again
        if test and not failure(tree, [test.partition(": ")[0]]):
            return test
    return ""


def main() -> int:
    """Returns the number of changes that no test finds."""
    record: dict[str, Any] = json.loads(RECORD.read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=record["seed"])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    known: dict[str, str] = record["changes"]
    print(f"seed {options.seed}")
    taken, missed = 0, 0
    with tempfile.TemporaryDirectory(prefix="rmq_async_mutations_") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".tox", ".venv"))
        lines = iter(draws(tree, options.seed))
        while taken < options.count:
            path, offered = next(lines)
            for change in offered:
                name = " ".join(f"{path}:{change.line}: {change.kind}: {change.old} -> {change.new}".split())
                if options.run and not known.get(name):
                    known[name] = finder(tree, path, change)
                    RECORD.write_text(json.dumps(record, indent=1) + "\n")
                said = known.get(name, "")
                equivalent = said.startswith("equivalent: ")
                taken, missed = taken + (not equivalent), missed + (not said)
                print(f"{taken:4} {name}: {said or 'NOT FOUND'}", flush=True)
                if not equivalent:
                    break
    return missed


if __name__ == "__main__":
    sys.exit(main())
