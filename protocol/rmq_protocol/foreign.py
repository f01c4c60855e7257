"""Recognizes peers that are not RocketMQ servers by their first bytes, so that an error can name the software at a wrong port."""

from __future__ import annotations

from typing import Final

__all__ = ["foreign_peer"]

SHOWN: Final = 60
"""Maximum number of characters of a peer's response that are shown."""

_BEGINNINGS: Final = (
    (b"HTTP", "an HTTP server"),
    (b"<!DO", "an HTTP server"),
    (b"<htm", "an HTTP server"),
    (b"<HTM", "an HTTP server"),
    (b"SSH-", "an SSH server"),
    (b"-ERR", "a Redis server"),
    (b"-NOA", "a Redis server"),
    (b"-DEN", "a Redis server"),
    (b"+PON", "a Redis server"),
    (b"AMQP", "an AMQP server"),
    (b"INFO", "a NATS server"),
    (b"ERRO", "a memcached server"),
    (b"* OK", "an IMAP server"),
    (b"220 ", "a mail or FTP server"),
    (b"220-", "a mail or FTP server"),
)
_WANTED: Final = "is this the port of a name server (9876) or broker (10911)?"


def foreign_peer(data: bytes) -> str | None:
    """Return a description of the peer whose stream, or next frame, begins with ``data``.

    Return None for fewer than four bytes, and for an unknown peer. Frames of RocketMQ of up to 500 MB are never mistaken for
    another protocol.
    """
    if len(data) < 4:
        return None
    if data[0] in (0x15, 0x16) and data[1] == 3:  # an alert or a handshake of TLS
        return f"it speaks TLS (record type {data[0]:#x}); set tls=True"
    for beginning, peer in _BEGINNINGS:
        if data.startswith(beginning):
            return f"it answers as {peer}: {_line(data)}; {_WANTED}"
    if _is_mysql(data):
        return f"it answers as a MySQL server; {_WANTED}"
    if data[0] == 0x45 and data[1:3] == b"\0\0" and data[5:6] == b"S":  # an ErrorResponse and its severity
        return f"it answers as a PostgreSQL server; {_WANTED}"
    if data[0] == 0 and data[3:9] == b"\x04\0\0\0\0\0" and int.from_bytes(data[:3], "big") % 6 == 0:  # SETTINGS of HTTP/2
        return "it answers as a gRPC or HTTP/2 server; this client needs the remoting protocol, served by a proxy on port 8080"
    if (line := data[:SHOWN].splitlines()[0]).isascii() and len(line) > 3 and line.decode().isprintable():
        return f"it answers with the text {_line(data)}; {_WANTED}"
    return None


def _is_mysql(data: bytes) -> bool:
    """Return whether ``data`` begins with the packet with which a MySQL server greets (0x0a) or refuses (0xff) a client."""
    return data[1:3] == b"\0\0" and data[3] < 3 and data[4:5] in (b"\x0a", b"\xff") and data[0] > 0x10


def _line(data: bytes) -> str:
    """Return the first line of ``data``, cut to SHOWN characters, in quotation marks."""
    line = data[: SHOWN + 1].decode("ascii", "replace").splitlines()[0]
    return repr(line if len(line) <= SHOWN else line[:SHOWN] + "...")
