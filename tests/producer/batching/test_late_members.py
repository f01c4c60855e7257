"""A member of a gathered batch whose time is over while the answer to the batch is there, and not yet handed on."""

from __future__ import annotations

import asyncio
import time

import pytest

from rmq_async import Producer, RequestTimeoutError
from rmq_async.testing import ThreadedRocketMQ

from ...support.fakes import TOPIC
from ..support import message, outcomes

pytestmark = pytest.mark.wall_clock

DELAY = 0.12
"""Seconds until the broker answers: twice that, and a pause, before the first member's time is over."""


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_answer_and_deadline_in_one_turn() -> None:
    """asyncio reads sockets before it looks at timers, so both are met in one turn of the loop after it was blocked."""
    with ThreadedRocketMQ() as server:
        async with Producer("group", namesrv=server.namesrv, batching=True) as sender:
            await sender.send(message(b"warm"))
            for _ in range(3):
                server.delay(DELAY, broker="broker-a")
                server.fail_next(14)
                sends = [
                    asyncio.ensure_future(sender.send(message(b"short"), timeout=0.32)),
                    *[asyncio.ensure_future(sender.send(message(b"long %d" % number), timeout=5)) for number in range(3)],
                ]
                await asyncio.sleep(0.26)
                time.sleep(0.09)
                short, *others = await outcomes(*sends)
                server.delay(0, broker="broker-a")
                ids = {found.body: found.msg_id for found in server.messages(TOPIC)}
                assert [result.msg_id for result in others] == [ids[b"long %d" % number] for number in range(3)]
                assert {result.attempts for result in others} == {2}
                if isinstance(short, RequestTimeoutError):
                    assert short.maybe_stored
                else:
                    assert short.msg_id == ids[b"short"]
                server.clear()
