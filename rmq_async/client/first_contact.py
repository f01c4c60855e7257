"""The first answer of a cluster: at the start or, for a client that may start without one, whenever it comes.

A cluster is there when a name server answers and names a broker: one that was just started knows none for some seconds, and
says of every topic that it does not exist. Calls of a client that was started without a cluster wait for this.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from time import monotonic
from typing import Final

from rmq_protocol.cluster import decode_cluster_info
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError

from ..config import host_and_port
from ..errors import NameServerError
from .name_servers import NameServers
from .text import printable

__all__ = ["FirstContact", "local_address"]

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two tries."""

WAIT_SHARE: Final = 0.8
"""Of a call's time, for waiting: the rest is for what it wants to ask."""

LOCAL_ADDRESS_TIMEOUT: Final = 1.0
"""Seconds for resolving a name server's host where there is no connection to it."""


class FirstContact:
    """``timeout``: seconds for one try."""

    def __init__(self, name_servers: NameServers, timeout: float) -> None:
        self._name_servers = name_servers
        self._timeout = timeout
        self.cluster_found = asyncio.Event()
        """Set for good by the first answer that names a broker."""

    async def make(self) -> str:
        """Asks once; the address of the name server that answered. Raises NameServerError when none does."""
        probe = RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO)
        response, address = await self._name_servers.probe(probe, self._timeout)
        if _names_brokers(response):
            self.cluster_found.set()
        return address

    async def keep_trying(self) -> None:
        """Asks until there is a cluster, once a second at most."""
        began, pause = monotonic(), FIRST_PAUSE
        while not self.cluster_found.is_set():
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
            try:
                await self.make()
            except NameServerError as error:
                logger.debug("still no cluster: %s", printable(error, 1000))
        logger.info("the cluster answers, %.3g s after the start", monotonic() - began)

    async def wait(self, deadline: float) -> None:
        """Waits for the cluster for a share of the time until ``deadline`` (monotonic), and returns in any case."""
        if self.cluster_found.is_set():
            return
        try:
            async with asyncio.timeout(max(deadline - monotonic(), 0.0) * WAIT_SHARE):
                await self.cluster_found.wait()
        except TimeoutError:
            return


def _names_brokers(response: RemotingCommand) -> bool:
    """Whether the answer names a broker; true of one that cannot be understood, which is no reason to wait for another."""
    if response.code != ResponseCode.SUCCESS:
        return True
    try:
        return bool(decode_cluster_info(response.body).broker_addr_table)
    except RemoteProtocolError:
        return True


async def local_address(name_servers: Iterable[str]) -> str:
    """The address that this machine would use towards the first name server that can be routed to; empty if there is none.

    A datagram socket is connected, which sends nothing.
    """
    loop = asyncio.get_running_loop()
    for address in name_servers:
        host_port = host_and_port(address)
        if host_port is None:
            continue
        try:
            async with asyncio.timeout(LOCAL_ADDRESS_TIMEOUT):
                found = await loop.getaddrinfo(*host_port, type=socket.SOCK_DGRAM)
            for family, kind, protocol, _, target in found:
                with socket.socket(family, kind, protocol) as datagrams:
                    datagrams.connect(target)
                    return str(datagrams.getsockname()[0])
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            logger.debug("no local address towards %s: %s", address, error)
    return ""
