"""What a relay takes from the table, when, and what becomes of it."""

from __future__ import annotations

import sqlite3
from time import monotonic
from typing import Any

import msgspec
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from rmq_async import Admin, ConfigError, Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox
from rmq_async.outbox.store import Store
from rmq_protocol.constants import RequestCode

from .support import Sessions, bodies, earlier, on_sqlite, prepare_sqlite, relay_of, rows, settled, store_of, until


@on_sqlite
async def test_what_could_not_be_written_for_longer_than_a_lease_is_not_sent_again(
    make: Any, sessions: Sessions, server: EmbeddedRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = make(lease=0.8)
    await outbox.create_table()
    record, until_when = Store.record, monotonic() + 1.2  # real time: the lease goes by the clock of the database, too

    async def away(*given: Any) -> None:
        if monotonic() < until_when:
            raise OSError("away")
        await record(*given)

    monkeypatch.setattr(Store, "record", away)
    async with outbox:
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"keyed", sharding_key="k"))
            await outbox.add(session, Message("T", b"loose"))
        assert (await settled(outbox)).sent == 2
    assert bodies(server) == [b"keyed", b"loose"]


@on_sqlite
async def test_outcomes_are_kept_while_the_driver_gets_no_thread(
    engine: AsyncEngine,
    producer: Producer,
    table: str,
    sessions: Sessions,
    server: EmbeddedRocketMQ,
    refusing: list[bool],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the row stayed reserved for its lease, and was sent again then."""
    unpooled = create_async_engine(engine.url, poolclass=NullPool)  # a thread for each connection
    event.listen(unpooled.sync_engine, "connect", prepare_sqlite)
    outbox = Outbox(unpooled, producer, table=table, poll_interval=0.02, lease=60.0)
    await outbox.create_table()
    record = Store.record

    async def without_threads(*given: Any) -> None:
        refusing[0] = "cannot write the outcomes" not in caplog.text
        await record(*given)

    monkeypatch.setattr(Store, "record", without_threads)
    async with outbox:
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x"))
        await until(lambda: "cannot write the outcomes of 1 messages" in caplog.text and not refusing[0])
        assert (await settled(outbox, 30.0)).sent == 1
    assert "no thread can be started (can't start new thread)" in caplog.text
    assert bodies(server) == [b"x"]


@on_sqlite
async def test_a_row_whose_lease_ends_while_it_is_handed_over_is_sent_once(
    make: Any, engine: AsyncEngine, table: str, sessions: Sessions, server: EmbeddedRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = make(lease=0.8)
    await outbox.create_table()
    owned = Store.owned

    async def slow(*given: Any) -> Any:
        await until(lambda: bool(server.messages("T")))
        return await owned(*given)

    monkeypatch.setattr(Store, "owned", slow)
    server.delay(0.15)
    async with outbox:
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x"))
        assert (await settled(outbox)).sent == 1
    assert bodies(server) == [b"x"]
    assert (await rows(engine, table))[0]["attempts"] == 1


async def test_a_row_that_holds_no_message_fails_alone(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02)
    await outbox.create_table()
    async with sessions.begin() as session:
        bad = await outbox.add(session, Message("T", b"bad", properties={"a": "b"}))
        await outbox.add(session, Message("T", b"good"))
        await session.execute(text(f"UPDATE {table} SET properties = 'no JSON' WHERE id = {bad}"))
    async with outbox:
        status = await settled(outbox)
    assert (status.sent, status.failed) == (1, 1)
    assert bodies(server) == [b"good"]
    assert "JSON is malformed" in (await rows(engine, table))[0]["last_error"]


async def test_a_large_window_is_not_too_large_for_sqlite(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions
) -> None:
    outbox = Outbox(engine, producer, table=table, batch_size=10_000)
    await outbox.create_table()
    async with sessions.begin() as session:
        ids = [await outbox.add(session, Message("T", b"x", sharding_key="k")) for _ in range(5)]
    if engine.dialect.name == "sqlite":

        def as_it_comes(connection: Any, _: Any) -> None:
            connection.driver_connection._conn.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)  # noqa: SLF001

        event.listen(engine.sync_engine, "connect", as_it_comes)
    in_hand, store = list(range(10**6, 10**6 + 40_000)), store_of(engine, table)
    assert await store.blocked(ids[3:], in_hand) == ids[3:]
    assert await store.blocked(ids[3:], in_hand + ids) == []


# -- what is due


@pytest.fixture
async def outbox(engine: AsyncEngine, producer: Producer, table: str) -> Outbox:
    """Not running."""
    made = Outbox(engine, producer, table=table, poll_interval=0.05)
    await made.create_table()
    return made


def another(engine: AsyncEngine, producer: Producer, table: str, **options: Any) -> Outbox:
    return Outbox(engine, producer, table=table, **{"poll_interval": 0.02} | options)


async def add(sessions: Sessions, outbox: Outbox, *messages: Message) -> list[int]:
    async with sessions.begin() as session:
        return [await outbox.add(session, message) for message in messages]


async def test_a_pass_sends_up_to_a_batch_of_what_is_due(
    engine: AsyncEngine, producer: Producer, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    await add(sessions, outbox, *[Message("T", b"%d" % number) for number in range(7)])
    small = another(engine, producer, table, batch_size=3)
    assert [await small.relay_once() for _ in range(4)] == [3, 3, 1, 0]
    assert bodies(server) == [b"%d" % number for number in range(7)]


async def test_a_row_is_taken_when_the_lease_of_its_sender_is_over_and_not_before(
    engine: AsyncEngine, producer: Producer, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    dead, store = store_of(engine, table, owner="dead", lease=600), store_of(engine, table)
    await add(sessions, outbox, Message("T", b"x"))
    (taken,), _ = await dead.claim(10, [], only=False, in_hand=[])
    assert taken.message.body == b"x"
    assert await store.claim(10, [], only=False, in_hand=[]) == ([], [])
    assert await outbox.relay_once() == 0
    left = taken.until - monotonic()
    await earlier(engine, table, "lease", "next_attempt", seconds=int(left) - 60)
    assert await outbox.relay_once() == 0
    await earlier(engine, table, "lease", "next_attempt", seconds=62)
    assert await outbox.relay_once() == 1
    assert bodies(server) == [b"x"]


async def test_a_failure_is_written_down_and_tried_again_after_a_pause(
    engine: AsyncEngine, producer: Producer, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    await add(sessions, outbox, Message("T", b"x"))
    patient = another(engine, producer, table, poll_interval=300.0)
    server.fail_next(2, 3)  # all attempts of one send
    assert await patient.relay_once() == 0
    (row,) = await rows(engine, table)
    assert (row["state"], row["attempts"], row["owner"]) == ("PENDING", 1, None)
    assert row["last_error"].startswith("SendError: ")
    assert await patient.relay_once() == 0  # not due
    await earlier(engine, table, "next_attempt")
    async with outbox:
        assert (await settled(outbox)).sent == 1
    assert (await rows(engine, table))[0]["attempts"] == 2


@pytest.mark.parametrize("code", [10, 11, 12])
@on_sqlite
async def test_what_its_broker_cannot_confirm_is_sent_again(
    code: int, engine: AsyncEngine, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    await add(sessions, outbox, Message("T", b"x", sharding_key="k"))
    server.fail_next(code)
    assert await outbox.relay_once() == 0
    assert (
        "the message was stored, but the broker did not confirm flush or replication ("
        in (await rows(engine, table))[0]["last_error"]
    )
    async with outbox:
        assert (await settled(outbox)).sent == 1
    assert bodies(server) == [b"x", b"x"]


@on_sqlite
async def test_large_bodies_leave_too(outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ) -> None:
    large = [bytes([number]) * 70_000 for number in range(5)]
    await add(sessions, outbox, *[Message("T", body, sharding_key="k") for body in large], Message("T", b"small"))
    assert await outbox.relay_once() == 6
    assert bodies(server) == sorted([*large, b"small"])


async def test_two_outboxes_share_the_work_and_send_nothing_twice(
    engine: AsyncEngine, producer: Producer, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    messages = [Message("T", b"%03d" % number, sharding_key=f"k{number % 7}" if number % 2 else None) for number in range(300)]
    await add(sessions, outbox, *messages)
    pair = [another(engine, producer, table, batch_size=20) for _ in range(2)]
    for each in pair:
        await each.start()
    relays = [relay_of(each) for each in pair]
    await settled(outbox)
    for each in pair:
        await each.stop()
    assert bodies(server) == [message.body for message in messages]
    shares = [relay.sending.sent for relay in relays]
    assert sum(shares) == 300
    assert all(shares)
    assert {relay.sending.in_hand for relay in relays} == {0}


@on_sqlite
async def test_an_outbox_that_starts_sends_what_was_added_without_it(
    engine: AsyncEngine, producer: Producer, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    await add(sessions, outbox, *[Message("T", b"%d" % number) for number in range(5)])
    async with another(engine, producer, table):
        assert (await settled(outbox)).sent == 5
    assert bodies(server) == [b"%d" % number for number in range(5)]


# -- what is refused, and topics that fail


@on_sqlite
async def test_one_message_of_a_batch_that_is_refused_does_not_take_the_others_with_it(
    engine: AsyncEngine, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    await add(sessions, outbox, *[Message("T", b"%d" % number) for number in range(5)])
    server.fail_next(13, 2)  # the batch, and the first one alone
    assert await outbox.relay_once() == 4
    states = [row["state"] for row in await rows(engine, table)]
    assert states == ["FAILED", "SENT", "SENT", "SENT", "SENT"]
    assert (await outbox.status()).failed == 1


async def test_what_failed_for_good_waits_for_a_retry(
    engine: AsyncEngine, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    first, second, third = await add(sessions, outbox, *[Message("T", b"%d" % n, sharding_key=str(n)) for n in range(3)])
    server.fail_next(13, 3)
    assert await outbox.relay_once() == 0
    assert await outbox.relay_once() == 0
    assert await outbox.retry([second, 10**6]) == 1
    assert [row["attempts"] for row in await rows(engine, table)] == [1, 0, 1]
    assert await outbox.relay_once() == 1
    assert bodies(server) == [b"1"]
    assert await outbox.retry() == 2
    async with outbox:
        assert (await settled(outbox)).sent == 3
    assert await outbox.retry([first, second, third]) == 0
    assert await outbox.retry([]) == 0
    with pytest.raises(TypeError, match="a whole number"):
        await outbox.retry(["1"])  # type: ignore[list-item]


async def test_a_retry_makes_what_waits_due_now(
    engine: AsyncEngine, producer: Producer, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    ids = await add(sessions, outbox, Message("T", b"x"))
    patient = another(engine, producer, table, poll_interval=20.0)
    server.fail_next(2, 3)
    assert await patient.relay_once() == 0
    assert await patient.relay_once() == 0
    assert await patient.retry(ids) == 1
    assert await patient.relay_once() == 1


@on_sqlite
async def test_a_topic_that_fails_does_not_hold_up_others(engine: AsyncEngine, table: str, sessions: Sessions) -> None:
    async with EmbeddedRocketMQ(auto_create_topics=False) as server:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic("Good")
        async with Producer("orders", namesrv=server.namesrv) as producer:
            outbox = another(engine, producer, table, batch_size=10)
            await outbox.create_table()
            await add(sessions, outbox, *[Message("Bad", b"x") for _ in range(100)])
            await add(sessions, outbox, *[Message("Good", b"%d" % number) for number in range(30)])
            async with outbox:
                await until(lambda: len(server.messages("Good")) == 30)
                assert (await outbox.status()).sent <= 30
                async with Admin(namesrv=server.namesrv) as admin:
                    await admin.create_topic("Bad")
                assert (await settled(outbox)).sent == 130
            assert len(server.messages("Bad")) == 100


# -- purge


async def test_a_purge_deletes_what_was_sent_long_enough_ago(
    outbox: Outbox, sessions: Sessions, engine: AsyncEngine, table: str, server: EmbeddedRocketMQ
) -> None:
    await add(sessions, outbox, *[Message("T", b"%d" % number, sharding_key="k") for number in range(3)])
    server.fail_next(13)
    assert await outbox.relay_once() == 0
    await outbox.retry()
    assert await outbox.relay_once() == 3
    await add(sessions, outbox, Message("T", b"waits"))
    assert await outbox.purge(3600.0) == 0
    assert await outbox.purge(0.0, failed=True) == 0
    assert await outbox.purge(0.0) == 3
    assert [row["state"] for row in await rows(engine, table)] == ["PENDING"]
    with pytest.raises(ConfigError, match="older_than"):
        await outbox.purge(-1.0)
    with pytest.raises(ConfigError, match="failed must be True or False, not 'no'"):
        await outbox.purge(0.0, failed="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ids must be an iterable of row ids"):
        await outbox.retry(5)  # type: ignore[arg-type]


async def test_a_purge_of_failed_rows_frees_their_keys(outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ) -> None:
    await add(sessions, outbox, Message("T", b"bad", sharding_key="k"), Message("T", b"good", sharding_key="k"))
    server.fail_next(13)
    assert await outbox.relay_once() == 0
    assert await outbox.relay_once() == 0
    assert await outbox.purge(0.0, failed=True) == 1
    assert await outbox.relay_once() == 1
    assert bodies(server) == [b"good"]


async def test_a_purge_takes_more_than_one_transaction_holds(
    outbox: Outbox, engine: AsyncEngine, sessions: Sessions, table: str
) -> None:
    await add(sessions, outbox, Message("T", b"x"))
    columns = "topic, body, flag, wait_store, delay_level, unique_id, attempts, next_attempt, created, updated"
    async with engine.begin() as connection:
        for _ in range(11):
            await connection.execute(text(f"INSERT INTO {table} ({columns}, state) SELECT {columns}, 'SENT' FROM {table}"))
    assert await outbox.purge(0.0) == 2047
    assert (await outbox.status()).sent == 0


async def test_outcomes_are_written_after_any_answer(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02)
    await outbox.create_table()
    send = producer.send

    async def strange(*given: Any, **options: Any) -> Any:
        result = await send(*given, **options)
        queue = result.queue._replace(broker_name="b\0" * 500)
        return msgspec.structs.replace(result, offset_msg_id="\0" * 1000, queue=queue, queue_offset=2**200)

    producer.send = strange  # type: ignore[method-assign]
    async with outbox:
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x"))
        assert (await settled(outbox)).sent == 1
    (kept,) = await rows(engine, table)
    assert kept["queue_offset"] == -1
    assert len(kept["offset_message_id"]) <= 255
    assert "\0" not in kept["offset_message_id"] + kept["queue"]


@on_sqlite
async def test_what_is_refused_together_is_sent_one_by_one(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    """As a broker does, with its code 1, whose own limit is smaller than a batch."""
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02)
    await outbox.create_table()
    async with Producer("first", namesrv=server.namesrv) as first:
        await first.send(Message("T", b"0"))
    server.fail_next(1, 1_000_000, request=RequestCode.SEND_BATCH_MESSAGE)
    async with outbox:
        async with sessions.begin() as session:
            for number in range(1, 20):
                await outbox.add(session, Message("T", b"%d" % number))
        assert (await settled(outbox)).sent == 19
    assert bodies(server) == sorted(b"%d" % number for number in range(20))
    assert {row["attempts"] for row in await rows(engine, table)} == {2}


@on_sqlite
async def test_few_large_bodies_are_in_memory_at_a_time(
    engine: AsyncEngine,
    producer: Producer,
    table: str,
    sessions: Sessions,
    server: EmbeddedRocketMQ,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02)
    await outbox.create_table()
    read = Store.body
    send, under_way, most = producer.send, 0, 0

    async def reading(store: Store, row: int) -> bytes | None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        return await read(store, row)

    async def sending(*given: Any, **options: Any) -> Any:
        nonlocal under_way
        try:
            return await send(*given, **options)
        finally:
            under_way -= 1

    monkeypatch.setattr(Store, "body", reading)
    producer.send = sending  # type: ignore[method-assign]
    large = [bytes([number]) * 100_000 for number in range(30)]
    async with outbox:
        async with sessions.begin() as session:
            for body in large:
                await outbox.add(session, Message("T", body))
        assert (await settled(outbox)).sent == 30
    assert bodies(server) == large
    assert 2 <= most <= 4
