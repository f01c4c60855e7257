"""The scenarios, each with the outcome that it has in the simulation and on real brokers alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from . import ending, passing
from .world import Outcome, World

__all__ = ["SCENARIOS", "Scenario"]

TIMED_OUT: Final = "RequestTimeoutError, maybe stored"
NOT_CONNECTED: Final = "SendError of ConnectError, not stored"
NO_QUEUE: Final = "QueueNotExistError, not stored"


class Scenario(NamedTuple):
    play: Callable[[World], Awaitable[Outcome]]
    outcome: Outcome


KILLED_IN_FLIGHT: Final = Scenario(
    ending.killed_in_flight,
    {
        "sends that met it": ["done after retries"],
        "the others": ["done"],
        "stored by": ["broker-b"],
        "copies": [1],
        "all there": True,
    },
)
STOPPED_AND_RESUMED: Final = Scenario(
    ending.stopped_and_resumed,
    {
        **{f"send {number}": TIMED_OUT for number in range(ending.SENDS)},
        "batch": TIMED_OUT,
        "one-way": "done",
        "on a new connection": TIMED_OUT,
        "pull": TIMED_OUT,
        "offset": TIMED_OUT,
        "route": "done",
        "after": ["done"],
        "copies": [1],
    },
)
RESTARTED_UNDER_LOAD: Final = Scenario(
    ending.restarted_under_load,
    {
        "ends": [],
        "retried": True,
        "in time": True,
        "lost": [],
        "too many copies": [],
        "order kept": True,
        "read without gap and repeat": True,
        "registered again": 1,
    },
)
KEPT_OVER_A_KILL: Final = Scenario(
    ending.kept_over_a_kill,
    {
        "queues": [0, 1, 2],
        "offsets": (0, True),
        "by offset id": b"keyed",
        "by unique id": b"keyed",
        "by key": {b"keyed"},
        "send": "done",
        "one-way": "done",
        "copies": {"after": 1, "delayed": 1, "keyed": 1},
    },
)
EVERY_BROKER_DOWN: Final = Scenario(
    ending.every_broker_down,
    {
        "route": "TopicNotFoundError, not stored",
        "send": NOT_CONNECTED,
        "to a queue": NOT_CONNECTED,
        "batch": NOT_CONNECTED,
        "one-way": "ConnectError, not stored",
        "request": NOT_CONNECTED,
        "offset": "TopicNotFoundError, not stored",
        "another topic": "BrokerNotFoundError, not stored",
        "of a new client": "done",
        "queues of a new client": [("broker-b", 0), ("broker-b", 1), ("broker-b", 2), ("broker-b", 3)],
    },
)
NAME_SERVER_DOWN: Final = Scenario(
    ending.name_server_down,
    {
        "start": "NameServerError, not stored",
        "up": "done",
        "known topic": ["done"],
        "other topic": "NameServerError, not stored",
        "other topic, up again": "done",
    },
)
QUEUES_TAKEN_AWAY: Final = Scenario(
    passing.queues_taken_away,
    {
        "sends": {"done": 7, "done after retries": 1},
        "at once": ["done"],
        "to a queue that is gone": NO_QUEUE,
        "batch to a queue that is gone": NO_QUEUE,
        "with a key": ["done"],
        "queues": [0, 1],
        "stored": 24,
    },
)
ANSWERS_CUT: Final = Scenario(
    passing.answers_cut,
    {
        "0 retries": ["ConnectionLostError, maybe stored"],
        "0 retries, later": "done",
        "2 retries": ["done after retries"],
        "2 retries, later": "done",
        "copies": {
            **{f"0 {number}": 1 for number in range(5)},
            "0 later": 1,
            **{f"2 {number}": 2 for number in range(5)},
            "2 later": 1,
        },
        "ids": 6,
    },
)
CONNECTION_SILENT: Final = Scenario(
    passing.connection_silent,
    {
        "named": TIMED_OUT,
        "stored by": ["broker-b"],
        "attempts": [1, 2],
        "after": "done",
        "copies of sends": [1, 2],
        "more copies than attempts": [],
        "copies of the others": (1, 1),
    },
)
REQUESTER_WITHOUT_ANSWERER: Final = Scenario(
    passing.requester_without_answerer,
    {
        "answered": b"re:first",
        "killed": "ReplyTimeoutError, maybe stored",
        "late reply": "done",
        "open, ignored": (0, 1),
        "reply to a stopped requester": "SendError of BrokerSystemError, maybe stored",
    },
)
TRANSACTION_WITHOUT_SENDER: Final = Scenario(
    passing.transaction_without_sender,
    {
        "group without it": "GroupNotOnlineError, not stored",
        "seen before": [],
        "asked once": True,
        "seen": [b"half"],
        "with its id": True,
    },
)

SCENARIOS: Final = {
    each.play.__name__: each
    for each in (
        KILLED_IN_FLIGHT, STOPPED_AND_RESUMED, RESTARTED_UNDER_LOAD, KEPT_OVER_A_KILL, EVERY_BROKER_DOWN, NAME_SERVER_DOWN,
        QUEUES_TAKEN_AWAY, ANSWERS_CUT, CONNECTION_SILENT, REQUESTER_WITHOUT_ANSWERER, TRANSACTION_WITHOUT_SENDER,
    )
}  # fmt: skip
