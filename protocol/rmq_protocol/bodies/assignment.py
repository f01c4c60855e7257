"""Bodies about queues that the broker assigns to a consumer, and about the mode in which they are read: pull or pop."""

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
    """Body of the request QUERY_ASSIGNMENT. ``strategy_name``: AVG, AVG_BY_CIRCLE or another that the broker knows."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str = MessageModel.CLUSTERING


class MessageQueueAssignment(msgspec.Struct, frozen=True, rename="camel"):
    """A queue that a broker has assigned. ``mode``: PULL or POP. In mode POP its ``queue_id`` is -1 if the member pops from all
    queues of the broker."""

    message_queue: MessageQueue
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    message_queue_assignments: tuple[MessageQueueAssignment, ...] = ()


class SetMessageRequestModeRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request SET_MESSAGE_REQUEST_MODE. ``mode``: PULL or POP.

    ``pop_share_queue_num``: number of following members from whose queues a member of the group pops, in addition to its own
    queues. With 0 and below, and with the number of members - 1 and above, it pops from all queues; if there are more members
    than queues, other numbers have no effect (``QueryAssignmentProcessor.allocate4Pop``).
    """

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int = 0


class MessageRequestModeSerializeWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_ALL_MESSAGE_REQUEST_MODE: topic -> group -> the mode that was set."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
