"""Positions of a broadcast member: loaded from the user's store at the start, saved while it runs and at its end.

Without a store they are kept in memory until the consumer stops, for queues that leave the route and return. Saves run one at a
time, each with all positions of its moment, so that an older state does not replace a newer one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue

from ... import machine
from ..._text import printable
from ...client import ClientInstance
from ...errors import ConfigError, RocketMQError
from ..commits import Commits, Doubts
from ..config import Positions
from ..held_queue import HeldQueue

__all__ = ["SavedPositions"]

logger = logging.getLogger(__name__)

SAVE_TIME: Final = 30.0
"""Maximum seconds of a save while the member runs, the wait for an earlier save included."""
LAST_TIME: Final = 3.0
"""Maximum seconds of the last save of a queue's position."""
AGAIN_AFTER: Final = 0.1
"""Seconds between two attempts to save the last position of a queue."""
MOST_KNOWN: Final = 65_536


class SavedPositions(Commits):
    """The positions of a broadcast member, loaded and saved.

    ``store``: the user's store, None without one. ``context``: the context that is copied for each call of its functions.
    ``known``: positions by queue (names on the wire), of queues that are read, were read before, or were in the store.
    """

    def __init__(
        self, instance: ClientInstance, store: Positions | None, held: Callable[[], Iterable[HeldQueue]], context: Context
    ) -> None:
        super().__init__(instance, "", held, lambda _: True, Doubts())
        self._store = store
        self._context = context
        self._saving = asyncio.Lock()
        self.known: dict[MessageQueue, int] = {}
        self.saved: dict[MessageQueue, int] = {}
        """The positions of the last load and the last save that succeeded."""

    async def load(self, topic: str) -> Mapping[MessageQueue, int]:
        """Loads and returns the stored positions of a topic (its name on the wire). Raises the errors of the user's ``load``,
        and ConfigError if that is no coroutine function or returns something else than positions of the topic."""
        names = self._instance.names
        if self._store is None:
            return {}
        found = await self._run(self._store.load(names.shown(topic)), "load")
        loaded = {names.wire_queue(queue): offset for queue, offset in _checked(names.shown(topic), found).items()}
        self.known.update(loaded)
        self.saved.update(loaded)
        return loaded

    async def run(self, interval: float, full_interval: float, after_gap: Callable[[], Awaitable[None]]) -> None:
        """Saves every ``interval`` seconds if a position has changed; never returns."""
        while True:
            await asyncio.sleep(interval)
            with suppress(Exception):  # the error is logged, and in ``error``
                await self.now()

    async def now(self) -> None:
        """Saves the positions if any has changed. Raises the errors of the user's ``save``, ConfigError if that is no
        coroutine function, and TimeoutError after SAVE_TIME seconds."""
        for held in self._held():
            if held.is_owned:
                self._note(held)
        try:
            async with asyncio.timeout(SAVE_TIME) as limit:
                await self._save()
        except TimeoutError as error:
            if limit.expired():
                self._failed(TimeoutError(f"it has not ended within {SAVE_TIME:g} s"), error)
            raise

    async def commit_last(self, held: HeldQueue, deadline: Callable[[], float]) -> bool:
        """Saves all positions, with that of a queue that is given up or moved; returns whether that succeeded within LAST_TIME
        seconds and by ``deadline()``, a monotonic time. A look before that shows whether the broker has what was read; where it
        does not answer, the position stays."""
        end = machine.monotonic() + LAST_TIME
        if not self.is_sure(held):
            look = (min(end, deadline()) - machine.monotonic()) / 2
            with suppress(RocketMQError, TimeoutError):
                async with asyncio.timeout(max(look, 0.0)):
                    await self.make_sure(held, look / 2)
        self._note(held)
        while True:
            try:
                async with asyncio.timeout(max(min(end, deadline()) - machine.monotonic(), 0.0)):
                    await self._save()
            except Exception:  # noqa: BLE001 - the error is logged, and in ``error``
                if machine.monotonic() + AGAIN_AFTER >= min(end, deadline()):
                    return False
                await asyncio.sleep(AGAIN_AFTER)
            else:
                return True

    def report_last(self, held: HeldQueue) -> None:
        logger.error(
            "the last position %d of %s was not saved in time: the next start begins at an older one, and repeats messages, which "
            "handlers must allow for", held.progress.watermark, held.shown,
        )  # fmt: skip

    def _note(self, held: HeldQueue) -> None:
        known = self.known
        known[held.queue] = held.committed = held.progress.watermark
        if len(known) > MOST_KNOWN:
            read = {each.queue for each in self._held()}
            known.pop(next((queue for queue in known if queue not in read), held.queue))

    async def _save(self) -> None:
        if self._store is None:
            return
        async with self._saving:
            positions = dict(self.known)
            changed = sum(self.saved.get(queue) != offset for queue, offset in positions.items())
            if not changed:
                return
            shown_queue = self._instance.names.shown_queue
            try:
                await self._run(self._store.save({shown_queue(queue): offset for queue, offset in positions.items()}), "save")
            except Exception as error:
                self._failed(error, error)
                raise
            self._errors.clear()
            self.saved = positions
            self.count += changed

    def _failed(self, error: Exception, raised: Exception) -> None:
        """Notes why a save failed; logs only the first of consecutive failures, with the traceback of ``raised``."""
        text = f"save() of the positions failed: {printable(repr(error), 300)}"
        if not self._errors:
            logger.warning("%s; it is called again", text, exc_info=raised)
        self._errors["save"] = text

    async def _run(self, work: Coroutine[Any, Any, Any], name: str) -> Any:
        """Awaits a coroutine of the user in a copy of the context; cancels it if the wait is cancelled."""
        if not asyncio.iscoroutine(work):
            raise ConfigError(
                f"{name}() of broadcast={shown(self._store)} must be a coroutine function (async def); it returned {shown(work)}"
            )
        task = asyncio.get_running_loop().create_task(work, name=f"rmq_async {name} positions", context=self._context.copy())
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=1.0)


def _checked(topic: str, found: object) -> Mapping[MessageQueue, int]:
    if isinstance(found, Mapping) and all(
        isinstance(queue, MessageQueue)
        and queue.topic == topic
        and isinstance(offset, int)
        and not isinstance(offset, bool)
        and offset >= 0
        for queue, offset in found.items()
    ):
        return found
    raise ConfigError(
        f"load({topic!r}) of the stored positions must return a mapping from queues of the topic to offsets of 0 or more, "
        f"not {shown(found)}"
    )
