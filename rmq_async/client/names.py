"""Names of topics and groups with the prefix of ``ClientConfig.namespace``, which they have on the wire, and without it.

A user may give names with or without the prefix; names that are shown to a user do not have it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.namespace import has_namespace, with_namespace, without_namespace
from rmq_protocol.validation import is_system_topic, plain


class Names:
    """Converts names of topics and groups: with the namespace prefix, as on the wire, and without it, as users see them.

    Args:
        namespace: The namespace. If it is None or empty, names are not changed.
    """

    __slots__ = ("namespace",)

    def __init__(self, namespace: str | None) -> None:
        self.namespace = namespace or ""

    def wire(self, name: str) -> str:
        """Return the name of a topic or group with the prefix, as it is on the wire."""
        name = plain(name)
        return with_namespace(self.namespace, name) if self.namespace else name

    def shown(self, name: str) -> str:
        """Return the name of a topic or group without the prefix, as users see it."""
        return without_namespace(name, self.namespace) if self.namespace else name

    def display_name(self, name: str) -> str:
        """Return the name for an error message: the name without the prefix, and the namespace."""
        bare = self.shown(name)
        return name if bare == name else f"{bare} (of namespace {self.namespace})"

    def owns(self, topic: str) -> bool:
        """Return whether the topic belongs to this namespace or to the system. Return True if there is no namespace."""
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
