"""The share of a broadcast member: every queue of the routes, which belongs to no other member."""

from __future__ import annotations

from collections.abc import Iterable

from rmq_protocol.message import MessageQueue

from ..group import MemberLocks, Rebalance

__all__ = ["AllQueues", "NoLocks"]


class AllQueues(Rebalance):
    """Asks no broker for the members of the group."""

    async def _lists(self, brokers: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return {}

    def _share(
        self, topic: str, queues: tuple[MessageQueue, ...], answers: list[tuple[str, ...]]
    ) -> tuple[frozenset[MessageQueue] | None, bool, str | None]:
        return frozenset(queues), True, None


class NoLocks(MemberLocks):
    """Grants every lock, and sends nothing."""

    async def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        return frozenset(queues)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Does nothing: no broker has a lock of this member."""

    def owns(self, queue: MessageQueue) -> bool:
        return True
