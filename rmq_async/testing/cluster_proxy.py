"""Fault proxies in front of a whole cluster: its name servers, and every broker in their routes.

    async with ClusterProxy(server.namesrv) as cluster:
        producer = Producer("shop", namesrv=cluster.namesrv)
        cluster.brokers["broker-a"].to_client.stall()

Clients take the brokers' addresses from routes, so the proxies of name servers replace each broker's address in responses with
the address of its proxy. The rest of a response's header and body stays the same. A proxy is created when an address is first
seen. An offset message id contains the broker's real address, so ``Admin.view_message`` does not find the broker by such an id.
The servers must run without TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Final

from rmq_protocol.cluster import decode_cluster_info
from rmq_protocol.constants import MASTER_ID, RequestCode, SerializeType
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.frame import FrameDecoder, encode_frame
from rmq_protocol.route import BrokerData, decode_route

from .._asyncio import Startable
from ._errors import ClusterError
from ._probe import ask
from .proxy import FaultProxy, Rewrite

MAX_BROKERS: Final = 1000


class ClusterProxy(Startable):
    """The proxies of one cluster.

    Args:
        namesrv: The addresses of the cluster's name servers, in the form that clients take.
        seed: The seed of the jitter. With None, the jitter differs between runs.

    Attributes:
        name_servers: The proxies of the name servers, in the order of ``namesrv``.
        brokers: The proxies of the masters by broker name. Entries are added at the start and when a route names a new master.

    Raises:
        ValueError: For a ``namesrv`` without an address.
        RemoteProtocolError: For an address that is not host:port.
    """

    def __init__(self, namesrv: str, *, seed: int | None = None) -> None:
        addresses = [each.strip() for each in namesrv.replace(",", ";").split(";") if each.strip()]
        if not addresses:
            raise ValueError(f"namesrv {namesrv!r} names no server; give host:port")
        self.name_servers: list[FaultProxy] = [_NameServerProxy(self, address, seed) for address in addresses]
        self.brokers: dict[str, FaultProxy] = {}
        self._seed = seed
        self._by_address: dict[str, FaultProxy] = {}
        self._making = asyncio.Lock()
        self._open: AsyncExitStack | None = None

    @property
    def namesrv(self) -> str:
        """The ``namesrv`` string for clients: the addresses of the proxies, joined by ";".

        Raises:
            RuntimeError: Before the first start.
        """
        return ";".join(proxy.address for proxy in self.name_servers)

    @property
    def proxies(self) -> list[FaultProxy]:
        """All proxies, of name servers, masters and replicas."""
        return [*self.name_servers, *self._by_address.values()]

    def proxy_of(self, address: str) -> FaultProxy:
        """Return the proxy for a broker's real address.

        Raises:
            KeyError: For an address that has not been in a route.
        """
        return self._by_address[address]

    async def start(self) -> None:
        """Start the proxies.

        Raises:
            ClusterError: If no name server responds within 2 s. The proxies are stopped in this case.
            RuntimeError: If the proxies are already running.
        """
        if self._open is not None:
            raise RuntimeError("this proxy is already running; call stop() first")
        async with AsyncExitStack() as stack:
            self._open = stack
            stack.push_async_callback(self._forget)
            for proxy in self.proxies:
                await stack.enter_async_context(proxy)
            answers = [await ask(proxy.target, RequestCode.GET_BROKER_CLUSTER_INFO) for proxy in self.name_servers]
            bodies = [answer.body for answer in answers if answer is not None]
            if not bodies:
                targets = ", ".join(proxy.target for proxy in self.name_servers)
                raise ClusterError(f"no response from name servers {targets} within 2 s; start them, without TLS")
            for body in bodies:
                await self.lead_through(body)
            self._open = stack.pop_all()

    async def stop(self) -> None:
        """Stop all proxies. Do nothing if the proxies are not running."""
        if self._open is not None:
            await self._open.aclose()

    def clear(self) -> None:
        """End all faults of all proxies."""
        for proxy in self.proxies:
            proxy.clear()

    async def lead_through(self, body: bytes) -> bytes:
        """Return the body of a name server's response with the brokers' addresses replaced. Return any other body unchanged.

        Raises:
            RemoteProtocolError: For a new address, if the proxies are stopped or if 1000 addresses already have a proxy.
        """
        for broker in _brokers_in(body):
            for broker_id, address in broker.broker_addrs.items():
                proxy = await self._proxy(address)
                if broker_id == MASTER_ID:
                    self.brokers[broker.broker_name] = proxy
                body = body.replace(f'"{address}"'.encode(), f'"{proxy.address}"'.encode())
        return body

    async def _proxy(self, address: str) -> FaultProxy:
        async with self._making:
            proxy = self._by_address.get(address)
            if proxy is None:
                if self._open is None:
                    raise RemoteProtocolError(f"no proxy for {address}: this ClusterProxy is stopped; start() it")
                if len(self._by_address) >= MAX_BROKERS:
                    raise RemoteProtocolError(
                        f"no proxy for {address}: there are {MAX_BROKERS} proxies, the maximum; create a new ClusterProxy"
                    )
                proxy = await self._open.enter_async_context(self._proxy_for(address))
                self._by_address[address] = proxy
            return proxy

    def _proxy_for(self, address: str) -> FaultProxy:
        """Create a proxy for a broker and return it."""
        return FaultProxy(address, seed=self._seed)

    async def _forget(self) -> None:
        self._open = None


class _NameServerProxy(FaultProxy):
    def __init__(self, cluster: ClusterProxy, target: str, seed: int | None) -> None:
        super().__init__(target, seed=seed)
        self._cluster = cluster

    def rewriters(self) -> tuple[None, Rewrite]:
        decoder = FrameDecoder()

        async def rewrite(data: bytes) -> bytes:
            parts: list[bytes] = []
            for frame in decoder.feed(data):
                body = await self._cluster.lead_through(frame.body)
                parts += encode_frame(SerializeType(frame.serialize_type), frame.header, body)
            return b"".join(parts)

        return None, rewrite


def _brokers_in(body: bytes) -> Iterable[BrokerData]:
    try:
        if b'"brokerDatas"' in body:
            return decode_route(body).broker_datas
        if b'"brokerAddrTable"' in body:
            return decode_cluster_info(body).broker_addr_table.values()
    except RemoteProtocolError:  # passed on: the client under test must handle it
        pass
    return ()
