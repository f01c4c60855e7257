"""A cluster that does what its script says: a name server and brokers for tests of the producer.

    async with Cluster(2) as cluster:
        cluster.a.answer = silent
        producer = Producer("group", namesrv=cluster.namesrv)

``broker.answer(link, sent)`` is called for each send that wants an answer. Ready-made ones are below and combine: ``late(0.1,
refuse(1))``, ``each(refuse(2), stored)``. Every send a broker reads is kept in ``sends``, in order of arrival. A name server's
``answer`` does the same for route requests. A server can also be stopped and started again on its port.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from rmq_protocol.batch import BatchRecord, decode_batch
from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.command import RemotingCommand, encode_command, make_response
from rmq_protocol.constants import RequestCode, SerializeType
from rmq_protocol.headers import ReplyMessageRequestHeader, SendMessageRequestHeader, from_ext, send_header_v2, to_ext
from rmq_protocol.message import MessageQueue
from rmq_protocol.properties import decode_properties, properties_text
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route

from ..transport.peer import ServerLink

SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
TOPIC = "T"


@dataclass(frozen=True, eq=False)
class Sent:
    """One send as a broker reads it."""

    broker: Broker
    command: RemotingCommand

    @property
    def body(self) -> bytes:
        return self.command.body

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def oneway(self) -> bool:
        return self.command.is_oneway

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The header under its names of one letter, whichever form it came in, and further fields that came with it."""
        ext = self.command.ext_fields or {}
        if self.code == RequestCode.SEND_MESSAGE:
            ext = {**ext, **to_ext(send_header_v2(from_ext(SendMessageRequestHeader, ext)))}
        return ext

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.fields["b"], self.fields["n"], int(self.fields["e"]))

    @property
    def sys_flag(self) -> int:
        return int(self.fields["f"])

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.fields["i"])

    @property
    def unique_id(self) -> str:
        return self.properties["UNIQ_KEY"]

    @property
    def batch(self) -> list[BatchRecord]:
        return decode_batch(self.body)

    @property
    def bodies(self) -> list[bytes]:
        """Of the messages that it carries."""
        return [record.body for record in self.batch] if self.code == RequestCode.SEND_BATCH_MESSAGE else [self.body]


Answer = Callable[["Link", Sent], None]
RouteAnswer = Callable[["Link", RemotingCommand], None]


# -- what a broker may answer


def stored(link: Link, sent: Sent) -> None:
    link.reply(sent.command, 0, None, sent.broker.stored_fields(sent))


def silent(link: Link, sent: Sent) -> None:
    """Never answers."""


def status(code: int) -> Answer:
    """Stored, and answered with another code than 0."""

    def answer(link: Link, sent: Sent) -> None:
        link.reply(sent.command, code, None, sent.broker.stored_fields(sent))

    return answer


def refuse(code: int, remark: str | None = "no") -> Answer:
    def answer(link: Link, sent: Sent) -> None:
        link.reply(sent.command, code, remark)

    return answer


def fields(**given: str | None) -> Answer:
    """Code 0 with other fields than a broker would give; None leaves a field out."""

    def answer(link: Link, sent: Sent) -> None:
        fields = sent.broker.stored_fields(sent) | given
        link.reply(sent.command, 0, None, {name: value for name, value in fields.items() if value is not None})

    return answer


def late(seconds: float, then: Answer = stored) -> Answer:
    def answer(link: Link, sent: Sent) -> None:
        asyncio.get_running_loop().call_later(seconds, then, link, sent)

    return answer


class AfterNext:
    """The first send is answered as soon as a second one is there; that one and all that follow get no answer."""

    def __init__(self, then: Answer = stored) -> None:
        self._then = then
        self._first: list[tuple[Link, Sent]] = []
        self._sends = 0

    def __call__(self, link: Link, sent: Sent) -> None:
        self._sends += 1
        if self._sends == 1:
            self._first.append((link, sent))
        elif self._first:
            self._then(*self._first.pop())


class MostUnderWay:
    """Stores, 2 ms later each. ``most``: by queue, how many requests have been unanswered at once."""

    def __init__(self) -> None:
        self.most: Counter[MessageQueue] = Counter()
        self.now: Counter[MessageQueue] = Counter()

    def __call__(self, link: Link, sent: Sent) -> None:
        self.now[sent.queue] += 1
        self.most[sent.queue] = max(self.most[sent.queue], self.now[sent.queue])
        asyncio.get_running_loop().call_later(0.002, self.answer, link, sent)

    def answer(self, link: Link, sent: Sent) -> None:
        self.now[sent.queue] -= 1
        stored(link, sent)


def twice(first: Answer = stored, second: Answer = stored) -> Answer:
    def answer(link: Link, sent: Sent) -> None:
        first(link, sent)
        second(link, sent)

    return answer


def each(*answers: Answer) -> Answer:
    """The first send gets the first answer, and so on; the last one goes to all that follow."""
    left = list(answers)

    def answer(link: Link, sent: Sent) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(link, sent)

    return answer


def cut(link: Link, sent: Sent) -> None:
    """Ends the stream in order instead of answering."""
    link.transport.close()


def reset(link: Link, sent: Sent) -> None:
    """Breaks the connection instead of answering."""
    if not link.transport.is_closing():
        sock = link.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.transport.abort()


