"""The consumer's state objects own their transitions: no other file assigns to their fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

CONSUMER: Final = Path(__file__).parents[2] / "rmq_async/consumer"
OWNERS: Final = {"HeldQueue": "held_queue.py", "Call": "delivery.py", "LockState": "group/lock_state.py"}
OTHERS: Final = {
    "HeldQueue": {"backlog", "call", "delivery", "dispatcher", "_dispatcher", "hand", "item", "lease", "self", "source"},
    "Call": {"hand", "held", "item", "lease", "self"},
    "LockState": {"self"},
}
"""Names of objects of other classes that have fields of the same names."""


def fields_of(name: str, kind: str) -> frozenset[str]:
    """The fields of a class: what its body declares, and what its methods set."""
    tree = ast.parse((CONSUMER / name).read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind]
    declared = {node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return frozenset(declared | {target.attr for target in assigned(found) if last_name(target.value) == "self"})


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that are assigned to, deleted, or set by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def last_name(value: ast.expr) -> str:
    return value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""


@pytest.mark.parametrize(("kind", "name"), OWNERS.items())
def test_no_other_file_assigns_to_the_fields_of(kind: str, name: str) -> None:
    fields, found = fields_of(name, kind), []
    for path in sorted(CONSUMER.rglob("*.py")):
        if path != CONSUMER / name:
            found += [
                f"{path.relative_to(CONSUMER)}:{target.lineno}: {ast.unparse(target)}"
                for target in assigned(ast.parse(path.read_text()))
                if target.attr in fields and last_name(target.value) not in OTHERS[kind]
            ]
    assert not found, "\n".join(found)
