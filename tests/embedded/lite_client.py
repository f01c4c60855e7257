"""A raw client of lite topics: what it sends, subscribes to, pops and acknowledges."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from rmq_protocol.bodies import SubscriptionGroupConfig, decode_body, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import PopLiteMessageResponseHeader, from_ext
from rmq_protocol.lite import LiteAction, LiteSubscription, LiteSubscriptions, LiteTopicDetails, OffsetOption, OffsetType
from rmq_protocol.message import MessageExt
from rmq_protocol.pop import ExtraInfo, build_extra_info
from rmq_protocol.stored import decode_messages

from ..support.fakes import RawClient

BROKER = "broker-a"
S = TypeVar("S", bound=msgspec.Struct)
FIRST, LAST, NONE = (OffsetOption(OffsetType.POLICY, value) for value in (1, 2, 0))


class Popped(NamedTuple):
    message: MessageExt
    handle: ExtraInfo

    @property
    def body(self) -> bytes:
        return self.message.body or b""


class LiteClient(RawClient):
    """A client ``client_id`` of the group ``group``, which is bound to ``topic``."""

    client_id = "one"
    group = "G"
    topic = "T"
    now_ms = 0
    """What the client's clock shows; 0 lets the broker go by its own."""

    async def prepare(self, expiration: int | None = None, queues: int = 1, **attributes: object) -> None:
        """Creates the topic and the group. ``attributes``: those of the group, with ``_`` for a point."""
        wanted = "+message.type=LITE" + ("" if expiration is None else f",+lite.topic.expiration={expiration}")
        assert (await self.create_topic(self.topic, queues, attributes=wanted)).code == 0
        await self.create_group(self.group, **{"lite_bind_topic": self.topic, **attributes})

    async def create_group(self, group: str, **attributes: object) -> None:
        signed = {f"+{name.replace('_', '.')}": str(value) for name, value in attributes.items()}
        response = await self.put_group(SubscriptionGroupConfig(group, attributes=signed))
        assert response.code == 0, response

    async def put_group(self, config: SubscriptionGroupConfig) -> RemotingCommand:
        return await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config))

    async def stored(self, lite_topic: str, *texts: str, queue: int = 0, **over: str) -> None:
        for text in texts:
            response = await self.store(lite_topic, text, queue=queue, **over)
            assert response.code == 0, response

    async def store(self, lite_topic: str, text: str, *, queue: int = 0, **over: str) -> RemotingCommand:
        properties = {"UNIQ_KEY": text, "__LITE_TOPIC": lite_topic, **over}
        return await self.send(self.topic, text.encode(), queue=queue, properties=properties)

    async def control(
        self, action: LiteAction, *names: str, option: OffsetOption | None = None, client_id: str | None = None
    ) -> RemotingCommand:
        change = LiteSubscription(action, client_id or self.client_id, self.group, self.topic, names, option)
        return await self.ask(RequestCode.LITE_SUBSCRIPTION_CTL, None, encode_body(LiteSubscriptions((change,))))

    async def subscribe(self, *names: str, option: OffsetOption | None = None, client_id: str | None = None) -> None:
        response = await self.control(LiteAction.ADD, *names, option=option, client_id=client_id)
        assert (response.code, response.remark) == (0, None)

    def pop_fields(self, **over: object) -> dict[str, str]:
        fields: dict[str, object] = {
            "clientId": self.client_id,
            "consumerGroup": self.group,
            "topic": self.topic,
            "maxMsgNum": 32,
            "invisibleTime": 10_000,
            "pollTime": 0,
            "bornTime": self.now_ms,
            **over,
        }
        return {name: str(value) for name, value in fields.items() if value is not None}

    async def pop(self, **over: object) -> RemotingCommand:
        return await self.ask(RequestCode.POP_LITE_MESSAGE, self.pop_fields(**over))

    async def popped(self, **over: object) -> list[Popped]:
        response = await self.pop(**over)
        assert response.code in (0, 210), response
        return taken(response)

    def start_pop(self, **over: object) -> None:
        """Sends a pop that waits, without reading the response."""
        self.write(RequestCode.POP_LITE_MESSAGE, self.pop_fields(**{"pollTime": 30_000, **over}))

    async def ack(self, popped: Popped, /, **over: object) -> RemotingCommand:
        return await self.ask(RequestCode.ACK_MESSAGE, self._fields(popped, **over))

    async def acked(self, *popped: Popped) -> None:
        for each in popped:
            assert (await self.ack(each)).code == 0

    async def change(self, popped: Popped, invisible_time: int, /, **over: object) -> RemotingCommand:
        fields = self._fields(popped, **{"invisibleTime": invisible_time, **over})
        return await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)

    async def details(self, cls: type[S], code: RequestCode, **fields: object) -> S:
        """The body of a response to an admin request."""
        response = await self.ask(code, {name: str(value) for name, value in fields.items()})
        assert response.code == 0, response
        return decode_body(cls, response.body)

    async def topic_details(self, lite_topic: str) -> LiteTopicDetails:
        return await self.details(
            LiteTopicDetails, RequestCode.GET_LITE_TOPIC_INFO, parentTopic=self.topic, liteTopic=lite_topic
        )

    async def subscribers(self, lite_topic: str) -> set[str]:
        return {each.client_id or "" for each in (await self.topic_details(lite_topic)).subscriber or ()}

    def _fields(self, popped: Popped, /, **over: object) -> dict[str, str]:
        fields: dict[str, object] = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": 0,
            "extraInfo": build_extra_info(popped.handle),
            "offset": popped.handle.msg_queue_offset,
            "liteTopic": popped.message.properties["__LITE_TOPIC"],
            **over,
        }
        return {name: str(value) for name, value in fields.items()}


def taken(response: RemotingCommand) -> list[Popped]:
    """The messages of a pop, each with its handle."""
    header = from_ext(PopLiteMessageResponseHeader, response.ext_fields)
    found = []
    for message in decode_messages(response.body).messages if response.body else ():
        offset = int(message.properties["INNER_MULTI_QUEUE_OFFSET"])
        handle = ExtraInfo(offset, header.popTime, header.invisibleTime, header.reviveQid, "0", BROKER, 0, offset)
        found.append(Popped(message, handle))
    return found


def bodies(popped: list[Popped]) -> list[bytes]:
    return [each.body for each in popped]
