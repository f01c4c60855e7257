"""The condition of a producer for probes and alerts, read from its own state without a request and without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..client import ClientInstance, brokers_of, last_success_age, loop_problem, name_server_problem
from ..health import BrokerHealth, Problem, ProblemCode
from .core import ProducerCore


class ProducerState(Enum):
    """The states of a producer's life cycle; a producer is NEW again after a failed start."""

    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """A snapshot of a producer's condition, returned by ``Producer.health()``.

    Attributes:
        state: The state in its life cycle.
        live: False if the process needs a restart: the event loop has been blocked for more than a second or has stopped, or
            the producer was started before a fork.
        ready: The producer is running and live; a name server has answered and, with ``start_without_cluster``, named a broker;
            and at least one broker of the routes in use is reachable, or there is none in them.
        problems: All problems, including problems that leave the producer ready.
        last_success_age: Seconds since a broker confirmed a stored message to any producer that shares the client's
            connections; None if none has, before the start, after the stop and after a fork. Each read from a connection
            updates it by the last response in that read only, so it may lag by some reads while stored and refused messages
            alternate. One-way messages do not count, except messages sent as ordinary requests (``oneway_window``).
        unanswered: Number of messages accepted and not finished, including messages that wait for a route or a connection.
        brokers: The masters of the routes in use by the client, by broker name.
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
    """Make the snapshot that ``health()`` returns.

    Args:
        idle: The problem that the producer does not run.
        instance: The client instance; None unless the producer runs or stops.
        sender: The run of the producer; None unless it runs or stops.
        forked: True if the producer was started before a fork, in the parent process.
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
    """Return the problem that calls wait because a limit on unfinished messages is reached, or None."""
    for credits in (sender.credits, sender.oneway_credits):
        if (waiting := credits.waiting) > 0:
            return Problem(ProblemCode.NO_CREDITS, f"{waiting} calls wait to be accepted: {credits!r}")
    return None
