"""Recall handles (``RecallMessageHandle``). The send of a delayed message returns a handle, and the recall of the message needs
it.
"""

from __future__ import annotations

import base64
import re
from typing import Final, NamedTuple

from .errors import LocalProtocolError, RemoteProtocolError, shown

_VERSION: Final = "v1"
_base64 = re.compile(r"[A-Za-z0-9_-]+={0,2}").fullmatch


class RecallHandle(NamedTuple):
    """The parts of a recall handle.

    Attributes:
        timestamp: Time at which the message is due, epoch ms as a string.
        message_id: Unique id of the message.
    """

    topic: str
    broker_name: str
    timestamp: str
    message_id: str


def encode_recall_handle(handle: RecallHandle) -> str:
    """Return a recall handle as a string.

    Raises:
        LocalProtocolError: If a part is empty, has a space in it or has no UTF-8 form.
    """
    for name, value in zip(handle._fields, handle, strict=True):
        if not value or " " in value:
            raise LocalProtocolError(f"recall handle: {name} {shown(value)} must not be empty and must have no space")
    try:
        return base64.urlsafe_b64encode(" ".join((_VERSION, *handle)).encode()).decode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(
            f"recall handle: {handle!r} has no UTF-8 form ({error.reason}); remove the lone surrogate"
        ) from None


def decode_recall_handle(text: str | None) -> RecallHandle:
    """Return the parts of a recall handle.

    The padding of the base64 may be missing, and further parts are ignored.

    Raises:
        RemoteProtocolError: If ``text`` is not a recall handle.
    """
    if isinstance(text, str) and _base64(text):
        digits = text.rstrip("=")
        try:
            version, *parts = base64.urlsafe_b64decode(digits + "=" * (-len(digits) % 4)).decode().split(" ")
        except ValueError:
            pass
        else:
            if version == _VERSION and len(parts) >= len(RecallHandle._fields):
                return RecallHandle(*parts[: len(RecallHandle._fields)])
    raise RemoteProtocolError(f"recall handle {shown(text)} is invalid: it must be base64 of 'v1 topic broker time id'")
