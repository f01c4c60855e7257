"""Bodies about queues that the broker allocates to a consumer, and about the mode, pull or pop."""

from __future__ import annotations

import msgspec

from ..heartbeat import MessageModel
from ..java_types import Int
from ..message import MessageQueue

__all__ = [
    "MessageQueueAssignment",
    "MessageRequestModeSerializeWrapper",
    "QueryAssignmentRequestBody",
    "QueryAssignmentResponseBody",
    "SetMessageRequestModeRequestBody",
]


class QueryAssignmentRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request QUERY_ASSIGNMENT. ``strategy_name``: e.g. AVG."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str = MessageModel.CLUSTERING


class MessageQueueAssignment(msgspec.Struct, frozen=True, rename="camel"):
    """A queue that a broker has assigned. ``mode``: PULL or POP."""

    message_queue: MessageQueue
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    message_queue_assignments: tuple[MessageQueueAssignment, ...] = ()


class SetMessageRequestModeRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request SET_MESSAGE_REQUEST_MODE.

    ``pop_share_queue_num``: how many neighbours' queues a consumer pops from too; -1 for all.
    """

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int = 0


class MessageRequestModeSerializeWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_ALL_MESSAGE_REQUEST_MODE: the modes that were set, by topic and group."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
