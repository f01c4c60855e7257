"""Checks in numbers beyond their bounds, hostile ones, and brokers that do not take the answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rmq_async import Message, MessageExt, TransactionStatus
from rmq_async.producer.transactions import checks
from rmq_async.transport import oneway_control
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import ONEWAY_FLAG, RequestCode

from ...support.fakes import Cluster
from ...support.instances import client_of
from ..support import seeded, spin, until
from .support import COMMIT, ROLLBACK, UNKNOWN, Ends, ask, link_of, question, transactions

pytestmark = pytest.mark.virtual_time


async def test_no_more_checks_run_at_a_time_than_allowed(cluster: Cluster) -> None:
    ends, running, most = Ends(cluster.a), 0, 0

    async def check(message: MessageExt) -> TransactionStatus:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return COMMIT

    async with transactions(cluster, check, topics=["T"], max_concurrent_checks=3):
        ask(await link_of(cluster), *[question(f"U{number}") for number in range(20)])
        await until(lambda: len(ends.received) == 20)
    assert most == 3
    assert sorted(ends.said) == sorted((f"U{number}", "8", False) for number in range(20))


@pytest.mark.parametrize("bound", ["number", "bytes"])
async def test_questions_beyond_the_bounds_are_left_to_be_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bound: str
) -> None:
    if bound == "number":
        monkeypatch.setattr(checks, "MOST_WAITING", 4)
    else:
        monkeypatch.setattr(checks, "MOST_BYTES", 5 * 5000)
    ends, go_on = Ends(cluster.a), asyncio.Event()

    async def check(message: MessageExt) -> TransactionStatus:
        await go_on.wait()
        return COMMIT

    async with transactions(cluster, check, topics=["T"], max_concurrent_checks=1):
        link = await link_of(cluster)
        ask(link, *[question(f"U{number}", body=bytes(2400)) for number in range(8)])
        await until(lambda: "brokers repeat them" in caplog.text)
        await asyncio.sleep(0.02)
        go_on.set()
        await until(lambda: len(ends.received) == 5)
        ask(link, *[question(f"U{number}", body=bytes(2400)) for number in (6, 7)])
        await until(lambda: len(ends.received) == 7)
    assert [fields["msgId"] for fields in ends.fields] == [f"U{number}" for number in (0, 1, 2, 3, 4, 6, 7)]
    assert [record.args[1] for record in caplog.records if "were dropped" in record.message] == [1, 2]  # type: ignore[index]


async def test_a_refused_answer_is_logged_and_a_lost_one_is_no_matter(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster, lambda _: COMMIT, topics=["T"], request_timeout=0.5):
        ends.answer = lambda link, command: link.reply(command, 1, "The producer group wrong")
        ask(await link_of(cluster), question("U1"))
        await until(lambda: "The producer group wrong" in caplog.text)
        assert "refused COMMIT of transaction U1: 1" in caplog.text
        ends.answer = lambda link, command: link.transport.abort()
        caplog.set_level(logging.INFO)
        ask(cluster.a.open_links[0], question("U2"))
        await until(lambda: "COMMIT of transaction U2 was not confirmed" in caplog.text)


async def test_broker_that_confirms_no_answer_delays_no_other_check(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a frozen one, whose answers take ``request_timeout`` each. What waits for it is bounded."""
    monkeypatch.setattr(checks, "MOST_WAITING", 4)
    ends = Ends(cluster.a)
    ends.answer = lambda link, command: None
    async with transactions(cluster, lambda _: COMMIT, topics=["T"], request_timeout=60.0, max_concurrent_checks=1):
        link = await link_of(cluster)
        for number in range(4):
            ask(link, question(f"U{number}"))
            await until(lambda: ends.said and ends.said[-1][0] == f"U{number}")  # noqa: B023
        ask(link, question("dropped"))
        await until(lambda: "1 transaction checks were dropped and 4 are held" in caplog.text)
        for unanswered in ends.received[:]:
            link.reply(unanswered)
        await spin()
        ask(link, question("last"))
        await until(lambda: ends.said[-1][0] == "last")
        link.reply(ends.received[-1])
    assert [unique_id for unique_id, *_ in ends.said] == ["U0", "U1", "U2", "U3", "last"]


async def test_questions_of_no_group_here_are_not_answered(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster, lambda _: COMMIT, topics=["T"]):
        link = await link_of(cluster)
        ask(link, question("U1", group="another"), question("U2", group=""), question("U3"))
        await until(lambda: ends.received)
    assert ends.said == [("U3", "8", False)]


async def test_hostile_questions_are_passed_over(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    rng = seeded()
    good = question("U1").body
    bad = [
        question("U1", record=b""),
        question("U1", record=good + good),
        question("U1", record=good[:-1]),
        question("U1", record=good + b"\0"),
        question("U1", record=good.replace(b"half", b"flip")),
        question("U1", tranStateTableOffset=None),
        question("U1", commitLogOffset="9" * 30),
        question("U1", commitLogOffset="x"),
        RemotingCommand(code=RequestCode.CHECK_TRANSACTION_STATE, flag=ONEWAY_FLAG),
        RemotingCommand(code=RequestCode.CHECK_TRANSACTION_STATE),
    ]
    random = [
        *[question("U1", record=rng.randbytes(rng.randrange(200))) for _ in range(20)],
        *[question("U1", record=bytes(changed(rng, good))) for _ in range(20)],
    ]
    ends = Ends(cluster.a)
    async with transactions(cluster, lambda message: ROLLBACK, topics=["T"]):
        link = await link_of(cluster)
        ask(link, *bad, question("good"))
        await until(lambda: ends.received)
        assert [unique_id for unique_id, *_ in ends.said] == ["good"]
        ask(link, *random, question("last"))
        await until(lambda: ends.said[-1][0] == "last")
        assert cluster.a.open_links == [link]
    assert "transaction checks could not be read" in caplog.text
    assert len(caplog.records) < 10
    assert len(ends.received) < 20  # a changed property is still a message


def changed(rng: Any, record: bytes) -> bytearray:
    twisted = bytearray(record)
    for _ in range(rng.randrange(1, 4)):
        twisted[rng.randrange(len(twisted))] = rng.randrange(256)
    return twisted


async def test_a_broker_that_does_not_read_gathers_nothing_here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """UNKNOWN is a courtesy: it is left out where the peer takes nothing."""
    monkeypatch.setattr(oneway_control, "MAX_UNREAD", 10_000)
    ends, asked = Ends(cluster.a), []

    def check(message: MessageExt) -> TransactionStatus:
        asked.append(message.msg_id)
        return UNKNOWN

    async with transactions(cluster, check, topics=["T"], compress_over=4_000_000) as producer:
        link = await link_of(cluster)
        link.transport.pause_reading()
        connection = (await client_of(producer)).pool.open[cluster.a.address]
        bulk = [asyncio.ensure_future(producer.send(Message("T", bytes(2_000_000)))) for _ in range(8)]
        await until(lambda: not connection.requests.takes_oneways())
        ask(link, *[question(f"U{number}") for number in range(100)])
        await until(lambda: len(asked) == 100)
        await spin()
        assert connection.buffered_bytes > 10_000
        assert not [frame for frame in connection.requests.held.values() if frame.oneway is not None]
        link.transport.resume_reading()
        await asyncio.gather(*bulk)
        ask(link, question("last"))
        await until(lambda: ends.received)
    assert [unique_id for unique_id, *_ in ends.said] == ["last"]
