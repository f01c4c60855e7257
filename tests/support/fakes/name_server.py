"""A name server that does as a test sets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route

from .answers import Answer, late
from .peer import Link, Peer


def route(
    broker: str | Mapping[str, str] | None = None, *, queues: int = 4, name: str = "broker-a", perm: int = 6
) -> TopicRouteData:
    """A topic on the broker at this address, or on several: name -> address; None: on one that cannot be reached."""
    brokers = broker if isinstance(broker, Mapping) else {name: broker or "127.0.0.1:1"}
    return TopicRouteData(
        tuple(QueueData(name, queues, queues, perm) for name in brokers),
        tuple(BrokerData(name, {0: address}, "c") for name, address in brokers.items()),
    )


class NameServer(Peer):
    """``routes``: topic -> route, or the raw body of an answer, or (code, remark), or a function of link and request.

    A topic that is not there is answered with 17. ``answer``: to requests for routes, None as ``routes`` and ``delay`` say. All
    other requests are answered with ``clusters``: cluster -> broker name -> address, or the raw body.
    """

    def __init__(self, clusters: dict[str, dict[str, str]] | bytes | None = None, /, **routes: Any) -> None:
        super().__init__()
        self.answer: Answer | None = None  # type: ignore[assignment]
        self.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = self.take_question
        self.routes: dict[str, Any] = routes
        self.clusters = clusters or {}
        self.delay = 0.0
        """Seconds until each route is given."""
        self.asked: list[str] = []
        """Topics whose routes were asked for."""

    def serve_other(self, link: Link, request: RemotingCommand) -> None:
        link.reply(request, body=self.clusters if isinstance(self.clusters, bytes) else cluster_info(self.clusters))

    def take_question(self, link: Link, request: RemotingCommand) -> None:
        self.asked.append(topic_of(request))
        if self.answer is not None:
            self.answer(link, request)
        elif self.delay:
            late(self.delay, self.answer_route)(link, request)
        else:
            self.answer_route(link, request)

    def answer_route(self, link: Link, request: RemotingCommand) -> None:
        found = self.routes.get(topic_of(request))
        if callable(found):
            found(link, request)
        elif found is None:
            remark = (
                f"No topic route info in name server for the topic: {topic_of(request)}\nSee https://example.org for details."
            )
            link.reply(request, ResponseCode.TOPIC_NOT_EXIST, remark)
        elif isinstance(found, tuple):
            link.reply(request, *found)
        else:
            link.reply(request, body=found if isinstance(found, bytes) else encode_route(found))


def topic_of(request: RemotingCommand) -> str:
    return (request.ext_fields or {}).get("topic") or ""


def cluster_info(clusters: dict[str, dict[str, str]]) -> bytes:
    table = {name: BrokerData(name, {0: address}) for brokers in clusters.values() for name, address in brokers.items()}
    return encode_cluster_info(ClusterInfo(table, {name: tuple(brokers) for name, brokers in clusters.items()}), standard=False)
