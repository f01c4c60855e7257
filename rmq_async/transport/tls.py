"""TLS: one context for all connections of a client, and messages for the causes of failed handshakes.

Certificates are verified unless ``tls_verify`` is False, and TLS 1.2 is the lowest version. If ``tls`` is an SSLContext, its own
settings apply for both. A client with TLS never connects without TLS.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from functools import partial
from typing import Final

from .. import machine
from ..config import ClientConfig
from ..errors import RequestTimeoutError
from .threads import Threads

logger = logging.getLogger("rmq_async.transport")

SHUTDOWN_TIMEOUT: Final = 0.5
"""Maximum seconds that this client waits for the peer's close_notify when it closes a connection."""

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
    """Return the SSLContext for ``config``. Return None if the client uses no TLS.

    A thread reads the system's certificate authorities, which takes 30 ms.

    Raises:
        RequestTimeoutError: If the thread takes longer than ``request_timeout``.
        ClientStateError: If the last client of the process stops before the thread has begun.
    """
    if isinstance(config.tls, ssl.SSLContext):
        return config.tls
    if not config.tls:
        return None
    try:
        return await threads.run(partial(_make_context, config.tls_verify), machine.monotonic() + config.request_timeout)
    except TimeoutError:
        text = (
            f"the system's certificate authorities were not read within {config.request_timeout:.3g} s; raise request_timeout"
        )
        raise RequestTimeoutError(text) from None


def _make_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # the system may require a newer version
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        logger.warning("tls_verify=False: server certificates are not verified; do not use this in production")
    return context


def system_text(error: BaseException) -> str:
    """Return the text of an error.

    For an OSError with an errno, return the system's text, because event loops use different texts. Errors of TLS and of name
    lookups keep their own text.
    """
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError | socket.gaierror) or not error.errno:
        return str(error)
    return f"[Errno {error.errno}] {os.strerror(error.errno)}"


def tls_reason(error: BaseException) -> str:
    """Return a user-readable reason for a TLS error. Return the text of any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return system_text(error)
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return f"the server does not speak TLS ({reason})"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return f"the server refuses this client's certificate, or requires one ({reason})"
    if "ALERT_HANDSHAKE_FAILURE" in reason:  # TLS 1.2 has one alert for both causes
        return (
            f"the server has no TLS version and cipher in common with this client, or requires a client certificate ({reason})"
        )
    return f"TLS failed ({reason})"


def handshake_reason(error: BaseException) -> str:
    """Return a user-readable reason for a failed TLS connection attempt."""
    if isinstance(error, _ENDED):
        return "the server closed the connection during the TLS handshake; it may not speak TLS, or require another certificate"
    return tls_reason(error)


def silent_end(transport: asyncio.BaseTransport | None, *, soon: bool) -> str:
    """Return a possible reason why the peer closed the connection before it had sent a byte, as the end of an error message.

    With TLS 1.3, the peer may reject the client's certificate after the handshake. Without TLS, the peer may require TLS.

    Args:
        soon: Whether the peer closed the connection within SOON seconds. If not, and without TLS, return an empty string.
    """
    if transport is None:
        return ""
    if transport.get_extra_info("sslcontext") is not None:
        return ", right after the TLS handshake: the server may require a client certificate"
    return " before it had sent a byte: the server may require TLS (tls=True), or may not be a RocketMQ server" if soon else ""
