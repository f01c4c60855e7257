"""Broadcast: each member reads everything, and keeps its positions itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from rmq_async import (
    Admin,
    ConfigError,
    Consumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    SubscriptionConflictError,
    allocate_by_circle,
)
from rmq_async.consumer.broadcast import saved_positions
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode

from .support import Seen, create, member, send, until

pytestmark = pytest.mark.virtual_time

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
SHARED = [
    RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.CONSUMER_SEND_MSG_BACK,
]  # fmt: skip
"""Requests of members that share queues."""


class Store:
    """Positions in memory. ``saves``: all that were saved. ``failing``: what ``save`` raises."""

    def __init__(self, positions: Mapping[MessageQueue, int] | None = None) -> None:
        self.positions = dict(positions or {})
        self.saves: list[dict[MessageQueue, int]] = []
        self.failing: BaseException | None = None
        self.hold: asyncio.Event | None = None

    async def load(self, topic: str) -> Mapping[MessageQueue, int]:
        return {queue: offset for queue, offset in self.positions.items() if queue.topic == topic}

    async def save(self, positions: Mapping[MessageQueue, int], /) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.failing is not None:
            raise self.failing
        self.saves.append(dict(positions))
        self.positions = dict(positions)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


async def test_each_member_handles_each_message_once() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv)
        one, two = Seen(), Seen()
        async with (
            member("g", server.namesrv, "one", one, broadcast=True) as first,
            member("g", server.namesrv, "two", two, broadcast=True) as second,
        ):
            await send(server.namesrv, *numbers(0, 40))
            for consumer in (first, second):
                await consumer.wait_idle()
                assert len(consumer.assignment) == 8
                assert consumer.health().problems == ()
            assert one.bodies == two.bodies == dict.fromkeys(numbers(0, 40), 1)
        assert not server.progress("g")
        assert {server.requests[code] for code in SHARED} == {0}


async def test_member_shows_as_broadcasting_and_without_retry_topic() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        async with member("g", server.namesrv, "one", Seen(), broadcast=True), Admin(namesrv=server.namesrv) as admin:
            shown = await admin.consumer_connections("g")
            assert str(shown.message_model) == "BROADCASTING"
            assert set(shown.subscriptions) == {"T"}


async def test_without_store_each_start_begins_where_start_from_says() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        await send(server.namesrv, *numbers(0, 5))
        latest, earliest = Seen(), Seen()
        for _ in range(2):
            async with (
                member("g", server.namesrv, "one", latest, broadcast=True) as first,
                member("g", server.namesrv, "two", earliest, broadcast=True, start_from="earliest") as second,
            ):
                await first.wait_idle()
                await second.wait_idle()
        assert not latest.bodies
        assert earliest.bodies == dict.fromkeys(numbers(0, 5), 2)


async def test_stored_positions_are_where_the_next_start_begins() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv)
        store, seen = Store(), Seen()
        async with member("g", server.namesrv, "one", seen, broadcast=store) as consumer:
            assert len(store.positions) == 8  # saved by start()
            await send(server.namesrv, *numbers(0, 20))
            await consumer.wait_idle()
        assert sum(store.positions.values()) == 20
        await send(server.namesrv, *numbers(20, 30))
        async with member("g", server.namesrv, "one", seen, broadcast=store) as consumer:
            await consumer.wait_idle()
            queue = next(iter(consumer.assignment))
            await consumer.commit()
            assert await consumer.committed(queue) == store.positions[queue] == consumer.position(queue)
        assert seen.bodies == dict.fromkeys(numbers(0, 30), 1)
        assert sum(store.positions.values()) == 30


async def test_positions_are_saved_each_interval_in_which_one_has_changed() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        store = Store()
        async with member("g", server.namesrv, "one", Seen(), broadcast=store, commit_interval=0.05) as consumer:
            await send(server.namesrv, b"1")
            await until(lambda: sum(store.positions.values()) == 1)
            count = len(store.saves)
            await asyncio.sleep(0.3)
            assert len(store.saves) == count
            await send(server.namesrv, b"2")
            await until(lambda: sum(store.positions.values()) == 2)
            assert consumer.stats().commits >= 2
        totals = [sum(each.values()) for each in store.saves]
        assert totals == sorted(totals)


async def test_position_stays_before_a_message_that_runs() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        release = asyncio.Event()

        async def work(message: MessageExt) -> None:
            if message.body == b"0":
                await release.wait()

        store, seen = Store(), Seen(work)
        async with member("g", server.namesrv, "one", seen, broadcast=store, commit_interval=0.05, start_from="earliest"):
            await send(server.namesrv, *numbers(0, 5))
            await until(lambda: len(seen.bodies) == 4)
            await asyncio.sleep(0.2)
            assert store.positions[Q0] == 0
            release.set()
            await until(lambda: store.positions[Q0] == 5)


async def test_failing_save_is_logged_shown_and_made_again(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        store = Store()
        store.failing = OSError("the disk is full")
        async with member("g", server.namesrv, "one", Seen(), broadcast=store, commit_interval=0.05) as consumer:
            await send(server.namesrv, b"1")
            await consumer.wait_idle()
            await asyncio.sleep(0.2)
            (problem,) = consumer.health().problems
            assert problem.code == "not_committed"
            assert "save() of the positions failed: OSError('the disk is full')" in problem.text
            with pytest.raises(OSError, match="the disk is full"):
                await consumer.commit()
            warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(warnings) == 1
            store.failing = None
            await until(lambda: store.positions.get(Q0) == 1)
            await until(lambda: consumer.health().problems == ())


async def test_save_that_hangs_is_logged_shown_and_made_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_positions, "SAVE_TIME", 0.1)
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        store = Store()
        async with member("g", server.namesrv, "one", Seen(), broadcast=store, commit_interval=0.05) as consumer:
            store.hold = asyncio.Event()
            await send(server.namesrv, b"1")
            await consumer.wait_idle()
            await until(lambda: [problem.code for problem in consumer.health().problems] == ["not_committed"])
            (problem,) = consumer.health().problems
            assert "save() of the positions failed: TimeoutError('it did not end within 0.1 s')" in problem.text
            warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert warnings == [
                "save() of the positions failed: TimeoutError('it did not end within 0.1 s'); it is called again"
            ]
            store.hold.set()
            await until(lambda: store.positions.get(Q0) == 1)
            await until(lambda: consumer.health().problems == ())


async def test_store_that_hangs_does_not_hold_up_a_stop() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        store = Store()
        consumer = member("g", server.namesrv, "one", Seen(), broadcast=store, commit_interval=0.05)
        await consumer.start()
        store.hold = asyncio.Event()
        await send(server.namesrv, b"1")
        await consumer.wait_idle()
        async with asyncio.timeout(4):
            await consumer.stop(2)


@pytest.mark.parametrize("found", [[], {Q0: -1}, {Q0: "1"}, {("T", "broker-a", 0): 1}, {MessageQueue("U", "broker-a", 0): 1}])
async def test_load_that_returns_something_else_fails_the_start(found: Any) -> None:
    class Wrong(Store):
        async def load(self, topic: str) -> Mapping[MessageQueue, int]:
            return found  # type: ignore[no-any-return]

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        with pytest.raises(ConfigError, match=r"load\('T'\) of the stored positions must return a mapping"):
            await member("g", server.namesrv, "one", Seen(), broadcast=Wrong()).start()


async def test_load_that_raises_fails_the_start() -> None:
    class Broken(Store):
        async def load(self, topic: str) -> Mapping[MessageQueue, int]:
            raise OSError("no such file")

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        consumer = member("g", server.namesrv, "one", Seen(), broadcast=Broken())
        with pytest.raises(OSError, match="no such file"):
            await consumer.start()
        assert repr(consumer) == "<Consumer g not started>"


async def test_new_queues_are_read_from_their_first_message() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        store, seen = Store(), Seen()
        async with member("g", server.namesrv, "one", seen, broadcast=store, route_poll_interval=0.1) as consumer:
            server.resize("T", 3)
            await send(server.namesrv, *numbers(0, 12))
            await until(lambda: len(seen.bodies) == 12)
            assert len(consumer.assignment) == 3
        assert (len(store.positions), sum(store.positions.values())) == (3, 12)


async def test_queue_without_stored_position_beside_others_is_new() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        await send(server.namesrv, *numbers(0, 6))
        seen = Seen()
        async with member("g", server.namesrv, "one", seen, broadcast=Store({Q0: 1})) as consumer:
            await consumer.wait_idle()
        assert (len(seen.bodies), seen.twice) == (5, 0)


async def test_queue_that_left_the_route_goes_on_where_it_was() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        seen = Seen()
        options = {"broadcast": True, "route_poll_interval": 0.1, "start_from": "earliest"}
        async with member("g", server.namesrv, "one", seen, **options) as consumer:
            await send(server.namesrv, *numbers(0, 10))
            await consumer.wait_idle()
            server.resize("T", 1)
            await until(lambda: consumer.assignment == {Q0})
            server.resize("T", 2)
            await until(lambda: consumer.assignment == {Q0, Q1})
            await send(server.namesrv, *numbers(10, 20))
            await until(lambda: len(seen.bodies) == 20)
        assert seen.twice == 0


async def test_topic_that_comes_later_is_read_from_its_first_message() -> None:
    async with EmbeddedRocketMQ() as server:
        seen = Seen()
        async with member("g", server.namesrv, "one", seen, broadcast=True):
            await send(server.namesrv, *numbers(0, 5))
            await until(lambda: len(seen.bodies) == 5)


async def test_seek_moves_a_position_back() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        store, seen = Store(), Seen()
        async with member("g", server.namesrv, "one", seen, broadcast=store, commit_interval=0.05) as consumer:
            await send(server.namesrv, *numbers(0, 4))
            await until(lambda: store.positions[Q0] == 4)
            await consumer.seek(Q0, 2)
            await until(lambda: len(seen.attempts) == 6)
            await until(lambda: store.positions[Q0] == 4)
        moves = [each[Q0] for each in store.saves]
        assert 2 in moves[moves.index(4) :]


async def test_group_in_both_modes_is_a_conflict() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        async with member("g", server.namesrv, "one", Seen()):
            other = member("g", server.namesrv, "two", Seen(), broadcast=True, on_conflict="raise")
            with pytest.raises(SubscriptionConflictError, match="this member is BROADCASTING, another one is CLUSTERING"):
                await other.start()


async def test_callbacks_name_all_queues() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        events: list[tuple[str, int]] = []
        options = {
            "on_assigned": lambda queues: events.append(("assigned", len(queues))),
            "on_revoked": lambda queues: events.append(("revoked", len(queues))),
        }
        async with member("g", server.namesrv, "one", Seen(), broadcast=True, **options):
            assert events == [("assigned", 4)]
        assert events == [("assigned", 4), ("revoked", 4)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"broadcast": 1}, r"broadcast must be True, False or an object with load\(\) and save\(\), not 1"),
        ({"broadcast": None}, "broadcast must be True, False"),
        ({"broadcast": Store}, "broadcast=.*Store.* is a class; pass an instance of it"),
        ({"broadcast": True, "topics": "T"}, "broadcast requires handlers"),
        ({"broadcast": True, "mode": "pop"}, "broadcast and mode='pop' exclude each other"),
        ({"broadcast": True, "allocate": allocate_by_circle}, "broadcast and allocate=<function .*> exclude each other"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Consumer("g", namesrv="127.0.0.1:9876", **options)


def test_plain_functions_as_store_are_no_coroutines() -> None:
    async def start() -> None:
        class Plain:
            def load(self, topic: str) -> dict[MessageQueue, int]:
                return {}

            def save(self, positions: Mapping[MessageQueue, int]) -> None:
                pass

        async with EmbeddedRocketMQ() as server:
            await create(server.namesrv)
            with pytest.raises(ConfigError, match=r"load\(\) of broadcast=.* must be a coroutine function"):
                await member("g", server.namesrv, "one", Seen(), broadcast=Plain()).start()

    asyncio.run(start())


def test_member_starts_without_the_queues_of_a_silent_broker() -> None:
    """They begin with the first message stored after its start, as those of a broker that was unreachable."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=32)
        seen = Seen()

        async def send_to(broker: str, *bodies: bytes) -> None:
            async with Producer("senders", namesrv=s.namesrv) as producer:
                for number, body in enumerate(bodies):
                    await producer.send(Message("T", body), queue=MessageQueue("T", broker, number))

        await send_to("broker-a", *numbers(0, 10))
        await asyncio.sleep(60.0)
        s.brokers[0].pause()
        consumer = Consumer("g", namesrv=s.namesrv, broadcast=True, start_from="latest")
        consumer.subscribe("T", seen)
        async with consumer:
            await send_to("broker-b", b"other")
            await until(lambda: b"other" in seen.bodies)
            s.brokers[0].resume()
            await send_to("broker-a", *numbers(10, 20))
            await until(lambda: len(seen.bodies) == 11, 60.0)
        assert seen.bodies == dict.fromkeys([b"other", *numbers(10, 20)], 1)

    Simulation(5, brokers=2, faults=None).run(main)
