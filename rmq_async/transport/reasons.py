"""What whoever waits for an answer is told when none will come."""

from __future__ import annotations

from ..errors import ConnectionLostError, RequestTimeoutError
from .pending import request_name
from .states import CloseReason
from .tls import tls_reason

__all__ = ["ending", "late", "lost"]


def ending(reason: CloseReason | None, cause: BaseException | None) -> str:
    """Why a connection takes no more requests; ``reason``: None while it is closing."""
    told = reason.value if reason is not None else "it is closing"
    return f"{told} ({tls_reason(cause)})" if cause is not None and str(cause) else told


def lost(address: str, code: int | None, why: str, *, written: bool) -> ConnectionLostError:
    """``code``: of the request that was under way, if any."""
    what = f"{request_name(code)} to {address}" if code is not None else address
    return ConnectionLostError(f"{what}: connection lost, {why}", maybe_stored=written, address=address)


def late(address: str, code: int, *, written: bool) -> RequestTimeoutError:
    state = "no answer" if written else "not even written"
    text = f"{request_name(code)} to {address}: {state} by its deadline"
    return RequestTimeoutError(text, maybe_stored=written, address=address)
