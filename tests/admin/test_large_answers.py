"""Look-ups whose answers are above ``max_frame_size``."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Admin, Message, MessageQueue, Producer
from rmq_async.errors import FrameTooLargeError
from rmq_async.testing.simulation import Simulation

LIMIT = 65_536
QUEUE = MessageQueue("T", "broker-a", 0)


async def keyed(s: Simulation, count: int, size: int, every: float) -> None:
    async with Admin(namesrv=s.namesrv) as admin:
        await admin.create_topic("T", queues=1)
    async with Producer("p", namesrv=s.namesrv, compress_over=1 << 30) as producer:
        messages = [Message("T", b"%d" % number + bytes(size), keys="k") for number in range(count)]
        if not every:
            await producer.send_batch(messages, queue=QUEUE)
            return
        for message in messages:
            await producer.send(message, queue=QUEUE)
            await asyncio.sleep(every)


def test_query_asks_for_fewer_messages_until_answers_fit() -> None:
    async def main(s: Simulation) -> None:
        await keyed(s, 20, 10_000, 1.5)
        async with Admin(namesrv=s.namesrv, max_frame_size=LIMIT) as admin:
            found = await admin.query_message("T", "k")
            assert [message.queue_offset for message in found] == [*range(20)]
            found = await admin.query_message("T", "k", max_num=12)
            assert [message.queue_offset for message in found] == [*range(8, 20)]
            assert (await admin.view_message("T", found[0].msg_id)).queue_offset == 8

    Simulation(1, faults=None).run(main)


def test_query_says_where_more_messages_of_one_second_do_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    async def main(s: Simulation) -> None:
        await keyed(s, 20, 10_000, 0.0)
        async with Admin(namesrv=s.namesrv, max_frame_size=LIMIT) as admin:
            found = await admin.query_message("T", "k")
            assert 0 < len(found) < 20
            assert f"more messages with key k than the {len(found)} found" in caplog.text

    Simulation(1, faults=None).run(main)


def test_single_message_above_max_frame_size_is_an_error_that_says_what_to_set() -> None:
    async def main(s: Simulation) -> None:
        await keyed(s, 1, LIMIT, 0.0)
        async with Admin(namesrv=s.namesrv, max_frame_size=LIMIT) as admin:
            with pytest.raises(FrameTooLargeError, match="or set max_frame_size="):
                await admin.query_message("T", "k")

    Simulation(1, faults=None).run(main)
