"""Checks the errors of failed calls against the rules for retries in docs/sending.md.

Each function returns a line for each violation.

The functions are pure, and keep to the documented rules instead of asking the library, whose own functions may be at fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

from rmq_async.errors import (
    Attempt,
    BrokerError,
    ConnectError,
    ConnectionLostError,
    GoAwayError,
    QueueNotExistError,
    RequestTimeoutError,
    SendError,
)
from rmq_async.testing.simulation.history import Call, Event

RETRIED: Final = ("send", "send_async", "send_batch", "send_batch_async")
"""Methods whose calls make further attempts, unless they choose a queue."""
SLACK: Final = 0.1
"""Seconds before the end of its budget within which a call may give up: a repeated attempt needs 20 ms."""
ROUTE_AGE: Final = 61.0
"""Seconds for which a client may use a route: two polls."""


def early(calls: Iterable[Call]) -> list[str]:
    """Return calls that gave up with attempts and time left, though each error allowed another attempt.

    An attempt that surely reached no broker does not count towards ``retries``. A call has time left if more of its budget remains
    than twice the time that it took plus ``SLACK``.
    """
    found: list[str] = []
    for call in calls:
        errors = _errors(call)
        if not errors or call.took is None or not all(_allows_another(error, call) for error in errors):
            continue
        took = call.took
        counted = sum(_counts(error) for error in errors)
        if counted <= call.retries and call.budget - took > SLACK + 2 * took:
            found.append(
                f"early: {call.what}() of {call.machine} at {call.began:.6f} s gave up after {took:.3f} of {call.budget} s and "
                f"{counted} of {call.retries + 1} attempts: {call.error}"
            )
    return found


def contradictory(calls: Iterable[Call]) -> list[str]:
    """Return errors whose ``maybe_stored`` contradicts that of the attempts which they list."""
    return [
        f"contradictory: {call.what}() of {call.machine} at {call.began:.6f} s says maybe_stored={error.maybe_stored}, its "
        f"attempts say {[attempt.maybe_stored for attempt in attempts]}: {error}"
        for call in calls
        if isinstance(error := call.error, SendError) and (attempts := _attempts(call))
        if error.maybe_stored != any(attempt.maybe_stored for attempt in attempts)
    ]


def returned(calls: Sequence[Call], ends: Mapping[str, Sequence[float]], events: Iterable[Event]) -> list[str]:
    """Return attempts that went to the broker which had just answered with an error, though the call knew another broker.

    Args:
        ends: Times at which processes ended, by machine.
        events: Events of the machines. Calls are left out whose route may have named one broker only, because a broker was
            away, did not have the topic yet, or had not registered again with a name server that had forgotten it. So are calls
            in which an attempt took its share of the time: it was still open when the next one began, and its broker gets no
            second request during that time, even if its late answer was an error.
    """
    away = [(end, end) for name, times in ends.items() if name.startswith(("broker-", "namesrv-")) for end in times]
    away += [(event.time, event.details.get("until", event.time)) for event in events if event.what == "forget"]
    known = _first_results(calls)
    found: list[str] = []
    for call in calls:
        attempts = _refusing(call)
        index = _repeated_broker(attempts, call.budget / (call.retries + 1))
        if index is None or call.ended is None:
            continue
        if any(known.get((call.topic, each.queue.broker_name), inf) > call.began - ROUTE_AGE for each in attempts):
            continue
        if not any(call.began - ROUTE_AGE < last and first <= call.ended for first, last in away):
            found.append(
                f"returned: attempt {index + 1} of {call.what}() of {call.machine} at {call.began:.6f} s went to "
                f"{attempts[index].queue.broker_name}, which had just refused the message: {call.error}"
            )
    return found


def _first_results(calls: Iterable[Call]) -> dict[tuple[str, str], float]:
    """Return the time at which a broker had first stored a message of a topic, by the names of topic and broker."""
    first: dict[tuple[str, str], float] = {}
    for call in calls:
        for result in call.results:
            place, at = (call.topic, result.queue.broker_name), call.began if call.ended is None else call.ended
            first[place] = min(at, first.get(place, inf))
    return first


def _repeated_broker(attempts: Sequence[Attempt], share: float) -> int | None:
    """Return the index of the first attempt that went to the broker of the one before, though another broker had been tried and
    no attempt was open; None if there is none.

    Args:
        share: Seconds after which the next attempt begins without an answer.
    """
    names = [each.queue.broker_name for each in attempts]
    for index in range(2, len(names)):
        if names[index] == names[index - 1]:
            other = any(name != names[index] for name in names[:index])
            return index if other and all(each.elapsed < share for each in attempts[:index]) else None
    return None


def _refusing(call: Call) -> Sequence[Attempt]:
    """Return the attempts of a call that chose no queue and all of whose attempts were refused; an empty sequence for others."""
    attempts = _attempts(call) if call.what in RETRIED and call.ordered_by is None else ()
    refused = all(
        isinstance(each.error, BrokerError) and not isinstance(each.error, GoAwayError | QueueNotExistError)
        for each in attempts
    )
    return attempts if refused else ()


def _attempts(call: Call) -> Sequence[Attempt]:
    """Return all attempts of a call that failed with SendError; none if some are not listed."""
    error = call.error
    return error.attempts if isinstance(error, SendError) and error.made == len(error.attempts) else ()


def _errors(call: Call) -> list[BaseException | None]:
    """Return the error of each attempt of a failed call.

    None for methods without further attempts, for calls that chose a queue, and if some attempts are not listed.
    """
    if call.what not in RETRIED or call.ordered_by is not None:
        return []
    if isinstance(call.error, SendError):
        return [attempt.error for attempt in _attempts(call)]
    if isinstance(call.error, BrokerError | ConnectError | ConnectionLostError | RequestTimeoutError):
        return [call.error]
    return []


def _allows_another(error: BaseException | None, call: Call) -> bool:
    if isinstance(error, BrokerError):
        return error.code in call.retry_codes and not isinstance(error, QueueNotExistError)
    if isinstance(error, ConnectError):
        return not error.permanent
    return isinstance(error, ConnectionLostError | RequestTimeoutError)


def _counts(error: BaseException | None) -> bool:
    """Return whether an attempt counts towards ``retries``: it may have reached a broker."""
    if isinstance(error, BrokerError):
        return not isinstance(error, GoAwayError)
    return not isinstance(error, ConnectError) and bool(getattr(error, "maybe_stored", True))
