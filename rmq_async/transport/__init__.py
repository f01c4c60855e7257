"""TCP connections: request and response over one socket, and the pool of them."""

from __future__ import annotations

from .connection import Connection
from .escaping import raise_soon, report
from .pending import Pending, Receiver
from .pool import ConnectionPool
from .process import check_not_forked, generation
from .request_hooks import PassedRequest, RequestHook, RequestHooks, guarded
from .serving import RequestHandler, not_supported
from .single_flight import Flight, SingleFlight, WaitFor
from .states import CloseReason, ConnectionState
from .telling import tell
from .threads import Threads
from .tls import client_context
from .waiting import WaitTable, wait_until

__all__ = [
    "CloseReason",
    "Connection",
    "ConnectionPool",
    "ConnectionState",
    "Flight",
    "PassedRequest",
    "Pending",
    "Receiver",
    "RequestHandler",
    "RequestHook",
    "RequestHooks",
    "SingleFlight",
    "Threads",
    "WaitFor",
    "WaitTable",
    "check_not_forked",
    "client_context",
    "generation",
    "guarded",
    "not_supported",
    "raise_soon",
    "report",
    "tell",
    "wait_until",
]
