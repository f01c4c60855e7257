"""Defines ``rmq top``: its options, and the loop that refreshes the view."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic, time
from typing import Final

import click
from rich.console import Console
from rich.live import Live

from rmq_async import Admin, ClientConfig, RocketMQError

from ..options import ClientOptions, client_config, client_options, pass_options, seconds_option
from ..output import Output
from ..running import run
from ..signals import end_at_once, exit_code_of, signals_handled, unless
from .controls import COLUMNS, Controls
from .figures import Figures, Watch
from .terminal import leave_at_once, pressed_keys, settings_now
from .view import picture, whole

WIDTH: Final = 160
"""Width in columns if the output is a file or a pipe and the environment variable COLUMNS is not set."""
TERMINAL_GONE: Final = exit_code_of(signal.SIGHUP)
SORTABLE: Final = ("name", *dict.fromkeys(column for columns in COLUMNS.values() for column in columns[1:]))


@dataclass(frozen=True, kw_only=True)
class _TopOptions(ClientOptions):
    interval: float
    once: bool
    sort: tuple[str, ...]
    filter: str
    system: bool

    def controls(self) -> Controls:
        found = Controls(filter=self.filter)
        for column in self.sort:
            found.sort_by(column)
        return found


@click.command(short_help="Watch topics, groups and brokers live.")
@seconds_option(
    "--interval", least=0.2, most=3600.0, default=2.0,
    help="Time between two reads of the figures. Rates are averages over this time.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print the figures of one interval and end.")
@click.option(
    "--sort", type=click.Choice(SORTABLE), multiple=True, metavar="COLUMN",
    help="Column to sort by, in the tables that have it; may be given again. Default: in, lag and name.",
)  # fmt: skip
@click.option(
    "--filter",
    default="",
    metavar="TEXT",
    help="Topics whose names contain this or match it (orders*), and groups that do so or read such topics.",
)
@click.option("--system", is_flag=True, help="Include names of the system.")
@client_options
@pass_options(_TopOptions)
def top(options: _TopOptions) -> int:
    """Watch a cluster: topics with their messages in and out per second; groups with their lag, rate, members, and the age of
    the oldest message that is not committed; and brokers.

    "out" and "rate" count the messages that groups commit. The oldest message is searched for in two queues of a group. A
    broker that does not respond, or that the name servers no longer know, is shown as away and left out of the sums. The rates
    of brokers include only the topics that are shown.

    Keys: q ends the command, Tab selects the next table, s sorts it by the next column, r reverses the order, / filters by
    name, Esc removes the filter, and j and k or arrows scroll. Without a terminal, or with --json, tables or objects are
    printed at each interval.
    """
    return run(_Top(options, client_config(options.namesrv, options.timeout)).run())


class _Top:
    def __init__(self, options: _TopOptions, config: ClientConfig) -> None:
        self._options = options
        self._config = config
        self._controls = options.controls()
        self._output = Output(as_json=options.as_json)
        self._figures: Figures | None = None
        self._ended = asyncio.Event()
        self._code = 0
        self._look_now = asyncio.Event()

    async def run(self) -> int:
        console = Console(highlight=False)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = WIDTH
        is_live = console.is_terminal and not console.is_dumb_terminal and not self._options.once and not self._options.as_json
        loop, before = asyncio.get_running_loop(), settings_now() if is_live else None

        def first(number: int) -> None:
            loop.call_soon_threadsafe(self._end, exit_code_of(number))

        def again(number: int) -> None:
            if is_live:
                leave_at_once(before)
            end_at_once(number)

        with signals_handled(first, again):
            async with Admin(client=self._config) as admin:
                await (self._live if is_live else self._print)(admin, console)
        return self._code

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()
        self._look_now.set()

    # -- printed

    async def _print(self, admin: Admin, console: Console) -> None:
        async def show(figures: Figures) -> None:
            if figures.problem is not None:
                self._output.trouble(figures.problem)
            elif figures.seconds is not None:
                self._output.record(figures.fields())
                if not self._options.as_json:
                    console.print(whole(figures, self._controls))
                if self._options.once:
                    self._end(0)

        await self._watch(admin, show)

    # -- live

    async def _live(self, admin: Admin, console: Console) -> None:
        try:
            await self._viewed(admin, console)
        except OSError as error:
            # a write can fail because the terminal is gone before SIGHUP or the end of the input arrives
            if error.errno == errno.EIO:
                self._code = TERMINAL_GONE
            if self._code != TERMINAL_GONE:
                raise

    async def _viewed(self, admin: Admin, console: Console) -> None:
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def draw() -> None:
                if self._figures is not None:
                    live.update(picture(self._figures, self._controls, console.size.height), refresh=True)

            async def show(figures: Figures) -> None:
                self._figures = figures
                draw()

            def press(key: str) -> None:
                before = self._controls.filter
                self._controls.press(key)
                if self._controls.ended:
                    self._end(0)
                elif self._controls.filter != before:
                    self._look_now.set()
                draw()

            asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, draw)
            with pressed_keys(press, lambda: self._end(TERMINAL_GONE)):
                await self._watch(admin, show)

    async def _watch(self, admin: Admin, show: Callable[[Figures], Awaitable[None]]) -> None:
        """Read and show the figures at each interval and at each change of the filter, until the end.

        If an overview cannot be read, show the last figures together with the problem. With --once, or if there are no figures
        yet, raise the error instead.
        """
        watch, last = Watch(), None
        while not self._ended.is_set():
            began = monotonic()
            self._look_now.clear()
            patterns = self._controls.patterns
            try:
                found = await unless(self._ended, admin.overview(topics=patterns, system=self._options.system))
                if found is None:
                    return
                last = watch.figures(found, monotonic(), round(time() * 1000), patterns)
            except RocketMQError as error:
                if last is None or self._options.once:
                    raise
                await show(replace(last, problem=str(error)))
            else:
                await show(last)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), max(began + self._options.interval - monotonic(), 0.05))
