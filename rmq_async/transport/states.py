"""States of a connection, reasons for closing it, and the errors of its requests."""

from __future__ import annotations

from enum import Enum

from ..errors import ConnectionLostError, RequestTimeoutError
from .pending import request_name
from .tls import tls_reason


class ConnectionState(Enum):
    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    """The connection takes no new requests; pending requests may still be answered."""
    CLOSED = "closed"


_LEGAL = {
    ConnectionState.CONNECTING: frozenset({ConnectionState.READY, ConnectionState.CLOSED}),
    ConnectionState.READY: frozenset({ConnectionState.DRAINING, ConnectionState.CLOSED}),
    ConnectionState.DRAINING: frozenset({ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset[ConnectionState](),
}


def next_state(now: ConnectionState, then: ConnectionState) -> ConnectionState:
    """Return ``then``, the new state.

    Raises:
        RuntimeError: If ``then`` cannot follow the state ``now``, which is a bug of this library.
    """
    if then not in _LEGAL[now]:
        raise RuntimeError(f"a connection cannot change from {now.value} to {then.value}; please report this bug of rmq_async")
    return then


class CloseReason(Enum):
    """The reason why a connection was closed. The value is part of the error messages of the requests that were pending."""

    LOCAL = "this client closed it"
    IDLE = "it was idle"
    DEAD = "the peer stopped answering"
    PEER = "the peer closed it"
    RESET = "it broke"
    PROTOCOL = "the peer sent a broken frame"
    NOT_READING = "the peer does not read what is sent to it"
    AWAY = "the server is shutting down (GO_AWAY)"


# Errors for lost connections, and for requests whose deadline has passed.


def close_text(reason: CloseReason | None, cause: BaseException | None) -> str:
    """Return why a connection accepts no more requests.

    Args:
        reason: Why it was closed; None while it waits for its last responses.
    """
    text = reason.value if reason is not None else "it is closing"
    return f"{text} ({tls_reason(cause)})" if cause is not None and str(cause) else text


def lost_error(address: str, code: int | None, why: str, *, written: bool) -> ConnectionLostError:
    """Return the error of a connection that was lost.

    Args:
        code: Request code of the pending request; None if there is none.
    """
    what = f"{request_name(code)} to {address}" if code is not None else address
    return ConnectionLostError(f"{what}: connection lost, {why}", maybe_stored=written, address=address)


def late_error(address: str, code: int, why_held: str | None) -> RequestTimeoutError:
    """Return the error of a request whose deadline has passed.

    Args:
        why_held: Why the request's frame was not written; None if the frame was written.
    """
    text = f"{request_name(code)} to {address}: no response arrived by its deadline"
    if why_held is not None:
        text = f"{request_name(code)} to {address} was not written by its deadline, because {why_held}"
    return RequestTimeoutError(text, maybe_stored=why_held is None, address=address)
