"""Ports of servers that have stopped, held until the test ends: connecting to them is refused.

The system may give a free port at once to a server of another test process, which would accept connections and answer requests. A
held port is bound without listening, so it is not given away, and a server of this process may listen on it again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Final

HOSTS: Final = ("127.0.0.1", "::1")
_held: dict[tuple[str, int], socket.socket] = {}

Close = Callable[[Collection[asyncio.Server]], Awaitable[None]]


def install() -> None:
    """Has all that closes servers hold their ports. It imports the library, whose loggers get the class that is set by then."""
    from rmq_async.embedded import server
    from rmq_async.testing import proxy, scripted

    from .fakes import peer

    close = holding(proxy.close_servers)
    for module in (server, proxy, scripted, peer):
        module.close_servers = close


def holding(close: Close) -> Close:
    from rmq_async.testing.simulation.network.listener import SimulatedServer

    async def close_servers(servers: Collection[asyncio.Server]) -> None:
        real = [each for each in servers if not isinstance(each, SimulatedServer)]
        ports = {listener.getsockname()[:2] for each in real for listener in each.sockets}
        await close(servers)
        for host, port in sorted(each for each in ports if each[0] in HOSTS):
            for _ in range(3):
                if hold(host, port):
                    break
                await asyncio.sleep(0)  # uvloop closes a socket in a later iteration

    return close_servers


def hold(host: str, port: int) -> bool:
    """Binds a port; returns whether it is held."""
    if (host, port) in _held:
        return True
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError:  # a server listens there
        made.close()
        return False
    _held[host, port] = made
    return True


def release_all() -> None:
    while _held:
        _held.popitem()[1].close()


def descriptors() -> set[int]:
    return {held.fileno() for held in _held.values()}
