"""Lite topics: light channels under a parent topic of the type LITE (RocketMQ 5.5 and later).

A lite topic is a queue of its own in the store of a broker, a light message queue (LMQ). Senders, subscribers and brokers choose
the broker of a lite topic by the same consistent hash of its name, so this module has that hash and the names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from .constants import LMQ_PREFIX
from .errors import InvalidMessageError, shown
from .java_types import Int, Long

SEPARATOR: Final = "$"
LITE_PREFIX: Final = LMQ_PREFIX + SEPARATOR
MAX_LITE_TOPIC_LENGTH: Final = 64
"""Maximum number of characters of a lite topic (UTF-16 units, as in Java)."""
MAX_LMQ_NAME_SIZE: Final = 255
"""Maximum bytes of the name of a light message queue: its files are in a directory of this name."""
_FORBIDDEN: Final = frozenset("$,/\\")
"""Characters that no lite topic may have: ``$`` separates the parts of a queue's name, ``,`` separates the queues of one message,
and slashes separate directories."""


def check_lite_topic(topic: str, lite_topic: object) -> str:
    """Return the name of a lite topic as a plain str.

    Brokers of 5.5.0 accept other names, and then cannot dispatch the message.

    Args:
        topic: The parent topic on the wire.

    Raises:
        InvalidMessageError: If the name is not a str, is blank, has more than 64 characters, has a character that is not printable
            or one of ``$``, ``,``, ``/`` and the backslash, or is too long together with the topic.
    """
    if not isinstance(lite_topic, str):
        raise InvalidMessageError(f"lite_topic must be a str, not {type(lite_topic).__name__}")
    if not lite_topic.strip():
        raise InvalidMessageError(f"lite_topic {shown(lite_topic)} is blank; give a name")
    if bad := [character for character in lite_topic if character in _FORBIDDEN or not character.isprintable()]:
        raise InvalidMessageError(
            f"lite_topic {shown(lite_topic)} holds {shown(bad[0])}, which no lite topic may have; remove it"
        )
    if (length := len(lite_topic) + sum(character > "\uffff" for character in lite_topic)) > MAX_LITE_TOPIC_LENGTH:
        raise InvalidMessageError(
            f"lite_topic {shown(lite_topic)} has {length} characters, the limit is {MAX_LITE_TOPIC_LENGTH}; shorten it"
        )
    if (size := len(lmq_name(topic, lite_topic).encode())) > MAX_LMQ_NAME_SIZE:
        raise InvalidMessageError(
            f"lite_topic {shown(lite_topic)} and topic {topic} make a queue name of {size} bytes, the limit is "
            f"{MAX_LMQ_NAME_SIZE}; shorten either name"
        )
    return str.__str__(lite_topic)


def lmq_name(topic: str, lite_topic: str) -> str:
    """Return the name of the queue of a lite topic (``LiteUtil.toLmqName``)."""
    return f"{LITE_PREFIX}{topic}{SEPARATOR}{lite_topic}"


def split_lmq_name(name: str) -> tuple[str, str] | None:
    """Return the topic and the lite topic of a queue's name. Return None for other names."""
    if not name.startswith(LITE_PREFIX):
        return None
    topic, separator, lite_topic = name[len(LITE_PREFIX) :].partition(SEPARATOR)
    return (topic, lite_topic) if topic and separator and lite_topic and SEPARATOR not in lite_topic else None


