"""The command ``rmq simulate``: runs seeds on a simulated cluster, until a seed fails, or the given number or time is reached."""

from __future__ import annotations

import inspect
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import get_context, parent_process
from typing import Any, Final

import click

from rmq_async.testing.simulation import GROUP_KINDS, KINDS, POP_KINDS, Outcome, SeedRun, Simulation, minimised, run_seed

from .options import json_option, pass_options
from .output import Output
from .running import FAILED

DEFAULT_SEEDS: Final = 100
MAX_JOBS: Final = 256
MAX_SEEDS: Final = 1 << 32
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType):  # type: ignore[type-arg]  # a generic class from click 8.3 on
    """A duration such as 90s, 10m or 5h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value)
        try:
            seconds = float(text[:-1]) * UNITS[text[-1:]]
        except (KeyError, ValueError):
            self.fail(f"{text!r} is not a duration; write a number and s, m or h, such as 90s or 10m", param, ctx)
        if not 0 < seconds < 1e9:
            self.fail(f"{text!r} is not a positive duration below 1e9 s", param, ctx)
        return seconds


@dataclass(frozen=True, kw_only=True)
class _SimulateOptions:
    target: str | None
    as_json: bool
    scenario: str | None
    seed: int | None
    seeds: int | None
    seconds: float | None
    first: int | None
    jobs: int
    without: tuple[str, ...]
    trace: bool

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        if self.target is None and self.scenario is None:
            raise click.UsageError("name the function to run, MODULE:FUNCTION, such as shop:service")
        if self.target is not None and self.scenario is not None:
            raise click.UsageError("give MODULE:FUNCTION or --scenario, not both")
        if self.seed is not None and (self.seeds, self.seconds, self.first) != (None, None, None):
            raise click.UsageError("--seed runs one seed; leave out --seeds, --for and --first")
        if self.trace and self.seed is None:
            raise click.UsageError("--trace prints the frames of one run; name it with --seed")


@click.command(short_help="Run your service on a simulated cluster with faults.")
@click.argument("target", metavar="[MODULE:FUNCTION]", required=False)
@json_option
@click.option("--scenario", metavar="NAME", help="Run a scenario of the library instead; in a checkout of it only.")
@click.option("--seed", type=click.IntRange(0), help="Run this seed only.")
@click.option("--seeds", type=click.IntRange(1, MAX_SEEDS), help="Number of seeds.  [default: 100]")
@click.option("--for", "seconds", type=Duration(), help="Run seeds for a time, such as 90s, 10m or 5h.")
@click.option("--first", type=click.IntRange(0), help="First seed of --seeds and --for.  [default: random]")
@click.option("--jobs", type=click.IntRange(1, MAX_JOBS), default=1, show_default=True, help="Processes that run seeds.")
@click.option(
    "--without",
    multiple=True,
    type=click.Choice((*KINDS, *POP_KINDS, *GROUP_KINDS)),
    metavar="KIND",
    help="Leave out a kind of fault, such as broker-crash; may be repeated. The error of a wrong one lists all kinds.",
)
@click.option("--trace", is_flag=True, help="Print each frame that the network delivers; needs --seed.")
@pass_options(_SimulateOptions)
def simulate(given: _SimulateOptions) -> int:
    """Run a coroutine function of yours on a simulated cluster, under virtual time, with faults that each seed draws.

    The function takes the simulation: async def service(sim). Its module is first searched for in the current directory. A seed
    fails if an error leaves the function, or if check() finds a violation afterwards.

    The command ends at the first seed that fails (exit code 1). It prints a command that still fails, without the kinds of
    faults that the failure does not need. The same seed always gives the same run.
    """
    given.check()
    if (here := os.getcwd()) not in sys.path:  # as for `python -m`
        sys.path.insert(0, here)
    run: SeedRun
    if given.target is not None:
        _function(given.target)
        run, what = partial(_run_function, given.target), given.target
    else:
        assert given.scenario is not None
        run, what = _scenario(given.scenario), f"--scenario {given.scenario}"
    output = Output(as_json=given.as_json)
    if given.seed is not None:
        outcomes = (run(seed, without=given.without, trace=given.trace) for seed in (given.seed,))
        return _report(outcomes, 1, output, run, what, given.without)
    start = random.SystemRandom().getrandbits(31) if given.first is None else given.first
    number = given.seeds or (None if given.seconds is not None else DEFAULT_SEEDS)
    seeds = itertools.count(start) if number is None else range(start, start + number)
    return _report(_outcomes(run, seeds, given), number, output, run, what, given.without)


def _run_function(target: str, seed: int, *, without: Iterable[str] = (), trace: bool = False) -> Outcome:
    """Run one seed. The function is passed by name, because other processes import it themselves."""
    return run_seed(_function(target), seed, without=without, trace=trace)


def _function(target: str) -> Callable[[Simulation], Awaitable[object]]:
    """Return a coroutine function by its name.

    Raises:
        UsageError: If the name does not refer to a coroutine function that takes one argument.
    """
    name, _, attribute = target.partition(":")
    if name.endswith(".py") or not all(part.isidentifier() for part in (*name.split("."), attribute)):
        raise click.UsageError(f"{target!r} is not MODULE:FUNCTION, such as shop:service for the function service in shop.py")
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(
                f"module {error.name!r} is neither in {os.getcwd()} nor installed; correct the name or the directory"
            ) from None
        raise click.UsageError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    function: Callable[..., Awaitable[object]] | None = getattr(module, attribute, None)
    if function is None:
        found = [each for each, value in vars(module).items() if inspect.iscoroutinefunction(value)]
        listed = f"its coroutine functions are {', '.join(found)}" if found else "it has no coroutine function"
        raise click.UsageError(f"module {name!r} has no {attribute!r}; {listed}")
    if not inspect.iscoroutinefunction(function):
        raise click.UsageError(f"{target} is not a coroutine function; write async def {attribute}(sim)")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise click.UsageError(f"{target} must take one argument, the simulation: async def {attribute}(sim)") from None
    return function


def _scenario(name: str) -> SeedRun:
    """Return the function that runs a seed of one of the library's scenarios.

    Raises:
        UsageError: For an unknown scenario, and if the library does not run from a checkout.
    """
    try:
        library = import_module("tests.simulation")
        scenarios, run = library.SCENARIOS, library.run_seed
    except (ModuleNotFoundError, AttributeError):
        raise click.UsageError(
            f"{os.getcwd()} is not a checkout of rmq-async, which has the library's scenarios in tests/simulation; run this in a "
            "checkout, or name a function of your own: rmq simulate MODULE:FUNCTION"
        ) from None
    if name not in scenarios:
        raise click.UsageError(f"there is no scenario {name!r}; there are {', '.join(scenarios)}")
    return partial(run, name)


def _outcomes(run: SeedRun, seeds: Iterable[int], given: _SimulateOptions) -> Iterator[Outcome]:
    """Yield the outcomes, approximately in the order in which the seeds end.

    After the time of ``--for``, no further seed is submitted. With several jobs, seeds that already wait in the pool still run.
    """
    over = float("inf") if given.seconds is None else time.monotonic() + given.seconds
    left = iter(seeds)
    if given.jobs == 1:
        for seed in left:
            if time.monotonic() >= over:
                return
            yield run(seed, without=given.without)
        return
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        running: set[Future[Outcome]] = set()
        try:
            while True:
                room = 2 * given.jobs - len(running) if time.monotonic() < over else 0
                for seed in itertools.islice(left, room):
                    running.add(pool.submit(run, seed, without=given.without))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from sorted((each.result() for each in done), key=lambda outcome: outcome.seed)
        finally:
            for each in running:
                each.cancel()


def _end_with_parent() -> None:
    """End this process when its parent has ended, because a parent that is killed cannot end the processes of its pool."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(FAILED)

    threading.Thread(target=watch, name="rmq simulate parent", daemon=True).start()


