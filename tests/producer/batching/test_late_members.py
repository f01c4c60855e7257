"""A member of a gathered batch whose time is over while the answer to the batch is there, and not yet handed on."""

from __future__ import annotations

import asyncio
import time
from time import monotonic

import pytest

from rmq_async import Producer, RequestTimeoutError
from rmq_async.testing import ThreadedRocketMQ

from ...support.fakes import TOPIC
from ..support import message, outcomes, until

DELAY = 0.1
"""Seconds until the broker answers."""
SHORT = 0.6
"""Seconds of the first member: two answers and a pause, and as much again."""


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_answer_and_deadline_in_one_turn() -> None:
    """asyncio reads sockets before it looks at timers: a real loop is blocked until both are due, and meets them in one turn."""
    with ThreadedRocketMQ() as server:
        async with Producer("group", namesrv=server.namesrv, batching=True) as sender:
            await sender.send(message(b"warm"))
            server.delay(DELAY, broker="broker-a")
            server.fail_next(14)
            began = monotonic()
            sends = [
                asyncio.ensure_future(sender.send(message(b"short"), timeout=SHORT)),
                *[asyncio.ensure_future(sender.send(message(b"long %d" % number), timeout=60)) for number in range(3)],
            ]
            await until(lambda: len(server.messages(TOPIC)) == 5 or sends[0].done())
            time.sleep(max(began + SHORT, monotonic() + DELAY) + 0.05 - monotonic())
            short, *others = await outcomes(*sends)
            server.delay(0, broker="broker-a")
            ids = {found.body: found.msg_id for found in server.messages(TOPIC)}
            assert [result.msg_id for result in others] == [ids[b"long %d" % number] for number in range(3)]
            assert {result.attempts for result in others} == {2}
            if isinstance(short, RequestTimeoutError):
                assert short.maybe_stored == (b"short" in ids)
            else:
                assert short.msg_id == ids[b"short"]
