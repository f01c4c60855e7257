"""The condition of a client instance: whether its event loop runs and its name servers and brokers respond. No request is sent.

``health()`` may call these functions from any thread, so they iterate over copies of dictionaries: no other thread can run while a
dictionary is copied.
"""

from __future__ import annotations

from .. import machine
from .._text import printable
from ..health import BrokerHealth, Problem, ProblemCode
from .instance import ClientInstance
from .loop_monitor import LATE_AFTER
from .topic_route import vip_address

_TEXT_LIMIT = 500
"""Maximum number of characters of a reason in the text of a problem."""


def loop_problem(instance: ClientInstance) -> Problem | None:
    """Return the problem that prevents the instance's timers from running. Return None if there is none."""
    loop_monitor = instance.loop_monitor
    if not loop_monitor.runs:
        return Problem(ProblemCode.LOOP_STOPPED, "the event loop on which the client was started no longer runs")
    late = loop_monitor.late()
    if late > LATE_AFTER:
        return Problem(ProblemCode.LOOP_BLOCKED, f"the event loop is blocked: a timer of the client is {late:.1f} s late")
    return None


def name_server_problem(instance: ClientInstance) -> tuple[bool, Problem | None]:
    """Return whether the cluster has been found since the start, and the current problem with the name servers (or None)."""
    names, waits = instance.name_servers, instance.config.start_without_cluster
    failure = names.failure
    reason = f": {printable(failure, _TEXT_LIMIT)}" if failure is not None else ""
    if not names.answered.is_set():
        return False, Problem(ProblemCode.NO_NAME_SERVER, f"no name server has answered since the start{reason}")
    if waits and not instance.cluster_probe.cluster_found.is_set():
        return False, Problem(ProblemCode.NO_BROKER, "the name servers know no broker yet")
    if failure is not None:
        return True, Problem(
            ProblemCode.NO_NAME_SERVER, f"the last request to the name servers failed; known routes stay in use{reason}"
        )
    return True, None


def brokers_of(instance: ClientInstance) -> tuple[dict[str, BrokerHealth], list[Problem]]:
    """Return the state of each broker's master in the routes in use, by broker name, and the problems with them."""
    found: dict[str, BrokerHealth] = {}
    problems: list[Problem] = []
    for name, address in sorted(instance.routes.masters().items()):
        if instance.config.vip_channel and _trouble(instance, vip := vip_address(address)) is not None:
            address = vip  # messages go to the VIP port, heartbeats to the regular port
        connection = instance.pool.get(address)
        trouble = _trouble(instance, address)
        if trouble is not None:
            code, text = trouble
            problems.append(Problem(code, f"broker {printable(name)} at {address}: {text}", broker=name))
        unanswered = connection.pending if connection is not None else 0
        found[name] = BrokerHealth(address, connection is not None, trouble is None, unanswered)
    return found, problems


def is_silent(instance: ClientInstance, broker_name: str) -> bool:
    """Return whether a broker's master does not respond although a connection to it is open, as if it were frozen.

    This is the case if requests to it are unanswered, and no byte has arrived for ``request_timeout`` seconds.
    """
    connection = instance.open_connection(broker_name)
    return connection is not None and connection.silent_for(machine.monotonic()) >= instance.config.request_timeout


def last_success_age(instance: ClientInstance) -> float | None:
    """Return the seconds since a broker last confirmed a stored message. Return None if no broker has done so."""
    stored_at = instance.pool.last_stored()
    return None if stored_at is None else max(0.0, machine.monotonic() - stored_at)


def _trouble(instance: ClientInstance, address: str) -> tuple[ProblemCode, str] | None:
    """Return the code and the text of the problem with the broker at ``address``, or None."""
    reason = instance.pool.trouble(address)
    if reason is not None:
        return ProblemCode.BROKER_UNREACHABLE, printable(reason, _TEXT_LIMIT)
    connection = instance.pool.get(address)
    if connection is None:
        return None
    silent = connection.silent_for(machine.monotonic())
    if silent < instance.config.request_timeout:
        return None
    return ProblemCode.BROKER_SILENT, f"no byte arrived for {silent:.1f} s, {connection.pending} requests are unanswered"
