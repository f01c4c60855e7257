"""Compares a member's subscriptions and mode with those of the others: new conflicts are logged, recent ones are kept."""

from __future__ import annotations

import logging
from typing import Final

from rmq_protocol.heartbeat import ConsumerData

from ... import machine
from ...client import ClientInstance
from ...errors import SubscriptionConflictError
from .subscription_check import SubscriptionConflict, group_view

__all__ = ["Conflicts"]

logger = logging.getLogger(__name__)

UNTIL_NEXT: Final = 0.0


class Conflicts:
    """The conflicts with other members of the group. ``ours``: the subscriptions in the heartbeats of this client.
    ``kept_for``: seconds for which a conflict counts after it was last seen; UNTIL_NEXT: until the next comparison."""

    def __init__(self, instance: ClientInstance, ours: ConsumerData, kept_for: float = UNTIL_NEXT) -> None:
        self._instance = instance
        self._ours = ours
        self._kept_for = kept_for
        self._seen: dict[SubscriptionConflict, float] = {}
        """Conflict -> monotonic time at which it was seen last."""

    @property
    def found(self) -> list[SubscriptionConflict]:
        """Returns the conflicts that count now. It may be read from any thread."""
        since = machine.monotonic() - self._kept_for
        return [conflict for conflict, at in [*self._seen.items()] if not self._kept_for or at > since]

    async def look_first(self, on_conflict: str) -> None:
        """Compares before the member joins. If ``on_conflict`` is "raise", raises SubscriptionConflictError for a conflict."""
        await self.look(joined=False)
        if self._seen and on_conflict == "raise":
            raise SubscriptionConflictError(f"group {self._ours.group_name}: {next(iter(self._seen))}")

    async def look(self, *, joined: bool = True) -> None:
        """Compares with the other members. If ``listed_by`` of the view is empty, the known conflicts stay. ``joined``: as for
        ``group_view``."""
        view = await group_view(self._instance, self._ours, self._instance.config.request_timeout, joined=joined)
        if not view.listed_by:
            return
        now, before = machine.monotonic(), self._seen
        for conflict in view.conflicts:
            if conflict not in before:
                logger.warning("group %s: %s", self._ours.group_name, conflict)
        kept = {conflict: at for conflict, at in before.items() if now - at < self._kept_for}
        self._seen = kept | dict.fromkeys(view.conflicts, now)
