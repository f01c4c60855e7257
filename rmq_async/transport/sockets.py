"""The receive queue of a connection's socket."""

from __future__ import annotations

import asyncio
import struct

try:
    from fcntl import ioctl
    from termios import FIONREAD
except ImportError:  # not on Windows
    ioctl = None  # type: ignore[assignment]

__all__ = ["unread"]


def unread(transport: asyncio.BaseTransport | None) -> int:
    """Return the number of bytes that the kernel has received and the loop has not read: 1 if that is not known, 0 for a closed
    socket.
    """
    if transport is not None and (known := transport.get_extra_info("unread")) is not None:
        return int(known)  # of a simulated transport, which has no descriptor
    sock = transport.get_extra_info("socket") if transport is not None else None
    if ioctl is None or sock is None:
        return 1
    try:
        return int(struct.unpack("i", ioctl(sock.fileno(), FIONREAD, bytes(4)))[0])
    except (OSError, ValueError):  # closed meanwhile
        return 0
