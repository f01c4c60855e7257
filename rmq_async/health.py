"""The types in the results of ``health()``, for producers and consumers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rmq_protocol.message import MessageQueue


class ProblemCode(StrEnum):
    """The kinds of problems. docs/production.md explains each of them.

    Codes do not change, so alerts and tests can rely on them. Each code is a ``str`` that is equal to its value:
    ``problem.code == "no_broker"``.
    """

    NOT_STARTED = "not_started"
    STARTING = "starting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FORKED = "forked"
    LOOP_BLOCKED = "loop_blocked"
    LOOP_STOPPED = "loop_stopped"
    NO_NAME_SERVER = "no_name_server"
    NO_BROKER = "no_broker"
    BROKER_UNREACHABLE = "broker_unreachable"
    BROKER_SILENT = "broker_silent"
    NO_CREDITS = "no_credits"
    NO_THREADS = "no_threads"
    HANDLER_STUCK = "handler_stuck"
    HANDLER_BLOCKS = "handler_blocks"
    QUEUE_STOPPED = "queue_stopped"
    QUEUE_UNREADABLE = "queue_unreadable"
    QUEUE_MISSING = "queue_missing"
    QUEUE_LOCKED = "queue_locked"
    QUEUE_LOST = "queue_lost"
    UNREADABLE_TOPIC = "unreadable_topic"
    MESSAGES_SKIPPED = "messages_skipped"
    KEY_HELD = "key_held"
    KEY_MISSING = "key_missing"
    GROUP_UNKNOWN = "group_unknown"
    NOT_COMMITTED = "not_committed"
    NOT_LOCKED = "not_locked"
    NOT_TAKEN_BACK = "not_taken_back"
    NO_HANDLER = "no_handler"
    SUBSCRIPTION_CONFLICT = "subscription_conflict"
    DUPLICATE_CLIENT_ID = "duplicate_client_id"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class Problem:
    """A condition that prevents a client from working correctly, or may do so soon.

    Attributes:
        code: The kind of problem, for programs.
        text: A description for people.
        broker: The broker with the problem, or None.
        queue: The queue with the problem, or None.
    """

    code: ProblemCode
    text: str
    broker: str | None = None
    queue: MessageQueue | None = None


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """The state of the connection to a broker's master. It is determined without a request.

    Attributes:
        address: The address, "host:port".
        connected: True if a connection is open.
        reachable: False if the last connection attempt failed, if the connection broke and no new one was made, or if requests are
            unanswered and no byte has arrived for ``request_timeout`` seconds. True for a broker to which no connection was needed
            yet.
        unanswered: Number of requests without a response, of all clients that share the connection.
    """

    address: str
    connected: bool
    reachable: bool
    unanswered: int
