"""How a producer is, for probes and alerts: gathered from what is known, without a request and without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..client.condition import brokers_of, last_success_age, loop_problem, name_server_problem
from ..client.instance import ClientInstance
from ..health import BrokerHealth, Problem, ProblemCode
from .sender import Sender

__all__ = ["ProducerHealth", "ProducerState", "health_of"]


class ProducerState(Enum):
    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


_STATE_CODES: dict[ProducerState, ProblemCode] = {
    ProducerState.NEW: "not_started",
    ProducerState.STARTING: "starting",
    ProducerState.STOPPING: "stopping",
    ProducerState.STOPPED: "stopped",
}


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """A moment's view of a producer, by ``Producer.health()``.

    ``live``: False where only a restart helps: the event loop is blocked or gone, or the process was forked. ``ready``: it is
    running and live, a name server has answered, and not every broker of the routes in use is unreachable. ``problems``: what
    is wrong, whether or not it makes the producer unready.

    ``last_success_age``: seconds since a broker said that a message is stored, to any producer that shares the client's
    connections; None if none has. It is taken once for each read from a connection, by the last answer in it: while stored
    and refused messages alternate it may be some reads too large. One-way messages do not count, except the one in
    ``oneway_window`` that is confirmed.

    ``unanswered``: messages accepted and not finished, those that wait for a route or a connection included. ``brokers``: masters
    of the routes in use by the client, by name.
    """

    state: ProducerState
    live: bool
    ready: bool
    problems: tuple[Problem, ...]
    last_success_age: float | None
    unanswered: int
    brokers: Mapping[str, BrokerHealth]


def health_of(
    group: str, state: ProducerState, instance: ClientInstance | None, sender: Sender | None, *, forked: bool
) -> ProducerHealth:
    """``instance`` and ``sender``: of a producer that runs or stops. ``forked``: it was started in the parent process."""
    problems: list[Problem] = []
    if forked:
        text = f"producer {group} was started before os.fork(); make and start a new one in the child process"
        return ProducerHealth(state, False, False, (Problem("forked", text),), None, 0, {})
    if state is not ProducerState.RUNNING:
        problems.append(Problem(_STATE_CODES[state], f"producer {group} is {state.value}"))
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


def _no_room(sender: Sender) -> Problem | None:
    """Calls wait because as many messages are unanswered as the limits allow."""
    for credits in (sender.credits, sender.oneway_credits):
        if (waiting := credits.waiting) > 0:
            return Problem("no_credits", f"{waiting} calls wait to be accepted: {credits!r}")
    return None
