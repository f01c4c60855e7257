"""The bodies of messages that a client sends again."""

from __future__ import annotations

from functools import partial

from rmq_protocol.compression import compress, compression_type
from rmq_protocol.constants import COMPRESSION_TYPE_MASK, SysFlag
from rmq_protocol.message import MessageExt

from .._text import printable
from ..errors import RequestTimeoutError
from .instance import ClientInstance

__all__ = ["body_as_stored"]


async def body_as_stored(instance: ClientInstance, received: MessageExt, deadline: float) -> tuple[bytes, int]:
    """Return the body of a copy and its flags: a body that was stored compressed is compressed again, if that makes it smaller.

    Args:
        deadline: monotonic.

    Raises:
        RequestTimeoutError: If that takes longer.
    """
    # A broker may refuse the larger body. Old senders use zlib without a flag for the type; only the size of the record then shows
    # that the body was compressed.
    body, kind = received.body, compression_type(received.sys_flag)
    if not received.sys_flag & COMPRESSION_TYPE_MASK and not 0 < received.store_size < len(body):
        return body, 0
    try:
        packed = await instance.threads.run(partial(compress, body, kind), deadline)
    except TimeoutError:
        text = (
            f"message {printable(received.msg_id)} was not sent again: its {len(body)} bytes were not compressed in time; call "
            "again, or raise request_timeout"
        )
        raise RequestTimeoutError(text, maybe_stored=False) from None
    return (packed, int(SysFlag.COMPRESSED | kind.value)) if len(packed) < len(body) else (body, 0)
