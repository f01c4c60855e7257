"""States of a connection, and reasons for its close."""

from __future__ import annotations

from enum import Enum

__all__ = ["CloseReason", "ConnectionState", "next_state"]


class ConnectionState(Enum):
    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    """No new requests; pending ones may still be answered."""
    CLOSED = "closed"


_LEGAL = {
    ConnectionState.CONNECTING: frozenset({ConnectionState.READY, ConnectionState.CLOSED}),
    ConnectionState.READY: frozenset({ConnectionState.DRAINING, ConnectionState.CLOSED}),
    ConnectionState.DRAINING: frozenset({ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset[ConnectionState](),
}


def next_state(now: ConnectionState, then: ConnectionState) -> ConnectionState:
    """Return ``then``. Raises RuntimeError, which is a bug of this library, if that state cannot follow ``now``."""
    if then not in _LEGAL[now]:
        raise RuntimeError(f"a connection cannot go from {now.value} to {then.value}; this is a bug of rmq_async, report it")
    return then


class CloseReason(Enum):
    """The reason why a connection was closed. Its value is a part of the errors of requests that were pending."""

    LOCAL = "this client closed it"
    IDLE = "it was idle"
    DEAD = "the peer stopped answering"
    PEER = "the peer closed it"
    RESET = "it broke"
    PROTOCOL = "the peer sent a broken frame"
    NOT_READING = "the peer does not read what is sent to it"
    AWAY = "the server sent its clients away"
