"""Rooms of a chat as lite topics of brokers from 5.5 on: a hook names the lite topic of each message.

Run as it is, a broker in memory stores the messages in the parent topic, with the property, and in no lite topic.
"""

import re

import rmq_async
from rmq_async import Consumer, Hook, Message, MessageExt, Producer, SendContext
from rmq_async.errors import ForbiddenError
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.properties import decode_properties

PARENT = "RoomTopic"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class LiteTopics(Hook):
    """The property ``room`` of a message names its lite topic."""

    def check_forbidden(self, context: SendContext) -> None:
        if isinstance(context.message, tuple):
            raise ForbiddenError("messages of a batch get into no lite topic; send them one by one")
        room = (context.message.properties or {}).get("room", "")
        if not NAME.fullmatch(room):
            raise ForbiddenError(f"room {room!r} names no lite topic; give 1 to 64 letters, digits, - and _")

    def before_request(self, address: str, command: RemotingCommand) -> None:
        fields = command.ext_fields  # "b" is the topic, "i" has the properties
        if command.code == RequestCode.SEND_MESSAGE_V2 and fields["b"] == PARENT:
            room = decode_properties(fields["i"]).get("room", "")
            if NAME.fullmatch(room):  # other producers of this client come here, too
                fields["i"] += f"__LITE_TOPIC\x01{room}\x02"


async def talk(namesrv: str) -> list[str]:
    """Send a message to each of two rooms; return the rooms that a member of a group has read from."""
    async with Producer("chat", namesrv=namesrv, hooks=[LiteTopics()]) as producer:
        for room in ("kitchen", "garden"):
            await producer.send(Message(PARENT, b"hello", properties={"room": room}))
    rooms: list[str] = []
    consumer = Consumer("chat-archive", namesrv=namesrv, mode="pop", start_from="earliest")

    @consumer.handler(PARENT)
    async def archive(message: MessageExt) -> None:
        rooms.append(message.properties["__LITE_TOPIC"])

    async with consumer:
        await consumer.wait_settled(2)
    return sorted(rooms)


async def main() -> None:
    from rmq_async.embedded import EmbeddedRocketMQ

    async with EmbeddedRocketMQ() as server:
        print(*await talk(server.namesrv))


if __name__ == "__main__":
    rmq_async.run(main())
