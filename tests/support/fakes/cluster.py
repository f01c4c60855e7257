"""A cluster that does what its script says: a name server and brokers for tests of the producer.

async with Cluster(2) as cluster:
    cluster.a.answer = silence
    producer = Producer("group", namesrv=cluster.namesrv)
"""

from __future__ import annotations

from typing import Self

from rmq_protocol.message import MessageQueue
from rmq_protocol.route import TopicRouteData

from .answers import Answer
from .broker import Broker, Sent
from .name_server import NameServer, route

TOPIC = "T"


class Cluster:
    """One name server and brokers "a", "b", ...; topic "T" has ``queues`` queues on each of them."""

    def __init__(self, brokers: int = 1, *, queues: int = 2) -> None:
        self.name_server = NameServer()
        self.brokers = [Broker(chr(ord("a") + index)) for index in range(brokers)]
        self.queues = queues

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    @property
    def a(self) -> Broker:
        return self.brokers[0]

    @property
    def b(self) -> Broker:
        return self.brokers[1]

    @property
    def sends(self) -> list[Sent]:
        return [sent for broker in self.brokers for sent in broker.sends]

    @property
    def received(self) -> int:
        """Frames of any kind that reached a broker or asked for a route."""
        return sum(sum(broker.codes.values()) for broker in self.brokers) + len(self.name_server.asked)

    def route(self, *brokers: Broker, queues: int | None = None, perm: int = 6) -> TopicRouteData:
        chosen = brokers or tuple(self.brokers)
        count = self.queues if queues is None else queues
        return route({broker.name: broker.address for broker in chosen}, queues=count, perm=perm)

    def answer(self, answer: Answer) -> None:
        """All brokers answer so."""
        for broker in self.brokers:
            broker.answer = answer

    def queue(self, broker: Broker | None = None, queue_id: int = 0) -> MessageQueue:
        return MessageQueue(TOPIC, (broker or self.a).name, queue_id)

    async def __aenter__(self) -> Self:
        for server in (*self.brokers, self.name_server):
            await server.start()
        self.name_server.routes[TOPIC] = self.route()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in (*self.brokers, self.name_server):
            await server.stop()
