"""TCP connections: request and response over one socket, and the pool of them."""

from __future__ import annotations

from .connection import Connection
from .pending import Pending, Receiver
from .pool import ConnectionPool
from .process import check_not_forked, generation
from .serving import RequestHandler, not_supported
from .states import CloseReason, ConnectionState
from .waiting import wait_until

__all__ = [
    "CloseReason",
    "Connection",
    "ConnectionPool",
    "ConnectionState",
    "Pending",
    "Receiver",
    "RequestHandler",
    "check_not_forked",
    "generation",
    "not_supported",
    "wait_until",
]
