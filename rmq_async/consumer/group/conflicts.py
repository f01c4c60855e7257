"""A member's looks at the subscriptions and modes of the others: what is new is logged, and what was seen lately is kept."""

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
    """``ours``: as in the heartbeats of this client. ``kept_for``: seconds for which a conflict counts after it was seen last;
    UNTIL_NEXT: until the next look that a broker answers."""

    def __init__(self, instance: ClientInstance, ours: ConsumerData, kept_for: float = UNTIL_NEXT) -> None:
        self._instance = instance
        self._ours = ours
        self._kept_for = kept_for
        self._seen: dict[SubscriptionConflict, float] = {}
        """And when each was seen last."""

    @property
    def found(self) -> list[SubscriptionConflict]:
        """Those that count now; from any thread."""
        since = machine.monotonic() - self._kept_for
        return [conflict for conflict, at in [*self._seen.items()] if not self._kept_for or at > since]

    async def look_first(self, on_conflict: str) -> None:
        """Looks before the member joins. Raises SubscriptionConflictError where ``on_conflict`` is "raise"."""
        await self.look(joined=False)
        if self._seen and on_conflict == "raise":
            raise SubscriptionConflictError(f"group {self._ours.group_name}: {next(iter(self._seen))}")

    async def look(self, *, joined: bool = True) -> None:
        """Looks at the other members. Where no broker has had this member's heartbeat, all stays as it is."""
        view = await group_view(self._instance, self._ours, self._instance.config.request_timeout, joined=joined)
        if not view.listed_by:
            return
        now, before = machine.monotonic(), self._seen
        for conflict in view.conflicts:
            if conflict not in before:
                logger.warning("group %s: %s", self._ours.group_name, conflict)
        kept = {conflict: at for conflict, at in before.items() if now - at < self._kept_for}
        self._seen = kept | dict.fromkeys(view.conflicts, now)
