"""The retry policy of send calls: pure decisions based on the attempts that were made so far.

The rules (docs/producer.md describes them):

- A retry goes to an untried broker if there is one. Otherwise it does not go to the broker that was tried last, if another broker
may be tried.
- Once all brokers have been tried, a growing pause precedes each attempt (``pause_before``). If no broker accepts a connection, the
call waits until one does, or until the route of its topic changes.
- If no broker took the request of an attempt (no connection, nothing written, GO_AWAY, no such queue), the attempt does not count
towards ``retries``. An attempt with a permanent ConnectError counts.
- The time of an attempt is limited while there is another untried broker that is not avoided, so that a broker that does not
respond cannot use up the whole timeout.
- If a broker has stored a reply message but could not push it to the requesting client, only untried brokers follow, because the
same broker would store the reply again.
- A broker that has not responded to an attempt yet gets no second attempt. If there is no other broker to try, the call waits for
the response.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any, Final, NamedTuple

from ...broker_answers import is_unreplicated
from ...errors import BrokerError, GoAwayError, RocketMQError
from .attempts import Attempts, uses_retry

MIN_CAP: Final = 0.2
"""Minimum seconds of ``attempt_cap`` (without ``attempt_timeout``) and ``connect_cap``, if that much time remains. It is also the
minimum remaining time for a retry after "busy"."""
CONNECT_CAP: Final = 1.0
"""Maximum seconds of ``connect_cap``. After that the call waits in ``Recovery`` for the connection or for a newer route."""
SHORTEST: Final = 0.002
"""Minimum remaining seconds for an attempt, because a timer of the loop may fire a millisecond before the deadline."""
SHORTEST_REPEATED: Final = 0.02
"""Minimum remaining seconds for an attempt on a broker that has been tried: a retry that times out would turn "not stored" into
"maybe stored"."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Maximum seconds of the pauses between attempts, before random variation. The first pause is FIRST_PAUSE, and each further one is
twice as long."""
MOST_DOUBLINGS: Final = 10


class Verdict(Enum):
    """The next step of a call.

    TRY: make an attempt. WAIT: wait for a response to earlier attempts. REACH: wait for a connection. FAIL: end the call with its
    error.
    """

    TRY = "try"
    WAIT = "wait"
    REACH = "reach"
    FAIL = "fail"


class Step(NamedTuple):
    """A decision of the retry policy.

    Attributes:
        brokers: The brokers from which to choose for TRY, or the brokers for which REACH waits.
        cap: Maximum seconds for the attempt. None stands for all remaining time.
        repeats: Whether the brokers have been tried before.
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
        attempt_timeout: Maximum seconds for one attempt. None stands for a share of the remaining time.
    """

    retries: int
    retry_codes: Collection[int]
    attempt_timeout: float | None = None


class Brokers(NamedTuple):
    """The brokers of a topic.

    Attributes:
        names: All brokers with a queue that the call may use.
        avoided: Slow brokers that the queue selection currently skips. They may still be tried, but attempts on other brokers need
            not leave time for them.
        down: Brokers without a connection, to which the last connection attempt failed or is in progress.
        resting: The brokers in ``down`` to which the pool delays new connection attempts after a failure.
    """

    names: frozenset[str]
    avoided: Collection[str] = ()
    down: Collection[str] = ()
    resting: Collection[str] = ()


def next_step(attempts: Attempts, brokers: Brokers, rules: Rules, remaining: float, patience: float | None = None) -> Step:
    """Return the next step of a call with ``remaining`` seconds until its deadline.

    Args:
        patience: Seconds that attempts with a time limit share. None, or a larger value, stands for ``remaining``.
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
    """Return an attempt on an untried broker. Its time is limited if there are several, not counting avoided ones unless all are
    avoided.
    """
    inviting = len(untried.difference(brokers.avoided)) or len(untried)
    cap = None if inviting == 1 else attempt_cap(shared, attempts_left, rules.attempt_timeout)
    return Step(Verdict.TRY, untried, cap)


def _repeated_try(usable: frozenset[str], brokers: Brokers, newest: Any) -> Step:
    """Return an attempt on a broker that was tried before. Return REACH if all usable brokers are down.

    The broker that was tried last is chosen only if no other broker may be tried.
    """
    if usable.issubset(brokers.down):
        return Step(Verdict.REACH, usable)
    ready = usable.difference(brokers.resting) or usable
    others = ready if newest is None else ready - {newest.broker}
    return Step(Verdict.TRY, others or ready, repeats=True)


def _least(newest: Any) -> float:
    """Return the minimum remaining seconds for a repeated attempt, which begins with a pause and needs time for a response."""
    if newest is not None and _is_busy(newest.error):
        return MIN_CAP  # the attempt waited in queues, which are shorter now
    answered = newest is not None and isinstance(newest.error, BrokerError)
    return max(SHORTEST_REPEATED, 2 * newest.elapsed) if answered else SHORTEST_REPEATED


def attempt_cap(remaining: float, attempts_left: int, attempt_timeout: float | None) -> float:
    """Return the maximum seconds for one attempt while there is another untried broker.

    The result is ``attempt_timeout`` or, without it, an equal share of ``remaining`` but at least ``MIN_CAP``. It is never more
    than ``remaining``.
    """
    if attempt_timeout is not None:
        return min(attempt_timeout, remaining)
    return min(remaining, max(MIN_CAP, remaining / max(1, attempts_left)))


def connect_cap(remaining: float) -> float:
    """Return the maximum seconds for which an attempt without a time limit of its own waits for a connection.

    The result is a third of ``remaining``, but at least ``MIN_CAP``, at most ``CONNECT_CAP``, and never more than ``remaining``.
    """
    # If the broker has moved, connecting to its old address never succeeds, and a call that waits in ``Recovery`` learns the new
    # address.
    return min(remaining, max(MIN_CAP, min(CONNECT_CAP, remaining / 3)))


def is_retriable(error: BaseException, retry_codes: Collection[int]) -> bool:
    """Return whether ``error`` allows a retry.

    For most error responses of brokers, ``retry_codes`` decides. For other errors, the class of the error decides.
    """
    if isinstance(error, BrokerError):
        return error.always_retried or (error.code in retry_codes and not error.never_retried)
    return isinstance(error, RocketMQError) and error.retriable


def _refused_but_stored(error: BaseException | None) -> bool:
    """Return whether the broker has stored a reply message but could not push it to the requesting client."""
    # Another broker may have a connection to that client; the same broker would only store the reply again.
    return isinstance(error, BrokerError) and error.maybe_stored and not is_unreplicated(error.code, error.remark)


def goes_on_after(error: BaseException, rules: Rules) -> bool:
    """Return whether a call continues after a first attempt that ended with ``error``.

    An error that does not count towards ``retries`` (no broker took the request) allows another attempt even with
    ``retries=0``.
    """
    return (rules.retries > 0 or not uses_retry(error)) and is_retriable(error, rules.retry_codes)


def pause_before(attempts: Attempts, step: Step, remaining: float, jitter: float, since: float = 0.0) -> float:
    """Return the seconds to wait before the next attempt. Return 0 for an untried broker, unless the last error says "too busy".

    The pause is 50 ms and doubles each time up to one second. It is multiplied by a factor from 0.5 to 1, which ``jitter`` (0 to 1)
    determines, and reduced by ``since``, the seconds since the newest attempt ended. It is at most half of ``remaining``. There is
    no pause after the first GO_AWAY of a broker, because the retry uses a new connection.
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
