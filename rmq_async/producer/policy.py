"""What a send call does next: pure decisions over the attempts it has made.

The rules (docs/producer.md tells them to users): a retry goes to a broker not yet tried while there is one, and never to the
one tried last while there is another; an attempt is capped while another untried broker is left, so that one silent broker
cannot eat the whole budget; a broker whose attempt is still unanswered is not sent to again; with nothing else to try the call
waits for that answer; one that sends us away (1500) may do so twice, the second time from a new connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from ..errors import BrokerError, GoAwayError, RocketMQError

__all__ = [
    "FAIL",
    "WAIT",
    "Facts",
    "Step",
    "Verdict",
    "attempt_cap",
    "counted",
    "is_retriable",
    "next_step",
    "pause_before",
    "uses_retry",
]

MIN_CAP: Final = 0.2
SHORTEST: Final = 0.002
"""Seconds below which no attempt is begun: a loop's timer may fire a millisecond before the budget is quite over."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


class Facts(Protocol):
    """What is known of one attempt. ``open``: its answer may still come."""

    @property
    def broker(self) -> str: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def open(self) -> bool: ...


class Verdict(Enum):
    TRY = "try"
    WAIT = "wait"
    FAIL = "fail"


class Step(NamedTuple):
    """``brokers``: those to choose from. ``cap``: seconds for the attempt, None for all that is left."""

    verdict: Verdict
    brokers: frozenset[str] = frozenset()
    cap: float | None = None


FAIL: Final = Step(Verdict.FAIL)
WAIT: Final = Step(Verdict.WAIT)


def next_step(
    attempts: Sequence[Facts],
    brokers: Iterable[str],
    *,
    retries: int,
    remaining: float,
    attempt_timeout: float | None,
    retry_codes: Collection[int],
    avoided: Collection[str] = (),
    patience: float | None = None,
) -> Step:
    """``brokers``: all that have a queue to send to; ``remaining``: seconds of the call's budget.

    ``patience``: the seconds of which a capped attempt gets its share, where those are fewer.

    ``avoided``: brokers that are left alone at the moment. The step names them too, choosing passes them over; but to have
    only them left to try is no reason to cut an attempt on a good one short.
    """
    unanswered = {attempt.broker for attempt in attempts if attempt.open}
    if remaining <= 0:
        return FAIL
    if attempts:
        error = attempts[-1].error
        if error is not None and not is_retriable(error, retry_codes):
            return FAIL
        if counted(attempts) > retries:
            return WAIT if unanswered else FAIL
    usable = frozenset(brokers) - unanswered - _gone(attempts)
    if not usable or remaining < SHORTEST:
        return WAIT if unanswered else FAIL
    untried = usable - {attempt.broker for attempt in attempts}
    if not untried:
        return Step(Verdict.TRY, usable.difference({attempts[-1].broker}) or usable)
    inviting = len(untried.difference(avoided)) or len(untried)
    shared = remaining if patience is None else min(remaining, patience)
    cap = attempt_cap(shared, retries + 1 - counted(attempts), attempt_timeout) if inviting > 1 else None
    return Step(Verdict.TRY, untried, cap)


def counted(attempts: Sequence[Facts]) -> int:
    """Attempts that ``retries`` counts."""
    return sum(attempt.error is None or uses_retry(attempt.error) for attempt in attempts)


def uses_retry(error: BaseException) -> bool:
    """Whether an attempt that ended with ``error`` is one of those that ``retries`` counts."""
    return not isinstance(error, RocketMQError) or error.uses_retry


def _gone(attempts: Sequence[Facts]) -> set[str]:
    """Brokers that sent us away twice, the second time from a new connection."""
    away = [attempt.broker for attempt in attempts if isinstance(attempt.error, GoAwayError)]
    return {broker for broker in away if away.count(broker) > 1}


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


def pause_before(attempts: Sequence[Facts], remaining: float, jitter: float) -> float:
    """Seconds to wait before the next attempt: only after an answer that says "too busy". ``jitter``: 0 to 1."""
    last = attempts[-1].error if attempts else None
    if not isinstance(last, BrokerError) or not last.backs_off:
        return 0.0
    busy = sum(isinstance(attempt.error, BrokerError) and attempt.error.backs_off for attempt in attempts)
    pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (busy - 1)) * (0.5 + jitter / 2)
    return min(pause, remaining / 4)
