"""Closes servers that listen with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

__all__ = ["close_servers"]


async def close_servers(servers: Collection[asyncio.Server]) -> None:
    """Close listening sockets.

    On a ``SelectorEventLoop`` it stops accepting connections one turn of the loop before.

    That loop loses a connection that was accepted in the turn in which its server is closed: the socket stays open until garbage
    is collected (CPython issue 109564).
    """
    loop = asyncio.get_running_loop()
    try:
        if isinstance(loop, asyncio.SelectorEventLoop):
            for server in servers:
                for listener in server.sockets:
                    loop.remove_reader(listener.fileno())
            await asyncio.sleep(0)
    finally:  # a caller that is cancelled here must not leave ports open on which nothing accepts
        for server in servers:
            server.close()
