"""Bodies with the settings of many topics on one broker; the settings of one topic are a ``TopicConfig``."""

from __future__ import annotations

import msgspec

from ..topics import TopicConfig
from .tables import DataVersion

__all__ = ["CreateTopicListRequestBody", "TopicConfigSerializeWrapper"]


class TopicConfigSerializeWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_ALL_TOPIC_CONFIG: topic -> settings."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion | None = None


class CreateTopicListRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: tuple[TopicConfig, ...] = ()
