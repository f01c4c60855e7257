"""Renders the live view: a status line, three tables, and a line that lists the keys."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..records import visible
from .controls import COLUMNS, TABLES, Controls
from .figures import Figures

KEYS: Final = "q quit   Tab table   s sort   r reverse   / filter   Esc clear   j k scroll"
BESIDE_ROWS: Final = 3 + 2 * len(TABLES)
"""Number of lines in addition to the rows of tables: the status, keys, titles, headings, and the last line, which stays
empty.
"""
LEAST: Final = 2
"""Minimum number of rows per table, on average, for which the view reserves lines, even if the terminal has too few lines."""
_TO_THE_RIGHT: Final = frozenset(
    {"in", "out", "messages", "queues", "groups", "lag", "rate", "members", "oldest", "retries", "disk", "replicas"}
)


def picture(figures: Figures, controls: Controls, height: int) -> RenderableType:
    """Return the view, cut to ``height`` lines, but with room for at least ``LEAST`` rows per table. Do not scroll past the last
    row.
    """
    lines = max(height - BESIDE_ROWS, LEAST * len(TABLES))
    return Group(*_parts(figures, controls, lines), _keys(controls))


def whole(figures: Figures, controls: Controls) -> RenderableType:
    """Return all rows, for a file or a pipe."""
    return Group(*_parts(figures, controls, sys.maxsize))


def _parts(figures: Figures, controls: Controls, lines: int) -> Iterator[RenderableType]:
    """Yield the status line, and then the title and the rows of each table, with up to ``lines`` rows in all."""
    rows = {table: controls.orders[table].sorted(getattr(figures, table), table) for table in TABLES}
    room = _room({table: max(len(rows[table]), 1) for table in TABLES}, lines)
    yield _state(figures, controls)
    for table in TABLES:
        begin = min(controls.scrolled[table], max(len(rows[table]) - room[table], 0))
        controls.scrolled[table] = begin
        some = rows[table][begin : begin + room[table]]
        yield _title(table, figures, controls, begin, len(some), len(rows[table]))
        yield _table(table, some, controls)


def _room(wanted: dict[str, int], lines: int) -> dict[str, int]:
    """Divide the lines among the tables in equal parts. Lines that one table does not need go to the others."""
    room = dict.fromkeys(wanted, 0)
    left = sorted(wanted, key=lambda table: wanted[table])
    while left:
        table = left.pop(0)
        room[table] = min(wanted[table], lines // (len(left) + 1))
        lines -= room[table]
    return room


def _state(figures: Figures, controls: Controls) -> Text:
    at = datetime.fromtimestamp(figures.time_ms / 1000).astimezone().strftime("%H:%M:%S")
    line = Text(f"rmq top  {at}", style="bold", no_wrap=True, overflow="ellipsis")
    line.append(f"  in {_rate(_sum(figures.topics, 'in_rate'))}/s  out {_rate(_sum(figures.topics, 'out_rate'))}/s", "not bold")
    line.append(f"  lag {_count(_sum(figures.groups, 'lag'))}", "not bold")
    if controls.filter:
        line.append(f"  filter {visible(controls.filter)}", "not bold cyan")
    if figures.problem is not None:
        line.append(f"  {visible(figures.problem, kept='')}", "bold red")
    return line


def _title(table: str, figures: Figures, controls: Controls, begin: int, shown: int, count: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(table.capitalize(), "bold reverse" if controls.focus == table else "bold")
    line.append(f"  {count}" if shown == count else f"  {begin + 1} to {begin + shown} of {count}", "dim")
    if figures.away and table != "brokers":
        line.append(f"  without {visible(', '.join(figures.away), kept='')}, away", "red")
    return line


def _keys(controls: Controls) -> Text:
    if controls.typing is not None:
        return Text(f"filter: {visible(controls.typing)}_   Enter takes it, Esc leaves it", "cyan", no_wrap=True)
    return Text(KEYS, "dim", no_wrap=True, overflow="ellipsis")


def _table(name: str, rows: Sequence[Any], controls: Controls) -> Table:
    """Return the table of ``rows``.

    On a narrow terminal, names are shortened. In the table of brokers, the last column is shortened too.
    """
    headings, is_open = COLUMNS[name], name == "brokers"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=is_open)
    order = controls.orders[name]
    for number, heading in enumerate(headings):
        text = heading + ("" if heading != order.column else "▲" if order.reverse else "▼")
        if heading in _TO_THE_RIGHT:
            table.add_column(text, justify="right", no_wrap=True, min_width=len(heading) + 1)
        elif is_open and number == len(headings) - 1:
            table.add_column(text, no_wrap=True, overflow="ellipsis", ratio=1)
        else:
            table.add_column(text, no_wrap=number > 0, overflow="ellipsis", min_width=8 if number == 0 else None)
    for row in rows:
        table.add_row(*_CELLS[name](row))
    return table


def _topic(row: Any) -> list[Text]:
    numbers = (_rate(row.in_rate), _rate(row.out_rate), _count(row.messages), _count(row.queues), _count(row.groups))
    return [_name(row.topic), *map(Text, numbers)]


def _group(row: Any) -> list[Text]:
    lag = Text(_count(row.lag), "yellow" if row.lag else "")
    members = Text(_count(row.members), "red" if row.lag and row.members == 0 else "")
    oldest = "?" if row.lag is None else _age(row.oldest)
    return [_name(row.group), lag, Text(_rate(row.rate)), members, Text(oldest), Text(_count(row.retries))]


def _broker(row: Any) -> list[Text]:
    state = Text(row.state, "green" if row.state == "up" else "bold red")
    disk = "-" if row.disk_used is None else f"{row.disk_used:.0%}"
    version = row.version.removeprefix("V").replace("_", ".")
    texts = (_rate(row.in_rate, "-"), _rate(row.out_rate, "-"), disk, version, row.address, str(row.replicas))
    last = _name(row.cluster)
    if row.problem is not None:
        last = Text(visible(row.problem.rpartition(": ")[2], kept=""), "red")  # the reason, without the request that failed
    return [_name(row.broker), state, *(Text(visible(each, kept="")) for each in texts), last]


_CELLS: Final[dict[str, Callable[[Any], list[Text]]]] = {"topics": _topic, "groups": _group, "brokers": _broker}


def _name(text: str) -> Text:
    return Text(visible(text, kept=""))


def _sum(rows: Sequence[Any], name: str) -> float | None:
    found = [getattr(row, name) for row in rows]
    return None if None in found else sum(found)


def _count(number: float | None) -> str:
    return "?" if number is None else f"{number:,.0f}"


def _rate(number: float | None, unknown: str = "...") -> str:
    if number is None:
        return unknown
    return f"{number:,.1f}" if 0 < number < 10 else f"{number:,.0f}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
