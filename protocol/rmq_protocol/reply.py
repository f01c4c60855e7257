"""Replies between clients: the properties of the reply to a request message (``MessageUtil``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from .constants import PropertyName
from .errors import LocalProtocolError

REPLY_TOPIC_SUFFIX: Final = "REPLY_TOPIC"
REPLY_MESSAGE_TYPE: Final = "reply"
"""Value of a reply's property MSG_TYPE. A reply is sent to the broker with SEND_REPLY_MESSAGE and forwarded to the requester."""

CREATE_REPLY_MESSAGE: Final = 10007

_COPIED: Final = (PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT, PropertyName.TTL)


class Reply(NamedTuple):
    topic: str
    properties: dict[str, str]


def create_reply(request: Mapping[str, str]) -> Reply:
    """Return the topic of the reply to a message with these properties, and the properties that the reply must have.

    Raises:
        LocalProtocolError: If the message has no property CLUSTER, which the broker adds to requests (code 10007).
    """
    cluster = request.get(PropertyName.CLUSTER)
    if cluster is None:
        raise LocalProtocolError(
            "the message has no property CLUSTER and cannot be replied to; reply only to messages of request()",
            code=CREATE_REPLY_MESSAGE,
        )
    copied = {str(name): request[name] for name in _COPIED if name in request}
    return Reply(f"{cluster}_{REPLY_TOPIC_SUFFIX}", {str(PropertyName.MSG_TYPE): REPLY_MESSAGE_TYPE, **copied})