def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of a value, from 0 to ``buckets`` - 1 (Guava's ``Hashing.consistentHash``).

    If ``buckets`` grows by one, only one value in ``buckets`` moves, to the new bucket.

    Args:
        value: A signed number, such as the hash of a name.
        buckets: Number of buckets, at least 1.
    """
    state, candidate = value & _MASK, 0
    while True:
        state = (2862933555777941757 * state + 1) & _MASK
        step = (state >> 33) + 1 if state >> 33 != 0x7FFFFFFF else -0x80000000
        following = (candidate + 1) / (step / 0x80000000)
        if not 0 <= following < buckets:
            return candidate
        candidate = int(following)


_MASK: Final = 0xFFFFFFFFFFFFFFFF


class LiteAction(StrEnum):
    """What a request changes in a client's set of lite topics at a broker (``LiteSubscriptionAction``)."""

    ADD = "PARTIAL_ADD"
    REMOVE = "PARTIAL_REMOVE"
    SET = "COMPLETE_ADD"
    CLEAR = "COMPLETE_REMOVE"


class OffsetType(StrEnum):
    """The kinds of start positions (``OffsetOption.Type``). Brokers of 5.5.0 ignore TIMESTAMP."""

    POLICY = "POLICY"
    OFFSET = "OFFSET"
    TAIL_N = "TAIL_N"
    TIMESTAMP = "TIMESTAMP"


class OffsetOption(msgspec.Struct, frozen=True):
    """The offset at which a group begins in a lite topic.

    Attributes:
        value: For POLICY 0 for the group's offset, 1 for the first message, 2 for the end. For OFFSET the offset. For TAIL_N the
            number of messages before the group's offset, which has no effect on a group without an offset.
    """

    type: OffsetType
    value: Long = 0


class LiteSubscription(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One change of a client's lite topics (``LiteSubscriptionDTO``)."""

    action: LiteAction
    client_id: str
    group: str
    topic: str
    lite_topic_set: tuple[str, ...] = ()
    offset_option: OffsetOption | None = None
    version: Long = 0


class LiteSubscriptions(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request LITE_SUBSCRIPTION_CTL (``LiteSubscriptionCtlRequestBody``)."""

    subscription_set: tuple[LiteSubscription, ...] = ()


class LiteOffsets(msgspec.Struct, frozen=True, rename="camel"):
    """The offsets of a lite topic (``TopicOffset``)."""

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_timestamp: Long = 0


class LiteClient(msgspec.Struct, frozen=True, rename="camel"):
    """A subscriber (``ClientGroup``)."""

    client_id: str | None = None
    group: str | None = None


class BrokerLiteInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_BROKER_LITE_INFO (``GetBrokerLiteInfoResponseBody``).

    Attributes:
        topic_meta: Topic -> expiration of its lite topics in minutes.
        group_meta: Topic -> groups bound to it.
    """

    store_type: str | None = None
    max_lmq_num: Int = 0
    current_lmq_num: Int = 0
    lite_subscription_count: Int = 0
    order_info_count: Int = 0
    cq_table_size: Int = 0
    offset_table_size: Int = 0
    event_map_size: Int = 0
    topic_meta: dict[str, Int] | None = None
    group_meta: dict[str, tuple[str, ...]] | None = None


class ParentTopicInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_PARENT_TOPIC_INFO (``GetParentTopicInfoResponseBody``).

    Attributes:
        ttl: Expiration of its lite topics in minutes; -1 for none.
        lmq_num: Number of the light message queues of the broker, not only of this topic.
    """

    topic: str | None = None
    ttl: Int = 0
    groups: tuple[str, ...] | None = None
    lmq_num: Int = 0
    lite_topic_count: Int = 0


class LiteTopicDetails(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_LITE_TOPIC_INFO (``GetLiteTopicInfoResponseBody``).

    Attributes:
        sharding_to_broker: Whether the consistent hash chooses this broker for the lite topic.
    """

    parent_topic: str | None = None
    lite_topic: str | None = None
    subscriber: tuple[LiteClient, ...] | None = None
    topic_offset: LiteOffsets | None = None
    sharding_to_broker: bool = False


class LiteClientDetails(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_LITE_CLIENT_INFO (``GetLiteClientInfoResponseBody``).

    Attributes:
        lite_topic_count: -1 for a client without subscriptions.
        lite_topic_set: Names of queues (``lmq_name``), at most as many as requested.
        last_access_time: Time of the client's last pop, epoch ms; -1 for none.
    """

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    last_access_time: Long = 0
    last_consume_time: Long = 0
    lite_topic_count: Int = 0
    lite_topic_set: tuple[str, ...] | None = None


class LiteLag(msgspec.Struct, frozen=True, rename="camel"):
    """The lag of a group in one lite topic (``LiteLagInfo``)."""

    lite_topic: str | None = None
    lag_count: Long = 0
    earliest_unconsumed_timestamp: Long = -1


class LiteOffsetWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """The offsets of a group in one lite topic (``OffsetWrapper``)."""

    broker_offset: Long = 0
    consumer_offset: Long = 0
    pull_offset: Long = 0
    last_timestamp: Long = 0


class LiteGroupDetails(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_LITE_GROUP_INFO (``GetLiteGroupInfoResponseBody``).

    Attributes:
        earliest_unconsumed_timestamp: Store time of the oldest message that is left, epoch ms; -1 if it is unknown.
    """

    group: str | None = None
    parent_topic: str | None = None
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: Long = -1
    total_lag_count: Long = 0
    lite_topic_offset_wrapper: LiteOffsetWrapper | None = None
    lag_count_top_k: tuple[LiteLag, ...] | None = None
    lag_timestamp_top_k: tuple[LiteLag, ...] | None = None
