"""The retry policy of send calls: pure decisions from the attempts made so far.

The rules (docs/producer.md describes them):

- A retry goes to an untried broker if there is one, and not to the broker tried last if another may be tried.
- Once all brokers have been tried, a growing pause precedes each attempt (``pause_before``). If no broker can be connected to,
  the call waits until one can, or until its topic's route changes.
- An attempt whose request no broker took (no connection, nothing written, GO_AWAY, no such queue) does not count towards
  ``retries``; one with a permanent ConnectError does.
- An attempt is capped while another untried broker is left that is not avoided, so that a silent broker cannot use up the
  whole timeout.
- If a broker has stored a reply message but could not push it to the requesting client, only untried brokers follow: the same
  one would store the reply again.
- A broker with an open attempt gets no second attempt. With nothing else to try, the call waits for the response.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any, Final, NamedTuple

from ...broker_answers import is_unreplicated
from ...errors import BrokerError, GoAwayError, RocketMQError
from .attempts import Attempts, uses_retry

MIN_CAP: Final = 0.2
"""Minimum of ``attempt_cap`` (without ``attempt_timeout``) and ``connect_cap`` in seconds, if that much time remains; and of what
must remain for a retry after "busy"."""
CONNECT_CAP: Final = 1.0
"""Maximum of ``connect_cap`` in seconds; after it the call waits in ``Recovery`` for the connection or for a newer route."""
SHORTEST: Final = 0.002
"""Minimum remaining seconds for an attempt: a loop's timer may fire a millisecond before the deadline."""
SHORTEST_REPEATED: Final = 0.02
"""The same for a broker that has been tried: a retry that times out would turn "not stored" into "maybe stored"."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds of the pauses between attempts, before jitter: FIRST_PAUSE, doubled up to LONGEST_PAUSE."""
MOST_DOUBLINGS: Final = 10


class Verdict(Enum):
    """The next step of a call.

    TRY: make an attempt. WAIT: wait for open attempts. REACH: wait for a connection. FAIL: end the call with its error.
    """

    TRY = "try"
    WAIT = "wait"
    REACH = "reach"
    FAIL = "fail"


class Step(NamedTuple):
    """One decision.

    Attributes:
        brokers: The candidates of TRY; the brokers that REACH waits for.
        cap: Seconds for the attempt, None for all the remaining time.
        repeats: The brokers have been tried before.
    """

    verdict: Verdict
    brokers: frozenset[str] = frozenset()
    cap: float | None = None
    repeats: bool = False


FAIL: Final = Step(Verdict.FAIL)
WAIT: Final = Step(Verdict.WAIT)


class Rules(NamedTuple):
    """The settings that the policy needs for one call.

    Attributes:
        attempt_timeout: Seconds for one attempt; None: a share of the remaining time.
    """

    retries: int
    retry_codes: Collection[int]
    attempt_timeout: float | None = None


class Brokers(NamedTuple):
    """The brokers of a topic.

    Attributes:
        names: All brokers with a queue that the call may use.
        avoided: Slow brokers that selection passes over at the moment. They stay candidates of a step, but an attempt on
            another broker is not capped for their sake.
        down: Brokers without a connection whose newest connect failed or still runs.
        resting: Brokers of ``down`` that are in back-off.
    """

    names: frozenset[str]
    avoided: Collection[str] = ()
    down: Collection[str] = ()
    resting: Collection[str] = ()


