"""Messages with an id of their own, in every mode of sending, as the first message of a producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rmq_async import Hook, Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ

pytestmark = pytest.mark.virtual_time

Send = Callable[[Producer, Message], Awaitable[Any]]


async def asynchronous(producer: Producer, message: Message) -> None:
    await (await producer.send_async(message))


async def keyed(producer: Producer, message: Message) -> None:
    await producer.send(message, key="k")


async def one_way(producer: Producer, message: Message) -> None:
    await producer.send_oneway(message)


@pytest.mark.parametrize("options", [{}, {"hooks": [Hook()]}, {"batching": True}], ids=["plain", "hook", "batching"])
@pytest.mark.parametrize("send", [Producer.send, asynchronous, keyed, one_way])
async def test_given_id_of_the_first_message(send: Send, options: dict[str, Any]) -> None:
    """It has the frame's length and the time of birth that a drawn id would give it."""
    async with EmbeddedRocketMQ() as server:
        async with Producer("p", namesrv=server.namesrv, timeout=3.0, **options) as producer:
            began = time.time() * 1000
            for number in range(2):
                await send(producer, Message("T", b"x", unique_id=f"given-{number}"))
            await asyncio.sleep(0.02)
            await send(producer, Message("T", b"x", unique_id="given-2"))
            await producer.flush()
            async with asyncio.timeout(5):
                while len(server.messages("T")) < 3:
                    await asyncio.sleep(0.01)
        messages = sorted(server.messages("T"), key=lambda message: message.msg_id)
    assert [message.msg_id for message in messages] == ["given-0", "given-1", "given-2"]
    assert all(began - 1 <= message.born_time_ms <= began + 5000 for message in messages)
    assert messages[2].born_time_ms >= began + 19
