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
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import SendMessageRequestHeaderV2, to_ext
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.properties import encode_properties
from rmq_protocol.stored import encode_stored

from ..support.fakes import NameServer, OnPull, PullBroker, route
from ..support.instances import client_of

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


@asynccontextmanager
async def scripted(
    on_pull: OnPull | None = None, *, queues: int = 1, **options: Any
) -> AsyncIterator[tuple[PullBroker, PullConsumer]]:
    async with PullBroker(on_pull) as broker, NameServer(t=route(broker.address, queues=queues)) as server:
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
