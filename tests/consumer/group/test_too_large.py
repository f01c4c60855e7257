"""Messages that a member cannot read, though they are not damaged: its queue stays at them, and it says so."""

from __future__ import annotations

import os

import pytest

from rmq_async import Admin, Consumer, Message, MessageQueue, Producer, Retry
from rmq_async.embedded import EmbeddedRocketMQ

from ..pop.support import popping
from .support import Seen, create, member, until

LIMIT = 65_536
Q0, Q1 = (MessageQueue("T", "broker-a", number) for number in range(2))


async def fill(namesrv: str, *bodies: bytes, queue: MessageQueue = Q0) -> None:
    async with Producer("senders", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message("T", body), queue=queue)


def unreadable(consumer: Consumer) -> list[tuple[MessageQueue | None, str]]:
    return [(each.queue, each.text) for each in consumer.health().problems if each.code == "queue_unreadable"]


async def test_answers_above_max_frame_size_are_pulled_by_fewer() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        await fill(server.namesrv, *[os.urandom(20_000) for _ in range(24)])
        await fill(server.namesrv, *[b"%d" % number for number in range(20)], queue=Q1)
        seen = Seen()
        async with member("g", server.namesrv, "one", seen, start_from="earliest", max_frame_size=LIMIT) as consumer:
            await until(lambda: len(seen.bodies) == 44)
            assert consumer.health().problems == ()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("large", "options"),
    [(os.urandom(LIMIT), {"max_frame_size": LIMIT}), (bytes(2 * LIMIT), {"max_decompressed_size": LIMIT})],
    ids=["above max_frame_size", "above max_decompressed_size"],
)
async def test_queue_stays_at_a_message_that_is_too_large(large: bytes, options: dict[str, int]) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        await fill(server.namesrv, b"0", b"1", large, b"3")
        await fill(server.namesrv, b"other", queue=Q1)
        seen = Seen()
        async with member("g", server.namesrv, "one", seen, start_from="earliest", **options) as consumer:
            await until(lambda: len(seen.bodies) == 3 and unreadable(consumer))
            ((queue, text),) = unreadable(consumer)
            assert queue == Q0
            assert "at offset 2 " in text
            assert next(iter(options)) in text
            assert consumer.lag().messages == 2
            await fill(server.namesrv, b"more", queue=Q1)
            await until(lambda: seen.bodies[b"more"])
            await consumer.seek(Q0, 3)
            await until(lambda: seen.bodies[b"3"])
            await until(lambda: not unreadable(consumer))
        assert seen.bodies[large] == 0
        async with member("g2", server.namesrv, "two", seen, start_from="earliest"):
            await until(lambda: seen.bodies[large])


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("large", "options"),
    [(os.urandom(LIMIT), {"max_frame_size": LIMIT}), (bytes(2 * LIMIT), {"max_decompressed_size": LIMIT})],
    ids=["above max_frame_size", "above max_decompressed_size"],
)
async def test_popped_message_that_is_too_large_comes_again_until_a_member_can_read_it(
    large: bytes, options: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv, queues=1)
        await fill(server.namesrv, b"0", b"1", large, b"3")
        seen = Seen()
        async with popping(server, seen, invisible_time=1.0, **options) as consumer:
            await until(lambda: len(seen.bodies) == 3 and unreadable(consumer))
            assert next(iter(options)) in unreadable(consumer)[0][1]
        assert "is not handled here and is delivered again" in caplog.text
        assert seen.twice == 0
        async with popping(server, seen, invisible_time=1.0):
            await until(lambda: seen.bodies[large])
        assert server.dead_letters("g") == []


@pytest.mark.virtual_time
async def test_answers_above_max_frame_size_cost_popped_messages_no_attempt() -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        await fill(server.namesrv, *[os.urandom(20_000) for _ in range(24)])
        seen = Seen()
        async with popping(server, seen, max_frame_size=100_000, retry=Retry(limit=0)):
            await until(lambda: len(seen.bodies) == 24)  # none waits for its lease of 60 s
        assert {attempt for _, attempt in seen.attempts} == {1}
        assert server.dead_letters("g") == []


async def test_dead_letters_above_max_frame_size_are_read_by_fewer() -> None:
    def fail(_: object) -> None:
        raise ValueError

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await fill(server.namesrv, *[os.urandom(20_000) for _ in range(8)])
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        consumer.subscribe("T", fail, retry=Retry(limit=0))
        async with consumer:
            await until(lambda: consumer.stats().dead_lettered == 8)
        async with Admin(namesrv=server.namesrv, max_frame_size=LIMIT) as admin:
            assert len(await admin.dead_letters("g")) == 8
            assert await admin.resend_dead_letters("g") == 8
