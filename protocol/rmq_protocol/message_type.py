"""Types of messages, derived from properties (``TopicMessageType``). A topic's ``message.type`` may allow one type only."""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Final

from .constants import PropertyName


class TopicMessageType(StrEnum):
    UNSPECIFIED = "UNSPECIFIED"
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"
    LITE = "LITE"
    MIXED = "MIXED"


_DELAYS: Final = (
    PropertyName.DELAY,
    PropertyName.TIMER_DELIVER_MS,
    PropertyName.TIMER_DELAY_SEC,
    PropertyName.TIMER_DELAY_MS,
)


def topic_message_type(properties: Mapping[str, str]) -> TopicMessageType:
    """Return the type that a broker derives from a message's properties (``TopicMessageType.parseFromMessageProperty``)."""
    if properties.get(PropertyName.TRAN_MSG, "").lower() == "true":
        return TopicMessageType.TRANSACTION
    if _any_of(_DELAYS, properties):
        return TopicMessageType.DELAY
    if PropertyName.SHARDING_KEY in properties:
        return TopicMessageType.FIFO
    if PropertyName.PRIORITY in properties:
        return TopicMessageType.PRIORITY
    return TopicMessageType.LITE if PropertyName.LITE_TOPIC in properties else TopicMessageType.NORMAL


def _any_of(names: tuple[str, ...], properties: Container[str]) -> bool:
    return any(name in properties for name in names)
