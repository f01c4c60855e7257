"""Bodies about the clients of a group that are connected to a broker."""

from __future__ import annotations

import msgspec

from ..heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from ..java_types import Int, Long

__all__ = [
    "Connection",
    "ConsumerConnection",
    "GetConsumerListByGroupResponseBody",
    "ProducerConnection",
    "ProducerInfo",
    "ProducerTableInfo",
]


class Connection(msgspec.Struct, frozen=True, rename="camel"):
    """A client's connection to a broker.

    ``client_addr``: ``ip:port`` as the broker sees it. ``language``: name of a LanguageCode. ``version``: ordinal of the
    client's ``MQVersion``.
    """

    client_id: str = ""
    client_addr: str = ""
    language: str | None = None
    version: Int = 0


class ProducerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_PRODUCER_CONNECTION_LIST."""

    connection_set: tuple[Connection, ...] = ()


class ConsumerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_CONSUMER_CONNECTION_LIST. ``subscription_table``: topic -> subscription. ``consume_type``,
    ``message_model`` and ``consume_from_where``: names of members of the enums in ``heartbeat``."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = ConsumeType.CONSUME_PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


class GetConsumerListByGroupResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_CONSUMER_LIST_BY_GROUP: the client ids of the group's members."""

    consumer_id_list: tuple[str, ...] = ()


class ProducerInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A producer that is connected. ``last_update_timestamp``: time of its last heartbeat, epoch ms. ``version``: ordinal of
    its ``MQVersion``."""

    client_id: str = ""
    remote_ip: str | None = msgspec.field(name="remoteIP", default=None)
    language: str | None = None
    version: Int = 0
    last_update_timestamp: Long = 0


class ProducerTableInfo(msgspec.Struct, frozen=True):
    """Response of GET_ALL_PRODUCER_INFO: group -> producers."""

    data: dict[str, tuple[ProducerInfo, ...]] = {}
