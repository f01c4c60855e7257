"""Positions of a broadcast member. They are loaded from the user's store at the start, and saved while the member runs and when it
stops.

Without a store, positions are kept in memory until the consumer stops, for queues that leave the route and return. Saves run one
at a time. Each writes all positions as they are when it starts, so an older state never replaces a newer one.
"""

# A queue begins at its stored position, or at this member's position when the queue last left the route, if there is one. A topic
# without any stored position begins at ``start_from``. Queues that are added later, and queues without a position in a topic whose
# other queues have one, count as new and begin at their first message. A broker that the route did not name at the start may be
# new, or it may have been unreachable and have old messages; a broker that did not respond at the start may have old messages, too.
# With "latest", the queues of such a broker begin with the first message stored after the member's start minus CLOCKS_DIFFER; if
# ``start_from`` is a datetime, they begin at that time.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import Context
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue

from ... import machine
from ..._text import printable
from ...client import ClientInstance, max_offset, min_offset, search_offset
from ...errors import ConfigError, RocketMQError, TopicNotFoundError
from ...reading import CLOCKS_DIFFER
from ..config import Positions
from ..group import Commits, Doubts, StartFrom, from_brokers, warn_of_silent
from ..held_queue import HeldQueue

logger = logging.getLogger(__name__)

SAVE_TIME: Final = 30.0
"""Maximum seconds for a save while the member runs, including the wait for an earlier save."""
LAST_TIME: Final = 3.0
"""Maximum seconds for the last save of a queue's position."""
AGAIN_AFTER: Final = 0.1
"""Seconds between two attempts to save the last position of a queue."""
MOST_KNOWN: Final = 65_536


class SavedPositions(Commits):
    """Loads and saves the positions of a broadcast member.

    Args:
        store: The user's store; None if there is none.
        held: Returns the queues that the member holds.
        context: The context that is copied for each call of the store's functions.

    Attributes:
        known: Positions by queue (with names on the wire), of queues that are being read, were read before, or were in the store.
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
        """The positions of the last successful load or save."""

    async def load(self, topic: str) -> Mapping[MessageQueue, int]:
        """Load and return the stored positions of a topic, by queue with names on the wire.

        Args:
            topic: The name of the topic on the wire.

        Raises:
            ConfigError: If the user's ``load`` is not a coroutine function or does not return positions of the topic. Errors of
                ``load`` also propagate.
        """
        names = self._instance.names
        if self._store is None:
            return {}
        found = await self._run(self._store.load(names.shown(topic)), "load")
        loaded = {names.wire_queue(queue): offset for queue, offset in _checked(names.shown(topic), found).items()}
        self.known.update(loaded)
        self.saved.update(loaded)
        return loaded

    async def run(self, interval: float, full_interval: float, after_gap: Callable[[], Awaitable[None]]) -> None:
        """Save every ``interval`` seconds if a position has changed. Never return."""
        while True:
            await asyncio.sleep(interval)
            with suppress(Exception):  # the error is logged and kept for ``health()``
                await self.now()

    async def now(self) -> None:
        """Save the positions if any of them has changed.

        Raises:
            ConfigError: If the user's ``save`` is not a coroutine function. Errors of ``save`` also propagate.
            TimeoutError: After SAVE_TIME seconds.
        """
        for held in self._held():
            if held.is_owned:
                self._note(held)
        try:
            async with asyncio.timeout(SAVE_TIME) as limit:
                await self._save()
        except TimeoutError as error:
            if limit.expired():
                self._failed(TimeoutError(f"it did not end within {SAVE_TIME:g} s"), error)
            raise

    async def commit_last(self, held: HeldQueue, deadline: Callable[[], float]) -> bool:
        """Save all positions, including the position of a queue that is being given up or moved.

        Before that, check whether the broker still has the messages that were read. If the broker does not respond, the position is
        saved as it is. Return whether the save succeeded within LAST_TIME seconds and by ``deadline()``, a monotonic time.
        """
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
            except Exception:  # noqa: BLE001 - the error is logged and kept for ``health()``
                if machine.monotonic() + AGAIN_AFTER >= min(end, deadline()):
                    return False
                await asyncio.sleep(AGAIN_AFTER)
            else:
                return True

    def report_last(self, held: HeldQueue) -> None:
        logger.error(
            "the last position %d of %s was not saved in time; the next start begins at an older position and repeats messages, so "
            "handlers must be idempotent", held.progress.watermark, held.shown,
        )  # fmt: skip

    def _note(self, held: HeldQueue) -> None:
        known = self.known
        known[held.queue] = held.progress.watermark
        held.confirm(held.progress.watermark, held.confirmed_by)
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
        """Note why a save failed. Log only the first of consecutive failures, with the traceback of ``raised``."""
        text = f"save() of the positions failed: {printable(repr(error), 300)}"
        if not self._errors:
            logger.warning("%s; it is called again", text, exc_info=raised)
        self._errors["save"] = text

    async def _run(self, work: Coroutine[Any, Any, Any], name: str) -> Any:
        """Await a coroutine of the user in a copy of the context. Cancel the coroutine if the wait is cancelled."""
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
        f"load({topic!r}) of the stored positions must return a mapping from queues of the topic to non-negative offsets, "
        f"not {shown(found)}"
    )


class Starts:
    """Determines the offsets at which a broadcast member begins.

    Args:
        positions: The positions of the member, to which ``prepare`` adds.
        start_from: The setting ``start_from``.
    """

    def __init__(self, instance: ClientInstance, positions: SavedPositions, start_from: StartFrom) -> None:
        self._instance = instance
        self._positions = positions
        self._start_from = start_from
        self._brokers: dict[str, frozenset[str]] = {}
        """By topic: the brokers that its route named at the start and that responded."""
        self._since = datetime.fromtimestamp(machine.time() - CLOCKS_DIFFER, UTC)

    async def prepare(self, topic: str) -> None:
        """Load the stored positions of a topic. If there are none, find positions for the queues that the topic has now.

        A topic without a route is logged. Other errors of the requests, and errors of ``SavedPositions.load``, propagate.

        Args:
            topic: The name of the topic on the wire.
        """
        instance, start = self._instance, self._start_from
        stored = await self._positions.load(topic)
        try:
            route = await instance.routes.get(topic, instance.config.request_timeout)
        except TopicNotFoundError as error:
            logger.warning("a subscribed topic has no route yet and is read as soon as it has one: %s", printable(error, 300))
            return
        self._brokers[topic] = frozenset([*route.addresses, *(queue.broker_name for queue in route.subscribe_queues)])
        if stored:
            return
        if isinstance(start, datetime):
            ask = partial(search_offset, instance, when=start, any_replica=False)
        else:
            ask = partial(max_offset if start == "latest" else min_offset, instance, any_replica=False)
        found, silent = await from_brokers(route.subscribe_queues, ask)
        if silent:
            warn_of_silent(instance, topic, silent)
            self._brokers[topic] = self._brokers[topic].difference(silent)
        self._positions.known.update(found)

    async def offset(self, queue: MessageQueue) -> tuple[int, int | None]:
        """Return the offset at which to begin to read a queue, and its known position or None.

        Errors of the request propagate.
        """
        known = self._positions.known.get(queue)
        if known is not None:
            return known, known
        start = self._start_from
        if start != "earliest" and queue.broker_name not in self._brokers.get(queue.topic, ()):
            since = start if isinstance(start, datetime) else self._since
            return await search_offset(self._instance, queue, since, any_replica=False), None
        return await min_offset(self._instance, queue, any_replica=False), None
