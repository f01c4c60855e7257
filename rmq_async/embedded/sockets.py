"""Listening sockets, and the addresses of both ends of a connection."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from .._lookups import look_up
from .arguments import check_whole, check_within

SECOND_BELOW: Final = 2
"""Difference between a broker's first port and its second port, which is the lower one (``MixAll.brokerVIPChannel``)."""
PORT_STEP: Final = 10
"""Difference between the first ports of successive brokers whose ports are specified."""
MAX_PORT: Final = 65_535
MOST_PORTS_TRIED: Final = 64
"""Maximum number of free ports that are tried to find a first port whose second port is also free."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Factory = Callable[[], asyncio.Protocol]


def broker_ports(first: int, brokers: int) -> list[int]:
    """Return the first port of each broker. 0 means a free port.

    Raises:
        TypeError: For a ``first`` that is not a whole number.
        ValueError: For a first port that is so high or so low that other ports of the brokers would be out of range.
    """
    check_whole("broker_port", first)
    if not first:
        return [0] * brokers
    check_within("broker_port", first, SECOND_BELOW + 1, MAX_PORT - PORT_STEP * (brokers - 1))
    return [first + PORT_STEP * index for index in range(brokers)]


async def numeric_host(host: str, port: int) -> str:
    """Return one IP address of ``host``, which is a name or an address. More than one is not possible, because port 0 would
    give each address a different port.

    Raises:
        OSError: For a name that cannot be resolved.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        try:
            infos = await look_up(host, port)
        except UnicodeError as error:  # a label is empty or has more than 63 characters
            raise socket.gaierror(
                socket.EAI_NONAME, f"host must be a name or an IP address, not {host[:300]!r} ({error})"
            ) from None
        return str(min(infos, key=lambda info: info[0] != socket.AF_INET)[4][0])


async def listen(ip: str, port: int, first: Factory, second: Factory | None) -> list[asyncio.Server]:
    """Listen on ``port`` and, if a ``second`` factory is given, also on the port ``SECOND_BELOW`` lower. Return the servers.

    Port 0 means a free port whose second port is also free. A port is free if no process has bound it and no connection to it
    has ended recently.

    Raises:
        OSError: If a port is not available.
    """
    loop = asyncio.get_running_loop()
    reuse = None if port else False
    tries = 1 if port or second is None else MOST_PORTS_TRIED
    while True:
        server = await _serving(loop, first, ip, port)
        if second is None:
            return [server]
        try:
            below = server.sockets[0].getsockname()[1] - SECOND_BELOW
            return [server, await _serving(loop, second, ip, below, reuse_address=reuse)]
        except BaseException as error:  # OSError: the port is taken or not permitted
            server.close()
            tries -= 1
            if not tries or not isinstance(error, OSError):
                raise
            await server.wait_closed()


async def _serving(
    loop: asyncio.AbstractEventLoop, factory: Factory, ip: str, port: int, *, reuse_address: bool | None = None
) -> asyncio.Server:
    """Create a server and then make it listen. If ``create_server`` did both and its caller were cancelled in the last
    iteration of the event loop, the socket would stay open.

    Args:
        reuse_address: The argument of ``create_server``.
    """
    server = await loop.create_server(factory, ip, port, start_serving=False, reuse_address=reuse_address)
    try:
        await server.start_serving()
    except BaseException:
        server.close()
        raise
    return server


def descriptor_limit() -> int:
    """Return the maximum number of descriptors that this process may have. Return ``sys.maxsize`` if there is no limit."""
    try:
        import resource
    except ImportError:  # the platform has no such limit
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def endpoint(name: Any) -> tuple[IpAddress, int]:
    """Return the address and port in a result of getpeername or getsockname. Return 0.0.0.0 and 0 for a closed socket, which
    has no address.
    """
    if not name:
        return ipaddress.IPv4Address(0), 0
    ip = ipaddress.ip_address(name[0].partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped, name[1]
    return ip, name[1]


def endpoint_text(ip: IpAddress, port: int) -> str:
    return f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"
