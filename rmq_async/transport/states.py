"""States of a connection and why it closed."""

from __future__ import annotations

from enum import Enum

__all__ = ["CloseReason", "ConnectionState", "next_state"]


class ConnectionState(Enum):
    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    """No new requests; those under way may still be answered."""
    CLOSED = "closed"


_LEGAL = {
    ConnectionState.CONNECTING: frozenset({ConnectionState.READY, ConnectionState.CLOSED}),
    ConnectionState.READY: frozenset({ConnectionState.DRAINING, ConnectionState.CLOSED}),
    ConnectionState.DRAINING: frozenset({ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset[ConnectionState](),
}


def next_state(now: ConnectionState, then: ConnectionState) -> ConnectionState:
    """``then``, if a connection may go there from ``now``; an illegal move is a bug here and raises RuntimeError."""
    if then not in _LEGAL[now]:
        raise RuntimeError(f"a connection cannot go from {now.value} to {then.value}")
    return then


class CloseReason(Enum):
    """The value is what a user reads in the error of a request that was under way."""

    LOCAL = "this client closed it"
    IDLE = "it was idle"
    DEAD = "the peer stopped answering"
    PEER = "the peer closed it"
    RESET = "it broke"
    PROTOCOL = "the peer sent a broken frame"
    NOT_READING = "the peer does not read what is sent to it"
    AWAY = "the server sent its clients away"
