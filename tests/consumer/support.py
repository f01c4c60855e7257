"""Messages to read: put into an embedded server, or made up by a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from rmq_async.admin import Admin
from rmq_async.config import ClientConfig
from rmq_async.consumer import PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2, from_ext, to_ext
from rmq_protocol.json_body import encode_body
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.properties import encode_properties
from rmq_protocol.stored import encode_stored
from rmq_protocol.topics import TopicConfigAndQueueMapping

from ..client.support import FakeBroker, FakeNameServer, route
from ..instances import client_of
from ..transport.peer import Link

TOPIC = "t"


def bodies(count: int, mark: str = "m") -> list[bytes]:
    return [f"{mark}{number}".encode() for number in range(count)]


def under_way(consumer: PullConsumer) -> set[object]:
    """Requests whose answers a consumer still waits for, and its readings."""
    return {*consumer._calls, *consumer._readers}


async def put(user: PullConsumer | Admin, queue: MessageQueue, bodies: Iterable[bytes], *, tags: str | None = None) -> None:
    """Stores the messages in the queue, in order."""
    instance = await client_of(user)
    properties = encode_properties({"TAGS": tags} if tags else {}).decode()
    for body in bodies:
        header = SendMessageRequestHeaderV2(
            a="p", b=queue.topic, c="TBW102", d=4, e=queue.queue_id, f=0, g=1_700_000_000_000, h=0, i=properties, m=False
        )
        command = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields={**to_ext(header)}, body=body)
        response, _ = await instance.ask_broker(queue.broker_name, queue.topic, command, 5.0)
        assert response.code == 0, response.remark


@asynccontextmanager
async def embedded(
    *, queues: int = 4, brokers: int = 1, **options: Any
) -> AsyncIterator[tuple[EmbeddedRocketMQ, PullConsumer]]:
    """A server with topic "t" and a consumer on it. Its own client settings, so that no other test shares them."""
    async with EmbeddedRocketMQ(brokers=brokers) as server:
        config = ClientConfig(namesrv=server.namesrv, **({"request_timeout": 1.0} | options))
        async with Admin(client=config) as admin:
            await admin.create_topic(TOPIC, queues=queues)
        async with PullConsumer("g", client=config) as consumer:
            yield server, consumer


def record(offset: int, body: bytes = b"x", **changes: Any) -> bytes:
    """A stored record of queue 0."""
    fields: dict[str, Any] = {"topic": TOPIC, "body": body, "queue_offset": offset, "commit_log_offset": offset * 100}
    return encode_stored(**(fields | changes))


class ScriptedBroker(FakeBroker):
    """Answers pulls by ``on_pull(header) -> (code, next offset, body)`` with offsets ``low`` and ``high``.

    ``settings``: the topic's.
    """

    def __init__(self, on_pull: Callable[[PullMessageRequestHeader], tuple[int, int, bytes]] | None = None) -> None:
        super().__init__()
        self.on_pull = on_pull
        self.name_server: FakeNameServer
        self.low = 0
        self.high = 100
        self.settings = TopicConfigAndQueueMapping(TOPIC)
        self.settings_asked = 0
        self.pulls: list[PullMessageRequestHeader] = []

    def serve(self, link: Link, request: RemotingCommand) -> None:
        if request.code == RequestCode.GET_MAX_OFFSET:
            self._send(link, make_response(request, 0, None, {"offset": str(self.high)}))
        elif request.code == RequestCode.GET_MIN_OFFSET:
            self._send(link, make_response(request, 0, None, {"offset": str(self.low)}))
        elif request.code == RequestCode.GET_TOPIC_CONFIG:
            self.settings_asked += 1
            self._send(link, make_response(request, 0, None, None, encode_body(self.settings, standard=False)))
        elif request.code == RequestCode.PULL_MESSAGE and self.on_pull is not None:
            header = from_ext(PullMessageRequestHeader, request.ext_fields)
            self.pulls.append(header)
            code, after, body = self.on_pull(header)
            ext: dict[str, str | None] = {
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(after),
                "minOffset": str(self.low),
                "maxOffset": str(self.high),
            }
            self._send(link, make_response(request, code, "said the script", ext, body))
        else:
            super().serve(link, request)

    def _send(self, link: Link, response: RemotingCommand) -> None:
        link.reply(
            RemotingCommand(code=0, opaque=response.opaque),
            code=response.code,
            remark=response.remark,
            ext_fields=response.ext_fields,
            body=response.body,
        )


@asynccontextmanager
async def scripted(
    on_pull: Callable[[PullMessageRequestHeader], tuple[int, int, bytes]] | None = None, *, queues: int = 1, **options: Any
) -> AsyncIterator[tuple[ScriptedBroker, PullConsumer]]:
    async with ScriptedBroker(on_pull) as broker, FakeNameServer(t=route(broker.address, queues=queues)) as server:
        broker.name_server = server
        config = ClientConfig(namesrv=server.address, **({"request_timeout": 0.5} | options))
        async with PullConsumer("g", client=config) as consumer:
            yield broker, consumer


async def collect(messages: Any, count: int | None = None) -> list[MessageExt]:
    """All messages of the iterator, or the first ``count``."""
    found: list[MessageExt] = []
    if count == 0:
        return found
    async for message in messages:
        found.append(message)
        if len(found) == count:
            await messages.aclose()
            break
    return found


async def each(messages: Any, call: Callable[[MessageExt], object]) -> None:
    async for message in messages:
        call(message)


def offsets_by_queue(messages: Iterable[MessageExt]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for message in messages:
        found.setdefault(message.queue.queue_id, []).append(message.queue_offset)
    return found


def pulls_under_way() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("rmq_async pull")]
