"""A consumer that has stopped leaves nothing: no task, thread, timer or object here, no lock or member at the broker."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from typing import Final

import pytest

from rmq_async import Admin, MessageQueue
from rmq_async.consumer.group.queue_locks import QueueLocks, handover_group
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import BrokerError
from rmq_protocol.constants import RequestCode

from ...support.instances import client_of
from .support import Seen, create, member, send

pytestmark = pytest.mark.virtual_time

ROUNDS: Final = int(os.environ.get("RMQ_ASYNC_ROUNDS", "30"))
"""Of starts and stops in one process; 1,000 by hand."""
WARM: Final = 4
QUEUES: Final = {*(MessageQueue("T", "broker-a", number) for number in range(4)), MessageQueue("%RETRY%g", "broker-a", 0)}


def live() -> Counter[str]:
    """Objects of the consumer's and the client's modules, by class: a timer keeps the object alive whose method it calls."""
    gc.collect()
    kinds = [type(each) for each in gc.get_objects()]
    return Counter(
        kind.__qualname__
        for kind in kinds
        if str(kind.__module__).startswith(("rmq_async.consumer", "rmq_async.reading", "rmq_async.client"))
    )


async def test_consumers_that_start_and_stop_leave_nothing() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
        seen = Seen()

        def plain(queues: frozenset[MessageQueue]) -> None:
            """Is called when queues come and go."""

        counts: list[Counter[str]] = []
        for number in range(ROUNDS):
            consumer = member("g", server.namesrv, "one", seen, trace=True, on_assigned=plain, on_released=plain)
            async with consumer:
                await send(server.namesrv, b"%d" % number)
                await consumer.wait_settled(1)
            del consumer
            await asyncio.sleep(0)
            assert set(threading.enumerate()) <= threads
            assert asyncio.all_tasks() <= tasks
            if number in (WARM, ROUNDS - 1):
                counts.append(live())
        assert counts[-1] == counts[0]
        assert seen.bodies == {b"%d" % number: 1 for number in range(ROUNDS)}
        async with Admin(namesrv=server.namesrv) as admin:
            with pytest.raises(BrokerError, match="206"):
                await admin.consumer_connections("g")
            locks = QueueLocks(await client_of(admin), handover_group("g"))
            assert await locks.lock(QUEUES) == QUEUES
            await locks.unlock_all()


async def test_start_that_fails_and_a_cancelled_one_leave_no_thread() -> None:
    threads = set(threading.enumerate())
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        server.delay(0.3)
        starting = asyncio.create_task(member("g", server.namesrv, "one", Seen()).start())
        await asyncio.sleep(0.1)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        server.delay(0.0)
        assert set(threading.enumerate()) <= threads
        server.fail_next(1, 100, request=RequestCode.GET_MAX_OFFSET)
        failing = member("h", server.namesrv, "two", Seen())
        with pytest.raises(BrokerError):
            await failing.start()
        assert set(threading.enumerate()) <= threads
