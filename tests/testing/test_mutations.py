"""The changes that ``mutations`` draws. Tests that look for a failing test run pytest in processes of its own, for seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from . import mutations

SOURCE = """
async def f(a, b):
    if a < b and await g(a):
        a.close()
    return [c for c in b if 0 < (d := len(c)) <= 2]
"""


def applied(source: str, line: int) -> list[tuple[str, str]]:
    """Returns kind and new text of each change of a line."""
    data = source.encode()
    return [
        (each.kind, (data[: each.start] + each.new.encode() + data[each.end :]).decode().splitlines()[line - 1].strip())
        for each in mutations.changes(data)
        if each.line == line
    ]


def test_changes_of_a_line_are_those_of_the_list_in_its_order() -> None:
    assert applied(SOURCE, 3) == [
        ("negate a condition", "if not (a < b and await g(a)):"),
        ("off by one", "if a <= b and await g(a):"),
        ("drop an await's result", "if a < b and (await g(a), None)[1]:"),
    ]
    assert applied(SOURCE, 4) == [("drop a call", "pass")]
    assert applied(SOURCE, 5) == [
        ("negate a condition", "return [c for c in b if not (0 < (d := len(c)) <= 2)]"),
        ("off by one", "return [c for c in b if 1 < (d := len(c)) <= 2]"),
        ("off by one", "return [c for c in b if 0 <= (d := len(c)) <= 2]"),
        ("off by one", "return [c for c in b if 0 < (d := len(c)) < 2]"),
        ("off by one", "return [c for c in b if 0 < (d := len(c)) <= 3]"),
    ]


@pytest.mark.parametrize(
    ("source", "new"),
    [
        ("ä = f('ö', 'ü')", "ä = f('ü', 'ö')"),
        ("f(*a, b)", "f(b, *a)"),
        ("return not a", "return not (not a)"),
        ("while True: pass", "while not (True): pass"),
    ],
)
def test_change_is_made_at_its_place(source: str, new: str) -> None:
    assert new in [text for _, text in applied(source, 1)]


@pytest.mark.parametrize("source", ["f(a, a)", "f(a, *b)", "a == b", "True", "if TYPE_CHECKING: a", '"text"', "f(a, b=1.0)"])
def test_change_of_no_effect_is_not_made(source: str) -> None:
    assert [text for kind, text in applied(source, 1) if kind != "drop a call"] == []


def test_draws_are_those_of_the_seed(tmp_path: Path) -> None:
    for name in ("producer/a.py", "client/b.py", "admin/c.py"):
        file = tmp_path / "rmq_async" / name
        file.parent.mkdir(parents=True)
        file.write_text("a = 1\nb = 2\nc = d\n" * 8)
    first, again, other = (mutations.draws(tmp_path, seed) for seed in (1, 1, 2))
    places = [(path, offered[0].line) for path, offered in first]
    assert first == again != other
    assert sorted(places) == sorted(
        (f"rmq_async/{name}", 3 * row + at) for name in ("producer/a.py", "client/b.py") for row in range(8) for at in (1, 2)
    )


def test_every_change_of_the_library_is_python() -> None:
    for path, offered in mutations.draws(mutations.ROOT, 1)[:60]:
        source = (mutations.ROOT / path).read_bytes()
        for change in offered:
            compile(source[: change.start] + change.new.encode() + source[change.end :], path, "exec", dont_inherit=True)


def test_stages_have_every_test_once_and_those_of_the_part_first() -> None:
    (change,) = mutations.changes(b"f(1.0)")
    stages = [*mutations.stages(mutations.ROOT, "rmq_async/transport/send_window.py", change)]
    assert stages[0][0] == "tests/transport/test_send_window.py"
    assert [stage[0].split("/")[1] for stage in stages[:3]] == ["transport", "transport", "testing"]
    assert {name.split("/")[1] for name in stages[4]} == {"benchmarks", "cluster", "spark"}
    names = [name for stage in stages for name in stage]
    assert sorted(names) == sorted(
        str(each.relative_to(mutations.ROOT)) for each in (mutations.ROOT / "tests").rglob("test_*.py")
    )


@pytest.mark.parametrize(("promise", "found"), [("LIMIT == 9", "tests/part/test_a.py::test_limit[a b]"), ("LIMIT > 0", "")])
def test_finder_names_a_test_that_fails_with_the_change_alone(tmp_path: Path, promise: str, found: str) -> None:
    files = {
        "rmq_async/__init__.py": "",
        "rmq_async/part/a.py": "LIMIT = 9\n",
        "tests/part/test_a.py": "import pytest\nfrom rmq_async.part.a import LIMIT\n"
        f"@pytest.mark.parametrize('name', ['a b'])\ndef test_limit(name):\n    assert {promise}, name\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (change,) = mutations.changes(files["rmq_async/part/a.py"].encode())
    assert mutations.finder(tmp_path, "rmq_async/part/a.py", change) == found
    assert {name: (tmp_path / name).read_text() for name in files} == files


def test_record_names_a_test_for_thirty_changes() -> None:
    said = json.loads(mutations.RECORD.read_text())["changes"].values()
    found = [each for each in said if not each.startswith("equivalent: ")]
    assert len(found) == 30
    assert all("::test_" in each for each in found)
