"""Messages without a key in subscriptions with ``order="key"``: the first one of a subscription is logged, and ``health()``
reports the subscription for a while after the newest one."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from rmq_protocol.message import MessageExt

from .. import machine
from .subscription import Subscription

__all__ = ["Keyless", "KeylessMessages"]

logger = logging.getLogger(__name__)

NAMED_FOR: Final = 600.0
"""Seconds for which ``health()`` names a subscription after a message without a key."""
HOW: Final = (
    "send with Message(sharding_key=...), because key= of a send chooses the queue and writes no key, or give the subscription a "
    "function key= that returns the key of a message, or None for one that needs no order"
)


class Keyless(NamedTuple):
    """The newest message without a key of a subscription. ``at``: monotonic time at which it was pulled."""

    message: MessageExt
    at: float


class KeylessMessages:
    """The newest message without a key of each subscription that has had one."""

    def __init__(self) -> None:
        self._newest: dict[Subscription, Keyless] = {}

    def add(self, subscription: Subscription, message: MessageExt) -> None:
        if subscription not in self._newest:
            logger.warning(
                'message %s of %s at offset %d has no key, and its subscription has order="key": the messages of a queue without '
                "a key are handled one at a time; %s",
                message.msg_id,
                message.queue,
                message.queue_offset,
                HOW,
            )
        self._newest[subscription] = Keyless(message, machine.monotonic())

    def recent(self) -> dict[Subscription, Keyless]:
        """Returns the subscriptions with such a message in the last NAMED_FOR seconds; may be called from any thread."""
        since = machine.monotonic() - NAMED_FOR
        return {subscription: each for subscription, each in [*self._newest.items()] if each.at > since}
