"""A cluster of peers that answer as a test sets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rmq_async.admin import Admin
from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.route import BrokerData

from ..client.support import FakeBroker, FakeNameServer, route
from ..transport.peer import Link


class Cluster(FakeNameServer):
    """A name server with a cluster to show: cluster -> broker name -> address."""

    def __init__(self, clusters: dict[str, dict[str, str]], **routes: Any) -> None:
        super().__init__(**routes)
        self.clusters = clusters
        plain = self.answer

        def answer(link: Link, request: RemotingCommand) -> None:
            if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                table = {
                    name: BrokerData(name, {0: address})
                    for brokers in self.clusters.values()
                    for name, address in brokers.items()
                }
                info = ClusterInfo(table, {cluster: tuple(brokers) for cluster, brokers in self.clusters.items()})
                link.reply(request, body=encode_cluster_info(info, standard=False))
            else:
                plain(link, request)

        self.answer = answer


def scripted(broker: FakeBroker, answers: dict[int, Any]) -> None:
    """``answers``: request code -> (code, remark, body) or a function of the request that gives one."""
    plain = broker.answer

    def answer(link: Link, request: RemotingCommand) -> None:
        found = answers.get(request.code)
        if found is None:
            plain(link, request)
            return
        code, remark, body = found(request) if callable(found) else found
        link.reply(request, code=code, remark=remark, body=body)

    broker.answer = answer


@asynccontextmanager
async def one_broker(answers: dict[int, Any], **options: Any) -> AsyncIterator[tuple[FakeBroker, Admin]]:
    """Topic "t" on broker-a, which answers as a test sets it."""
    async with FakeBroker() as broker:
        scripted(broker, answers)
        clusters = {"c": {"broker-a": broker.address}}
        async with (
            Cluster(clusters, t=route(broker.address, queues=2)) as server,
            Admin(namesrv=server.address, **({"request_timeout": 1.0} | options)) as admin,
        ):
            yield broker, admin
