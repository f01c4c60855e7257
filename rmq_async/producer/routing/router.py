"""Choice of the queue for a call and its retries: round robin, the producer's selector, or the caller's choice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from inspect import isawaitable
from typing import Any, cast

from rmq_protocol.message import Message, MessageQueue

from .queue_selection import QueueSelection
from .selectors import QueueChoice, Selector, ask, awaited, one_of, select_by_hash
from .topic_queues import Target, TopicQueues
from .topic_table import TopicTable

__all__ = ["Router"]


class Router:
    """The routing of one producer. ``selection``: None for plain round robin.

    ``asks``: a selector of the user is called for each attempt. ``unless_stopped``: awaits something, and raises
    ClientStateError when the producer stops before.
    """

    __slots__ = ("asks", "faults", "lanes", "selection", "topics", "unless_stopped")

    def __init__(
        self, topics: TopicTable, selection: QueueSelection | None, unless_stopped: Callable[[Awaitable[Any]], Awaitable[Any]]
    ) -> None:
        self.topics = topics
        self.lanes = topics.lanes
        self.selection = selection
        self.faults = selection.faults if selection is not None else None
        self.asks = selection is not None and selection.custom
        self.unless_stopped = unless_stopped

    async def aim(
        self, topic: str, message: Message | None, shown: Message | None, choice: QueueChoice | None, deadline: float
    ) -> tuple[TopicQueues, Target]:
        """Returns the topic's queues and the target of the first attempt: the caller's choice, or the next queue.

        ``message``: None for a batch. ``shown``: the message for the producer's selector. Raises SelectorError,
        BrokerNotFoundError, RequestTimeoutError at ``deadline``, and the errors of the route look-up.
        """
        lane = self.lanes.get(topic) or await self.topics.lane(topic, deadline)
        if choice is None:
            if self.asks:
                return lane, await self.choose(lane, lane.brokers, cast(Message, shown), deadline)
            return lane, lane.next()
        if choice.queue is not None or message is None:
            queue = cast(MessageQueue, choice.queue)
            target = lane.by_queue.get(queue)
            if target is not None:
                return lane, target
            if not lane.knows(queue):
                lane = await self.topics.with_queue(topic, queue, deadline)
            return lane, lane.target(queue)
        return lane, await self._selected(lane, message, choice, deadline)

    def target_now(self, lane: TopicQueues, message: Message | None, choice: QueueChoice) -> Target | None:
        """Returns the target of a key by hash, None if a selector must choose. Raises SelectorError for an invalid key."""
        if message is None or choice.selector is not None or self.asks:
            return None
        queue = select_by_hash(lane.queues, message, choice.key)
        return lane.by_queue.get(queue) or lane.target(queue)

    async def choose(self, lane: TopicQueues, brokers: Collection[str], message: Message, deadline: float) -> Target:
        """Returns the queue that the producer's selector chooses for an attempt, among those of ``brokers``."""
        chosen = cast(QueueSelection, self.selection).ask(None, lane, brokers, message, None, deadline)
        return lane.target(chosen if isinstance(chosen, MessageQueue) else await self.unless_stopped(chosen))

    async def _selected(self, lane: TopicQueues, message: Message, choice: QueueChoice, deadline: float) -> Target:
        """Returns the queue by the call's selector, else the producer's selector, else the hash of the key."""
        if self.selection is not None and (choice.selector is not None or self.selection.custom):
            found = self.selection.ask(choice.selector, lane, lane.brokers, message, choice.key, deadline)
            return lane.target(found if isinstance(found, MessageQueue) else await self.unless_stopped(found))
        selector: Selector = choice.selector or select_by_hash
        chosen = ask(selector, lane.queues, message, choice.key)
        if not isinstance(chosen, MessageQueue) and isawaitable(chosen):
            chosen = await self.unless_stopped(awaited(selector, chosen, deadline))
        return lane.target(one_of(chosen, lane.queues, selector, deadline))
