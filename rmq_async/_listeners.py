"""The end of servers that listen with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

__all__ = ["close_servers"]


async def close_servers(servers: Iterable[asyncio.Server]) -> None:
    """Closes listening sockets, one turn of the event loop after it stops accepting connections.

    asyncio of Python 3.11 loses a connection that was accepted in the turn in which its server is closed: the socket stays open
    until garbage is collected (CPython issue 109564).
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for server in servers:
            for listener in server.sockets:
                loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)
    for server in servers:
        server.close()
