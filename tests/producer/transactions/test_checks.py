"""Checks of scripted brokers: which are answered, with which offsets, and what is taken back."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from time import time_ns

import pytest

from rmq_async import Message, MessageExt, TransactionStatus
from rmq_async.producer.transactions import checks
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ...support.fakes import Cluster, Link, with_second_ports
from ..support import spin, until
from .support import COMMIT, ROLLBACK, UNKNOWN, Ends, ask, link_of, question, transactions


async def test_checks_run_in_the_context_that_the_producer_was_started_in_each_in_its_own(cluster: Cluster) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")
    seen: list[str] = []

    def check(message: MessageExt) -> TransactionStatus:
        seen.append(variable.get())
        variable.set("changed")
        return ROLLBACK

    variable.set("of the start")
    async with transactions(cluster, check, topics=["T"]):
        variable.set("later")
        ask(await link_of(cluster), question("U1"), question("U2"))
        await until(lambda: len(seen) == 2)
    assert seen == ["of the start", "of the start"]


async def test_a_question_is_answered_where_it_came_from_with_its_own_offsets(pair: Cluster) -> None:
    ends = {broker.name: Ends(broker) for broker in pair.brokers}
    answers = {"U1": COMMIT, "U2": ROLLBACK, "U3": UNKNOWN}
    async with transactions(pair, lambda message: answers[message.msg_id], topics=["T"]):
        await until(lambda: all(broker.codes[RequestCode.HEART_BEAT] for broker in pair.brokers))
        link = pair.b.open_links[0]
        ask(link, *[question(name, offset) for offset, name in enumerate(answers, 5)])  # of broker a, as far as names go
        await until(lambda: len(ends["b"].received) == 3)
    assert ends["a"].received == []
    assert set(ends["b"].links) == {link}
    assert sorted(ends["b"].said) == [("U1", "8", False), ("U2", "12", False), ("U3", "0", True)]
    (fields,) = [fields for fields in ends["b"].fields if fields["msgId"] == "U2"]
    assert fields == {
        "topic": "T",
        "producerGroup": "group",
        "tranStateTableOffset": "6",
        "commitLogOffset": "600",
        "commitOrRollback": "12",
        "fromTransactionCheck": "true",
        "msgId": "U2",
        "transactionId": "U2",
        "bname": "a",
    }


async def test_a_newer_question_replaces_the_one_before(cluster: Cluster) -> None:
    """An answer with the old offsets would end a copy that the broker has left behind already."""
    ends, calls, go_on = Ends(cluster.a), [], asyncio.Event()

    async def check(message: MessageExt) -> TransactionStatus:
        calls.append(message.msg_id)
        await go_on.wait()
        return COMMIT

    async with transactions(cluster, check, topics=["T"], max_concurrent_checks=1):
        link = await link_of(cluster)
        ask(link, *[question(name, offset) for offset in (7, 8, 9) for name in ("running", "waiting")])
        await until(lambda: calls == ["running"])
        await asyncio.sleep(0.02)
        go_on.set()
        await until(lambda: len(ends.received) == 2)
        await asyncio.sleep(0.02)
    assert calls == ["running", "waiting"]
    assert [fields["tranStateTableOffset"] for fields in ends.fields] == ["9", "9"]


async def test_a_copy_that_the_broker_asks_about_after_the_end_is_taken_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It chooses the producer to ask before it asks. On another connection it may be one that lost the message in a crash."""
    monkeypatch.setattr(checks, "MOST_ENDED", 2)
    ends, asked = Ends(cluster.a), []

    def check(message: MessageExt) -> TransactionStatus:
        asked.append(message.msg_id)
        return COMMIT

    async with transactions(cluster, check) as producer:
        half = [await producer.send_in_transaction(Message("T", b"half"), status) for status in (COMMIT, COMMIT, ROLLBACK)]
        own = await producer.send_in_transaction(Message("T", b"half", unique_id="own"), COMMIT)
        names = [result.msg_id for result in (*half, own)]
        ask(cluster.a.open_links[0], *[question(name) for name in names])
        await until(lambda: len(ends.received) == 8)
        assert asked == [names[0], "own"]
        assert sorted(ends.said[4:]) == sorted(
            [(names[0], "8", False), (names[1], "12", True), (names[2], "12", True), ("own", "8", False)]
        )
        assert {(fields["tranStateTableOffset"], fields["fromTransactionCheck"]) for fields in ends.fields[4:]} == {
            ("7", "true")
        }
        ask(cluster.a.open_links[0], question("own", 8), question("own", 9, body=b"another of the same id"))
        await until(lambda: len(ends.received) == 10)
        assert sorted(ends.said[8:]) == [("own", "12", True), ("own", "8", False)]
        assert asked.pop() == "own"
        cluster.a.open_links[0].transport.abort()
        await until(lambda: not cluster.a.open_links)
        await producer.send(Message("T", b"another connection"))
        ask(cluster.a.open_links[0], question(names[2]))
        await until(lambda: asked[2:] == [names[2]])


