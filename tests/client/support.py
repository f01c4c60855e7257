"""A name server and brokers that do as a test sets them, and short ways to use the client's parts."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.heartbeat import HeartbeatData, decode_heartbeat
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route

from ..transport.peer import Link, Peer
from ..waiting import until as until

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
CLUSTER = RequestCode.GET_BROKER_CLUSTER_INFO
GARBAGE = b'{"queueDatas":[{'


def route(broker: str | None = None, *, queues: int = 4, name: str = "broker-a", perm: int = 6) -> TopicRouteData:
    """A topic on one broker; without an address on one that cannot be reached."""
    return TopicRouteData(
        queue_datas=(QueueData(name, queues, queues, perm),),
        broker_datas=(BrokerData(name, {0: broker or "127.0.0.1:1"}, "DefaultCluster"),),
    )


class FakeNameServer(Peer):
    """``routes``: topic -> route, or the raw body of an answer, or (code, remark), or a function of link and request.

    What is not there is answered with 17; 106 with ``cluster``, the body of an answer.
    """

    def __init__(self, **routes: Any) -> None:
        super().__init__(self.serve)
        self.routes: dict[str, Any] = routes
        self.asked: Counter[str] = Counter()
        self.cluster = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'

    def serve(self, link: Link, request: RemotingCommand) -> None:
        if request.code != ROUTE:
            link.reply(request, body=self.cluster)
            return
        topic = (request.ext_fields or {}).get("topic") or ""
        self.asked[topic] += 1
        found = self.routes.get(topic)
        if callable(found):
            found(link, request)
        elif found is None:
            remark = f"No topic route info in name server for the topic: {topic}\nSee https://example.org for details."
            link.reply(request, code=ResponseCode.TOPIC_NOT_EXIST, remark=remark, body=b"")
        elif isinstance(found, tuple):
            link.reply(request, code=found[0], remark=found[1], body=b"")
        else:
            link.reply(request, body=found if isinstance(found, bytes) else encode_route(found))


class FakeBroker(Peer):
    """Answers heartbeats and farewells with success and keeps them; anything else echoes."""

    def __init__(self) -> None:
        super().__init__(self.serve)
        self.beats: list[HeartbeatData] = []
        self.farewells: list[dict[str, str | None]] = []
        self.silent = False

    def serve(self, link: Link, request: RemotingCommand) -> None:
        if request.code == RequestCode.HEART_BEAT:
            self.beats.append(decode_heartbeat(request.body))
        elif request.code == RequestCode.UNREGISTER_CLIENT:
            self.farewells.append(request.ext_fields or {})
        if not self.silent:
            link.reply(request, body=b"")


@asynccontextmanager
async def client(*name_servers: Peer, **options: Any) -> AsyncIterator[ClientInstance]:
    instance = await ClientInstance.acquire(config_of(*name_servers, **options))
    try:
        yield instance
    finally:
        await instance.release()


def config_of(*name_servers: Peer, **options: Any) -> ClientConfig:
    return ClientConfig(namesrv=[server.address for server in name_servers], **({"request_timeout": 1.0} | options))


def fork() -> int:
    """``os.fork()``; from 3.12 on Python warns of it where threads run, and the executor's may."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def ours() -> list[str]:
    """Names of the client's tasks."""
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("rmq_async"))
