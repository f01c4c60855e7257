"""Builds those send requests as commands that cannot be made from a header template.

These are requests with users' request hooks, with ``namespace_v2`` or in the long header form (V1), messages to retry topics, and
reply messages.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import ONEWAY_FLAG, RESPONSE_FLAG, RETRY_TOPIC_PREFIX, PropertyName, RequestCode
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.headers import SendMessageRequestHeaderV2, send_header_v1, to_ext
from rmq_protocol.properties import decode_properties
from rmq_protocol.send_codec import SendReply

from ..routing import HeaderSettings, Target
from .outgoing import Outgoing

_LONG_FORM: Final = {
    int(RequestCode.SEND_MESSAGE_V2): RequestCode.SEND_MESSAGE,
    int(RequestCode.SEND_REPLY_MESSAGE_V2): RequestCode.SEND_REPLY_MESSAGE,
}
_LARGEST: Final = 0x7FFFFFFF


def send_command(
    settings: HeaderSettings, target: Target, outgoing: Outgoing, properties: str, born_ms: int, *, oneway: bool = False
) -> RemotingCommand:
    """Return the send request for ``target``.

    Args:
        properties: The encoded properties.
        born_ms: The born time in milliseconds since the epoch.

    Raises:
        InvalidMessageError: If a message to a retry topic has counters that are not numbers from 0 to 2^31 - 1 with at most 10
            digits.
    """
    batch = outgoing.batch_ids is not None
    code = outgoing.code or (RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2)
    topic = settings.wire_topic(target.queue.topic)
    reconsumed, most = _counters(properties) if topic.startswith(RETRY_TOPIC_PREFIX) else (0, None)
    header = SendMessageRequestHeaderV2(
        a=settings.group,
        b=topic,
        c=settings.create_topic_key,
        d=settings.default_topic_queues,
        e=target.queue_id,
        f=outgoing.sys_flag,
        g=born_ms,
        h=outgoing.flag,
        i=properties,
        j=reconsumed,
        k=settings.unit_mode,
        l=most,
        m=batch,
        n=target.broker,
    )
    long_form = None if settings.smart else _LONG_FORM.get(code)  # batches have no long form
    ext = to_ext(header) if long_form is None else to_ext(send_header_v1(header))
    return RemotingCommand(
        code=int(code if long_form is None else long_form),
        flag=ONEWAY_FLAG if oneway else 0,
        ext_fields={**ext},
        body=outgoing.body,
    )


def reply_command(reply: SendReply) -> RemotingCommand:
    """Return the response to a send as a command for hooks, with the extFields that the client reads."""
    ext = {}
    for name, value in msgspec.structs.asdict(reply.extFields).items() if reply.extFields is not None else ():
        if value is not None:
            ext[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return RemotingCommand(
        code=reply.code, opaque=reply.opaque, flag=reply.flag | RESPONSE_FLAG, remark=reply.remark, ext_fields={**ext}
    )


def _counters(properties: str) -> tuple[int, int | None]:
    """Return the reconsume count of a message to a retry topic, and the limit of that count. The limit is None if it is not set."""
    found = decode_properties(properties)
    reconsumed = found.get(PropertyName.RECONSUME_TIME)
    most = found.get(PropertyName.MAX_RECONSUME_TIMES)
    return _number("RECONSUME_TIME", reconsumed) or 0, _number("MAX_RECONSUME_TIMES", most)


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > _LARGEST:
        raise InvalidMessageError(
            f"property {name} must be a number from 0 to {_LARGEST} with at most 10 digits, not {text[:40]!r}"
        )
    return int(text)
