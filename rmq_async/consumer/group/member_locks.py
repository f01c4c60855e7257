"""The locks of one member. Queues of ordered topics are locked under the group's own name, all others under ``handover_group``."""

# Orderly Java members lock under the group's name, so an ordered queue has one owner at a time in a group with members of both
# clients. Such a queue is never read without its lock, which a crashed member keeps for up to 60 s.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import for_each
from ...client import ClientInstance
from ...errors import RocketMQError
from .queue_locks import QueueLocks, handover_group

RENEWED_WITHIN: Final = 25.0
"""Seconds after which the renewal of a lock is late."""


class MemberLocks:
    """The locks of a member's queues. Methods without a docstring do the same as the methods of QueueLocks.

    Args:
        group: Name of the group on the wire.
        ordered: Names of the ordered topics on the wire.
    """

    def __init__(self, instance: ClientInstance, group: str, ordered: Collection[str] = ()) -> None:
        self._ordered = frozenset(ordered)
        self.handover = QueueLocks(instance, handover_group(group))
        self.own = QueueLocks(instance, group)

    def is_ordered(self, queue: MessageQueue) -> bool:
        """Return whether the queue belongs to an ordered topic.

        Such a queue is locked under the group's own name and is never read without its lock.
        """
        return queue.topic in self._ordered

    def locked_at(self, queue: MessageQueue) -> float | None:
        """Return the monotonic time of the last successful request for the lock of ``queue``. Return None if it is not held."""
        return self._of(queue).held.get(queue)

    @property
    def assumed(self) -> frozenset[MessageQueue]:
        return self.handover.assumed

    def errors_of(self, queues: Iterable[MessageQueue]) -> dict[str, RocketMQError]:
        """Return the lock errors of the brokers that have ``queues``, by broker name. The error is that of the last failed request
        for the same kind of lock (ordered or not) as these queues use. May be called from any thread.
        """
        listed = tuple(queues)
        ordered = [queue for queue in listed if queue.topic in self._ordered]
        return self.handover.errors_of(self._unordered(listed)) | self.own.errors_of(ordered)

    @property
    def are_late(self) -> bool:
        """Whether the renewal of some lock is late, so that the lock may expire while a call runs."""
        now = machine.monotonic()
        return any(now - since > RENEWED_WITHIN for locks in (self.handover, self.own) for since in locks.held.values())

    def owns(self, queue: MessageQueue) -> bool:
        return self._of(queue).owns(queue)

    def is_sure(self, queue: MessageQueue) -> bool:
        return self._of(queue).is_sure(queue)

    @property
    def is_masterless(self) -> bool:
        return self.handover.is_masterless or self.own.is_masterless

    def unreached(self) -> list[str]:
        return [*dict.fromkeys([*self.handover.unreached(), *self.own.unreached()])]

    def doubt_replaced(self) -> frozenset[str]:
        return self.handover.doubt_replaced() | self.own.doubt_replaced()

    async def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        granted: set[MessageQueue] = set()

        async def ask(locks: QueueLocks, asked: Collection[MessageQueue]) -> None:
            granted.update(await locks.lock(asked))

        await self._each(queues, ask)
        return frozenset(granted)

    async def renew(self) -> frozenset[MessageQueue]:
        lost = await self.handover.renew()
        return lost | await self.own.renew() if self._ordered else lost

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        await self._each(queues, QueueLocks.unlock)

    @property
    def owes(self) -> bool:
        return self.handover.owes or self.own.owes

    async def unlock_owed(self) -> None:
        await self.handover.unlock_owed()
        await self.own.unlock_owed()

    def leave(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._of(queue).leave([queue])

    async def unlock_all(self, but: Collection[MessageQueue] = ()) -> None:
        await self.handover.unlock_all(but)
        if self._ordered:
            await self.own.unlock_all(but)

    async def seize(self, queues: Iterable[MessageQueue], client_ids: Iterable[str]) -> frozenset[MessageQueue]:
        """Seize queues as ``QueueLocks.seize`` does. Locks of ordered queues are not seized."""
        return await self.handover.seize(self._unordered(queues), client_ids)

    async def unlock_for(self, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues as ``QueueLocks.unlock_for`` does. Ordered queues stay locked."""
        await self.handover.unlock_for(client_id, self._unordered(queues))

    def assume(self, queues: Iterable[MessageQueue]) -> None:
        """Take queues as ``QueueLocks.assume`` does. Ordered queues are left out."""
        self.handover.assume(self._unordered(queues))

    def _of(self, queue: MessageQueue) -> QueueLocks:
        return self.own if queue.topic in self._ordered else self.handover

    def _unordered(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return [queue for queue in queues if queue.topic not in self._ordered]

    async def _each(
        self, queues: Iterable[MessageQueue], act: Callable[[QueueLocks, Collection[MessageQueue]], Awaitable[None]]
    ) -> None:
        """Call ``act`` concurrently with the ordered queues and with the other queues."""
        listed = tuple(queues)
        if not self._ordered:
            await act(self.handover, listed)
            return
        by_locks: dict[QueueLocks, list[MessageQueue]] = {}
        for queue in listed:
            by_locks.setdefault(self._of(queue), []).append(queue)
        await for_each(by_locks, lambda locks: act(locks, by_locks[locks]))
