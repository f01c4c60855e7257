"""Errors of lost connections, and of requests whose deadline has passed."""

from __future__ import annotations

from ..errors import ConnectionLostError, RequestTimeoutError
from .pending import request_name
from .states import CloseReason
from .tls import tls_reason

__all__ = ["close_text", "late_error", "lost_error"]


def close_text(reason: CloseReason | None, cause: BaseException | None) -> str:
    """Return why a connection takes no more requests.

    Args:
        reason: None while it waits for its last answers.
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
        why_held: Why its frame was not written; None if it was.
    """
    text = f"{request_name(code)} to {address}: no answer came by its deadline"
    if why_held is not None:
        text = f"{request_name(code)} to {address}: {why_held} by its deadline"
    return RequestTimeoutError(text, maybe_stored=why_held is None, address=address)
