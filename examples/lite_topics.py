"""Rooms of a chat as lite topics of a parent topic (RocketMQ 5.5 and later): each message goes to the lite topic of its room.

A member of a group that subscribes to the parent reads the messages of all rooms. Run as it is, a broker in memory stores them.
"""

import rmq_async
from rmq_async import Admin, Consumer, Message, MessageExt, Producer

PARENT = "RoomTopic"


async def talk(namesrv: str) -> list[str]:
    """Send a message to each of two rooms; return the rooms that a member of a group has read from."""
    async with Producer("chat", namesrv=namesrv) as producer:
        for room in ("kitchen", "garden"):
            await producer.send(Message(PARENT, b"hello", lite_topic=room))
    rooms: list[str] = []
    consumer = Consumer("chat-archive", namesrv=namesrv, mode="pop", start_from="earliest")

    @consumer.handler(PARENT)
    async def archive(message: MessageExt) -> None:
        rooms.append(message.lite_topic or "")

    async with consumer:
        await consumer.wait_settled(2)
    return sorted(rooms)


async def main() -> None:
    from rmq_async.embedded import EmbeddedRocketMQ

    async with EmbeddedRocketMQ() as server:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic(PARENT, queues=2, attributes={"message.type": "LITE"})
        print(*await talk(server.namesrv))


if __name__ == "__main__":
    rmq_async.run(main())
