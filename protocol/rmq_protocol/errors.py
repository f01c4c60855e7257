"""Errors of the codec. Blame is in the type: ``LocalProtocolError`` is the caller's fault, ``RemoteProtocolError`` the peer's.

Retry policy lives here as class attributes, so that the sender has no lists of codes or classes: ``retriable`` (another
attempt may help), ``maybe_stored`` (a send that failed so may still be stored), ``uses_retry``. No other exception leaves this
package.
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
    """Base class of every error of this library.

    ``code``: RocketMQ's number where there is one (a broker's response code, or ``ClientErrorCode`` 10001-10007). ``broker``
    and ``address``: name and address of the server that was asked, where they are known.
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
        """Returns whether ``retries`` counts an attempt of a send that ended with this error; it does not if the attempt
        reached no broker."""
        return True

    def __reduce__(
        self,
    ) -> tuple[Callable[..., RocketMQError], tuple[type[RocketMQError], tuple[object, ...], dict[str, object]]]:
        """Returns the parts of a copy, also for another process: the attributes of the error, because constructors have
        different arguments."""
        return _copy, (type(self), self.args, self.__dict__)


def shown(value: object) -> str:
    """Returns the ``repr``, cut, for an error message; of a number that is too long to be written, that it is."""
    try:
        return repr(value)[:200]
    except ValueError:  # beyond 4300 digits
        return f"{type(value).__name__} of thousands of digits"


def printable(text: object, limit: int = 200) -> str:
    """Returns ``text`` on one line and at most about ``limit`` characters, for logs and errors that contain texts of peers.

    Line breaks and tabs become blanks, other control characters are escaped, the rest is cut off.
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
