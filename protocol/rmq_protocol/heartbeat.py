"""Heartbeats, with which a client registers its producers and consumers at each broker (``HeartbeatData``, body of HEART_BEAT)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from .errors import LocalProtocolError
from .java_types import Int, Long, string_hash
from .json_body import decode_body, encode_body

_T = TypeVar("_T")

IS_SUPPORT_HEART_BEAT_V2: Final = "IS_SUPPORT_HEART_BEAT_V2"
"""extField of the response to a heartbeat. It is "true" if the broker compares fingerprints. The client may then leave the
subscriptions out of further heartbeats until they change."""

IS_SUB_CHANGE: Final = "IS_SUB_CHANGE"
"""extField of the response to a heartbeat. It is "true" if the broker needs the subscriptions because the previous heartbeat of a
group had another fingerprint, or if the heartbeat has no fingerprint (``ClientManageProcessor``)."""


class ConsumeType(StrEnum):
    """How a group consumes: actively (the application pulls), passively (push, which the client implements with pulls), or by
    pop.
    """

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"
    LITE_SELECTIVE = "LITE_SELECTIVE"


class ConsumeFromWhere(StrEnum):
    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ProducerData(msgspec.Struct, frozen=True, rename="camel"):
    group_name: str


class SubscriptionData(msgspec.Struct, frozen=True, rename="camel"):
    """A subscription of a consumer.

    Attributes:
        sub_string: ``*``, ``A || B`` or a condition in SQL92.
        code_set: ``string_hash`` of each tag.
        sub_version: Version of the subscription, epoch ms.
        expression_type: Kind of the filter, TAG or SQL92.
    """

    topic: str
    sub_string: str = "*"
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Int, ...] = ()
    sub_version: Long = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ConsumerData(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a heartbeat about one consumer group.

    Attributes:
        consume_type: Name of a member of ConsumeType. This field and the next two are strings because a peer may send a name that
            was added later.
        message_model: Name of a member of MessageModel.
        consume_from_where: Name of a member of ConsumeFromWhere.
    """

    group_name: str
    consume_type: str = ConsumeType.CONSUME_ACTIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


class HeartbeatData(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a heartbeat.

    Attributes:
        heartbeat_fingerprint: The number that the broker compares with that of the previous heartbeat. 0 if there is none.
        without_sub: True if subscriptions are left out.
    """

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: Int = 0
    without_sub: bool = False


def encode_heartbeat(data: HeartbeatData) -> bytes:
    return encode_body(data)


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """Return the heartbeat in a body.

    Raises:
        RemoteProtocolError: If the body is not a heartbeat or exceeds MAX_JSON_BODY_SIZE (4 MiB).
    """
    return decode_body(HeartbeatData, body)


def heartbeat_fingerprint(data: HeartbeatData) -> int:
    """Return a hash of the groups and their subscriptions: a signed 32-bit number, never 0.

    Different heartbeats may have the same hash.

    The hash does not depend on the client id, the versions of subscriptions, ``without_sub`` and the order inside sets. It is
    computed as in Java (``computeHeartbeatFingerprint``), except that all sets are sorted first. The difference does not matter,
    because brokers only compare the hash with that of the previous heartbeat.

    Raises:
        LocalProtocolError: If a string has no UTF-8 form.
    """
    consumers = [
        msgspec.structs.replace(
            consumer,
            subscription_data_set=_sorted(
                msgspec.structs.replace(item, sub_version=0, tags_set=_sorted(item.tags_set), code_set=_sorted(item.code_set))
                for item in consumer.subscription_data_set
            ),
        )
        for consumer in data.consumer_data_set
    ]
    plain = HeartbeatData("", _sorted(data.producer_data_set), _sorted(consumers))
    return string_hash(_text(plain).decode()) or 1


def _sorted(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(sorted(items, key=_text))


def _text(value: object) -> bytes:
    try:
        return msgspec.json.encode(value, order="sorted")
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"heartbeat cannot be encoded: {error}; give strings without lone surrogates") from None
