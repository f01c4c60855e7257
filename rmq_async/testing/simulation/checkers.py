"""Checks a history against the messages that the brokers have stored.

Each function returns a line for each violation.

The functions are pure. A run passes them its calls, the messages on the brokers' disks, and the ids of messages that faults were
allowed to remove.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ...results import SendResult, TransactionSendResult, TransactionStatus
from .history import Call

LATE: Final = 0.05
"""Virtual seconds by which a call may exceed its budget, because jobs of the executor and iterations of the loop take time."""
SLOWEST: Final = 1.03
"""Maximum number of simulation seconds that the slowest clock takes for one second."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_TEMPORARY: Final = (HALF_TOPIC, "%RETRY%", "%DLQ%", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
_TRANSACTION: Final = "send_in_transaction"
"""The name of the method whose budget ends when the local transaction begins."""


class Stored(NamedTuple):
    """A message on a broker's disk."""

    broker: str
    topic: str
    queue_id: int
    offset: int
    unique_id: str
    body: bytes
    """The digest of the message's body."""


def lost(calls: Iterable[Call], stored: Sequence[Stored], excused: Collection[str]) -> list[str]:
    """Return the acknowledged messages that no broker has stored.

    Transactions without a commit are left out. The half message of a transaction does not count as the committed message,
    because consumers read the message in its own topic.

    Args:
        excused: Unique ids of messages that a power loss, a new master or a deletion removed.
    """
    kept = {each.unique_id for each in stored}
    readable = {each.unique_id for each in stored if each.topic != HALF_TOPIC}
    return [
        f"lost: {call.what}() of {call.machine} at {call.began:.6f} s was acknowledged, and no broker has {result.msg_id}"
        for call in calls
        for result in call.results
        if result.msg_id not in (kept if call.what != _TRANSACTION else readable) and result.msg_id not in excused
        if not (isinstance(result, TransactionSendResult) and result.local_status is not TransactionStatus.COMMIT)
    ]


def copies(calls: Iterable[Call], stored: Sequence[Stored], heard: Mapping[str, int], *, restarts: bool) -> list[str]:
    """Return messages that are stored more times than their call made attempts.

    Args:
        restarts: Whether a broker's process has ended or a broker has lost messages. The broker may then deliver a delayed
            message again, or check a committed transaction again, because brokers write the progress of delays
            (``flushDelayOffsetInterval``) and the ended transactions (``transactionOpBatchInterval``, from 5.0 on) only every
            few seconds.
        heard: Number of transaction checks that clients received, by unique id, not counting checks whose COMMIT no broker
            confirmed. Each check stores the half message again. If a check does not arrive, or the COMMIT arrives after the
            next check, the client ends the older copy and gets a check for the newer copy. Real brokers do the same.
    """
    number = Counter(each.unique_id for each in stored if not each.topic.startswith(_TEMPORARY))
    halves = Counter(each.unique_id for each in stored if each.topic == HALF_TOPIC)

    def most(result: SendResult) -> int:
        unheard = halves[result.msg_id] - result.attempts - heard.get(result.msg_id, 0)
        return result.attempts + max(0, unheard if isinstance(result, TransactionSendResult) else 0)

    return [
        f"copies: {result.msg_id} of {call.machine} is stored {number[result.msg_id]} times after {result.attempts} attempts"
        for call in calls
        if not (restarts and (call.delayed or call.what == _TRANSACTION))
        for result in call.results
        if number[result.msg_id] > most(result)
    ]


def surprises(calls: Sequence[Call], stored: Sequence[Stored]) -> list[str]:
    """Return messages that are stored although ``maybe_stored`` is false for the error of their call.

    Only calls with unique bodies are checked.
    """
    uses = Counter(body for call in calls for body in call.bodies)
    kept = {each.body for each in stored if each.topic != HALF_TOPIC}
    return [
        f"surprise: {call.what}() of {call.machine} at {call.began:.6f} s failed with {call.error!r}, which is not maybe_stored, "
        "and its message is stored"
        for call in calls
        if call.ended is not None and call.error is not None and not call.maybe_stored
        if any(uses[body] == 1 and body in kept for body in call.bodies)
    ]


