"""Headers about a broker: its settings, counters and store."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Long
from .base import Header

__all__ = [
    "CheckRocksdbCqWriteProgressRequestHeader",
    "ExportRocksDBConfigToJsonRequestHeader",
    "GetBrokerConfigResponseHeader",
    "GetBrokerMemberGroupRequestHeader",
    "ViewBrokerStatsDataRequestHeader",
]


class GetBrokerConfigResponseHeader(Header, kw_only=True):
    """Header of the response to GET_BROKER_CONFIG.

    ``version``: DataVersion of the settings, as JSON. The body has the settings as lines ``key=value``.
    """

    version: str


class GetBrokerMemberGroupRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_BROKER_MEMBER_GROUP

    clusterName: str
    brokerName: str


class ViewBrokerStatsDataRequestHeader(Header, kw_only=True):
    """Header of VIEW_BROKER_STATS_DATA. ``statsName``: name of the counter, e.g. TOPIC_PUT_NUMS. ``statsKey``: what it counts for,
    e.g. a topic."""

    request_code: ClassVar[int | None] = RequestCode.VIEW_BROKER_STATS_DATA

    statsName: str
    statsKey: str


class CheckRocksdbCqWriteProgressRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS

    topic: str
    checkStoreTime: Long = 0


class ExportRocksDBConfigToJsonRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON

    configType: str
