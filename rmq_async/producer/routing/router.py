"""Chooses the queue for a call and its retries, by round robin, the producer's selector, or the caller's choice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from inspect import isawaitable
from typing import Any, cast

from rmq_protocol.message import Message, MessageQueue

from .queue_selection import QueueSelection
from .selectors import QueueChoice, Selector, ask, awaited, one_of, select_by_hash
from .topic_queues import Target, TopicQueues
from .topic_table import TopicTable


class Router:
    """Chooses queues for the calls of one producer.

    Args:
        selection: The queue selection. None for plain round robin.
        unless_stopped: Awaits its argument, and raises ClientStateError if the producer stops first.

    Attributes:
        asks: Whether the producer's selector is not ``select_best``.
    """

    __slots__ = ("asks", "faults", "queues_by_topic", "selection", "topics", "unless_stopped")

    def __init__(
        self, topics: TopicTable, selection: QueueSelection | None, unless_stopped: Callable[[Awaitable[Any]], Awaitable[Any]]
    ) -> None:
        self.topics = topics
        self.queues_by_topic = topics.queues_by_topic
        self.selection = selection
        self.faults = selection.faults if selection is not None else None
        self.asks = selection is not None and selection.custom
        self.unless_stopped = unless_stopped

    async def aim(
        self, topic: str, message: Message | None, shown: Message | None, choice: QueueChoice | None, deadline: float
    ) -> tuple[TopicQueues, Target]:
        """Return the topic's queues and the target of the first attempt.

        The target is the queue that the caller or a selector chooses, or else the next queue.

        Args:
            message: The message. None for a batch.
            shown: The message that is passed to the producer's selector. If it is None, the selector is not called: the next queue
                is used, also for further attempts, as for a prepared send.

        Raises:
            RocketMQError: The errors of ``choose``, ``chosen`` and ``at``.
        """
        if choice is not None:
            return await self.at(topic, await self.chosen(topic, message, choice, deadline), deadline)
        topic_queues = self.queues_by_topic.get(topic) or await self.topics.find(topic, deadline)
        if self.asks and shown is not None:
            return topic_queues, await self.choose(topic_queues, topic_queues.brokers, shown, deadline)
        return topic_queues, topic_queues.next()

    async def at(self, topic: str, queue: MessageQueue, deadline: float) -> tuple[TopicQueues, Target]:
        """Return the topic's queues and the target of a chosen queue. If its broker is not in the route, wait until it is back.

        Raises:
            RocketMQError: The errors of ``TopicTable.find``, ``TopicTable.with_queue`` and ``TopicQueues.target``.
        """
        topic_queues = self.queues_by_topic.get(topic) or await self.topics.find(topic, deadline)
        target = topic_queues.by_queue.get(queue)
        if target is not None:
            return topic_queues, target
        if not topic_queues.knows(queue):
            topic_queues = await self.topics.with_queue(topic, queue, deadline)
        return topic_queues, topic_queues.target(queue)

    def is_away(self, topic: str, queue: MessageQueue) -> bool:
        """Return whether the known route has no address for the queue, so that ``at`` would wait for a newer one."""
        topic_queues = self.queues_by_topic.get(topic)
        return topic_queues is not None and not topic_queues.knows(queue)

    def target_now(self, topic_queues: TopicQueues, message: Message | None, choice: QueueChoice) -> Target | None:
        """Return the target that the hash of a key selects, without waiting.

        Return None for a batch, if a selector must choose, or if the queue's broker is not in the route.

        Raises:
            SelectorError: If the key is invalid.
        """
        if message is None or choice.selector is not None or self.asks:
            return None
        queue = select_by_hash(topic_queues.keyed, message, choice.key)
        return topic_queues.by_queue.get(queue) or topic_queues.reachable(queue)

    async def choose(self, topic_queues: TopicQueues, brokers: Collection[str], message: Message, deadline: float) -> Target:
        """Return the queue that the producer's selector chooses for an attempt, among the queues of ``brokers``."""
        queues = topic_queues.queues if brokers is topic_queues.brokers else topic_queues.queues_of(brokers)
        chosen = cast(QueueSelection, self.selection).ask(None, topic_queues, queues, message, None, deadline)
        return topic_queues.target(chosen if isinstance(chosen, MessageQueue) else await self.unless_stopped(chosen))

    async def chosen(self, topic: str, message: Message | None, choice: QueueChoice, deadline: float) -> MessageQueue:
        """Return the queue that the caller passed.

        Without it, the selector of the call, the selector of the producer or the hash of the key chooses the queue, in this order
        of precedence. The broker of the queue may be missing from the route.

        Raises:
            RocketMQError: The errors of ``TopicTable.find`` and ``QueueSelection.ask``.
        """
        if choice.queue is not None or message is None:
            return cast(MessageQueue, choice.queue)
        topic_queues = self.queues_by_topic.get(topic) or await self.topics.find(topic, deadline)
        queues = topic_queues.keyed
        if self.selection is not None and (choice.selector is not None or self.selection.custom):
            found = self.selection.ask(choice.selector, topic_queues, queues, message, choice.key, deadline)
            return found if isinstance(found, MessageQueue) else cast(MessageQueue, await self.unless_stopped(found))
        selector: Selector = select_by_hash if choice.selector is None else choice.selector
        chosen = ask(selector, queues, message, choice.key)
        if not isinstance(chosen, MessageQueue) and isawaitable(chosen):
            chosen = await self.unless_stopped(awaited(selector, chosen, deadline))
        return one_of(chosen, queues, selector, deadline)
