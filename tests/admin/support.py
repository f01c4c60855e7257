"""A cluster of peers that answer as a test sets them; a sender and a worker of the group "billing"."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rmq_async import Consumer, DeadLetter, Message, MessageExt, Producer
from rmq_async.admin import Admin
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import RemotingCommand

from ..support.fakes import Broker, Link, NameServer, route


def scripted(broker: Broker, answers: dict[int, Any]) -> None:
    """``answers``: request code -> (code, remark, body) or a function of the request that gives one."""

    def answer(link: Link, request: RemotingCommand) -> None:
        found = answers[request.code]
        code, remark, body = found(request) if callable(found) else found
        link.reply(request, code, remark, body=body)

    broker.answers |= dict.fromkeys(answers, answer)


@asynccontextmanager
async def one_broker(answers: dict[int, Any], **options: Any) -> AsyncIterator[tuple[Broker, Admin]]:
    """Topic "t" on broker-a, which answers as a test sets it."""
    async with Broker() as broker:
        scripted(broker, answers)
        clusters = {"c": {"broker-a": broker.address}}
        async with (
            NameServer(clusters, t=route(broker.address, queues=2)) as server,
            Admin(namesrv=server.address, **({"request_timeout": 1.0} | options)) as admin,
        ):
            yield broker, admin


async def send(server: EmbeddedRocketMQ, *bodies: bytes) -> None:
    async with Producer("orders", namesrv=server.namesrv) as producer:
        for number, body in enumerate(bodies):
            queues = await producer.fetch_publish_queues("OrderTopic")
            await producer.send(Message("OrderTopic", body, tags="paid", keys=f"k{number}"), queue=queues[number % len(queues)])


def worker(server: EmbeddedRocketMQ, group: str = "billing", **options: Any) -> tuple[Consumer, list[bytes]]:
    consumer, handled = Consumer(group, namesrv=server.namesrv, start_from="earliest", **options), []

    @consumer.handler("OrderTopic")
    async def handle(message: MessageExt) -> None:
        handled.append(message.body)
        if message.body.startswith(b"bad"):
            raise DeadLetter("bad")

    return consumer, handled
