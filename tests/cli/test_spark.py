"""``rmq spark``: arguments go to the pipelines as they are, and what is missing is said without Spark being started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import pytest

from rmq_async.cli.app import run_command
from rmq_async.cli.spark import PIPELINES

from .support import one_line, rmq


def program(missing: str, *arguments: str) -> list[str]:
    """``rmq`` where a package is not installed; it fails if pyspark is imported all the same."""
    return [
        sys.executable, "-W", "error", "-c",
        f"import sys; sys.modules[{missing!r}] = None; from rmq_async.cli.app import run_command; "
        f"code = run_command({list(arguments)!r}); sys.exit(99 if sys.modules.get('pyspark') else code)",
    ]  # fmt: skip


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_gets_its_arguments_and_gives_the_exit_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def main(arguments: Sequence[str]) -> int:
        taken.extend(arguments)
        return 1

    module = ModuleType(name)
    module.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"rmq_async.spark.pipelines.{name.replace('-', '_')}", module)
    given = ["--topic", "T", "-x", "--json", "--help", "--option", "tags=a || b", "--", "place"]
    assert run_command(["spark", name, *given]) == 1
    assert [one for one in taken if one != "--"] == [one for one in given if one != "--"]


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
async def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    ended = await rmq(command=program(missing, "spark", "archive", "--topic", "T"))
    assert (ended.code, ended.out) == (2, "")
    line = one_line(ended.err)
    assert missing in line
    assert "pip install 'rmq-async[spark]'" in line


async def test_help_and_wrong_names_need_no_spark() -> None:
    ended = await rmq(command=program("pyspark", "spark", "--help"))
    assert (ended.code, ended.err) == (0, "")
    assert all(name in ended.out for name in PIPELINES)

    ended = await rmq(command=program("pyspark", "spark", "unload"))
    assert (ended.code, ended.out) == (2, "")
    assert "unload" in one_line(ended.err)

    ended = await rmq(command=program("pyspark", "spark"))
    assert (ended.code, ended.out) == (2, "")
    assert "Commands:" in ended.err


@pytest.mark.parametrize("option", ["--help", "-h"])
async def test_help_of_a_pipeline_without_the_extra(option: str) -> None:
    ended = await rmq(command=program("pyspark", "spark", "archive", option))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Usage: rmq spark archive")
    assert "pip install 'rmq-async[spark]'" in ended.out
