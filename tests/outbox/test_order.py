"""One sharding key of a topic leaves in the order of its rows, after any failure and from any relay."""

from __future__ import annotations

import asyncio
import random
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import Message, Producer, RocketMQError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox

from .support import Looks, Sessions, on_postgresql, on_sqlite, relay_of, rows, settled, store_of, until


@on_postgresql
async def test_a_row_that_somebody_locks_costs_no_hot_loop(
    make: Any, engine: AsyncEngine, table: str, sessions: Sessions, server: EmbeddedRocketMQ, looks: Looks
) -> None:
    """The rows behind it are found, taken, and given back."""
    outbox = make(poll_interval=0.2, batch_size=2)
    await outbox.create_table()
    async with sessions.begin() as session:
        for number in range(3):
            await outbox.add(session, Message("T", b"%d" % number, sharding_key="k"))
    async with engine.begin() as connection:
        await connection.execute(text(f"SELECT 1 FROM {table} ORDER BY id LIMIT 1 FOR UPDATE"))
        await outbox.start()
        await looks.more(1)
        began = monotonic()
        await asyncio.sleep(0.5)  # real time: a rate is counted, and PostgreSQL holds the lock
        assert not server.messages("T")
        assert looks.begun <= 10 + 20 * (monotonic() - began)  # some at once, then one or two each 0.2 s
    await settled(outbox)
    await outbox.stop()
    assert first_seen(server) == {"k": [b"0", b"1", b"2"]}


def first_seen(server: EmbeddedRocketMQ, topic: str = "T") -> dict[str | None, list[bytes]]:
    """Bodies by sharding key, in the order in which they were stored first."""
    found: dict[str | None, list[bytes]] = {}
    for message in server.messages(topic):
        bodies = found.setdefault(message.sharding_key, [])
        if message.body not in bodies:
            bodies.append(message.body)
    return found


@on_postgresql
async def test_what_is_added_first_and_committed_last_is_sent_first_where_both_wait(
    outbox: Outbox, sessions: Sessions, engine: AsyncEngine, server: EmbeddedRocketMQ
) -> None:
    async with sessions() as first, sessions() as second:
        await outbox.add(first, Message("T", b"1", sharding_key="k"))
        await outbox.add(second, Message("T", b"2", sharding_key="k"))
        relay = relay_of(outbox)
        relay.sending.room.clear()  # it is busy meanwhile
        await second.commit()
        await first.commit()
        relay.sending.room.set()
    await settled(outbox)
    assert first_seen(server) == {"k": [b"1", b"2"]}


# -- failures


async def add(sessions: Sessions, outbox: Outbox, count: int, key: str = "k", topic: str = "T") -> list[int]:
    async with sessions.begin() as session:
        return [await outbox.add(session, Message(topic, b"%03d" % number, sharding_key=key)) for number in range(count)]


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


