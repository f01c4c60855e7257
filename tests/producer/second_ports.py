"""Scripted brokers that listen on a second port (RocketMQ's VIP channel), too."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rmq_protocol.command import RemotingCommand

from .peers import TOPIC, Broker, Cluster, Link, Server


class SecondPort(Server):
    """Two below the broker's first; sends that come this way are answered as the broker answers."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.port = broker.port - 2

    def serve(self, link: Link, command: RemotingCommand) -> None:
        self.broker.serve(link, command)


@asynccontextmanager
async def with_second_ports(count: int) -> AsyncIterator[tuple[Cluster, list[SecondPort]]]:
    async with Cluster(count) as cluster:
        ports: list[SecondPort] = []
        for broker in cluster.brokers:
            while True:
                second = SecondPort(broker)
                try:
                    await second.start()
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    await broker.stop()  # the port is in use: both try other ones
                    broker.port = 0
                    await broker.start()
                else:
                    ports.append(second)
                    break
        cluster.name_server.routes[TOPIC] = cluster.route()
        try:
            yield cluster, ports
        finally:
            for second in ports:
                await second.stop()
