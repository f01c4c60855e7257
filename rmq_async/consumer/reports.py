"""Lag, counters and condition of a running consumer. They are read from the consumer's own state, without a request or a wait, and
from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rmq_protocol.message import MessageQueue

from .. import machine
from ..health import Problem, ProblemCode
from .delivery import Call, Delivery
from .group import Conflicts
from .handling import Block
from .supervisor import Supervisor

BLOCK_SHOWN: Final = 60.0
"""Seconds for which ``health()`` reports that a function has blocked the event loop."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The numbers of messages of this member's share that are stored and not settled.

    With ``mode="pop"``, members share no queues. ``messages`` is then an estimate: the messages that this member holds, plus the
    remaining messages that brokers reported in their last responses. ``by_queue`` has the remaining messages by topic and
    broker, with -1 as the queue id, and ``retries`` is 0.

    Attributes:
        messages: Number of messages of the subscribed topics. Messages that a filter excludes count until a pull has passed them.
        retries: Number of messages of the group's retry topic whose delay has ended.
        oldest_age: Seconds since the oldest message that is buffered or being handled was stored; None if there is none. The age
            is measured by the clock of the broker if the broker reports its time, else by the clock of this machine.
        by_queue: The numbers by queue, including queues of the retry topic. The value is None for a queue for which no
            broker has responded yet; ``messages`` and ``retries`` do not count such a queue.
    """

    messages: int
    retries: int
    oldest_age: float | None
    by_queue: Mapping[MessageQueue, int | None]


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Counters since ``start()``. ``buffered``, ``buffered_bytes`` and ``running`` are current values.

    With ``mode="pop"``, ``retried`` counts messages that were given back, whether or not brokers confirmed it; ``commits`` counts
    messages whose acknowledgement brokers have confirmed; ``lost`` and ``rebalances`` are 0.

    Attributes:
        handled: Messages whose handler calls returned.
        failed: Messages whose handler calls raised, and marked messages of a batch.
        retried: Messages that brokers have accepted for another attempt, and failed attempts that this member repeats itself (of
            ordered messages, in broadcast, and of messages that no broker accepts).
        dead_lettered: Messages that brokers have accepted as dead letters, and messages that were given up in broadcast.
        lost: Offsets that were skipped because their messages were deleted before they were pulled. Messages below the group's
            offset that queues have lost (``above_end``) are also counted, as far as the member knows of them.
        buffered: Messages that are pulled and not settled.
        buffered_bytes: Size of the bodies of these messages.
        running: Handler calls that have not ended; when reading by hand, the messages and batches that were handed out and are
            still in hand.
        commits: Number of offsets that brokers have confirmed. In broadcast, the number of changed positions that ``save`` has
            stored.
        rebalances: Changes of this member's share. A change counts once for each topic.
        unsure: Requests to give a message back that had no response. Each may have stored a copy of the message in addition to the
            copy that a later request stored.
    """

    handled: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    lost: int = 0
    buffered: int = 0
    buffered_bytes: int = 0
    running: int = 0
    commits: int = 0
    rebalances: int = 0
    unsure: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """A snapshot of a consumer's condition.

    Attributes:
        live: False if only a restart helps: the event loop is blocked or has stopped, the process was forked, or a plain
            function has run in its thread for more than twice its timeout, including extensions.
        ready: True if the consumer runs and is not stopping, has begun to read its first share, the event loop is not blocked,
            and no plain handler lacks a thread to run in.
        problems: All problems, including problems that do not affect ``ready``.
        last_progress_age: Seconds since a message was settled or a queue was taken, whichever was later; None if the member has no
            queue. With ``mode="pop"``, seconds since a message had its outcome or the member started.
        oldest_unfinished: The handler call that has run longest, or the step of reading by hand whose messages have been in hand
            longest; None if there is none.
    """

    live: bool
    ready: bool
    problems: tuple[Problem, ...]
    last_progress_age: float | None
    oldest_unfinished: Delivery | None


def stuck_problems(oldest: Call | None, after: float) -> list[Problem]:
    """Return a problem if a call has run, or messages have been in hand, for more than ``after`` seconds."""
    if oldest is None or oldest.age <= after:
        return []
    subscription, first, age = oldest.subscription, oldest.messages[0].msg_id, oldest.age
    if subscription.is_by_hand:
        text = f"message {first} has been in hand for {age:.0f} s and has been neither settled nor given back"
    else:
        text = f"handler {subscription.name} has been running for {age:.0f} s on message {first}"
    return [Problem(ProblemCode.HANDLER_STUCK, text)]


def hangs(delivery: Call) -> bool:
    """Return whether a plain function is still running after more than twice its timeout, including extensions."""
    deadline = delivery.deadline
    runs_on = delivery.state == "running" and not delivery.subscription.is_async
    return runs_on and deadline is not None and delivery.age > 2 * (deadline - delivery.began)


def block_problems(block: Block | None) -> list[Problem]:
    """Return a problem if a function of the user blocked the event loop in the last ``BLOCK_SHOWN`` seconds."""
    if block is None:
        return []
    age = machine.monotonic() - block.at
    if age >= BLOCK_SHOWN:
        return []
    text = f"{block.name} blocked the event loop for {block.seconds:.1f} s, {age:.0f} s ago"
    return [Problem(ProblemCode.HANDLER_BLOCKS, text)]


def conflict_problems(conflicts: Conflicts) -> list[Problem]:
    """Return problems with other members: different subscriptions, and another process with this client id."""
    found = [Problem(ProblemCode.SUBSCRIPTION_CONFLICT, str(conflict)) for conflict in conflicts.found]
    if (twice := conflicts.namesakes.found) is not None:
        found.append(Problem(ProblemCode.DUPLICATE_CLIENT_ID, twice))
    return found


def restart_problems(supervisor: Supervisor) -> list[Problem]:
    return [Problem(ProblemCode.RESTARTED, text) for text in supervisor.recent()]