def next_step(attempts: Attempts, brokers: Brokers, rules: Rules, remaining: float, patience: float | None = None) -> Step:
    """Return the next step of a call with ``remaining`` seconds until its deadline.

    Args:
        patience: Seconds that capped attempts share, if fewer than ``remaining``.
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
        shared = remaining if patience is None else min(remaining, patience)
        return _first_try(untried, brokers, rules, rules.retries + 1 - attempts.counted, shared)
    if newest is not None and _refused_but_stored(newest.error):
        return give_up
    return give_up if remaining < _least(newest) else _repeated_try(usable, brokers, newest)


def _first_try(untried: frozenset[str], brokers: Brokers, rules: Rules, attempts_left: int, shared: float) -> Step:
    """Return an attempt on an untried broker, capped unless only one of them is left or only one is not avoided."""
    inviting = len(untried.difference(brokers.avoided)) or len(untried)
    cap = None if inviting == 1 else attempt_cap(shared, attempts_left, rules.attempt_timeout)
    return Step(Verdict.TRY, untried, cap)


def _repeated_try(usable: frozenset[str], brokers: Brokers, newest: Any) -> Step:
    """Return an attempt on a broker tried before, not on the one tried last if another may be tried; REACH if all are down."""
    if usable.issubset(brokers.down):
        return Step(Verdict.REACH, usable)
    ready = usable.difference(brokers.resting) or usable
    others = ready if newest is None else ready - {newest.broker}
    return Step(Verdict.TRY, others or ready, repeats=True)


def _least(newest: Any) -> float:
    """Return the minimum remaining seconds for a repeated attempt: it pauses first and needs time for a response."""
    if newest is not None and _is_busy(newest.error):
        return MIN_CAP  # the attempt waited in queues, which are shorter now
    answered = newest is not None and isinstance(newest.error, BrokerError)
    return max(SHORTEST_REPEATED, 2 * newest.elapsed) if answered else SHORTEST_REPEATED


def attempt_cap(remaining: float, attempts_left: int, attempt_timeout: float | None) -> float:
    """Return the seconds for one attempt while another untried broker is left.

    ``attempt_timeout``, or an equal share of ``remaining`` but at least ``MIN_CAP``; never more than ``remaining``.
    """
    if attempt_timeout is not None:
        return min(attempt_timeout, remaining)
    return min(remaining, max(MIN_CAP, remaining / max(1, attempts_left)))


def connect_cap(remaining: float) -> float:
    """Return the seconds that an attempt without a cap waits for a connection.

    A third of ``remaining``, but at least ``MIN_CAP`` and at most ``CONNECT_CAP``; never more than ``remaining``.
    """
    # The broker may have moved: then the connection never comes, and a call that waits in ``Recovery`` learns the new address.
    return min(remaining, max(MIN_CAP, min(CONNECT_CAP, remaining / 3)))


def is_retriable(error: BaseException, retry_codes: Collection[int]) -> bool:
    """Return whether ``error`` allows a retry.

    For most responses of brokers ``retry_codes`` decide, else the class of the error.
    """
    if isinstance(error, BrokerError):
        return error.always_retried or (error.code in retry_codes and not error.never_retried)
    return isinstance(error, RocketMQError) and error.retriable


def _refused_but_stored(error: BaseException | None) -> bool:
    """Return whether the broker has stored a reply message but could not push it to the requesting client."""
    # Another broker may have a connection to that client; the same one would only store the reply again.
    return isinstance(error, BrokerError) and error.maybe_stored and not is_unreplicated(error.code, error.remark)


def goes_on_after(error: BaseException, rules: Rules) -> bool:
    """Return whether a call continues after a first attempt that ended with ``error``.

    An error that does not count towards ``retries`` (no broker took the request) allows another attempt even with
    ``retries=0``.
    """
    return (rules.retries > 0 or not uses_retry(error)) and is_retriable(error, rules.retry_codes)


def pause_before(attempts: Attempts, step: Step, remaining: float, jitter: float, since: float = 0.0) -> float:
    """Return the seconds to wait before the next attempt: 0 for an untried broker, unless the newest error says "too busy".

    50 ms, doubled each time up to one second, times a factor from 0.5 to 1 by ``jitter`` (0 to 1); less ``since``, the seconds
    since the newest attempt ended; at most half of ``remaining``. There is no pause after a broker's first GO_AWAY: the retry
    uses a new connection.
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


def _sent_away_once(attempts: Attempts, broker: str) -> bool:
    return sum(isinstance(record.error, GoAwayError) for record in attempts if record.broker == broker) == 1
