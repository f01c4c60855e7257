"""TLS of a client: one context for all its connections, and what a failed handshake says about its cause.

Verified unless told otherwise, TLS 1.2 and later. A client with TLS speaks nothing else: no failure makes it try without.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import partial
from time import monotonic
from typing import Final

from ..config import ClientConfig
from ..errors import RequestTimeoutError
from .threads import Threads

__all__ = ["SHUTDOWN_TIMEOUT", "client_context", "handshake_reason", "silent_end", "tls_reason"]

logger = logging.getLogger("rmq_async.transport")

SHUTDOWN_TIMEOUT: Final = 0.5
"""Seconds that a connection which is closed here waits for the peer's own goodbye (close_notify)."""

_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
_ENDED: Final = (
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    EOFError,
)


async def client_context(config: ClientConfig, threads: Threads) -> ssl.SSLContext | None:
    """The context that ``config`` asks for; None without TLS. Reading the system's authorities takes 30 ms, so a thread does it.

    Raises RequestTimeoutError when that takes longer than ``request_timeout``.
    """
    if isinstance(config.tls, ssl.SSLContext):
        return config.tls
    if not config.tls:
        return None
    try:
        return await threads.run(partial(_make_context, config.tls_verify), monotonic() + config.request_timeout)
    except TimeoutError:
        text = f"the system's certificate authorities were not read within request_timeout, {config.request_timeout:.3g} s"
        raise RequestTimeoutError(text) from None


def _make_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # the system may ask for more
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        logger.warning("tls_verify=False: any server is believed, whatever certificate it shows; not for production")
    return context


def tls_reason(error: BaseException) -> str:
    """What went wrong, in words for a user; of errors that are not TLS's, their own."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return str(error)
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return f"the server does not speak TLS ({reason})"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return f"the server refuses this client's certificate, or misses one ({reason})"
    if "ALERT_HANDSHAKE_FAILURE" in reason:  # TLS 1.2 has one alert for both
        return f"the server finds no version and cipher to share, or misses a client's certificate ({reason})"
    return f"TLS failed ({reason})"


def handshake_reason(error: BaseException) -> str:
    """The same for an error of a connect with TLS."""
    if isinstance(error, _ENDED):
        return "the server closed the connection during the TLS handshake; it may not speak TLS, or want another certificate"
    return tls_reason(error)


def silent_end(transport: asyncio.BaseTransport | None) -> str:
    """A guess for the end of a connection whose peer said nothing: with TLS 1.3 it may judge its client after the handshake."""
    if transport is None or transport.get_extra_info("sslcontext") is None:
        return ""
    return ", right after the TLS handshake: the server may want a client's certificate"
