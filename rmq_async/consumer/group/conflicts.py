"""Compares a member's subscriptions, mode and client id with those of the others: new conflicts are logged, recent ones are
kept."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from rmq_protocol.heartbeat import ConsumerData

from ... import machine
from ...client import ClientInstance
from ...errors import SubscriptionConflictError
from .namesakes import Namesakes
from .subscription_check import SubscriptionConflict, group_view

__all__ = ["Conflicts"]

logger = logging.getLogger(__name__)

UNTIL_NEXT: Final = 0.0
LOOK_EVERY: Final = 60.0
"""Mean seconds between two looks, which are repeated because a broker knows the subscriptions of the newest heartbeat only."""
SPACING: Final = 5.0
"""Seconds between two looks at least."""


class Conflicts:
    """The conflicts with other members of the group. ``ours``: the subscriptions in the heartbeats of this client.
    ``kept_for``: seconds for which a conflict counts after it was last seen; UNTIL_NEXT: until the next comparison. ``spread``: by
    which share the times between two looks differ."""

    def __init__(self, instance: ClientInstance, ours: ConsumerData, kept_for: float = UNTIL_NEXT, spread: float = 0.0) -> None:
        self._instance = instance
        self._ours = ours
        self._kept_for = kept_for
        self._spread = spread
        self._seen: dict[SubscriptionConflict, float] = {}
        """Conflict -> monotonic time at which it was seen last."""
        self._woken = asyncio.Event()
        self.namesakes = Namesakes(instance, ours, self._woken.set)

    @property
    def found(self) -> list[SubscriptionConflict]:
        """Returns the conflicts that count now. It may be read from any thread."""
        since = machine.monotonic() - self._kept_for
        return [conflict for conflict, at in [*self._seen.items()] if not self._kept_for or at > since]

    async def look_first(self, on_conflict: str) -> None:
        """Compares before the member joins. If ``on_conflict`` is "raise", raises SubscriptionConflictError for a conflict."""
        strict = on_conflict == "raise"
        await self.look(joined=False, ask=strict)
        if self._seen and strict:
            raise SubscriptionConflictError(f"group {self._ours.group_name}: {next(iter(self._seen))}")
        self._check_id(on_conflict)

    async def look_joined(self, on_conflict: str) -> None:
        """Looks for another process with the client id when the member has joined: one that starts at the same time has not been
        listed before. If ``on_conflict`` is "raise", raises SubscriptionConflictError."""
        if on_conflict == "raise":
            await self.look()
            self._check_id(on_conflict)

    def _check_id(self, on_conflict: str) -> None:
        if on_conflict == "raise" and (text := self.namesakes.found) is not None:
            raise SubscriptionConflictError(text)

    def wake(self) -> None:
        """Asks for a look soon."""
        self._woken.set()

    async def run(self) -> None:
        """Looks periodically; never returns."""
        while True:
            await self.wait()
            await self.look()

    async def wait(self) -> None:
        """Waits until the next look is due."""
        began = machine.monotonic()
        spread = machine.random.uniform(-self._spread, self._spread) if self._spread else 0.0
        until = began + LOOK_EVERY * (1 + spread)
        if (due := self.namesakes.due) is not None:
            until = min(until, max(due, began) + 1.0)
        await asyncio.sleep(SPACING)
        while (left := until - machine.monotonic()) > 0 and not self._woken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._woken.wait()
        self._woken.clear()

    async def look(self, *, joined: bool = True, ask: bool = True) -> None:
        """Compares with the other members. If ``listed_by`` of the view is empty, the known conflicts stay. ``joined``: as for
        ``group_view``. ``ask``: as for ``Namesakes.look``."""
        view = await group_view(self._instance, self._ours, self._instance.config.request_timeout, joined=joined)
        await self.namesakes.look(view, joined=joined, ask=ask)
        if not view.listed_by:
            return
        now, before = machine.monotonic(), self._seen
        for conflict in view.conflicts:
            if conflict not in before:
                logger.warning("group %s: %s", self._ours.group_name, conflict)
        kept = {conflict: at for conflict, at in before.items() if now - at < self._kept_for}
        self._seen = kept | dict.fromkeys(view.conflicts, now)
