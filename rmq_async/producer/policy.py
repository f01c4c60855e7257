"""What a send call does next: pure decisions over the attempts it has made.

The rules (described in docs/producer.md): a retry goes to a broker not yet tried while there is one, and never to the
one tried last while there is another; once all have been tried, attempts are spaced out over the time that is left, and where
no broker can be connected to the call waits until one can. An attempt that surely reached no broker is none of those that
``retries`` counts. An attempt is capped while another untried broker is left, so that one silent broker cannot eat the whole
budget; a broker whose attempt is still unanswered is not sent to again; with nothing else to try the call waits for that answer.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any, Final, NamedTuple

from ..errors import BrokerError, GoAwayError, RocketMQError
from .attempts import Attempts, uses_retry

__all__ = [
    "FAIL",
    "WAIT",
    "Brokers",
    "Rules",
    "Step",
    "Verdict",
    "attempt_cap",
    "goes_on_after",
    "is_retriable",
    "next_step",
    "pause_before",
]

MIN_CAP: Final = 0.2
SHORTEST: Final = 0.002
"""Seconds below which no attempt is begun: a loop's timer may fire a millisecond before the budget is quite over."""
SHORTEST_REPEATED: Final = 0.02
"""The same for a broker that has been tried: one that is not answered in time turns "not stored" into "perhaps stored"."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
MOST_DOUBLINGS: Final = 10


class Verdict(Enum):
    TRY = "try"
    WAIT = "wait"
    REACH = "reach"
    FAIL = "fail"


class Step(NamedTuple):
    """``brokers``: those to choose from or, of REACH, of which one must be connected to before there is any choice.

    ``cap``: seconds for the attempt, None for all that is left. ``repeats``: these brokers have been tried.
    """

    verdict: Verdict
    brokers: frozenset[str] = frozenset()
    cap: float | None = None
    repeats: bool = False


FAIL: Final = Step(Verdict.FAIL)
WAIT: Final = Step(Verdict.WAIT)


class Rules(NamedTuple):
    """A producer's settings as they hold for one call."""

    retries: int
    retry_codes: Collection[int]
    attempt_timeout: float | None = None


class Brokers(NamedTuple):
    """``names``: all that have a queue to send to.

    ``avoided``: slow ones that are left alone at the moment. A step names them too, choosing passes them over; but to have
    only them left to try is no reason to cut an attempt on a good one short. ``down``: without a connection, and the newest attempt
    to make one failed. ``resting``: those of them that no connection is to be tried to yet.
    """

    names: frozenset[str]
    avoided: Collection[str] = ()
    down: Collection[str] = ()
    resting: Collection[str] = ()


def next_step(attempts: Attempts[Any], brokers: Brokers, rules: Rules, remaining: float, patience: float | None = None) -> Step:
    """``remaining``: seconds of the call's budget.

    ``patience``: the seconds of which a capped attempt gets its share, where those are fewer.
    """
    if remaining <= 0:
        return FAIL
    unanswered, newest = attempts.unanswered, attempts.newest
    give_up = WAIT if unanswered else FAIL
    if newest is not None:
        if newest.error is not None and not is_retriable(newest.error, rules.retry_codes):
            return FAIL
        if attempts.counted > rules.retries:
            return give_up
    usable = brokers.names - unanswered
    if not usable or remaining < SHORTEST:
        return give_up
    if untried := usable - attempts.tried:
        inviting = len(untried.difference(brokers.avoided)) or len(untried)
        if inviting == 1:
            return Step(Verdict.TRY, untried)
        shared = remaining if patience is None else min(remaining, patience)
        return Step(Verdict.TRY, untried, attempt_cap(shared, rules.retries + 1 - attempts.counted, rules.attempt_timeout))
    if remaining < _least(newest):
        return give_up
    if usable.issubset(brokers.down):
        return Step(Verdict.REACH, usable)
    ready = usable.difference(brokers.resting) or usable
    others = ready if newest is None else ready - {newest.broker}
    return Step(Verdict.TRY, others or ready, repeats=True)


def _least(newest: Any) -> float:
    """Seconds that must be left for one more attempt on a broker that has been tried: it pauses first, and is to be answered."""
    answered = newest is not None and isinstance(newest.error, BrokerError)
    return max(SHORTEST_REPEATED, 2 * newest.elapsed) if answered else SHORTEST_REPEATED


def attempt_cap(remaining: float, attempts_left: int, attempt_timeout: float | None) -> float:
    """Seconds for one attempt while another untried broker is left."""
    if attempt_timeout is not None:
        return min(attempt_timeout, remaining)
    return min(remaining, max(MIN_CAP, remaining / max(1, attempts_left)))


def is_retriable(error: BaseException, retry_codes: Collection[int]) -> bool:
    """For a broker's answer the configured codes decide, unless its class forbids it; for the rest, the class."""
    if isinstance(error, BrokerError):
        return error.always_retried or (error.code in retry_codes and not error.never_retried)
    return isinstance(error, RocketMQError) and error.retriable


def goes_on_after(error: BaseException, rules: Rules) -> bool:
    """Whether a call goes on whose first attempt ended with ``error``."""
    return (rules.retries > 0 or not uses_retry(error)) and is_retriable(error, rules.retry_codes)


def pause_before(attempts: Attempts[Any], step: Step, remaining: float, jitter: float, since: float = 0.0) -> float:
    """Seconds to wait before the next attempt: none while it goes to a broker that has not been tried, unless the newest one
    said "too busy".

    50 ms, doubling up to a second, of which ``jitter`` (0 to 1) leaves a half at least; at most half of what is left.
    ``since``: seconds since the newest attempt ended, which count. A server that sends us away once is asked again at once,
    over a new connection.
    """
    newest = attempts.newest
    if newest is None:
        return 0.0
    busy = sum(_is_busy(record.error) for record in attempts) if _is_busy(newest.error) else 0
    if step.repeats and not (isinstance(newest.error, GoAwayError) and _sent_away_once(attempts, newest.broker)):
        times = max(busy, attempts.repeated + 1)
    else:
        times = busy
    if not times:
        return 0.0
    pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(times - 1, MOST_DOUBLINGS)) * (0.5 + jitter / 2)
    return max(0.0, min(pause - since, remaining / 2))


def _is_busy(error: BaseException | None) -> bool:
    return isinstance(error, BrokerError) and error.backs_off


def _sent_away_once(attempts: Attempts[Any], broker: str) -> bool:
    return sum(isinstance(record.error, GoAwayError) for record in attempts if record.broker == broker) == 1
