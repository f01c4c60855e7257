"""What the kernel says of a connection's socket."""

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
    """Bytes that have come and that the loop has not read; where the system does not say, one."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if ioctl is None or sock is None:
        return 1
    try:
        return int(struct.unpack("i", ioctl(sock.fileno(), FIONREAD, bytes(4)))[0])
    except (OSError, ValueError):  # closed meanwhile
        return 0
