"""Between the names that users know and those that servers know: a namespace of the first kind is a prefix on the wire.

Whatever a user gives may have the prefix or not; whatever a user sees has none.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.namespace import has_namespace, with_namespace, without_namespace
from rmq_protocol.validation import is_system_topic

__all__ = ["Names"]


class Names:
    """``namespace``: empty for none, and then every name stays as it is."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str | None) -> None:
        self.namespace = namespace or ""

    def wire(self, name: str) -> str:
        """A topic or group as servers know it."""
        return with_namespace(self.namespace, name) if self.namespace else name

    def shown(self, name: str) -> str:
        """A topic or group as users know it."""
        return without_namespace(name, self.namespace) if self.namespace else name

    def told(self, name: str) -> str:
        """For the text of an error: the name as users know it, and where it is."""
        bare = self.shown(name)
        return name if bare == name else f"{bare} (of namespace {self.namespace})"

    def mine(self, topic: str) -> bool:
        """Whether the topic is one of this namespace or of the system; all are where there is no namespace."""
        return not self.namespace or is_system_topic(topic) or has_namespace(topic, self.namespace)

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.wire(queue.topic)) if self.namespace else queue

    def shown_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.shown(queue.topic)) if self.namespace else queue

    def shown_queues(self, queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
        return tuple(map(self.shown_queue, queues))

    def shown_messages(self, messages: tuple[MessageExt, ...]) -> tuple[MessageExt, ...]:
        if not self.namespace:
            return messages
        return tuple(
            msgspec.structs.replace(message, topic=self.shown(message.topic), queue=self.shown_queue(message.queue))
            for message in messages
        )
