"""Random sends with batching under random faults: every call ends once and every account is at zero."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Any

import pytest

from rmq_async import Batching, Message, Producer, errors
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from ...support.fakes import TOPIC
from ...support.instances import client_of
from ..harm import harm
from ..support import core_of, gathers_nothing, seeded, tasks_named, until

pytestmark = pytest.mark.virtual_time

SENDS = 400
WORKERS = 25
SEND_CODES = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
FAILURES = (1, 2, 13, 14, 16, 29, 3, 10, 1500)
"""System error, busy, illegal (twice), not available, no permission, not supported, stored and not flushed, go away."""


class Call:
    """One call and its outcomes. ``key``: of its queue, if it has one. ``turn``: when it was made, of all."""

    def __init__(self, body: bytes, key: str | None) -> None:
        self.body = body
        self.key = key
        self.turn = 0
        self.outcomes: list[Any] = []
        self.callbacks = 0


class Run:
    def __init__(self, source: random.Random, sender: Producer) -> None:
        self.source = source
        self.sender = sender
        self.calls: list[Call] = []
        self.turns = 0

    async def worker(self, number: int) -> None:
        source = self.source
        for _ in range(SENDS // WORKERS):
            # A worker makes a few calls at once: those of one key are in order.
            await asyncio.gather(*[self.one(number) for _ in range(source.choice([1, 1, 2, 10]))])
            await asyncio.sleep(source.random() * 0.01)

    async def one(self, worker: int) -> None:
        source, sender = self.source, self.sender
        call = Call(b"%06d" % len(self.calls), f"key {worker % 5}" if source.random() < 0.4 else None)
        self.calls.append(call)
        kind = source.choice(["plain", "plain", "plain", "async", "async", "large", "delayed", "cancelled", "short", "no wait"])
        options: dict[str, Any] = {} if call.key is None else {"key": call.key}
        body = call.body + (os.urandom(5000) if kind == "large" else b"x" * source.randrange(200))
        item = Message(TOPIC, body, delay_level=1 if kind == "delayed" else 0, wait_store=kind != "no wait")
        if kind == "short":
            options["timeout"] = source.random() * 0.05 + 0.001
        if kind == "async" or source.random() < 0.2:

            def ended(_: Any) -> None:
                call.callbacks += 1

            self.begin(call)
            try:
                future = await sender.send_async(item, on_success=ended, on_error=ended, **options)
            except errors.RocketMQError as error:
                call.outcomes.append(error)
                call.callbacks += 1
                return
            waited: asyncio.Future[Any] = future
        else:
            call.callbacks = 1
            waited = asyncio.ensure_future(self.send(call, item, options))
        if kind == "cancelled":
            asyncio.get_running_loop().call_later(source.random() * 0.02, waited.cancel)
        try:
            call.outcomes.append(await waited)
        except (errors.RocketMQError, asyncio.CancelledError) as error:
            call.outcomes.append(error)

    async def send(self, call: Call, item: Message, options: dict[str, Any]) -> Any:
        self.begin(call)
        return await self.sender.send(item, **options)

    def begin(self, call: Call) -> None:
        self.turns += 1
        call.turn = self.turns


def settings(source: random.Random) -> dict[str, Any]:
    batching = Batching(
        max_bytes=source.choice([300, 2000, 256 * 1024]),
        max_messages=source.choice([1, 3, 64, 1024]),
        linger=source.choice([0.0, 0.0, 0.005]),
        lanes_per_broker=source.choice([1, 2]),
        max_pending_bytes=source.choice([3000, 1 << 20]),
    )
    retries = source.choice([0, 2])
    return {
        "batching": batching,
        "retries": retries,
        "async_retries": retries,
        "async_limit": source.choice([5, 65535]),
        "latency_fault": source.choice([False, True]),
        "retry_same_queue": source.choice([False, True]),
        "timeout": 1.0,
    }


@pytest.mark.parametrize("run_number", range(6))
async def test_random_sends_under_random_faults(run_number: int) -> None:
    seed = int(os.environ.get("RMQ_SEED") or seeded().randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    source = random.Random(seed)
    options = settings(source)
    print(options)
    async with EmbeddedRocketMQ(brokers=2) as servers:
        async with Producer("group", namesrv=servers.namesrv, topics=[TOPIC], **options) as sender:
            await sender.send(Message(TOPIC, b"warm"))
            run = Run(source, sender)
            async with harm(
                servers, source, codes=FAILURES, requests=SEND_CODES, longest_stall=0.2, longest_pause=0.05
            ) as harmed:
                await asyncio.wait_for(asyncio.gather(*[run.worker(number) for number in range(WORKERS)]), 60.0)
            at_zero(sender)
            connections = (await client_of(sender)).pool.connections
            await until(lambda: not any(connection.pending for connection in connections))
            await sender.send(Message(TOPIC, b"after"))
        check(run, servers)
    print(len(run.calls), "calls", Counter(type(call.outcomes[0]).__name__ for call in run.calls), dict(harmed))


def at_zero(sender: Producer) -> None:
    credit = core_of(sender).credits
    assert (credit.taken, credit.taken_bytes, credit.waiting) == (0, 0, 0)
    assert credit.so_far() == []
    assert gathers_nothing(core_of(sender).batcher)
    assert not tasks_named("rmq_async route of a batch")


def check(run: Run, servers: EmbeddedRocketMQ) -> None:
    for call in run.calls:
        assert len(call.outcomes) == 1, call.body
        assert call.callbacks == 1, call.body
    stored: dict[bytes, list[Any]] = {}
    later: dict[bytes, list[Any]] = {}
    for topic, found_there in ((TOPIC, stored), ("SCHEDULE_TOPIC_XXXX", later)):
        for found in servers.messages(topic):
            found_there.setdefault(found.body[:6], []).append(found)
    ended = sorted(run.calls, key=lambda call: call.turn)
    acknowledged = {call.body: call for call in ended if not isinstance(call.outcomes[0], BaseException)}
    in_order: dict[tuple[str, Any], list[int]] = {}
    for body, call in acknowledged.items():
        result = call.outcomes[0]
        copies, late = stored.get(body, []), later.get(body, [])
        assert copies or late, f"{body!r} was acknowledged and is lost"
        if not late:  # a delayed message's result names the queue that it waits in
            mine = [found for found in copies if (found.queue, found.queue_offset) == (result.queue, result.queue_offset)]
            assert [found.unique_id for found in mine] == [result.msg_id], body
            assert mine[0].offset_msg_id == result.offset_msg_id
            if call.key is not None:
                in_order.setdefault((call.key, result.queue), []).append(result.queue_offset)
            if result.attempts == 1:
                assert len(copies) == 1, body
    for offsets in in_order.values():
        assert offsets == sorted(offsets)
    if not run.sender.config.retries:
        for there in (stored, later):  # a delayed message that is delivered is in both
            ids = Counter(found.unique_id for copies in there.values() for found in copies)
            assert max(ids.values(), default=1) == 1, "nothing was sent twice"
