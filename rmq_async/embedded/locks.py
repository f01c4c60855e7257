"""Queue locks for orderly consumption (41, 42). One client of a group holds the lock of a queue until it unlocks the queue, or
until ``LOCK_LIFE`` seconds after the last renewal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rmq_protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody, decode_body, encode_body
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.message import MessageQueue

from .. import machine
from .server import Connection
from .service import Processor, Refused, handles

LOCK_LIFE: Final = 60.0
"""Lifetime of a lock in seconds if it is not renewed (``RebalanceLockManager``)."""
MAX_LOCKS: Final = 100_000
SEARCH_INTERVAL: Final = 1.0
"""Minimum number of seconds between two searches for expired locks by ``lock``."""
MAX_LOCKS_AT_ONCE: Final = 16_384
MAX_NAME_LENGTH: Final = 512
"""Maximum number of characters of the name of a group, client, topic or broker in a lock."""


class QueueLocks:
    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, tuple[str, float]]] = {}
        """Locks by group and queue. A lock is the client that holds it and the time at which it expires
        (``machine.monotonic``)."""
        self._count = 0
        self._next_search = 0.0
        """Time before which a full table is not searched again for expired locks (``machine.monotonic``)."""

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> list[MessageQueue]:
        """Lock queues or renew their locks. Return which of these queues the client now holds.

        Raises:
            Refused: With code 1 if a queue needs a new lock and the table is full. The locks of the queues before this queue
                stay.
        """
        now = machine.monotonic()
        taken: list[MessageQueue] = []
        for queue in queues:
            owner, until = self._groups.get(group, {}).get(queue, ("", 0.0))
            if owner != client_id and until > now:
                continue
            if not until:
                if self._count >= MAX_LOCKS and (now < self._next_search or not self._expire(now)):
                    remark = f"this broker has {MAX_LOCKS} queue locks, the maximum; unlock some first"
                    raise Refused(ResponseCode.SYSTEM_ERROR, remark)
                self._count += 1
            self._groups.setdefault(group, {})[queue] = (client_id, now + LOCK_LIFE)
            taken.append(queue)
        return taken

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Unlock the queues that the client holds. Queues that another client holds stay locked."""
        locks = self._groups.get(group, {})
        for queue in queues:
            if queue in locks and locks[queue][0] == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def clear(self) -> None:
        self._groups.clear()
        self._count = 0

    def holding(self, group: str, queue: MessageQueue, now: float | None = None) -> tuple[str, float] | None:
        """Return the client that holds a queue, and the seconds since it locked the queue or renewed the lock. Return None for
        a queue without a lock.

        Args:
            now: The current time. The default is ``machine.monotonic()``.
        """
        now = machine.monotonic() if now is None else now
        client_id, until = self._groups.get(group, {}).get(queue, ("", 0.0))
        return (client_id, now - (until - LOCK_LIFE)) if until > now else None

    def any_of(self, group: str) -> bool:
        """Return whether a client of the group holds any queue."""
        now = machine.monotonic()
        return any(until > now for _, until in self._groups.get(group, {}).values())

    def _expire(self, now: float) -> bool:
        """Drop expired locks. Return whether the table has a free entry."""
        kept = {group: {queue: lock for queue, lock in locks.items() if lock[1] > now} for group, locks in self._groups.items()}
        self._groups = {group: locks for group, locks in kept.items() if locks}
        self._count = sum(map(len, self._groups.values()))
        first_end = min([until for locks in self._groups.values() for _, until in locks.values()], default=0.0)
        self._next_search = max(first_end, now + SEARCH_INTERVAL)
        return self._count < MAX_LOCKS

    def expire(self) -> None:
        self._expire(machine.monotonic())


class LockProcessor(Processor):
    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    @handles(RequestCode.LOCK_BATCH_MQ)
    def lock(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        body = _checked(decode_body(LockBatchRequestBody, command.body))
        taken = self._locks.lock(body.consumer_group, dict.fromkeys(body.mq_set), body.client_id)
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(LockBatchResponseBody(tuple(taken))))

    @handles(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        body = _checked(decode_body(UnlockBatchRequestBody, command.body))
        self._locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return make_response(command, ResponseCode.SUCCESS)


def _checked(body: LockBatchRequestBody) -> LockBatchRequestBody:
    if len(body.mq_set) > MAX_LOCKS_AT_ONCE:
        remark = f"the request has {len(body.mq_set)} queues, the limit is {MAX_LOCKS_AT_ONCE}; send several requests"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    names = {body.consumer_group, body.client_id}
    for queue in body.mq_set:
        names |= {queue.topic, queue.broker_name}
    longest = max(names, key=len)
    if len(longest) > MAX_NAME_LENGTH:
        remark = f"the name {longest[:80]!r} has {len(longest)} characters, the limit is {MAX_NAME_LENGTH}; shorten it"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    return body
