"""Transactions in large numbers, at the bounds of memory, and through a restart."""

from __future__ import annotations

import random

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.transactions import CHECK_MAX_TOPIC, HALF_TOPIC, Transactions
from rmq_protocol.constants import RequestCode
from rmq_protocol.properties import properties_text

from ...support.fakes import UNIQUE_ID, RawClient
from ..inside import WatchedClock, log_of
from .support import ADDED, COMMIT, HALF, NOT_FOUND, ROLLBACK, answer_to, beat, checked, checks, end, half_queue, put_half


async def test_a_half_message_with_no_room_for_a_count_is_given_up_but_can_be_committed(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    added = {"__transactionId__": UNIQUE_ID, "REAL_TOPIC": "T", "REAL_QID": "0", "K": ""}
    room = 32767 - len(properties_text({**HALF, **ADDED, **added}))
    half = await put_half(broker, K="v" * room)
    await clock.advance(60)
    assert await checks(producer) == []
    (record,) = caplog.records
    assert record.message.startswith(
        f"broker-a: half message {UNIQUE_ID} is not checked again: it cannot be stored: the message is illegal"
    )
    assert (await end(broker, half, COMMIT)).code == 0
    assert len(server.messages("T")) == 1


async def test_large_half_messages_are_asked_about_in_several_steps(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.transactions._BATCH_BYTES", 1000)
    for index in range(5):
        await put_half(broker, body=bytes([index]) * 600)
    await clock.advance(29)
    steps = []
    look_at = Transactions._check  # noqa: SLF001
    monkeypatch.setattr(Transactions, "_check", lambda *given: steps.append("look") or look_at(*given))
    clock.before = lambda: steps.append("ring")
    await clock.advance(1)
    assert steps == ["ring", "look", "look"] * 2 + ["ring", "look"]
    assert [checked(check).body[0] for check in await checks(producer)] == [0, 1, 2, 3, 4]


@pytest.mark.virtual_time
async def test_random_ends_leave_the_questions_to_those_without_one(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setattr("rmq_async.embedded.transactions._BATCH", rng.choice([1, 7, 256]))
    halves: dict[str, dict[str, str]] = {}
    for number in range(120):
        halves[f"u{number}"] = await put_half(broker, UNIQ_KEY=f"u{number}")
        if rng.random() < 0.6:
            gone = halves.pop(rng.choice(list(halves)))
            await end(broker, gone, rng.choice([COMMIT, ROLLBACK]))
    for times in range(1, 4):
        await clock.advance(30)
        asked = {}
        for check in await checks(producer):
            message = checked(check)
            assert message.properties["TRANSACTION_CHECK_TIMES"] == str(times)
            asked[message.properties["UNIQ_KEY"]] = answer_to(check)
        assert asked.keys() == halves.keys()
        for unique_id in rng.sample(list(asked), len(asked) // 2):
            await end(producer, asked[unique_id], rng.choice([COMMIT, ROLLBACK]))
            del halves[unique_id]
    await clock.advance(60)
    assert {message.properties["UNIQ_KEY"] for message in server.messages(CHECK_MAX_TOPIC)} == halves.keys()
    state = half_queue(server)
    assert (state.open, state.ended) == (state.last, b"")


async def test_half_messages_that_the_memory_bound_takes_are_gone(clock: WatchedClock) -> None:
    async with (
        EmbeddedRocketMQ(clock=clock, max_memory=100_000) as server,
        RawClient(server.brokers["broker-a"]) as broker,
    ):
        await beat(broker, "p1")
        half = await put_half(broker)
        kept = await put_half(broker, UNIQ_KEY="kept")
        for _ in range(200):
            await broker.send("T", bytes(300))
        refused = await end(broker, half, COMMIT)
        assert (refused.code, refused.remark) == (1, NOT_FOUND)
        assert (await end(broker, kept, COMMIT)).code == 1
        assert await broker.offset(RequestCode.GET_MIN_OFFSET, HALF_TOPIC) == 2
        last = await put_half(broker, UNIQ_KEY="last")
        await clock.advance(30)
        assert [checked(check).properties["UNIQ_KEY"] for check in await checks(broker)] == ["last"]
        assert (await end(broker, last, COMMIT)).code == 0


@pytest.mark.virtual_time
async def test_transactions_that_never_end_keep_no_more_than_the_memory_bound(clock: WatchedClock) -> None:
    """Ended behind one that is not, never ended, and ended after they were asked about."""
    async with (
        EmbeddedRocketMQ(clock=clock, max_memory=50_000, transaction_check_max=1000) as server,
        RawClient(server.brokers["broker-a"]) as broker,
    ):
        await put_half(broker)
        for _ in range(300):
            await end(broker, await put_half(broker), ROLLBACK)
            state = half_queue(server)
            assert len(state.ended) <= state.last - state.first
        assert state.first > 100
        assert state.open == state.last
        for _ in range(300):
            await put_half(broker)
        for _ in range(20):
            await clock.advance(30)
            state = half_queue(server)
            assert len(state.ended) <= state.last - state.first < 130
            assert log_of(server).memory <= 50_000
        server.clear()
        await clock.advance(60)
        state = half_queue(server)
        assert (state.open, state.ended, len(log_of(server))) == (state.last, b"", 0)


async def test_a_restart_goes_on_asking(server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock) -> None:
    first = await put_half(broker, UNIQ_KEY="first")
    await put_half(broker, UNIQ_KEY="second")
    await clock.advance(29)
    await server.stop()
    assert not clock.waiting
    await clock.advance(3600)
    await server.start()
    async with RawClient(server.brokers["broker-a"]) as producer:
        await beat(producer, "p1")
        assert (await end(producer, first, COMMIT)).code == 0
        await clock.advance(29.9)
        assert await checks(producer) == []
        await clock.advance(0.1)
        (check,) = await checks(producer)
        assert checked(check).properties["UNIQ_KEY"] == "second"
        assert (await end(producer, answer_to(check), COMMIT)).code == 0
    assert [message.properties["UNIQ_KEY"] for message in server.messages("T")] == ["first", "second"]


async def test_check_round_interrupted_by_stop_is_repeated(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.transactions._BATCH", 2)
    for index in range(5):
        await put_half(broker, UNIQ_KEY=f"u{index}")
    await clock.advance(29)
    clock.held = []
    await clock.advance(1)
    (ring,), clock.held = clock.held, []  # the first step is made, the next one is due and waits
    ring()
    await server.stop()
    clock.held = None
    monkeypatch.undo()
    await server.start()
    async with RawClient(server.brokers["broker-a"]) as producer:
        await beat(producer, "p1")
        await clock.advance(30)
        asked = [checked(check).properties for check in await checks(producer)]
    times = {properties["UNIQ_KEY"]: properties["TRANSACTION_CHECK_TIMES"] for properties in asked}
    assert times == {"u0": "2", "u1": "2", "u2": "1", "u3": "1", "u4": "1"}
