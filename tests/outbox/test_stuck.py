"""Which outbox reports messages that do not leave, how often, and what the status says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox, OutboxStatus, StuckMessage, relay

from .support import Looks, Sessions, earlier, on_sqlite, rows, settled, until


@pytest.fixture
async def producer(server: EmbeddedRocketMQ) -> Any:
    async with Producer("orders", namesrv=server.namesrv, retries=0) as started:
        yield started


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ``stuck_after`` is: tests set the times of rows back instead of waiting."""
    monkeypatch.setattr(relay, "LONGEST_PAUSE", 0.05)


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Looks of relays for stuck messages."""
    return Looks(monkeypatch, "stuck")


async def all_failed(engine: AsyncEngine, table: str) -> bool:
    return all(row["last_error"] for row in await rows(engine, table))


@pytest.fixture
def make(make: Any) -> Any:
    def made(**options: Any) -> Outbox:
        return make(**{"stuck_after": 0.3} | options)

    return made


@pytest.mark.usefixtures("looks_often")
async def test_each_row_is_reported_once_in_a_period_by_all_processes_together(
    make: Any, sessions: Sessions, server: EmbeddedRocketMQ, engine: AsyncEngine, table: str, watches: Looks
) -> None:
    reported: list[StuckMessage] = []
    outboxes = [make(on_stuck=reported.append, stuck_after=1800.0) for _ in range(2)]
    await outboxes[0].create_table()
    server.fail_next(2, 1_000_000)
    async with outboxes[0], outboxes[1]:
        async with sessions.begin() as session:
            ids = [await outboxes[0].add(session, Message("T", b"x", keys=["a", "b"])) for _ in range(3)]
        await until(lambda: all_failed(engine, table))
        await earlier(engine, table, "created")
        await until(lambda: len(reported) >= 3)
        await watches.more(4)
        assert sorted(message.id for message in reported) == ids
        server.fail_next(2, 0)
    first = reported[0]
    assert (first.topic, first.keys, first.state in ("PENDING", "SENDING")) == ("T", ("a", "b"), True)
    assert 3600 <= first.age < 7200
    assert first.last_error is not None
    assert "code 2" in first.last_error or "SYSTEM_BUSY" in first.last_error
    assert len(first.unique_id) == 32


@on_sqlite
async def test_a_row_is_reported_again_in_the_next_period(make: Any, sessions: Sessions, server: EmbeddedRocketMQ) -> None:
    reported: list[StuckMessage] = []
    outbox = make(on_stuck=reported.append, stuck_period=0.1, stuck_after=0.1)
    await outbox.create_table()
    server.fail_next(2, 1_000_000)
    async with outbox:
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x"))
        await until(lambda: len(reported) >= 3)
    assert len({message.id for message in reported}) == 1


@pytest.mark.usefixtures("looks_often")
async def test_what_failed_for_good_or_often_is_reported_however_young(
    make: Any, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    reported: list[StuckMessage] = []
    outbox = make(on_stuck=reported.append, stuck_after=1800.0, stuck_attempts=2)
    await outbox.create_table()
    server.fail_next(13)
    async with outbox:
        async with sessions.begin() as session:
            bad = await outbox.add(session, Message("T", b"bad"))
        await until(lambda: len(reported) == 1)
        assert (reported[0].id, reported[0].state) == (bad, "FAILED")
        assert reported[0].age < 1800
        server.fail_next(2, 1_000_000)
        async with sessions.begin() as session:
            often = await outbox.add(session, Message("T", b"often"))
        await until(lambda: len(reported) == 2)
        assert reported[1].id == often
        assert reported[1].attempts >= 2
        assert reported[1].age < 1800


async def test_more_than_one_look_reads_are_all_reported(make: Any, sessions: Sessions, producer: Producer) -> None:
    reported: list[StuckMessage] = []
    outbox = make(on_stuck=reported.append, stuck_after=0.2)
    await outbox.create_table()
    async with outbox:
        await producer.stop()
        async with sessions.begin() as session:
            ids = [await outbox.add(session, Message("T", b"x")) for _ in range(250)]
        await until(lambda: len(reported) >= 250)
    assert [message.id for message in reported] == ids


@on_sqlite
async def test_a_callback_that_raises_is_reported_to_the_loop_and_ends_nothing(
    make: Any, sessions: Sessions, producer: Producer
) -> None:
    loop, errors = asyncio.get_running_loop(), list[dict[str, Any]]()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: errors.append(context))

    def broken(message: StuckMessage) -> None:
        raise RuntimeError(f"about {message.id}")

    outbox = make(on_stuck=broken, stuck_after=0.2)
    await outbox.create_table()
    async with outbox:
        await producer.stop()
        async with sessions.begin() as session:
            ids = [await outbox.add(session, Message("T", b"x")) for _ in range(2)]
        await until(lambda: len(errors) >= 2)
        await producer.start()
        assert (await settled(outbox)).sent == 2
    loop.set_exception_handler(before)
    assert [str(context["exception"]) for context in errors] == [f"about {each}" for each in ids]


@pytest.mark.usefixtures("looks_often")
@on_sqlite
async def test_without_a_callback_the_log_gets_it(
    make: Any, sessions: Sessions, producer: Producer, engine: AsyncEngine, table: str,
    caplog: pytest.LogCaptureFixture, watches: Looks,
) -> None:  # fmt: skip
    outbox = make(stuck_after=1800.0)
    await outbox.create_table()
    async with outbox:
        await producer.stop()
        async with sessions.begin() as session:
            first, _ = [await outbox.add(session, Message("T", b"x")) for _ in range(2)]
        await earlier(engine, table, "created")  # of both in one statement: no look sees one of them alone
        await until(lambda: "are stuck" in caplog.text)
        await watches.more(2)
    reported = [record.getMessage() for record in caplog.records if "are stuck" in record.getMessage()]
    assert len(reported) == 1
    assert reported[0].startswith(f"2 messages are stuck in the outbox, the first: row {first}, topic T,")
    assert reported[0].endswith("last error None; FAILED messages need a retry")


async def test_the_status_is_reported_at_intervals(make: Any, sessions: Sessions, producer: Producer) -> None:
    reported: list[OutboxStatus] = []
    outbox = make(on_status=reported.append, status_interval=0.03)
    await outbox.create_table()
    async with outbox:
        await producer.stop()
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x"))
        await until(lambda: bool(reported) and reported[-1].pending == 1 and reported[-1].oldest_age > 0)
        await producer.start()
        await until(lambda: reported[-1] == OutboxStatus(0, 0.0, 1, 0))
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("rmq_async outbox")]


@pytest.mark.usefixtures("looks_often")
@on_sqlite
async def test_a_message_that_left_in_time_is_not_reported(
    make: Any, sessions: Sessions, engine: AsyncEngine, table: str, watches: Looks
) -> None:
    reported: list[StuckMessage] = []
    outbox = make(on_stuck=reported.append, stuck_after=1800.0)
    await outbox.create_table()
    async with outbox:
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x"))
        await settled(outbox)
        await earlier(engine, table, "created")
        await watches.more(2)
    assert not reported
    assert (await rows(engine, table))[0]["alerted"] is None
