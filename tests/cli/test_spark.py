"""``rmq spark``: arguments go to the pipelines as they are, and what is missing is said without Spark being started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import pytest

from rmq_async.cli.app import run_command
from rmq_async.cli.spark import PIPELINES

from .support import ended_without, one_line


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


async def test_without_the_extra_one_line_says_what_to_install() -> None:
    needed = ("pyspark", "pyarrow")
    calls = [(missing, ("spark", "archive", "--topic", "T")) for missing in needed]
    for missing, ended in zip(needed, await ended_without("pyspark", *calls), strict=True):
        assert (ended.code, ended.out) == (2, "")
        line = one_line(ended.err)
        assert missing in line
        assert "pip install 'rmq-async[spark]'" in line


async def test_help_and_wrong_names_need_no_spark() -> None:
    calls = [("pyspark", ("spark", *arguments)) for arguments in (("--help",), ("unload",), ())]
    helped, wrong, unnamed = await ended_without("pyspark", *calls)
    assert (helped.code, helped.err) == (0, "")
    assert all(name in helped.out for name in PIPELINES)
    assert (wrong.code, wrong.out) == (2, "")
    assert "unload" in one_line(wrong.err)
    assert (unnamed.code, unnamed.out) == (2, "")
    assert "Commands:" in unnamed.err


async def test_help_of_a_pipeline_without_the_extra() -> None:
    for ended in await ended_without("pyspark", *[("pyspark", ("spark", "archive", option)) for option in ("--help", "-h")]):
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.startswith("Usage: rmq spark archive")
        assert "pip install 'rmq-async[spark]'" in ended.out
