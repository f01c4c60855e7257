"""Errors of the codec. The type says whose fault it is: ``LocalProtocolError`` and ``InvalidMessageError`` are the caller's,
``RemoteProtocolError`` and ``CorruptMessageError`` the peer's.

Retry policy is kept here as class attributes, so that the sender has no lists of codes or classes: ``retriable``,
``maybe_stored``, ``uses_retry``. Functions of this package raise other exceptions only where their docstrings name them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

__all__ = [
    "CorruptMessageError",
    "InvalidMessageError",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "RocketMQError",
]


_BREAKS: Final = re.compile(r"[ ]*[\t-\r\x1c-\x1e\x85\u2028\u2029][\s\x1c-\x1e\x85]*")


class RocketMQError(Exception):
    """Base class of the library's own errors.

    ``code``: RocketMQ's number where there is one (a broker's response code, or Java's ``ClientErrorCode`` 10001-10007).
    ``broker`` and ``address``: name and address of the server of the request, where they are known. ``retriable``: True if
    another attempt may succeed. ``maybe_stored``: True if the message of a failed send may be stored all the same.
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
        """Returns whether an attempt of a send that ended with this error counts as one of ``retries``. Attempts that reached
        no broker do not, unless each later one must fail too."""
        return True

    def __reduce__(
        self,
    ) -> tuple[Callable[..., RocketMQError], tuple[type[RocketMQError], tuple[object, ...], dict[str, object]]]:
        """Returns the parts of a copy, also for pickling: the error's attributes, because constructors have different
        arguments."""
        return _copy, (type(self), self.args, self.__dict__)


def shown(value: object) -> str:
    """Returns the ``repr`` for an error message, at most 200 characters. Python does not write integers of more than 4300
    digits; a substitute is returned for them."""
    try:
        return repr(value)[:200]
    except ValueError:  # beyond 4300 digits
        return f"{type(value).__name__} of thousands of digits"


def printable(text: object, limit: int = 200) -> str:
    """Returns ``text`` on one line and at most about ``limit`` characters, for logs and errors that contain texts of peers.

    Line breaks and tabs become blanks, other characters that are not printable are escaped.
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
    """The caller gave a value that the protocol cannot encode; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that cannot be decoded; the message names the field and the value."""


class InvalidMessageError(RocketMQError, ValueError):
    """The message exceeds a limit or breaks a rule, and was not sent.

    ``code`` is 13 (MESSAGE_ILLEGAL) for bodies and properties and -1 for topic and group names, as in Java's ``Validators``.
    """

    code = 13


class CorruptMessageError(RocketMQError):
    """One stored record is damaged or cannot be decoded; the records around it are not affected.

    ``position``: byte offset of the record in its block. ``msg_id``: unique or offset id if readable. ``queue_offset``: offset
    of the record in its queue if readable.
    """

    def __init__(
        self,
        message: str = "",
        *,
        position: int | None = None,
        msg_id: str | None = None,
        queue_offset: int | None = None,
        broker: str | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(message, broker=broker, address=address)
        self.position = position
        self.msg_id = msg_id
        self.queue_offset = queue_offset
