"""Searches for the cluster: at the start and, for a client that may start without a cluster, until the cluster is found.

The cluster is found when the response of a name server lists a broker, has an error code or cannot be read. A name server that was
just started knows no broker for some seconds, and responds "no such topic" for every topic. Calls of a client that started without
a cluster wait until the cluster is found. Of several name servers, the client uses the server that lists the most brokers: servers
that list fewer may have been restarted, and brokers register again within 30 s.

A server that refuses the request for the list of brokers (3, request type not supported) is either a proxy, which knows routes, or
a broker, which does not. A second request, for a route, distinguishes them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from typing import Final

from rmq_protocol.cluster import decode_cluster_info
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.headers import GetRouteInfoRequestHeader, request_of

from .. import machine
from .._backoff import Backoff
from .._lookups import look_up
from .._text import printable
from ..broker_answers import broker_error
from ..config import host_and_port
from ..errors import NameServerError
from .name_servers import COMPARED_WITHIN, NameServers

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.05
MAX_PAUSE: Final = 1.0
"""Seconds between two attempts. The first pause is FIRST_PAUSE; each later one is twice as long, up to MAX_PAUSE."""

WAIT_SHARE: Final = 0.8
"""The share of a call's timeout in which the call waits for a cluster; the rest is for its request."""

LOCAL_ADDRESS_TIMEOUT: Final = 1.0
"""Maximum seconds to resolve the host name of a name server to which there is no connection."""


class ClusterProbe:
    """Searches for the cluster, and lets calls wait until it is found.

    Args:
        timeout: Seconds for one attempt.
    """

    def __init__(self, name_servers: NameServers, timeout: float) -> None:
        self._name_servers = name_servers
        self._timeout = timeout
        self.cluster_found = asyncio.Event()
        """Set by the first response that lists a broker, has an error code or cannot be read. It is never cleared."""

    async def run_once(self) -> str:
        """Request the list of brokers, and return the address of the name server that lists the most brokers.

        One name server is asked first, with a second request if it may be a broker, and then all others.

        Raises:
            NameServerError: If no name server responds. The error is permanent if all addresses belong to brokers.
        """
        deadline = machine.monotonic() + self._timeout
        response, address = await self._ask_for_cluster(deadline)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            request = request_of(GetRouteInfoRequestHeader(topic=AUTO_CREATE_TOPIC_KEY, acceptStandardJsonOnly=True))
            _, server = await self._name_servers.probe(request, _left(deadline), _check_for_broker)
            if server != address:  # the first address belongs to a broker
                response, address = await self._ask_for_cluster(deadline)
        return await self._fullest(address, _brokers_named(response), deadline)

    async def run_until_found(self) -> None:
        """Repeat the request until a cluster is found, with pauses that grow to one second. Stop after a permanent error."""
        began, backoff = machine.monotonic(), Backoff(FIRST_PAUSE, MAX_PAUSE)
        while not self.cluster_found.is_set():
            await asyncio.sleep(backoff.next())
            await self._name_servers.look_again(MAX_PAUSE)  # the host names may resolve to other addresses now
            try:
                await self.run_once()
            except NameServerError as error:
                if error.permanent:  # calls need not wait: their own requests for routes raise the same error
                    self.cluster_found.set()
                    logger.warning("giving up the search for a cluster: %s", printable(error, 1000))
                    return
                logger.debug("no cluster found yet: %s", printable(error, 1000))
        logger.info("found the cluster %.3g s after the start", machine.monotonic() - began)

    async def wait(self, deadline: float) -> None:
        """Wait for the cluster during WAIT_SHARE of the time until ``deadline`` (monotonic). Return even if it is not found."""
        if self.cluster_found.is_set():
            return
        try:
            async with asyncio.timeout(_left(deadline) * WAIT_SHARE):
                await self.cluster_found.wait()
        except TimeoutError:
            return

    async def _fullest(self, address: str, named: int, deadline: float) -> str:
        """Ask the other name servers. Use the name server that lists the most brokers from now on, and return its address."""
        servers = self._name_servers
        patience = min(_left(deadline), COMPARED_WITHIN) if named else _left(deadline)
        enough = None if named else bool
        others = await servers.others(
            address, _cluster_request(), patience, lambda response, _: _brokers_named(response), enough
        )
        counts = {address: named, **others.results}
        best = max(counts, key=lambda each: counts[each])
        if best != address:
            servers.prefer(best, f"{address} lists only {named} of {counts[best]} brokers and may have been restarted")
        if counts[best]:
            self.cluster_found.set()
        return best

    async def _ask_for_cluster(self, deadline: float) -> tuple[RemotingCommand, str]:
        return await self._name_servers.probe(_cluster_request(), _left(deadline), lambda response, _: response)


def _left(deadline: float) -> float:
    return max(deadline - machine.monotonic(), 0.0)


def _cluster_request() -> RemotingCommand:
    return RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO)


def _check_for_broker(response: RemotingCommand, address: str) -> RemotingCommand:
    """Return the response to a route request.

    Raises:
        BrokerError: If the response comes from a broker.
    """
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        request = RequestCode.GET_ROUTEINFO_BY_TOPIC.name
        raise broker_error(response.code, response.remark, request=request, address=address)
    return response


def _brokers_named(response: RemotingCommand) -> int:
    """Return the number of brokers that the response lists.

    Return 1 for an error code or a body that cannot be read, because the search is then over: another response would hardly be
    better.
    """
    if response.code != ResponseCode.SUCCESS:
        return 1
    try:
        return len(decode_cluster_info(response.body).broker_addr_table)
    except RemoteProtocolError:
        return 1


async def local_address(name_servers: Iterable[str]) -> str:
    """Return the address with which this machine reaches the first reachable name server. Return "" if none is reachable.

    The function connects a datagram socket, which sends nothing.
    """
    if machine.address:
        return machine.address
    for address in name_servers:
        host_port = host_and_port(address)
        if host_port is None:
            continue
        try:
            async with asyncio.timeout(LOCAL_ADDRESS_TIMEOUT):
                found = await look_up(*host_port, socket.SOCK_DGRAM)
            for family, kind, protocol, _, target in found:
                with socket.socket(family, kind, protocol) as datagrams:
                    datagrams.connect(target)
                    return str(datagrams.getsockname()[0])
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            logger.debug("no local address towards %s: %s", address, error)
    return ""
