"""Settings of a topic on one broker (``TopicConfig``)."""

from __future__ import annotations

import msgspec

from .constants import Perm
from .java_types import Int, Long
from .json_body import decode_body, encode_body


class TopicConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The settings of a topic.

    Attributes:
        topic_filter_type: SINGLE_TAG or MULTI_TAG.
        perm: Bits of ``Perm``.
        attributes: Name -> value. In a request, which changes attributes, each name has a leading ``+`` or ``-``
            (``AttributeUtil``).
    """

    topic_name: str
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = int(Perm.READ | Perm.WRITE)
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: dict[str, str] = {}


class LogicQueueMappingItem(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a static topic's queue.

    Offset ``start_offset`` of the physical queue ``queue_id`` on broker ``bname`` corresponds to offset ``logic_offset`` of the
    whole queue.

    Attributes:
        logic_offset: Offset of the whole queue at which the part begins. -1 until it is decided.
        end_offset: The physical offset after the part. -1 while the part grows.
        time_of_start: Time of the part's start, epoch ms. -1 if it is not known.
        time_of_end: Time of the part's end, epoch ms. -1 if it is not known.
    """

    gen: Int = 0
    queue_id: Int = 0
    bname: str = ""
    logic_offset: Long = 0
    start_offset: Long = 0
    end_offset: Long = -1
    time_of_start: Long = -1
    time_of_end: Long = -1

    @property
    def logic_end(self) -> int:
        """The offset of the whole queue after the part's last message. ``logic_offset`` while the part grows."""
        return self.logic_offset + max(self.end_offset - self.start_offset, 0)


class TopicQueueMappingDetail(msgspec.Struct, frozen=True, rename="camel"):
    """The queues of a static topic on one broker.

    Attributes:
        hosted_queues: Global queue id -> parts of the queue, oldest first.
    """

    topic: str | None = None
    scope: str | None = None
    total_queues: Int = 0
    bname: str = ""
    epoch: Long = 0
    hosted_queues: dict[Int, tuple[LogicQueueMappingItem, ...]] = {}


class TopicConfigAndQueueMapping(TopicConfig, frozen=True, rename="camel"):
    """Response of GET_TOPIC_CONFIG to a request with ``lo=True``.

    Attributes:
        mapping_detail: The queues of a static topic. None for other topics.
    """

    mapping_detail: TopicQueueMappingDetail | None = None


def decode_topic_config(body: bytes) -> TopicConfig:
    """Return the settings in a body.

    Raises:
        RemoteProtocolError: If the body does not have the settings of a topic or exceeds MAX_JSON_BODY_SIZE (4 MiB).
    """
    return decode_body(TopicConfig, body)


def encode_topic_config(config: TopicConfig) -> bytes:
    return encode_body(config)