@pytest.mark.parametrize("how", ["handed over", "relayed"])
@on_sqlite
async def test_a_failure_in_the_middle_holds_back_what_comes_after(
    how: str, outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "relayed":
        await outbox.stop()
    send, failures = Producer.send, {b"003": 2, b"007": 1}

    async def fails(self: Producer, message: Message, **more: Any) -> Any:
        if failures.get(message.body):
            failures[message.body] -= 1
            raise RocketMQError("in the middle")
        return await send(self, message, **more)

    monkeypatch.setattr(Producer, "send", fails)
    await add(sessions, outbox, 10)
    await outbox.start()
    assert (await settled(outbox)).sent == 10
    assert [message.body for message in server.messages("T")] == numbered(10)


async def test_a_row_that_failed_for_good_holds_back_its_key_and_no_other(
    looks: Looks, outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ, engine: AsyncEngine, table: str
) -> None:
    server.fail_next(13)
    await add(sessions, outbox, 3)
    await until(lambda: bool(relay_of(outbox).sending.failures))
    await add(sessions, outbox, 3, key="other")
    await add(sessions, outbox, 3, topic="Other")
    await until(lambda: len(server.messages("Other")) == 3 and first_seen(server).get("other") == numbered(3))
    await looks.more()
    assert [row["state"] for row in await rows(engine, table)][:3] == ["FAILED", "PENDING", "PENDING"]
    assert "k" not in first_seen(server)
    assert await outbox.retry() == 1
    assert (await settled(outbox)).sent == 9
    assert first_seen(server)["k"] == numbered(3)


async def test_a_relay_waits_for_the_rows_that_another_one_has(
    engine: AsyncEngine, producer: Producer, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    await outbox.stop()
    other = store_of(engine, table)
    await add(sessions, outbox, 3)
    held, _ = await other.claim(1, [], only=False, in_hand=[])
    assert await outbox.relay_once() == 0
    await other.record([], [], [row.id for row in held])
    assert await outbox.relay_once() == 3
    assert [message.body for message in server.messages("T")] == numbered(3)


async def test_two_relays_keep_the_order_of_each_key(
    engine: AsyncEngine, producer: Producer, outbox: Outbox, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    await outbox.stop()
    for key in "abc":
        await add(sessions, outbox, 40, key=key)
    pair = [Outbox(engine, producer, table=table, poll_interval=0.02, batch_size=7) for _ in range(2)]
    async with pair[0], pair[1]:
        await settled(outbox)
    assert first_seen(server) == {key: numbered(40) for key in "abc"}
    assert len(server.messages("T")) == 120


async def test_order_holds_and_nothing_is_lost_after_any_failure(
    engine: AsyncEngine, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    luck = random.Random(seed)
    options: dict[str, Any] = {"retries": 0, "timeout": 0.5}
    async with Producer("a", namesrv=server.namesrv, **options) as one, Producer("b", namesrv=server.namesrv, **options) as two:
        pair = [Outbox(engine, each, table=table, poll_interval=0.02, batch_size=8, lease=2.0) for each in (one, two)]
        await pair[0].create_table()
        committed: dict[str | None, list[bytes]] = {}
        async with pair[0], pair[1]:
            for number in range(60):
                key = luck.choice([None, "a", "b", "c"])
                async with sessions() as session:
                    added = [b"%d.%d" % (number, part) for part in range(luck.randrange(1, 4))]
                    for body in added:
                        await luck.choice(pair).add(session, Message("T", body, sharding_key=key))
                    if luck.random() < 0.8:
                        await session.commit()
                        committed.setdefault(key, []).extend(added)
                misfortune(luck, server)
                await asyncio.sleep(luck.choice([0.0, 0.0, 0.01]))
            recovered(server)
            await everything_sent(pair[0])
    found = first_seen(server)
    assert {key: sorted(bodies) for key, bodies in found.items()} == {key: sorted(bodies) for key, bodies in committed.items()}
    for key in set(committed) - {None}:
        assert found[key] == committed[key], f"seed {seed}, key {key}"


async def everything_sent(outbox: Outbox) -> None:
    """What was refused for good is tried again: it holds back all that comes after it of its key."""
    async with asyncio.timeout(60):
        while (status := await outbox.status()).pending or status.failed:
            await outbox.retry()
            await asyncio.sleep(0.05)


def misfortune(luck: random.Random, server: EmbeddedRocketMQ) -> None:
    match luck.randrange(12):
        case 0:
            server.fail_next(luck.choice([2, 13, 10, 14]), luck.randrange(1, 4))
        case 1:
            server.drop_connections()
        case 2:
            server.stall(luck.choice(["broker-a", "broker-b"]))
        case 3:
            recovered(server)
        case 4:
            server.delay(0.02)


def recovered(server: EmbeddedRocketMQ) -> None:
    server.resume("broker-a")
    server.resume("broker-b")
    server.delay(0.0)
    server.fail_next(2, 0)