def raw(data: bytes) -> Answer:
    def answer(link: Link, sent: Sent) -> None:
        link.write(data)

    return answer


# -- servers


class Link(ServerLink):
    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.server.links.append(self)
        self.server.accepted += 1

    def data_received(self, data: bytes) -> None:
        self.server.reads += 1
        super().data_received(data)

    def take(self, command: RemotingCommand) -> None:
        if not command.is_response:
            self.server.codes[command.code] += 1
            if command.code not in SENDS:
                self.server.control.append(command)
            self.server.serve(self, command)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.server.links:
            self.server.links.remove(self)
        super().connection_lost(exc)

    def reply(
        self,
        request: RemotingCommand,
        code: int = 0,
        remark: str | None = None,
        ext_fields: dict[str, str | None] | None = None,
        body: bytes = b"",
    ) -> None:
        response = make_response(request, code, remark, ext_fields, body)
        self.write(b"".join(encode_command(response, self.server.form)))


class Server(ABC):
    """``accepted``: connections ever made; ``links``: those open now. ``codes`` counts requests by their code."""

    form = SerializeType.JSON

    def __init__(self) -> None:
        self.port = 0
        self.links: list[Link] = []
        self.accepted = 0
        self.reads = 0
        self.codes: Counter[int] = Counter()
        self.control: list[RemotingCommand] = []
        """Requests that are no sends."""
        self.listener: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @abstractmethod
    def serve(self, link: Link, command: RemotingCommand) -> None:
        """Answers one request, or does not."""

    async def start(self) -> None:
        listener = socket.socket(proto=socket.IPPROTO_TCP)  # without it asyncio leaves Nagle's algorithm on
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self.listener = await asyncio.get_running_loop().create_server(lambda: Link(self), sock=listener, backlog=1024)

    async def stop(self) -> None:
        """As a killed process: the port is closed and every connection breaks."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        links = list(self.links)
        for link in links:
            link.transport.abort()
        for link in links:
            await link.lost


class Broker(Server):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.answer: Answer = stored
        self.sends: list[Sent] = []
        self.times: list[float] = []
        """When each of ``sends`` was read, by the loop's clock."""
        self.unregistered: list[str] = []
        self.heartbeats = True
        """Whether heartbeats and unregistrations are answered."""
        self.stored = 0

    def serve(self, link: Link, command: RemotingCommand) -> None:
        if command.code in SENDS:
            sent = Sent(self, command)
            self.sends.append(sent)
            self.times.append(asyncio.get_running_loop().time())
            if not sent.oneway:
                self.answer(link, sent)
            return
        if command.code == RequestCode.UNREGISTER_CLIENT:
            self.unregistered.append((command.ext_fields or {}).get("producerGroup") or "")
        if self.heartbeats:
            link.reply(command)

    def stored_fields(self, sent: Sent) -> dict[str, str | None]:
        """extFields of a good answer; a batch gets as many offset ids as it has messages."""
        count = len(sent.batch) if sent.code == RequestCode.SEND_BATCH_MESSAGE else 1
        ids = [f"{self.port:016X}{self.stored + index:016X}" for index in range(count)]
        self.stored += count
        return {
            "msgId": ",".join(ids),
            "queueId": sent.fields["e"],
            "queueOffset": str(self.stored - count),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }

    @property
    def bodies(self) -> list[bytes]:
        return [sent.body for sent in self.sends]


class NameServer(Server):
    """``routes``: topic -> route. ``delay``: seconds until each route answer; ``answer`` overrides the answer altogether."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[str, TopicRouteData] = {}
        self.delay = 0.0
        self.answer: RouteAnswer | None = None
        self.asked: list[str] = []

    def serve(self, link: Link, command: RemotingCommand) -> None:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            link.reply(command, body=encode_cluster_info(ClusterInfo()))
        elif command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self.asked.append((command.ext_fields or {}).get("topic") or "")
            if self.answer is not None:
                self.answer(link, command)
            elif self.delay:
                asyncio.get_running_loop().call_later(self.delay, self.answer_route, link, command)
            else:
                self.answer_route(link, command)

    def answer_route(self, link: Link, command: RemotingCommand) -> None:
        route = self.routes.get((command.ext_fields or {}).get("topic") or "")
        if route is None:
            link.reply(command, 17, "no such topic")
        else:
            link.reply(command, body=encode_route(route))


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
        return TopicRouteData(
            tuple(QueueData(broker.name, count, count, perm) for broker in chosen),
            tuple(BrokerData(broker.name, {0: broker.address}, "c") for broker in chosen),
        )

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


def push(link: Link, sent: Sent, **over: Any) -> None:
    """The reply to a request, as its broker pushes it."""
    properties = {"CORRELATION_ID": sent.properties["CORRELATION_ID"], "UNIQ_KEY": "reply"}
    fields: dict[str, Any] = {
        "producerGroup": "replier", "topic": "c_REPLY_TOPIC", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 7, "properties": properties_text(properties), "bornHost": "no host",
        "storeHost": "127.0.0.1:10911", "storeTimestamp": 2, "body": b"reply",
    }  # fmt: skip
    fields |= over
    body = fields.pop("body")
    header = to_ext(ReplyMessageRequestHeader(**fields))
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    link.write(b"".join(encode_command(RemotingCommand(code=code, opaque=77, ext_fields={**header}, body=body))))
