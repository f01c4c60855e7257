"""Lag, numbers and condition of a running consumer, from its own state: no request, no wait, callable from any thread."""

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

    With ``mode="pop"`` members share no queues: ``messages`` counts messages that this member holds and messages that brokers had
    left at their last answer, an estimate; ``by_queue`` has the latter by topic and broker, with -1 for the queue; ``retries``
    is 0.

    Attributes:
        messages: Number of messages of the subscribed topics; filtered messages count until a pull has passed
            them.
        retries: Number of messages of the group's retry topic whose delay is over.
        oldest_age: Seconds since the oldest message that is buffered or being handled was stored, by the clock of its broker as
            far as the broker says its time, else by this machine's; None if there is none.
        by_queue: The numbers by queue, queues of the retry topic included; None for a queue without an answer yet, which
            ``messages`` and ``retries`` leave out.
    """

    messages: int
    retries: int
    oldest_age: float | None
    by_queue: Mapping[MessageQueue, int | None]


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Numbers since ``start()``; ``buffered``, ``buffered_bytes`` and ``running`` are of this moment.

    Attributes:
        handled: Messages whose handler calls returned.
        failed: Messages whose handler calls raised, and marked messages of a batch.
        retried: Messages that brokers have accepted for another attempt, and failed attempts that this member repeats itself
            (ordered messages, broadcast, messages that no broker takes back).
        dead_lettered: Messages that brokers have accepted as dead letters, and messages that were given up in broadcast.
        lost: Offsets that were skipped because their messages were deleted before they were pulled, and offsets below the
            group's whose messages queues have lost, as far as that is known.
        buffered: Messages that are pulled and not settled, ``buffered_bytes`` the size of their bodies.
        running: Handler calls, and steps of reading by hand, that are not over.
        commits: Number of offsets that brokers have confirmed; in broadcast, number of changed positions that the store's
            ``save`` has stored.
        rebalances: Changes of this member's share, counted by topic.
        unsure: Requests to give a message back that had no answer; each may have left a copy beside the copy that was stored
            afterwards. With ``mode="pop"``, ``retried`` are messages that were given back, confirmed or not, ``commits`` messages
            that brokers have acknowledged, and ``lost`` and ``rebalances`` are 0.
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
            function runs in its thread for more than twice its timeout, extensions included.
        ready: The consumer runs and does not stop, the reading of its first share has begun, the event loop is not blocked, and
            no plain handler waits without any thread to call it in.
        problems: All problems, including problems that leave the consumer ready.
        last_progress_age: Seconds since a message was settled or a queue was taken, the later of the two; None without a queue;
            with ``mode="pop"`` since a message had its outcome, or the start.
        oldest_unfinished: The handler call that has run longest, or the step of reading by hand whose messages are in hand for
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
        text = f"message {first} has been in hand for {age:.0f} s, and was neither settled nor given back"
    else:
        text = f"handler {subscription.name} has been running for {age:.0f} s on message {first}"
    return [Problem(ProblemCode.HANDLER_STUCK, text)]


def hangs(delivery: Call) -> bool:
    """Return whether a plain function has run for more than twice its time, extensions included, and still runs."""
    deadline = delivery.deadline
    runs_on = delivery.state == "running" and not delivery.subscription.is_async
    return runs_on and deadline is not None and delivery.age > 2 * (deadline - delivery.began)


def block_problems(block: Block | None) -> list[Problem]:
    """Return a problem if a function of the user has blocked the event loop of late."""
    if block is None:
        return []
    age = machine.monotonic() - block.at
    if age >= BLOCK_SHOWN:
        return []
    text = f"{block.name} blocked the event loop for {block.seconds:.1f} s, {age:.0f} s ago"
    return [Problem(ProblemCode.HANDLER_BLOCKS, text)]


def conflict_problems(conflicts: Conflicts) -> list[Problem]:
    """Return the problems of other members: different subscriptions, and another process with the client id."""
    found = [Problem(ProblemCode.SUBSCRIPTION_CONFLICT, str(conflict)) for conflict in conflicts.found]
    if (twice := conflicts.namesakes.found) is not None:
        found.append(Problem(ProblemCode.DUPLICATE_CLIENT_ID, twice))
    return found


def restart_problems(supervisor: Supervisor) -> list[Problem]:
    return [Problem(ProblemCode.RESTARTED, text) for text in supervisor.recent()]
