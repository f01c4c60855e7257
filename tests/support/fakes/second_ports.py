"""Brokers that listen on a second port (RocketMQ's VIP channel), too."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rmq_async import machine

from .broker import Broker
from .cluster import TOPIC, Cluster
from .peer import Peer


class SecondPort(Peer):
    """Two below the broker's first; sends that come this way are answered as the broker answers."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.port = broker.port - 2
        self.serve = broker.serve  # type: ignore[method-assign]
        self.stored_fields = broker.stored_fields  # type: ignore[method-assign]


def _is_free(port: int) -> bool:
    """Returns whether a server can listen there; uvloop's servers that cannot leave an open socket behind."""
    if machine.executor is not None:  # a simulation, which gives ports away one after the other
        return True
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


@asynccontextmanager
async def with_second_ports(count: int) -> AsyncIterator[tuple[Cluster, list[SecondPort]]]:
    async with Cluster(count) as cluster:
        ports: list[SecondPort] = []
        for broker in cluster.brokers:
            while not _is_free(broker.port - 2):
                await broker.stop()  # both try other ones
                broker.port = 0
                await broker.start()
            second = SecondPort(broker)
            await second.start()
            ports.append(second)
        cluster.name_server.routes[TOPIC] = cluster.route()
        try:
            yield cluster, ports
        finally:
            for second in ports:
                await second.stop()