def _report(
    outcomes: Iterator[Outcome], number: int | None, output: Output, run: SeedRun, what: str, without: tuple[str, ...]
) -> int:
    began, met, drawn, count, hours, operations = time.monotonic(), Counter[str](), set[str](), 0, 0.0, 0
    failed: Outcome | None = None
    outcome: Outcome | None = None
    with output.progress() as progress:
        task = progress.add_task("seeds", total=number)
        for outcome in outcomes:
            count += 1
            hours += outcome.seconds / 3600
            operations += outcome.operations
            met.update(outcome.met)
            drawn.update(outcome.kinds)
            progress.advance(task)
            if outcome.violation:
                failed = outcome
                break
    minutes = (time.monotonic() - began) / 60
    summary: dict[str, object] = {
        "seeds": count,
        "seeds_per_minute": round(count / minutes, 1) if minutes else 0.0,
        "virtual_hours": round(hours, 3),
        "operations": operations,
        "faults_met": dict(sorted(met.items())),
        "faults_unmet": sorted(drawn.difference(met)),
    }
    if failed is not None:
        failed, left_out = minimised(run, failed, without=without)
        line = f"rmq simulate {what} --seed {failed.seed}"
        summary["violation"] = failed.violation
        summary["repeat"] = " ".join([line, *(f"--without {kind}" for kind in left_out)])
    elif count == 1 and outcome is not None:
        summary["trace_hash"] = outcome.trace_hash
    output.record(summary)
    for name, value in summary.items():
        output.line(f"{name.replace('_', ' ')}: {_shown(value)}")
    return FAILED if failed is not None else 0


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or "none"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
