"""Headers about clients: heartbeats, and the producers and consumers of a group that are connected to a broker."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from .base import Header, RpcRequestHeader

__all__ = [
    "GetAllProducerInfoRequestHeader",
    "GetConsumerConnectionListRequestHeader",
    "GetProducerConnectionListRequestHeader",
    "HeartbeatRequestHeader",
    "UnregisterClientRequestHeader",
    "UnregisterClientResponseHeader",
]


class HeartbeatRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.HEART_BEAT


class UnregisterClientRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.UNREGISTER_CLIENT

    clientID: str
    producerGroup: str | None = None
    consumerGroup: str | None = None


class UnregisterClientResponseHeader(Header, kw_only=True):
    pass


class GetConsumerConnectionListRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumerGroup: str


class GetProducerConnectionListRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producerGroup: str


class GetAllProducerInfoRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_ALL_PRODUCER_INFO
