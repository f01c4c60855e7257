"""The share of a broadcast member: every queue of the routes, without regard to other members."""

from __future__ import annotations

from collections.abc import Iterable

from rmq_protocol.message import MessageQueue

from ..group import MemberLocks, Rebalance

__all__ = ["AllQueues", "NoLocks"]


class AllQueues(Rebalance):
    """Gives this member every queue, and asks no broker for the members of the group."""

    async def _lists(self, brokers: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return {}

    def _share(
        self, topic: str, queues: tuple[MessageQueue, ...], answers: list[tuple[str, ...]]
    ) -> tuple[frozenset[MessageQueue] | None, bool, str | None]:
        return frozenset(queues), True, None


class NoLocks(MemberLocks):
    """Grants every lock without a request to a broker."""

    async def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        return frozenset(queues)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Does nothing: this member has no lock at any broker."""

    def owns(self, queue: MessageQueue) -> bool:
        return True

    def is_sure(self, queue: MessageQueue) -> bool:
        return True
