"""What is drawn in a simulation is equal on every system, and in every process.

No function is used whose last bit the C library decides, and no set is iterated where its order counts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

import pytest

import rmq_async
from rmq_async.testing.simulation.faults import exponential

SIMULATED = ("admin", "client", "consumer", "embedded", "producer", "reading", "testing/simulation", "transport")
INEXACT = frozenset({
    "betavariate", "binomialvariate", "expovariate", "gammavariate", "gauss", "lognormvariate", "normalvariate", "paretovariate",
    "triangular", "vonmisesvariate", "weibullvariate",
})  # fmt: skip
"""Methods of ``random.Random``."""
EXACT_OF_MATH = frozenset(["ceil", "copysign", "floor", "fsum", "inf", "isfinite", "isinf", "isnan", "isqrt", "nan", "sqrt"])
UNORDERED = frozenset(["all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"])
"""Functions for whose result the order of what they take does not count."""
SUSPECT = re.compile(r"variate|gauss|triangular|\bmath\b|\bpow\(| \*\* ")


class Listed(Random):
    """Draws the given numbers, one after the other."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self.left = list(numbers)

    def random(self) -> float:
        return self.left.pop(0)


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        ((0.25, 0.5), 0.25),  # a row of one
        ((0.5, 0.5), 0.5),  # an equal number ends a row
        ((0.75, 0.5, 0.25, 0.375), 0.75),  # a row of three
        ((0.75, 0.5, 0.625, 0.125, 0.25), 1.125),  # a row of two, and one of one
    ],
)
def test_exponential_of_listed_draws(drawn: tuple[float, ...], expected: float) -> None:
    chance = Listed(*drawn)
    assert exponential(chance, 8.0) == 8.0 * expected
    assert chance.left == []


def test_exponential_has_the_shares_of_its_distribution() -> None:
    chance = Random(17)
    drawn = sorted(exponential(chance, 2.0) for _ in range(20_000))
    assert sum(drawn) / len(drawn) == pytest.approx(2.0, rel=0.03)
    # quarters of an exponential distribution of mean 2: -2 ln(1 - share)
    assert [drawn[len(drawn) * share // 4] for share in (1, 2, 3)] == pytest.approx([0.5754, 1.3863, 2.7726], rel=0.04)


def inexact(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            of_math = isinstance(node.value, ast.Name) and node.value.id == "math" and node.attr not in EXACT_OF_MATH
            if of_math or node.attr in INEXACT:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and node.module == "math":
            yield from (f"{node.lineno}: math.{each.name}" for each in node.names if each.name not in EXACT_OF_MATH)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            if not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, int)):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pow" and len(node.args) < 3:
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_nothing_that_a_simulation_runs_uses_inexact_functions() -> None:
    root = Path(rmq_async.__file__).parent
    files = chain(root.glob("*.py"), *((root / folder).rglob("*.py") for folder in SIMULATED))
    texts = {str(file.relative_to(root)): file.read_text() for file in files}
    assert "testing/simulation/faults.py" in texts
    assert [f"{name}:{line}" for name, text in texts.items() if SUSPECT.search(text) for line in inexact(text)] == []


def test_inexact_functions_are_found() -> None:
    text = "from math import exp, inf\nchance.expovariate(2)\nmath.log(x)\n2 ** x\n0.5 ** x\npow(x, y)\npow(31, x, 8)\n"
    assert SUSPECT.search(text)
    assert sorted(line.partition(":")[0] for line in inexact(text)) == ["1", "2", "3", "5", "6"]


def of_sets(text: str) -> Iterator[str]:
    """Yields each loop over ``set(...)`` or over an operation on the keys of a dict, unless its order cannot count."""
    tree = ast.parse(text)
    harmless = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNORDERED
        for argument in node.args
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            loops = [node.iter]
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp)) and id(node) not in harmless:
            loops = [each.iter for each in node.generators]
        else:
            continue
        yield from (f"{each.lineno}: {ast.unparse(each)}" for each in loops if is_set(each))


def is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.BitAnd, ast.BitOr, ast.BitXor)):
        sides = [side.func for side in (node.left, node.right) if isinstance(side, ast.Call)]
        return any(isinstance(side, ast.Attribute) and side.attr == "keys" for side in sides) or is_set(node.left)
    return isinstance(node, (ast.Set, ast.SetComp))


def test_nothing_that_a_simulation_runs_iterates_sets() -> None:
    root = Path(rmq_async.__file__).parent
    files = chain(root.glob("*.py"), *((root / folder).rglob("*.py") for folder in SIMULATED))
    texts = {str(file.relative_to(root)): file.read_text() for file in files}
    assert "client/topic_route.py" in texts
    assert [f"{name}:{line}" for name, text in texts.items() for line in of_sets(text)] == []


def test_iterated_sets_are_found() -> None:
    text = "for a in b.keys() - c: ...\n[a for a in set(b)]\nfor a in {b, c}: ...\nsorted(a for a in set(b))\nfor a in b - c: ...\n"
    assert sorted(line.partition(":")[0] for line in of_sets(text)) == ["1", "2", "3"]
