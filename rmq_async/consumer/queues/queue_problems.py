"""The problems of queues that a member holds or takes over, for ``health()``. They are derived from the member's own state, and the
functions may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rmq_protocol.message import MessageQueue

from ... import machine
from ..._text import printable
from ...client import Names
from ...health import Problem, ProblemCode
from ..group import MemberLocks, Missing, Takeover
from ..handling import Dispatcher, HeldLine, Single
from ..held_queue import HeldQueue
from ..subscription import NO_KEY
from .losses import LostQueues

MOST_NAMED: Final = 16
"""Maximum number of blocked keys and queues in one list of problems."""


def queue_problem(held: HeldQueue, stopped: str | None) -> Problem | None:
    """Return the problem of a queue that is not read, or None.

    Args:
        stopped: The reason why its pulls were stopped; None if they were not stopped.
    """
    if stopped is not None:
        return Problem(ProblemCode.QUEUE_STOPPED, stopped, broker=held.shown.broker_name, queue=held.shown)
    error = held.error
    if error is None:
        return None
    text = f"pulls of {held.shown} fail: {printable(error, 300)}"
    return Problem(ProblemCode.QUEUE_UNREADABLE, text, broker=held.shown.broker_name, queue=held.shown)


def line_problems(dispatcher: Dispatcher, held_for: float) -> list[Problem]:
    """Return the problems of ordered subscriptions: messages that have blocked their key or queue for ``held_for`` seconds, and
    messages without a key.
    """
    now, found = machine.monotonic(), list[Problem]()
    for line in dispatcher.held_lines():
        first, shown = line.first, line.held.shown
        if len(found) < MOST_NAMED and first.held_since is not None and now - first.held_since >= held_for:
            text = (
                f"{_line_text(line)} been held for {now - first.held_since:.0f} s by message {first.message.msg_id}: its attempt "
                f"{first.attempt} is due in {max(first.due - now, 0.0):.0f} s, {line.waiting - 1} messages wait behind it"
            )
            found.append(Problem(ProblemCode.KEY_HELD, text, broker=shown.broker_name, queue=shown))
    for subscription, keyless in dispatcher.keyless.recent().items():
        shown = keyless.message.queue
        text = (
            f"messages of topic {subscription.topic} have no key, the newest one is {keyless.message.msg_id}, offset "
            f"{keyless.message.queue_offset} of {shown}, {now - keyless.at:.0f} s ago; such messages of one queue are handled one "
            "at a time"
        )
        found.append(Problem(ProblemCode.KEY_MISSING, text, broker=shown.broker_name, queue=shown))
    return found


def lock_problems(takeover: Takeover, losses: LostQueues, names: Names, locked_for: float) -> list[Problem]:
    """Return the problems of ordered queues: queues whose locks other clients have had for more than ``locked_for`` seconds,
    and queues whose locks were lost.
    """
    now, found = machine.monotonic(), list[Problem]()
    for queue, age in takeover.locked_out().items():
        if age > locked_for:
            shown = names.shown_queue(queue)
            text = (
                f"{shown} is ordered, and another client has had its lock for {age:.0f} s; a crashed client keeps it for 60 s"
            )
            found.append(Problem(ProblemCode.QUEUE_LOCKED, text, broker=shown.broker_name, queue=shown))
    for shown, lost in losses.recent().items():
        text = (
            f"the lock of {shown}, an ordered queue, was lost {now - lost.at:.0f} s ago with {lost.running} messages in calls: "
            "another member may have begun them before these calls ended"
        )
        found.append(Problem(ProblemCode.QUEUE_LOST, text, broker=shown.broker_name, queue=shown))
    return found


def missing_problem(missing: Missing, names: Names) -> Problem:
    shown = [names.shown_queue(queue) for queue in missing.queues]
    topic, broker = shown[0].topic, shown[0].broker_name
    unread = "their messages" if missing.unread is None else f"their {missing.unread} messages"
    text = (
        f"queues {', '.join(str(queue.queue_id) for queue in shown)} of topic {topic} on {broker} left the topic's route "
        f"{missing.age:.0f} s ago, and no member reads {unread}: the broker is down, name servers have forgotten it or its queues, "
        "or an operator has removed the queues"
    )
    return Problem(ProblemCode.QUEUE_MISSING, text, broker=broker, queue=shown[0] if len(shown) == 1 else None)


def takeover_problems(takeover: Takeover, locks: MemberLocks, owned: Iterable[MessageQueue], names: Names) -> list[Problem]:
    """Return the problems of queues that are being taken over: unknown offsets, and brokers that do not grant locks."""
    found: list[Problem] = []
    for queue, text in list(takeover.errors.items()):
        shown = names.shown_queue(queue)
        text = f"the offset of {shown} is not known: {text}"
        found.append(Problem(ProblemCode.QUEUE_UNREADABLE, text, broker=shown.broker_name, queue=shown))
    for broker, error in locks.errors_of([*owned, *takeover.queues]).items():  # errors of other brokers no longer matter
        text = f"broker {printable(broker)} does not grant locks, without which queues are read late: {printable(error, 300)}"
        found.append(Problem(ProblemCode.NOT_LOCKED, text, broker=broker))
    return found


def orphan_problems(orphans: Mapping[str, int]) -> list[Problem]:
    """Return a problem for each topic without a subscription in this consumer whose messages were delivered again."""
    return [
        Problem(
            ProblemCode.NO_HANDLER,
            f"{count} messages of topic {topic} were delivered again, but no handler here subscribes to the topic",
        )
        for topic, count in list(orphans.items())
    ]


def _line_text(line: HeldLine) -> str:
    if line.key is None:
        return f"queue {line.held.shown} has"
    if isinstance(line.key, Single):
        return f"a message of {line.held.shown} has"
    if line.key is NO_KEY:
        return f"the messages without a key of {line.held.shown} have"
    return f"key {_key_text(line.key)} of {line.held.shown} has"


def _key_text(key: object) -> str:
    try:
        return printable(repr(key), 100)
    except Exception:  # noqa: BLE001 - a method of the user
        return f"of type {type(key).__name__}"
