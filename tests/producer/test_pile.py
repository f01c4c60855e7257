"""As many sends in flight as there are credits: what each keeps in memory, and that all of them are answered."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from rmq_async import Producer, SendResult
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.fakes import TOPIC
from .support import message

BYTES_EACH = 1072


@pytest.mark.virtual_time
@pytest.mark.parametrize("number", [10_000, pytest.param(65_535, marks=pytest.mark.deep)])
async def test_sends_in_flight_up_to_all_credits_are_answered(number: int) -> None:
    stored: list[SendResult] = []
    failed: list[BaseException] = []
    async with (
        EmbeddedRocketMQ() as server,
        Producer("group", namesrv=server.namesrv, broker_window=number, async_limit=number, timeout=60) as sender,
    ):
        await sender.send(message())
        server.stall()
        for _ in range(number):
            await sender.send_async(message(), on_success=stored.append, on_error=failed.append)
        assert sender.health().unanswered == number
        assert (stored, failed) == ([], [])
        server.resume()
        await sender.flush(60)
        assert (len(stored), failed) == (number, [])
        assert len({result.msg_id for result in stored}) == number
        assert len(server.messages(TOPIC)) == number + 1
        assert sender.health().unanswered == 0


@pytest.mark.usefixtures("wide_window")
async def test_a_send_async_in_flight_keeps_little_besides_its_body() -> None:
    """What Python allocates for it: the future, the send, its entry in the table of answers and its id; most frames have left."""
    number = 2000
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv) as sender:
        one = message()
        for _ in range(100):
            await (await sender.send_async(message()))
        server.stall()
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            futures = [await sender.send_async(message()) for _ in range(number)]
            gc.collect()
            each = (tracemalloc.get_traced_memory()[0] - before) / number - len(one.body)
        finally:
            tracemalloc.stop()
        print(f"{each:.0f} bytes each")
        assert each <= BYTES_EACH
        server.resume()
        await asyncio.gather(*futures)
