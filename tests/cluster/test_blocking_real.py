"""Handlers that block, callbacks at handovers, and what a stop leaves at the brokers.

``RMQ_ASYNC_SLEEP=120`` has the plain handler sleep for as many seconds, with the usual pauses between heartbeats and renewals; in
the suite both are shorter.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
import uuid
from collections import Counter
from typing import Any, Final

import pytest

from rmq_async import Admin, Consumer, Hook, Message, MessageExt, MessageQueue, Producer
from rmq_async.consumer.group.queue_locks import QueueLocks, handover_group
from rmq_async.consumer.queues import pull_session
from rmq_async.errors import BrokerError
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ..support.instances import client_of
from ..support.waiting import until

SLEEP: Final = float(os.environ.get("RMQ_ASYNC_SLEEP", "5"))
BLOCK: Final = 5.0 if SLEEP > 60 else 2.6
WATCHED: Final = (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UPDATE_CONSUMER_OFFSET)


class Answers(Hook):
    """Counts requests that were answered, and those that were not."""

    def __init__(self) -> None:
        self.answered: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()

    def after_request(
        self, address: str, command: RemotingCommand, response: RemotingCommand | None, error: BaseException | None
    ) -> None:
        (self.answered if response is not None and response.code == 0 else self.failed)[command.code] += 1


async def test_blocking_handlers_cost_no_lock_and_a_stop_leaves_nothing(
    feature_cluster: RealCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    namesrv, unique = feature_cluster.namesrv, uuid.uuid4().hex[:8]
    group, topic, other = f"blocking-{unique}", f"blocking-plain-{unique}", f"blocking-async-{unique}"
    options: dict[str, Any] = {}
    if SLEEP < 60:
        monkeypatch.setattr(pull_session, "RENEW_EVERY", 1.0)
        options = {"heartbeat_interval": 1.0}
    began, handled = asyncio.Event(), Counter[bytes]()
    loop = asyncio.get_running_loop()

    def sleeps(message: MessageExt) -> None:
        if message.body == b"sleep":
            loop.call_soon_threadsafe(began.set)
            time.sleep(SLEEP)
        handled[message.body] += 1

    async def blocks(message: MessageExt) -> None:
        if message.body == b"block":
            time.sleep(BLOCK)
        handled[message.body] += 1

    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        for each in (topic, other):
            await admin.create_topic(each, queues=1, broker="broker-a")
        answers = Answers()
        consumer = Consumer(group, namesrv=namesrv, hooks=[answers], instance_name="blocks", commit_interval=0.5, **options)
        consumer.subscribe(topic, sleeps)
        consumer.subscribe(other, blocks)
        await consumer.start()
        owned = consumer.assignment
        async with Producer("blocking-senders", namesrv=namesrv) as sender:
            slept = (await sender.send(Message(topic, b"sleep"))).queue
            await asyncio.wait_for(began.wait(), 30)
            before, since = answers.answered.copy(), time.monotonic()
            for number in range(int(SLEEP)):  # messages of the other topic go on meanwhile
                await sender.send(Message(other, b"%d" % number))
                await asyncio.sleep(0.9)
            assert await consumer.committed(slept) == 0
            await consumer.wait_settled(int(SLEEP) + 1, timeout=30)
            during = answers.answered - before
            print(
                f"asleep {time.monotonic() - since:.1f} s:",
                {code.name: during[code] for code in WATCHED},
                "answered;",
                dict(answers.failed),
            )
            assert all(during[code] >= 3 for code in WATCHED)
            assert not any(answers.failed[code] for code in WATCHED)
            blocked = (await sender.send(Message(other, b"block"))).queue
            await consumer.wait_settled(1, timeout=30)
        await asyncio.sleep(1.5)
        assert consumer.assignment == owned
        assert await consumer.committed(slept) == 1
        assert await consumer.committed(blocked) == int(SLEEP) + 1
        await consumer.stop()
        assert set(handled.values()) == {1}
        texts = [record.getMessage() for record in caplog.records if "has blocked the event loop" in record.getMessage()]
        assert len(texts) == 1
        assert "<locals>.blocks has blocked" in texts[0]
        print(texts[0])
        assert not [record for record in caplog.records if "taken over by another member" in record.getMessage()]

        with pytest.raises(BrokerError, match="206"):
            await admin.consumer_connections(group)
        locks = QueueLocks(await client_of(admin), handover_group(group))
        assert await locks.lock(owned) == owned
        await locks.unlock_all()
        for each in (topic, other):
            await admin.delete_topic(each)


async def test_callbacks_at_a_handover_between_two_members(feature_cluster: RealCluster) -> None:
    """The new owner's on_assigned comes after the commit and the unlock of the former one, and before its own first message."""
    namesrv, unique = feature_cluster.namesrv, uuid.uuid4().hex[:8]
    group = topic = f"callbacks-{unique}"
    events: list[tuple[str, str, frozenset[MessageQueue]]] = []
    committed: dict[MessageQueue, int | None] = {}

    def member(name: str) -> Consumer:
        async def called(kind: str, queues: frozenset[MessageQueue]) -> None:
            events.append((name, kind, queues))
            mine = [queue for queue in queues if queue.topic == topic]
            if kind == "on_released":
                committed.update({queue: await consumer.committed(queue) for queue in mine})

        async def handle(message: MessageExt) -> None:
            events.append((name, "handler", frozenset({message.queue})))
            await asyncio.sleep(0.3)

        kinds = ("on_assigned", "on_revoked", "on_released", "on_lost")
        callbacks: dict[str, Any] = {kind: functools.partial(called, kind) for kind in kinds}
        consumer = Consumer(group, namesrv=namesrv, instance_name=name, commit_interval=60, **callbacks)
        consumer.subscribe(topic, handle)
        return consumer

    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin, Producer("callback-senders", namesrv=namesrv) as sender:
        await admin.create_topic(topic, queues=4, broker="broker-a")
        one, two = member("one"), member("two")
        await one.start()
        for number in range(8):
            await sender.send(Message(topic, b"%d" % number))
        await one.wait_settled(2)
        await two.start()
        await until(lambda: len(two.assignment) >= 2, 30)
        moved = two.assignment
        for number in range(8):
            await sender.send(Message(topic, b"later %d" % number))
        await one.stop()
        await until(lambda: sum(queue.topic == topic for queue in two.assignment) == 4, 30)  # wait_idle knows no others
        await two.wait_idle(timeout=20)
        await two.stop()
        assert "on_lost" not in [kind for _, kind, _ in events]
        for queue in moved:
            order = [(name, kind) for name, kind, queues in events if queue in queues and kind != "handler"]
            assert order[:4] == [("one", "on_assigned"), ("one", "on_revoked"), ("one", "on_released"), ("two", "on_assigned")]
            at = [(name, kind) for name, kind, queues in events if queue in queues]
            taken = at.index(("two", "on_assigned"))
            assert ("two", "handler") not in at[:taken]
            assert ("one", "handler") not in at[taken:]
            if queue.topic == topic:
                assert committed[queue] is not None
        assert sum(kind == "handler" for _, kind, _ in events) == 16
        await admin.delete_topic(topic)
