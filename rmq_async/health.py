"""The parts of the result of ``health()``, for producers and consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rmq_protocol.message import MessageQueue

__all__ = ["BrokerHealth", "Problem", "ProblemCode"]

ProblemCode = Literal[
    "not_started",
    "starting",
    "stopping",
    "stopped",
    "forked",
    "loop_blocked",
    "loop_stopped",
    "no_name_server",
    "no_broker",
    "broker_unreachable",
    "broker_silent",
    "no_credits",
    "handler_stuck",
    "handler_blocks",
    "queue_stopped",
    "queue_unreadable",
    "queue_missing",
    "queue_locked",
    "queue_lost",
    "key_held",
    "group_unknown",
    "not_committed",
    "not_locked",
    "not_taken_back",
    "no_handler",
    "subscription_conflict",
    "restarted",
]
"""The kinds of problems. Codes do not change, for alerts and tests; docs/production.md says what each means."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a client from working as it should, or may do so soon.

    ``code``: the kind of problem, for programs. ``text``: a sentence for people. ``broker`` and ``queue``: the broker and
    queue that it concerns, if any.
    """

    code: ProblemCode
    text: str
    broker: str | None = None
    queue: MessageQueue | None = None


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """State of the connection to a broker's master; read without a request.

    ``address``: "host:port". ``connected``: True if a connection is open. ``reachable``: False if the newest connect failed, if
    the connection broke and no newer one was made, or if requests are unanswered and no byte has come for ``request_timeout``
    seconds. A broker that was not needed yet counts as reachable. ``unanswered``: number of requests, of all clients that share
    the connection.
    """

    address: str
    connected: bool
    reachable: bool
    unanswered: int
