"""Pops of a raw client, and what it does with what it got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmq_protocol.bodies import BatchAckMessageRequestBody, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import ChangeInvisibleTimeResponseHeader, PopMessageResponseHeader, from_ext
from rmq_protocol.message import MessageExt
from rmq_protocol.pop import ExtraInfo, build_extra_info, real_topic
from rmq_protocol.pop_handles import changed_handle, find_handles, gather_acks
from rmq_protocol.stored import decode_messages

from ...support.fakes import RawClient

BROKER = "broker-a"


class Popped(NamedTuple):
    """A message and its handle."""

    message: MessageExt
    handle: ExtraInfo

    @property
    def body(self) -> bytes:
        return self.message.body or b""


class PopClient(RawClient):
    """``now_ms``: what the client's clock shows, 0 lets the broker go by its own."""

    group = "G"
    now_ms = 0

    async def stored(self, *texts: str, topic: str = "T", queue: int = 0, tags: str | None = None) -> None:
        """Sends messages with these bodies."""
        for text in texts:
            properties = {"UNIQ_KEY": text, **({} if tags is None else {"TAGS": tags})}
            response = await self.send(topic, text.encode(), queue=queue, properties=properties)
            assert response.code == 0, response

    def pop_fields(self, topic: str, **over: object) -> dict[str, str]:
        fields: dict[str, object] = {
            "consumerGroup": self.group,
            "topic": topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 10_000,
            "pollTime": 0,
            "bornTime": self.now_ms,
            "initMode": 0,
            **over,
        }
        return {name: str(value) for name, value in fields.items() if value is not None}

    async def pop(self, topic: str = "T", **over: object) -> RemotingCommand:
        return await self.ask(RequestCode.POP_MESSAGE, self.pop_fields(topic, **over))

    async def popped(self, topic: str = "T", **over: object) -> list[Popped]:
        """What a pop finds; nothing where it is answered with 210."""
        response = await self.pop(topic, **over)
        assert response.code in (0, 210), response
        return taken(response)

    async def ack(self, topic: str, popped: Popped, /, **over: object) -> RemotingCommand:
        return await self.ask(RequestCode.ACK_MESSAGE, self._fields(topic, popped, **over))

    async def change(self, topic: str, popped: Popped, invisible_time: int, /, **over: object) -> RemotingCommand:
        fields = self._fields(topic, popped, **{"invisibleTime": invisible_time, **over})
        return await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)

    async def changed(self, topic: str, popped: Popped, invisible_time: int, /, **over: object) -> Popped:
        """The message with its new handle."""
        response = await self.change(topic, popped, invisible_time, **over)
        assert response.code == 0, response
        answer = from_ext(ChangeInvisibleTimeResponseHeader, response.ext_fields)
        return Popped(popped.message, changed_handle(popped.handle, answer))

    async def ack_batch(self, topic: str, popped: Sequence[Popped]) -> RemotingCommand:
        acks = gather_acks(self.group, [(topic, each.handle) for each in popped])
        return await self.ask(RequestCode.BATCH_ACK_MESSAGE, None, encode_body(BatchAckMessageRequestBody(BROKER, acks)))

    def _fields(self, topic: str, popped: Popped, /, **over: object) -> dict[str, str]:
        handle = popped.handle
        fields: dict[str, object] = {
            "consumerGroup": self.group,
            "topic": real_topic(handle.retry, topic, self.group),
            "queueId": handle.queue_id,
            "extraInfo": build_extra_info(handle),
            "offset": handle.msg_queue_offset,
            **over,
        }
        return {name: str(value) for name, value in fields.items()}


def taken(response: RemotingCommand) -> list[Popped]:
    """The messages of a pop, each with its handle."""
    messages = decode_messages(response.body).messages if response.body else []
    handles = find_handles(from_ext(PopMessageResponseHeader, response.ext_fields), messages, BROKER)
    found = []
    for message, handle in zip(messages, handles, strict=True):
        assert handle is not None, message
        found.append(Popped(message, handle))
    return found


def bodies(popped: Sequence[Popped]) -> list[bytes]:
    return [each.body for each in popped]