async def test_a_copy_that_the_broker_asks_about_during_the_end_is_taken_back(cluster: Cluster) -> None:
    def asks_first(link: Link, command: RemotingCommand) -> None:
        fields = command.ext_fields or {}
        ask(link, question(fields["msgId"] or "", 17))
        asyncio.get_running_loop().call_later(0.01, link.reply, command)

    ends = Ends(cluster.a)
    async with transactions(cluster, lambda _: COMMIT) as producer:
        ends.answer = asks_first
        result = await producer.send_in_transaction(Message("T", b"half"), COMMIT)
        await until(lambda: len(ends.received) == 3)
        assert ends.said == [(result.msg_id, "8", False), (result.msg_id, "0", True), (result.msg_id, "12", True)]
        assert [fields["tranStateTableOffset"] for fields in ends.fields] == [str(result.queue_offset), "17", "17"]
        ask(cluster.a.open_links[0], question("U1"))
        await until(lambda: len(ends.received) == 5)
    assert ends.said[3:] == [("U1", "8", False), ("U1", "12", True)]
    assert [fields["tranStateTableOffset"] for fields in ends.fields[3:]] == ["7", "17"]


async def test_questions_and_ends_of_a_broker_meet_by_its_first_port() -> None:
    """Messages and ends go to the second port, questions come from the first, where the heartbeats go."""
    async with with_second_ports(1) as (cluster, _):
        ends = Ends(cluster.a)

        async def execute(message: Message, arg: object) -> TransactionStatus:
            (asks,) = cluster.a.open_links
            ask(asks, question(message.unique_id or "", 8))
            await until(lambda: len(ends.received) == 1)
            return COMMIT

        async with transactions(cluster, execute=execute, vip_channel=True, topics=["T"]) as producer:
            await link_of(cluster)
            result = await producer.send_in_transaction(Message("T", b"half"))
            ask(cluster.a.open_links[0], question(result.msg_id, 9))
            await until(lambda: len(ends.received) == 3)
    assert [(fields["tranStateTableOffset"], fields["commitOrRollback"]) for fields in ends.fields] == [
        ("8", "0"), ("8", "8"), ("9", "12"),
    ]  # fmt: skip


@pytest.mark.virtual_time
async def test_under_an_id_of_the_callers_own_a_question_is_known_by_body_and_time(cluster: Cluster) -> None:
    ends, asked = Ends(cluster.a), []

    def check(message: MessageExt) -> TransactionStatus:
        asked.append(message.born_time_ms)
        return UNKNOWN

    async def execute(message: Message, arg: object) -> TransactionStatus:
        now = time_ns() // 1_000_000
        link = cluster.a.open_links[0]
        ask(link, question("own", 7, born_time_ms=now - 60_000), question("own", 8, body=b"another", born_time_ms=now))
        await until(lambda: len(ends.received) == 2)
        ask(link, question("own", 9, born_time_ms=now))
        await until(lambda: len(ends.received) == 3)
        return COMMIT

    async with transactions(cluster, check, execute=execute) as producer:
        await producer.send_in_transaction(Message("T", b"half", unique_id="own"))
    assert len(asked) == 2
    assert (ends.fields[2]["tranStateTableOffset"], ends.fields[3]["tranStateTableOffset"]) == ("9", "9")
    assert ends.said[3] == ("own", "8", False)


async def test_transactions_with_equal_id_and_body_are_ambiguous(cluster: Cluster) -> None:
    ends, asked, go_on = Ends(cluster.a), [], asyncio.Event()

    def check(message: MessageExt) -> TransactionStatus:
        asked.append(message.msg_id)
        return UNKNOWN

    executing: list[Message] = []

    async def execute(message: Message, arg: object) -> TransactionStatus:
        executing.append(message)
        await go_on.wait()
        return COMMIT

    async with transactions(cluster, check, execute=execute) as producer:
        both = [asyncio.create_task(producer.send_in_transaction(Message("T", b"half", unique_id="own"))) for _ in range(2)]
        await until(lambda: len(executing) == len(cluster.sends) == 2)
        await spin()
        ask(cluster.a.open_links[0], question("own", 9, born_time_ms=time_ns() // 1_000_000))
        await until(lambda: asked)
        go_on.set()
        results = await asyncio.gather(*both)
        checks = producer._checks  # noqa: SLF001
        assert checks is None or not checks._under_way  # noqa: SLF001
    stored_at = {str(result.queue_offset) for result in results}
    assert {fields["tranStateTableOffset"] for fields in ends.fields if fields["commitOrRollback"] == "8"} == stored_at