def late(calls: Iterable[Call], stopped: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    """Return calls that ended after their budget, by the clock of their machine.

    Transactions are left out, because their budget does not include the local transaction.

    Args:
        stopped: Times between which the process of a machine was paused. Calls at these times are left out. A call that begins
            in the iteration in which the process continues is also left out, because its request may get additional time, as
            after a blocked loop.
    """
    return [
        f"late: {call.what}() of {call.machine} at {call.began:.6f} s, with {call.budget} s, ended at {call.ended:.6f} s"
        for call in calls
        if call.ended is not None and call.took is not None and call.took > call.budget + LATE and call.what != _TRANSACTION
        if not any(first < call.ended and last >= call.began for first, last in stopped.get(call.machine, ()))
    ]


def unfinished(calls: Iterable[Call], ends: Mapping[str, Sequence[float]], over: float) -> list[str]:
    """Return calls that have not ended after their budget, although their process has not ended.

    Args:
        ends: Times at which processes ended, by machine.
        over: Time at which the run ended.
    """
    return [
        f"unfinished: {call.what}() of {call.machine} at {call.began:.6f} s has no end {over - call.began:.3f} s later"
        for call in calls
        if call.ended is None and over - call.began > call.budget * SLOWEST + LATE
        if not any(call.began <= end for end in ends.get(call.machine, ()))
    ]


def disorder(calls: Iterable[Call], stored: Sequence[Stored]) -> list[str]:
    """Return messages whose stored order differs from the order in which their calls began. Messages are compared if one
    producer passed them to ``send`` and ``send_async`` for the same queue, key or sharding key.

    Order is promised only until the first call whose error is ``maybe_stored``. Messages that a power loss removed are not
    compared, because their offsets were assigned again. Delayed messages are not compared either, because they enter the queue
    when they are due.
    """
    kept = {each.unique_id for each in stored}
    found: list[str] = []
    lines: defaultdict[tuple[int, str, str], list[Call]] = defaultdict(list)
    for call in calls:
        if call.ordered_by is not None and not call.delayed and call.what in ("send", "send_async"):
            lines[call.producer, call.topic, call.ordered_by].append(call)
    for (_, topic, key), line in lines.items():
        ends: dict[object, tuple[int, Call]] = {}
        for call in line:
            if call.maybe_stored:
                break
            for result in call.results:
                if result.msg_id not in kept:
                    continue
                before = ends.get(result.queue)
                if before is not None and result.queue_offset <= before[0]:
                    found.append(
                        f"disorder: {call.what}() of {call.machine} at {call.began:.6f} s with {key!r} in {topic} was stored at "
                        f"{result.queue_offset}, before {before[0]} of the call at {before[1].began:.6f} s"
                    )
                ends[result.queue] = (result.queue_offset, call)
    return found


def misplaced(calls: Iterable[Call], stored: Iterable[Stored], reused: Collection[str]) -> list[str]:
    """Return results that name an offset at which a different message is stored.

    Delayed messages and transactions are left out.

    Args:
        reused: Brokers that assigned offsets again, as after a power loss. These brokers are left out.
    """
    places = {(each.broker, each.topic, each.queue_id, each.offset): each.unique_id for each in stored}
    return [
        f"misplaced: {call.what}() of {call.machine} at {call.began:.6f} s got offset {result.queue_offset} of {result.queue} for "
        f"{result.msg_id}, where {at} is stored"
        for call in calls
        if not call.delayed and call.what != _TRANSACTION
        for result in call.results
        if result.queue.broker_name not in reused
        if (at := places.get((result.queue.broker_name, call.topic, result.queue.queue_id, result.queue_offset))) is not None
        if at != result.msg_id
    ]


def renamed(calls: Iterable[Call], stored: Iterable[Stored]) -> list[str]:
    """Return messages that are stored under several unique ids. No consumer can recognise such messages as copies.

    Only messages with unique bodies are checked.
    """
    uses = Counter(body for call in calls for body in call.bodies)
    ids: defaultdict[bytes, dict[str, None]] = defaultdict(dict)
    for each in stored:
        if uses[each.body] == 1:
            ids[each.body][each.unique_id] = None
    return [f"renamed: one message is stored as {', '.join(several)}" for several in ids.values() if len(several) > 1]


def undone(calls: Iterable[Call], stored: Iterable[Stored], reused: Collection[str]) -> list[str]:
    """Return messages that consumers can read although their transactions were rolled back.

    Args:
        reused: Brokers that assigned offsets again. These brokers are left out. On such a broker, the end of a transaction
            whose half message was lost may end another transaction at the same offsets, because brokers compare only the
            offsets.
    """
    kept = {each.unique_id for each in stored if not each.topic.startswith(_TEMPORARY)}
    return [
        f"undone: the transaction of {result.msg_id} of {call.machine} was rolled back, and its message is stored"
        for call in calls
        for result in call.results
        if isinstance(result, TransactionSendResult) and result.local_status is TransactionStatus.ROLLBACK
        if result.msg_id in kept and result.queue.broker_name not in reused
    ]
