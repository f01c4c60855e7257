"""The health of a producer for probes and alerts, determined from its own state without a request and without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..client import ClientInstance, brokers_of, last_success_age, loop_problem, name_server_problem
from ..health import BrokerHealth, Problem, ProblemCode
from .core import ProducerCore


class ProducerState(Enum):
    """The states of a producer's life cycle. After a failed start, a producer is NEW again."""

    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """A snapshot of a producer's condition, returned by ``Producer.health()``.

    Attributes:
        state: The state in the producer's life cycle.
        live: False if the process needs a restart, because the event loop has been blocked for more than a second or has stopped,
            or because the producer was started before a fork.
        ready: True if three conditions hold. The producer is running and live. A name server has responded and, with
            ``start_without_cluster``, has named a broker. At least one broker of the routes in use is reachable, or these routes
            contain no broker.
        problems: All problems, including problems that leave the producer ready.
        last_success_age: Seconds since a broker last confirmed a stored message to any producer that shares the client's
            connections. None if no broker has done so, before the start, after the stop and after a fork. Only the last response in
            each read from a connection is examined, so the time may lag some reads behind while stored and refused messages
            alternate. One-way messages do not count, except messages that are sent as ordinary requests (``oneway_window``).
        unanswered: Number of messages that are accepted and not finished, including messages that wait for a route or a connection.
        brokers: The state of each broker's master in the routes that the client uses, by broker name.
    """

    state: ProducerState
    live: bool
    ready: bool
    problems: tuple[Problem, ...]
    last_success_age: float | None
    unanswered: int
    brokers: Mapping[str, BrokerHealth]


def health_of(
    group: str,
    state: ProducerState,
    idle: Problem | None,
    instance: ClientInstance | None,
    sender: ProducerCore | None,
    *,
    forked: bool,
) -> ProducerHealth:
    """Return the snapshot for ``Producer.health()``.

    Args:
        idle: The problem to report because the producer is not running, else None.
        instance: The client instance. None unless the producer is running or stopping.
        sender: The current run of the producer. None unless it is running or stopping.
        forked: Whether the producer was started in the parent process, before a fork.
    """
    problems = [idle] if idle is not None else []
    if forked:
        text = f"producer {group} was started before os.fork(); create and start a new one in the child process"
        return ProducerHealth(state, False, False, (Problem(ProblemCode.FORKED, text),), None, 0, {})
    if instance is None or sender is None:
        return ProducerHealth(state, True, False, tuple(problems), None, 0, {})
    blocked = loop_problem(instance)
    contacted, silence = name_server_problem(instance)
    brokers, troubles = brokers_of(instance)
    problems += [problem for problem in (blocked, silence, *troubles, _no_room(sender)) if problem is not None]
    reachable = not brokers or any(broker.reachable for broker in brokers.values())
    return ProducerHealth(
        state=state,
        live=blocked is None,
        ready=state is ProducerState.RUNNING and blocked is None and contacted and reachable,
        problems=tuple(problems),
        last_success_age=last_success_age(instance),
        unanswered=sender.credits.taken + sender.oneway_credits.taken,
        brokers=brokers,
    )


def _no_room(sender: ProducerCore) -> Problem | None:
    """Return a problem if calls wait because a limit on unfinished messages is reached. Return None if no call waits."""
    for credits in (sender.credits, sender.oneway_credits):
        if (waiting := credits.waiting) > 0:
            return Problem(ProblemCode.NO_CREDITS, f"{waiting} calls wait to be accepted: {credits!r}")
    return None
