"""Writes the table of options of docs/spark.md anew, from the options: ``python tools/spark_options.py docs/spark.md``; with
``--check`` only says whether the page differs (exit code 1)."""

from __future__ import annotations

import sys
from itertools import takewhile
from pathlib import Path
from typing import Final

from rmq_async.spark.options import OPTIONS, Option

HEADING: Final = "| option | of | default | |\n|---|---|---|---|\n"


def options_table() -> str:
    """Returns the table of options as Markdown."""
    return HEADING + "".join(map(_row, OPTIONS))


def with_tables(page: str) -> str:
    """Returns ``page`` with the table as it is now, in place of the one it has. Raises ValueError for a page without one."""
    before, heading, rest = page.partition(HEADING)
    if not heading:
        raise ValueError(f"the page has no table of options; give docs/spark.md, or add these two lines:\n{HEADING}")
    lines = rest.splitlines(keepends=True)
    rows = sum(1 for _ in takewhile(lambda line: line.startswith("|"), lines))
    return before + options_table() + "".join(lines[rows:])


def _row(option: Option) -> str:
    names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
    default = option.default.replace("|", "\\|")
    return f"| {names} | {_uses(option)} | {default} | {option.help.replace('|', chr(92) + '|')} |\n"


def _uses(option: Option) -> str:
    reads = [use for use in option.uses if use.endswith("read")]
    writes = [use for use in option.uses if use.endswith("write")]
    parts = [(reads, "read"), (writes, "write")]
    if all(len(uses) == 2 for uses, _ in parts):
        return "all"
    return ", ".join(name if len(uses) == 2 else uses[0] for uses, name in parts if uses)


if __name__ == "__main__":
    check, target = "--check" in sys.argv, Path(sys.argv[1])
    new = with_tables(target.read_text())
    if not check:
        target.write_text(new)
    elif new != target.read_text():
        sys.exit(f"the table of {target} is not that of the options: write it by python tools/spark_options.py {target}")
