"""Attempts at runs: a run that is given up, or in which its fault did not strike as meant, proves nothing.

It counts as void and is made again with topics of its own, ``TRIES`` times in all, and the matrix goes on. A run that broke a
promise is never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from subprocess import SubprocessError
from typing import NamedTuple, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rmq_async import RocketMQError

from .checker import Verdict
from .history import QueryFailedError

TRIES = 3
"""Attempts at each run, at most."""
GIVES_UP = (OSError, RuntimeError, SubprocessError, RocketMQError, PySparkException, Py4JError, futures.TimeoutError)
"""What ends a run on a machine that is busy, or whose servers do not come up: among them TimeoutError, an OSError. Others are bugs
of the matrix, and end it."""
LONGEST = 600
"""Characters of an error that are kept."""
Kind = TypeVar("Kind")


class Attempt(NamedTuple):
    """``repeated``: whether another attempt at the same run follows."""

    verdict: Verdict
    repeated: bool

    @property
    def bad(self) -> bool:
        return not self.repeated and not self.verdict.good


def given_up(case: str, seed: int, error: Exception) -> Verdict:
    """The verdict on runs that ended with ``error``: failed where a query failed, otherwise void."""
    text = f"{type(error).__name__}: {error}"[:LONGEST]
    failed = isinstance(error, QueryFailedError)
    nothing = dict.fromkeys(("produced", "read", "lost", "dup", "allowed", "unequal", "extra", "faults"), 0)
    return Verdict(case=case, seed=seed, void="" if failed else f"given up: {text}", failed=text if failed else "", **nothing)


def is_void_only(verdict: Verdict) -> bool:
    """Whether the run is void and shows no broken promise, so that another attempt hides nothing."""
    return bool(verdict.void) and verdict._replace(void="").good


def attempts(
    case: str, seed: int, kinds: Sequence[Kind], work: Callable[[Sequence[Kind]], list[Verdict]], tidy: Callable[[], None]
) -> Iterator[Attempt]:
    """Yields the attempts at the runs of ``kinds``, which ``work`` makes together and judges in their order. Those that are void
    are made again, all of them if ``work`` raises. ``tidy``: called after it raised."""
    left = list(kinds)
    for number in range(1, TRIES + 1):
        made = left
        try:
            verdicts = work(made)
        except GIVES_UP as error:
            verdicts = [given_up(case, seed, error)]
            left = made if is_void_only(verdicts[0]) else []
            tidy()
        else:
            left = [kind for kind, verdict in zip(made, verdicts, strict=True) if is_void_only(verdict)]
        for verdict in verdicts:
            yield Attempt(verdict, number < TRIES and is_void_only(verdict))
        if not left:
            return
