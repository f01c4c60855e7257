"""Faults in the handling of popped messages by brokers."""

from __future__ import annotations

from random import Random
from typing import Final

from rmq_protocol.constants import RequestCode, ResponseCode

from ..faults import Effect
from ..servers import BrokerMachine

MOST: Final = 20
"""Maximum number of requests that a fault affects."""
REQUESTS: Final = (
    RequestCode.POP_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)
REFUSED: Final = (*REQUESTS, RequestCode.CONSUMER_SEND_MSG_BACK)
ERRORS: Final = (
    ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.POLLING_FULL,
)  # fmt: skip
LATE: Final = (1.0, 10.0, 60.0)
"""Seconds by which the redelivery of messages is delayed."""


def _next_ones(name: str, chance: Random, machine: BrokerMachine) -> Effect:
    """Apply the fault ``name`` to a drawn number of the next requests."""
    faults = machine.broker.popping.faults
    asked = left = chance.randint(1, MOST)
    setattr(faults, name, asked)

    def end() -> None:
        nonlocal left
        left = getattr(faults, name)
        setattr(faults, name, 0)

    return Effect(end, lambda: left < asked)


def empty(chance: Random, machine: BrokerMachine) -> Effect:
    """Make the next pops return at once without messages."""
    return _next_ones("empty", chance, machine)


def lost_acks(chance: Random, machine: BrokerMachine) -> Effect:
    """Make the next acknowledgements have no effect, although the broker responds with success."""
    return _next_ones("lost_acks", chance, machine)


def lost_answers(chance: Random, machine: BrokerMachine) -> Effect:
    """Make a broker serve requests of a drawn kind without sending responses."""
    failures, request = machine.broker.failures, chance.choice(REQUESTS)
    asked = chance.randint(1, MOST)
    failures.lose(asked, request)
    left = asked

    def end() -> None:
        nonlocal left
        left = failures.lose(0, request)

    return Effect(end, lambda: left < asked)


def late_revival(chance: Random, machine: BrokerMachine) -> Effect:
    """Delay the redelivery of popped messages."""
    faults = machine.broker.popping.faults
    before = machine.broker.requests[RequestCode.POP_MESSAGE]
    faults.late_ms = round(1000 * chance.choice(LATE))  # the broker sets the alarms itself, on its own loop

    def end() -> None:
        faults.late_ms = 0

    return Effect(end, lambda: machine.broker.requests[RequestCode.POP_MESSAGE] != before)


def repeated_revival(chance: Random, machine: BrokerMachine) -> Effect:
    """Make a broker store two copies of each popped message that it redelivers."""
    faults = machine.broker.popping.faults
    before = machine.broker.popping.revived
    faults.copies = 2

    def end() -> None:
        faults.copies = 1

    return Effect(end, lambda: machine.broker.popping.revived != before)


def refused(chance: Random, machine: BrokerMachine) -> Effect:
    """Respond to requests of a drawn kind with an error."""
    failures = machine.broker.failures
    asked = chance.randint(1, MOST)
    failure = failures.add(chance.choice(ERRORS), asked, chance.choice(REFUSED))
    return Effect(lambda: failures.take_back(failure), lambda: failure.left < asked)
