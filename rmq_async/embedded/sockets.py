"""Listening sockets and the addresses of their ends."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

__all__ = ["IpAddress", "descriptor_limit", "endpoint", "endpoint_text", "listen", "numeric_host"]

SECOND_BELOW: Final = 2
"""What a broker's second port is below its first (``MixAll.brokerVIPChannel``)."""
MOST_PORTS_TRIED: Final = 64
"""Free ports that are looked at for one with another free one below it."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Factory = Callable[[], asyncio.Protocol]


async def numeric_host(host: str, port: int) -> str:
    """One address of ``host``, which may be one, so that port 0 means one port. Raises OSError."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return str(min(infos, key=lambda info: info[0] != socket.AF_INET)[4][0])


async def listen(ip: str, port: int, first: Factory, second: Factory | None) -> list[asyncio.Server]:
    """Returns servers of ``port`` and, if there is a ``second`` factory, of the port ``SECOND_BELOW`` it. Raises OSError.

    ``port`` 0 takes a free one for which the second port is free too.
    """
    loop = asyncio.get_running_loop()
    tries = 1 if port or second is None else MOST_PORTS_TRIED
    while True:
        server = await _serving(loop, first, ip, port)
        if second is None:
            return [server]
        try:
            return [server, await _serving(loop, second, ip, server.sockets[0].getsockname()[1] - SECOND_BELOW)]
        except BaseException as error:  # OSError: the port is taken, or not for this process
            server.close()
            tries -= 1
            if not tries or not isinstance(error, OSError):
                raise
            await server.wait_closed()


async def _serving(loop: asyncio.AbstractEventLoop, factory: Factory, ip: str, port: int) -> asyncio.Server:
    """A server that listens. ``create_server`` alone leaves the socket behind where its caller is cancelled in its last turn."""
    server = await loop.create_server(factory, ip, port, start_serving=False)
    try:
        await server.start_serving()
    except BaseException:
        server.close()
        raise
    return server


def descriptor_limit() -> int:
    """The largest number of descriptors of this process."""
    try:
        import resource
    except ImportError:  # no such limit there
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def endpoint(name: Any) -> tuple[IpAddress, int]:
    """Returns address and port of a result of getpeername or getsockname; a closed peer has none."""
    if not name:
        return ipaddress.IPv4Address(0), 0
    ip = ipaddress.ip_address(name[0].partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped, name[1]
    return ip, name[1]


def endpoint_text(ip: IpAddress, port: int) -> str:
    return f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"
