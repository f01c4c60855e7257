"""The hot path of pulls: builds request frames from templates, and decodes responses with messages into one typed Struct.

A reader pulls from the same queue again and again, and only opaque, offset and number of messages change. A stock broker returns
at most 32 messages per pull. On one core, a request takes 0.6 us by template, and 9 us by typed header, dict and msgspec. A
response takes 0.7 us by typed Struct, and 6 us by dict and typed header. ``headers.PullMessageRequestHeader`` and
``headers.PullMessageResponseHeader`` are the general forms. A test compares them with the results of this module.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec

from .command import plain_text
from .constants import RESPONSE_FLAG, VERSION, LanguageCode, PullSysFlag, RequestCode, ResponseCode
from .headers import PullMessageRequestHeader, to_ext
from .subscription import TAG

__all__ = ["PullReply", "PullReplyFields", "PullTemplate", "decode_pull_reply", "pull_header"]

MOST_FIXED: Final = 16 * 1024
"""Maximum size of a template in bytes. Callers use the general path for longer headers."""

_WORDS = struct.Struct(">II").pack
_encode_text = msgspec.json.Encoder(enc_hook=plain_text).encode
_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_PLAIN_FLAGS: Final = int(PullSysFlag.SUBSCRIPTION)
_HELD_FLAGS: Final = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)


class PullReplyFields(msgspec.Struct, gc=False):
    """The extFields of a pull's response (``PullMessageResponseHeader``) that the hot path uses."""

    suggestWhichBrokerId: _Long  # noqa: N815 - the protocol's names
    nextBeginOffset: _Long  # noqa: N815
    minOffset: _Long  # noqa: N815
    maxOffset: _Long  # noqa: N815
    offsetDelta: _Long | None = None  # noqa: N815


class PullReply(msgspec.Struct, gc=False, rename={"body": ""}):
    """The response to a pull that found messages.

    Attributes:
        body: The stored records.
    """

    code: int
    extFields: PullReplyFields  # noqa: N815
    opaque: int = 0
    flag: int = 0
    body: bytes = b""


_decode = msgspec.json.Decoder(PullReply, strict=False).decode


def decode_pull_reply(header: bytes, body: bytes) -> PullReply | None:
    """Return the response to a pull that found messages, from its JSON header.

    Return None for any other header. The caller then uses the general decoder, which accepts or refuses the header.
    """
    try:
        reply = _decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if reply.code != ResponseCode.SUCCESS or not reply.flag & RESPONSE_FLAG:
        return None
    reply.body = body
    return reply


def pull_header(
    group: str,
    topic: str,
    queue_id: int,
    broker_name: str,
    expression: str,
    suspend_ms: int,
    offset: int,
    max_messages: int,
    expression_type: str = TAG,
) -> PullMessageRequestHeader:
    """Return the header of a pull. The header contains the subscription.

    Args:
        expression: "*", tags (``A || B``), or an SQL92 expression if ``expression_type`` is SQL92.
        suspend_ms: Ms for which the broker may hold the request. 0 makes it respond immediately.
    """
    return PullMessageRequestHeader(
        consumerGroup=group,
        topic=topic,
        queueId=queue_id,
        queueOffset=offset,
        maxMsgNums=max_messages,
        sysFlag=_HELD_FLAGS if suspend_ms else _PLAIN_FLAGS,
        commitOffset=0,
        suspendTimeoutMillis=suspend_ms,
        subscription=expression,
        subVersion=0,
        expressionType=expression_type,
        bname=broker_name,
    )


class PullTemplate:
    """Builds the JSON frames of pulls from one queue. The arguments are those of ``pull_header``.

    Attributes:
        usable: False if the template is so long that the general path must be used.
        held: Whether the broker may hold the requests.

    Raises:
        LocalProtocolError: If a number is out of range.
        TypeError: If an argument that must be a string is not a string.
        UnicodeEncodeError: If a string has no UTF-8 form.
    """

    __slots__ = ("_header", "held", "usable")

    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        broker_name: str,
        expression: str,
        suspend_ms: int,
        expression_type: str = TAG,
    ) -> None:
        fields = to_ext(pull_header(group, topic, queue_id, broker_name, expression, suspend_ms, 0, 0, expression_type))
        del fields["queueOffset"], fields["maxMsgNums"]
        start = _encode_text(
            {
                "code": int(RequestCode.PULL_MESSAGE),
                "flag": 0,
                "language": LanguageCode.PYTHON.name,
                "version": VERSION,
                "serializeTypeCurrentRPC": "JSON",
                "extFields": fields,
            }
        )[:-2].replace(b"%", b"%%")
        self._header = start + b',"queueOffset":"%d","maxMsgNums":"%d"},"opaque":%d}'
        self.held = suspend_ms > 0
        self.usable = len(self._header) <= MOST_FIXED

    def frame(self, opaque: int, offset: int, max_messages: int) -> bytes:
        header = self._header % (offset, max_messages, opaque)
        return _WORDS(len(header) + 4, len(header)) + header
