"""Settings of a topic on one broker (``TopicConfig``)."""

from __future__ import annotations

import msgspec

from .constants import Perm
from .java_types import Int
from .json_body import decode_body, encode_body

__all__ = ["TopicConfig", "decode_topic_config", "encode_topic_config"]


class TopicConfig(msgspec.Struct, frozen=True, rename="camel"):
    """``topic_filter_type``: SINGLE_TAG or MULTI_TAG. ``attributes``: with a leading ``+``, as brokers keep them."""

    topic_name: str
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = int(Perm.READ | Perm.WRITE)
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: dict[str, str] = {}


def decode_topic_config(body: bytes) -> TopicConfig:
    """Raises RemoteProtocolError for a body that is not a topic's settings."""
    return decode_body(TopicConfig, body)


def encode_topic_config(config: TopicConfig) -> bytes:
    return encode_body(config)
