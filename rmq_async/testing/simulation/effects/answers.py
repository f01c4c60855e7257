"""Faults in the content, timing and order of the responses of running brokers."""

from __future__ import annotations

from random import Random
from typing import Final

from rmq_protocol.constants import RequestCode, ResponseCode

from ..faults import Effect
from ..servers import BrokerMachine

RATES: Final = ((0.5, None), (4.0, None), (20.0, None), (20.0, 2000.0))
"""Sends per second of an overloaded broker. If there is a second rate, the broker has just started, and its rate rises up to
the second rate."""
REQUESTS: Final = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE)
ERRORS: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
MOST_REFUSED: Final = 20
NOT_TAKEN_BACK: Final = (
    ResponseCode.NO_PERMISSION, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, None,
)  # fmt: skip
"""Response codes that refuse messages which consumers send back. None: the messages are stored, but get no response."""


def busy(chance: Random, machine: BrokerMachine) -> Effect:
    return _refused(chance, machine, ResponseCode.SYSTEM_BUSY)


def error(chance: Random, machine: BrokerMachine) -> Effect:
    return _refused(chance, machine, chance.choice(ERRORS))


def delay(chance: Random, machine: BrokerMachine) -> Effect:
    """Delay all responses by the same drawn time."""
    before, gate = machine.requests, machine.broker.listener.gate
    gate.set_delay(chance.choice((0.05, 0.5, 2.0)))
    return Effect(lambda: gate.set_delay(0.0), lambda: machine.requests != before)


def disorder(chance: Random, machine: BrokerMachine) -> Effect:
    """Make a broker serve waiting requests in any order."""
    before, listener = machine.requests, machine.broker.listener
    listener.shuffle(Random(chance.getrandbits(64)))
    return Effect(lambda: listener.shuffle(None), lambda: machine.requests != before)


def jitter(chance: Random, machine: BrokerMachine) -> Effect:
    """Delay each response by a drawn time, so that responses may overtake each other."""
    before, gate = machine.requests, machine.broker.listener.gate
    gate.set_delay(0.0, chance.choice((0.01, 0.1, 1.0)), Random(chance.getrandbits(64)))
    return Effect(lambda: gate.set_delay(0.0), lambda: machine.requests != before)


def slices(chance: Random, machine: BrokerMachine) -> Effect:
    """Split responses into slices."""
    before, gate = machine.requests, machine.broker.listener.gate
    gate.slices = Random(chance.getrandbits(64))

    def end() -> None:
        gate.slices = None

    return Effect(end, lambda: machine.requests != before)


def overload(chance: Random, machine: BrokerMachine) -> Effect:
    """Refuse sends beyond a rate as busy. The rate may be constant, or rise as on a broker that has just started."""
    broker = machine.broker
    broker.throttle(*chance.choice(RATES))
    refused = 0

    def end() -> None:
        nonlocal refused
        refused = broker.refused_sends
        broker.throttle(None)

    return Effect(end, lambda: refused > 0)


def not_taken_back(chance: Random, machine: BrokerMachine) -> Effect:
    """Make a broker refuse the messages that consumers send back, or store them without sending a response."""
    send_back, code = machine.broker.send_back, chance.choice(NOT_TAKEN_BACK)
    before = send_back.refused + send_back.unanswered
    send_back.refusal, send_back.is_silent = code, code is None

    def end() -> None:
        send_back.refusal, send_back.is_silent = None, False

    return Effect(end, lambda: send_back.refused + send_back.unanswered > before)


def _refused(chance: Random, machine: BrokerMachine, code: int) -> Effect:
    """Refuse a drawn number of the next requests with one drawn RequestCode, by responding with ``code``."""
    request, failures = chance.choice(REQUESTS), machine.broker.failures
    asked = chance.randint(1, MOST_REFUSED)
    failure = failures.add(code, asked, request)
    return Effect(lambda: failures.take_back(failure), lambda: failure.left < asked)
