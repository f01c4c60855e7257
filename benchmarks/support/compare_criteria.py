"""What the project asks of its own figures beside the peers', and which of it a comparison shows.

Each criterion is a median over rounds of a ratio taken within a round. Where "the best" of several is meant, it is the one with the
highest rate in that round, of those without losses. A criterion whose peer was wanted and has no figures counts as missed,
one whose peer or mode was not asked for is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from support.compare_peers import PEERS
from support.compare_report import OURS, Rounds, title_of

__all__ = ["CRITERIA", "Criterion", "judge", "sentences"]

JAVA_AT_64: Final = ("java:sync-64", "java:async-64", "java:autobatch-64")
AWAITED_AT_64: Final = tuple(
    f"{name}:{mode}"
    for name, peer in PEERS.items()
    for mode in ("sync-64", "await-64", "sync-16")
    if mode in peer.modes and peer.modes[mode].awaited
)
A_THIRD: Final = 1 / 3


class Criterion(NamedTuple):
    """``figure`` of our ``mode`` / that of the best of ``others`` (by rate): at least ``limit``; ``most``: at most; ``below``:
    and not the limit itself."""

    mode: str
    figure: str
    others: tuple[str, ...]
    limit: float
    most: bool = False
    below: bool = False


CRITERIA: Final = (
    Criterion("depth-64", "rate", ("java:sync-64",), 2.0),
    Criterion("depth-64", "rate", AWAITED_AT_64, 1.5),
    Criterion("depth-64", "p99_us", ("java:sync-64",), 1.0, most=True, below=True),
    Criterion("adaptive-64", "rate", JAVA_AT_64, 5.0),
    Criterion("adaptive-64", "p99_us", JAVA_AT_64, 1.0, most=True, below=True),
    Criterion("adaptive-1024", "visible_rate", ("java:autobatch-1024",), 0.8),
    Criterion("batch-1", "rate", ("java:batch-1",), 1.2),
    Criterion("batch-1", "rate", ("go:batch-1",), 1.2),
    Criterion("batch-8", "rate", ("java:batch-8",), 1.3),
    Criterion("batch-8", "rate", ("go:batch-8",), 1.3),
    Criterion("depth-1", "client_us", ("java:sync-1",), A_THIRD, most=True),
    Criterion("depth-64", "client_us", ("java:sync-64",), A_THIRD, most=True),
    Criterion("depth-64", "client_us", ("java:async-64",), A_THIRD, most=True),
    Criterion("depth-1024", "client_us", ("java:async-1024",), A_THIRD, most=True),
    Criterion("async-1024", "client_us", ("java:async-1024",), A_THIRD, most=True),
    Criterion("adaptive-64", "client_us", JAVA_AT_64, A_THIRD, most=True),
    Criterion("batch-1", "client_us", ("java:batch-1",), 0.5, most=True),
    Criterion("batch-8", "client_us", ("java:batch-8",), 0.5, most=True),
    Criterion("production-64", "rate", ("java:production-sync-64",), 1.6),
    Criterion("production-64", "rate", ("java:production-async-64",), 1.6),
    Criterion("production-64", "client_us", ("java:production-sync-64",), 0.3, most=True),
    Criterion("production-64", "client_us", ("java:production-async-64",), 0.3, most=True),
)
_NAMES: Final = {
    "rate": "messages/s",
    "visible_rate": "messages/s as visible in the queues",
    "client_us": "client CPU",
    "p99_us": "p99",
}


def judge(rounds: Rounds, modes: Sequence[str], peers: Sequence[str]) -> list[dict[str, Any]]:
    """``modes`` and ``peers``: those asked for. ``met``: True or False; ``figures``: the ratio of each round, and their median."""
    found = [_judge(each, rounds, peers) for each in CRITERIA if each.mode in modes]
    return [each for each in found if each is not None] + [_losses(rounds, mode) for mode in modes]


def _judge(criterion: Criterion, rounds: Rounds, peers: Sequence[str]) -> dict[str, Any] | None:
    others = [key for key in criterion.others if key.partition(":")[0] in peers]
    if not others:
        return None
    ratios = [ratio for each in rounds if (ratio := _ratio(criterion, each, others)) is not None]
    middle = median(ratios) if ratios else None
    other = title_of(others[0]) if len(criterion.others) == 1 else f"the best of {', '.join(title_of(key) for key in others)}"
    sign = "below" if criterion.below else "at most" if criterion.most else "at least"
    wanted = f"{_NAMES[criterion.figure]} of {criterion.mode} {sign} x {criterion.limit:.3g} of {other}"
    return {"wanted": wanted, "median": middle, "rounds": ratios, "met": middle is not None and _holds(criterion, middle)}


def _holds(criterion: Criterion, value: float) -> bool:
    if criterion.below:
        return value < criterion.limit
    return value <= criterion.limit if criterion.most else value >= criterion.limit


def _ratio(criterion: Criterion, runs: Mapping[str, Any], others: Sequence[str]) -> float | None:
    ours = runs.get(OURS + criterion.mode)
    found = [runs[key] for key in others if key in runs and runs[key].usable]
    without_losses = [run for run in found if not run.lost]
    if ours is None or not ours.usable or not (without_losses or found):
        return None
    rated = "visible_rate" if criterion.figure == "visible_rate" else "rate"
    best = max(without_losses or found, key=lambda run: getattr(run, rated) or 0)
    top, bottom = getattr(ours, criterion.figure), getattr(best, criterion.figure)
    return None if top is None or not bottom else float(top / bottom)


def _losses(rounds: Rounds, mode: str) -> dict[str, Any]:
    runs = [each[OURS + mode] for each in rounds if OURS + mode in each]
    known = bool(runs) and all(run.usable and run.stored is not None for run in runs)
    lost = sum(run.lost for run in runs)
    return {
        "wanted": f"nothing acknowledged to {mode} is lost",
        "median": float(lost) if known else None,
        "rounds": [float(run.lost) for run in runs],
        "met": known and lost == 0,
    }


def sentences(judged: Sequence[Mapping[str, Any]]) -> list[str]:
    """One for each criterion, what is missed named as such."""
    return [f"{'met' if each['met'] else 'MISSED'}: {each['wanted']}: {_found(each)}" for each in judged]


def _found(each: Mapping[str, Any]) -> str:
    if each["median"] is None:
        return "there are no figures"
    if each["wanted"].startswith("nothing"):
        return f"{each['median']:,.0f} lost"
    return f"x {each['median']:.2f} ({min(each['rounds']):.2f} - {max(each['rounds']):.2f})"
