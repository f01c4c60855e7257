"""Sends to an embedded broker, and what it has delivered of them."""

from __future__ import annotations

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ...support.fakes import RawClient
from ..inside import broker_of


def bodies(server: EmbeddedRocketMQ, topic: str = "T") -> list[bytes]:
    return [message.body for message in server.messages(topic)]


def timers(server: EmbeddedRocketMQ) -> int:
    """Entries that the server keeps for timers, those of messages that are gone included."""
    return len(broker_of(server)._schedule._heap)


async def send(broker: RawClient, body: bytes, topic: str = "T", **properties: object) -> RemotingCommand:
    named = {"UNIQ_KEY": body.decode(), **{name: str(value) for name, value in properties.items()}}
    return await broker.send(topic, body, properties=named)


async def sent(broker: RawClient, body: bytes, topic: str = "T", **properties: object) -> dict[str, str | None]:
    response = await send(broker, body, topic, **properties)
    assert response.code == 0, response.remark
    return response.ext_fields or {}


async def recall(broker: RawClient, handle: str | None, topic: str = "T") -> RemotingCommand:
    fields = {"producerGroup": "PG", "topic": topic, "recallHandle": handle or ""}
    return await broker.ask(RequestCode.RECALL_MESSAGE, fields)
