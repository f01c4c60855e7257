"""Errors of the codec.

Usually the type tells who caused the error: the caller causes ``LocalProtocolError`` and ``InvalidMessageError``, and the peer
causes ``RemoteProtocolError`` and ``CorruptMessageError``.

Errors carry the attributes that the retry policy of senders needs: ``retriable``, ``maybe_stored`` and ``uses_retry``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

__all__ = [
    "CorruptMessageError",
    "FrameTooLargeError",
    "InvalidMessageError",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "RocketMQError",
]


_BREAKS: Final = re.compile(r"[ ]*[\t-\r\x1c-\x1e\x85\u2028\u2029][\s\x1c-\x1e\x85]*")


class RocketMQError(Exception):
    """Base class of the library's own errors.

    Args:
        code: RocketMQ's number for the error, if there is one: a response code, a number of Java's ``ClientErrorCode`` (10001 to
            10007), or -1 as in Java's ``Validators``, for example for an invalid name.
        broker: Name of the server of the request, if it is known.
        address: Address of the server of the request, if it is known.

    Attributes:
        retriable: True if another attempt may succeed.
        maybe_stored: True if the message of a failed send may be stored nevertheless.
    """

    code: int | None = None
    retriable: bool = False
    maybe_stored: bool = False

    def __init__(
        self, message: str = "", *, code: int | None = None, broker: str | None = None, address: str | None = None
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.broker = broker
        self.address = address

    @property
    def uses_retry(self) -> bool:
        """Whether an attempt of a send that ended with this error counts as one of ``retries``.

        It is True unless the error's class overrides it.
        """
        return True

    def __reduce__(
        self,
    ) -> tuple[Callable[..., RocketMQError], tuple[type[RocketMQError], tuple[object, ...], dict[str, object]]]:
        """Return the class, ``args`` and attributes, from which ``copy`` and ``pickle`` make the error again.

        They do not call the constructors, which have different arguments.
        """
        return _copy, (type(self), self.args, self.__dict__)


def shown(value: object) -> str:
    """Return the ``repr`` of ``value`` for an error message, with at most 200 characters.

    Python does not convert integers of more than 4300 digits to strings. For such an integer, return a substitute.
    """
    try:
        return repr(value)[:200]
    except ValueError:  # beyond 4300 digits
        return f"{type(value).__name__} of thousands of digits"


def printable(text: object, limit: int = 200) -> str:
    """Return the first ``limit`` characters of ``text`` on one line, for logs and errors that contain strings of peers.

    "..." marks a cut.

    Line breaks and tabs become blanks. Other characters that are not printable are escaped, which takes more characters.
    """
    shown = str(text)
    if len(shown) > limit:
        shown = shown[:limit] + "..."
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in _BREAKS.sub(" ", shown).strip())


def _copy(cls: type[RocketMQError], args: tuple[object, ...], attributes: dict[str, object]) -> RocketMQError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ProtocolError(RocketMQError):
    """Base class of the errors for bytes or values that the remoting protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """The caller passed a value that the protocol does not allow or cannot encode. Nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that cannot be decoded, or a value that the protocol does not allow."""


class FrameTooLargeError(RemoteProtocolError):
    """The peer sent a frame that is larger than ``max_frame_size``.

    Args:
        size: Bytes of the frame.
        limit: Maximum bytes that were allowed.
        fields: Fields of the header if the frame is a response with code 0, else None.
    """

    def __init__(
        self,
        message: str = "",
        *,
        size: int = 0,
        limit: int = 0,
        fields: dict[str, str | None] | None = None,
        broker: str | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(message, broker=broker, address=address)
        self.size = size
        self.limit = limit
        self.fields = fields


class InvalidMessageError(RocketMQError, ValueError):
    """A message, or the name of a topic or group, exceeds a limit or breaks a rule. Nothing was sent.

    Attributes:
        code: -1, as in Java's ``Validators``, for names of topics and groups, for a batch with different topics or a retry topic,
            and for recall handles. Otherwise 13 (MESSAGE_ILLEGAL).
    """

    code = 13


class CorruptMessageError(RocketMQError):
    """A stored record or a compressed body is damaged or cannot be decoded.

    ``position``, ``msg_id`` and ``queue_offset`` are None if they are unknown.

    Args:
        position: Byte offset of the record in its block.
        msg_id: Unique id or offset id of the record.
        queue_offset: Offset of the record in its queue.
        intact: True if the message is not damaged and another client could read it, because its body exceeds
            ``max_decompressed_size`` or its compression needs a package that is not installed.
    """

    def __init__(
        self,
        message: str = "",
        *,
        position: int | None = None,
        msg_id: str | None = None,
        queue_offset: int | None = None,
        intact: bool = False,
        broker: str | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(message, broker=broker, address=address)
        self.position = position
        self.msg_id = msg_id
        self.queue_offset = queue_offset
        self.intact = intact
