"""Transactions against scripted brokers: every field on the wire, refusals, lost answers, and questions nobody would ask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from time import time_ns
from typing import Any

import pytest

from rmq_async import Credentials, Message, MessageExt, TransactionError, TransactionProducer, TransactionStatus, errors
from rmq_async.producer import checks
from rmq_async.transport import telling
from rmq_protocol.command import RemotingCommand, encode_command
from rmq_protocol.constants import ONEWAY_FLAG, RequestCode, SerializeType, SysFlag
from rmq_protocol.ids import unpack_offset_id
from rmq_protocol.properties import encode_properties
from rmq_protocol.stored import encode_stored

from .peers import Broker, Cluster, Link, each, late, refuse, silent, stored
from .support import seeded, spin, timed, until
from .test_kernel import with_second_ports

COMMIT, ROLLBACK, UNKNOWN = TransactionStatus
END = RequestCode.END_TRANSACTION
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


class Ends:
    """What a scripted broker is told of transactions. ``answer(link, command)``: what it says to those that are not one-way."""

    def __init__(self, broker: Broker) -> None:
        self.told: list[RemotingCommand] = []
        self.links: list[Link] = []
        self.answer: Callable[[Link, RemotingCommand], None] = lambda link, command: link.reply(command)
        self._others = broker.serve
        broker.serve = self._serve  # type: ignore[method-assign]

    def _serve(self, link: Link, command: RemotingCommand) -> None:
        if command.code != END:
            self._others(link, command)
            return
        self.told.append(command)
        self.links.append(link)
        if not command.is_oneway:
            self.answer(link, command)

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [dict(command.ext_fields or {}) for command in self.told]

    @property
    def said(self) -> list[tuple[str | None, str | None, bool]]:
        """Unique id, outcome and whether it was one-way."""
        return [
            ((command.ext_fields or {}).get("msgId"), (command.ext_fields or {}).get("commitOrRollback"), command.is_oneway)
            for command in self.told
        ]


def question(
    unique_id: str, offset: int = 7, *, group: str = "group", body: bytes = b"half", topic: str = "T", **over: Any
) -> RemotingCommand:
    """A broker's, about a half message at these offsets. ``record``: instead of the message; fields that are None are left out.

    ``born_time_ms``: of the message.
    """
    properties = {"UNIQ_KEY": unique_id, "PGROUP": group, "TRAN_MSG": "true", "REAL_TOPIC": topic}
    record, born = over.pop("record", None), over.pop("born_time_ms", 0)
    if record is None:
        record = encode_stored(
            topic=topic,
            body=body,
            properties=encode_properties(properties),
            queue_offset=offset,
            commit_log_offset=offset * 100,
            born_time_ms=born,
        )
    fields = {
        "topic": HALF_TOPIC,
        "bname": "a",
        "tranStateTableOffset": str(offset),
        "commitLogOffset": str(offset * 100),
        "msgId": unique_id,
        "transactionId": unique_id,
        "offsetMsgId": "00",
        **over,
    }
    ext = {name: value for name, value in fields.items() if value is not None}
    return RemotingCommand(code=RequestCode.CHECK_TRANSACTION_STATE, flag=ONEWAY_FLAG, ext_fields=ext, body=record)


def ask(link: Link, *questions: RemotingCommand) -> None:
    link.write(b"".join(part for each in questions for part in encode_command(each, SerializeType.JSON)))


def each_end(*codes: int) -> Callable[[Link, RemotingCommand], None]:
    left = list(codes)
    return lambda link, command: link.reply(command, left.pop(0))


def as_told(message: Message, arg: Any) -> Any:
    return arg


def never(*_: object) -> TransactionStatus:
    raise AssertionError("nobody was to ask this")


def transactions(cluster: Cluster, check: Callable[..., Any] = never, **options: Any) -> TransactionProducer:
    options = {"execute": as_told, **options}
    return TransactionProducer("group", check=check, namesrv=cluster.namesrv, **options)


async def link_of(cluster: Cluster) -> Link:
    """The broker's end of the producer's connection; for producers with ``topics``."""
    await until(lambda: cluster.a.codes[RequestCode.HEART_BEAT])
    (link,) = cluster.a.links
    return link


# -- on the wire


async def test_a_command_that_cannot_be_written_is_reported_and_not_told(
    cluster: Cluster, loop_errors: list[dict[str, Any]]
) -> None:
    async with transactions(cluster, topics=["T"]) as producer:
        await link_of(cluster)
        connection = producer._sender.connections[cluster.a.address]
        assert not telling.tell(connection, RemotingCommand(code=END, ext_fields={"msgId": "\ud800"}))
        assert telling.tell(connection, RemotingCommand(code=END, ext_fields={"msgId": "id"}))
    (reported,) = loop_errors
    assert "could not be told request 37" in reported["message"]
    loop_errors.clear()


@pytest.mark.parametrize("form", ["json", "rocketmq"])
async def test_a_half_message_and_its_end_say_what_brokers_look_for(cluster: Cluster, form: str) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster, serialize_type=form) as producer:
        for status in TransactionStatus:
            result = await producer.send_in_transaction(Message("T", b"half", tags="A"), status)
            await until(lambda: len(ends.told) == len(cluster.sends))
            sent, (told, fields) = cluster.sends[-1], (ends.told[-1], ends.fields[-1])
            assert sent.properties == {
                "UNIQ_KEY": result.msg_id, "WAIT": "true", "TAGS": "A", "TRAN_MSG": "true", "PGROUP": "group",
            }  # fmt: skip
            assert sent.sys_flag == SysFlag.TRANSACTION_PREPARED
            assert fields == {
                "topic": "T",
                "producerGroup": "group",
                "tranStateTableOffset": str(result.queue_offset),
                "commitLogOffset": str(unpack_offset_id(result.offset_msg_id).offset),
                "commitOrRollback": {COMMIT: "8", ROLLBACK: "12", UNKNOWN: "0"}[status],
                "fromTransactionCheck": "false",
                "msgId": result.msg_id,
                "bname": "a",
            }
            assert (told.is_oneway, told.remark, told.body) == (status is UNKNOWN, None, b"")


async def test_the_broker_is_told_why_nothing_is_known(cluster: Cluster, loop_errors: list[dict[str, Any]]) -> None:
    """And no more than the type of an error: its words may hold data, and may be had only by raising another."""

    class Fails(Exception):
        def __str__(self) -> str:
            raise KeyError("no words")

    def fails(*_: object) -> TransactionStatus:
        raise Fails

    ends = Ends(cluster.a)
    async with transactions(cluster, fails, execute=fails) as producer:
        await producer.send_in_transaction(Message("T", b"half"))
        (link,) = cluster.a.links
        ask(link, question("U1"))
        await until(lambda: len(ends.told) == 2)
    assert [(command.remark, command.is_oneway) for command in ends.told] == [("execute: Fails", True), ("check: Fails", True)]
    assert len(loop_errors) == 2
    loop_errors.clear()


async def test_retries_keep_the_id_and_the_end_goes_where_the_message_was_stored(pair: Cluster) -> None:
    ends = {broker.name: Ends(broker) for broker in pair.brokers}
    pair.answer(refuse(1))
    async with transactions(pair, execute=never) as producer:
        with pytest.raises(errors.SendError):
            await producer.send_in_transaction(Message("T", b"half"))
    assert len({sent.unique_id for sent in pair.sends}) == 1
    assert (len(pair.sends), sum(len(each.told) for each in ends.values())) == (3, 0)
    pair.answer(each(refuse(1), stored))
    for broker in pair.brokers:
        broker.sends.clear()
    first = each(refuse(1), stored)
    pair.answer(first)
    async with transactions(pair) as producer:
        result = await producer.send_in_transaction(Message("T", b"half"), COMMIT)
    assert result.attempts == 2
    assert {sent.unique_id for sent in pair.sends} == {result.msg_id}
    assert {name: len(each.told) for name, each in ends.items() if each.told} == {result.queue.broker_name: 1}


async def test_every_request_of_a_transaction_is_signed_and_seen_by_hooks(cluster: Cluster) -> None:
    class Watches:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def before_request(self, address: str, command: RemotingCommand) -> None:
            command.ext_fields = {**(command.ext_fields or {}), "added": "here"}

        def after_request(self, address: str, command: RemotingCommand, response: Any, error: Any) -> None:
            if command.code == END:
                self.seen.append((command.is_oneway, response and response.code, error))

    ends, hook = Ends(cluster.a), Watches()
    async with transactions(
        cluster, lambda _: UNKNOWN, credentials=Credentials("key", "secret"), hooks=[hook], namespace_v2="second"
    ) as producer:
        for status in (COMMIT, UNKNOWN):
            await producer.send_in_transaction(Message("T", b"half"), status)
        ask(cluster.a.links[0], question("U1"))
        await until(lambda: len(ends.told) == 3)
    for fields in ends.fields:
        assert (fields["AccessKey"], fields["added"], fields["ns"]) == ("key", "here", "second")
        assert fields["Signature"]
    assert len({fields["Signature"] for fields in ends.fields}) == 3
    assert hook.seen == [(False, 0, None), (True, None, None), (True, None, None)]


async def test_servers_are_told_names_with_their_namespace(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    cluster.name_server.routes["ns%T"] = cluster.route()
    async with transactions(cluster, lambda _: COMMIT, namespace="ns") as producer:
        await producer.send_in_transaction(Message("T", b"half"), COMMIT)
        ask(cluster.a.links[0], question("U1", group="ns%group", topic="ns%T"))
        await until(lambda: len(ends.told) == 2)
    assert {(fields["topic"], fields["producerGroup"]) for fields in ends.fields} == {("ns%T", "ns%group")}
    assert cluster.sends[0].properties["PGROUP"] == "ns%group"


# -- an end that does not come off


async def test_an_end_that_is_refused_is_told_with_the_brokers_words_and_not_tried_again(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster) as producer:
        for code, status in ((1, COMMIT), (604, ROLLBACK), (16, COMMIT), (1500, COMMIT), (4711, ROLLBACK)):
            ends.told.clear()
            ends.answer = lambda link, command, code=code: link.reply(command, code, "not so\x00")  # type: ignore[misc]
            with pytest.raises(TransactionError, match=rf"{status.value} of transaction \w+ was refused") as failed:
                await producer.send_in_transaction(Message("T", b"half"), status)
            error = failed.value
            assert (error.code, error.remark, error.broker, error.address) == (code, "not so\\x00", "a", cluster.a.address)
            assert (error.maybe_ended, error.maybe_stored, error.retriable) == (False, status is COMMIT, False)
            assert (error.result.local_status, error.result.msg_id) == (status, cluster.sends[-1].unique_id)
            assert isinstance(error.__cause__, errors.BrokerError)
            assert len(ends.told) == (2 if code == 1500 else 1), "whoever sends us away has not looked at it"
        ends.answer = each_end(1500, 0)
        assert (await producer.send_in_transaction(Message("T", b"half"), COMMIT)).local_status is COMMIT


async def test_an_end_whose_answer_is_lost_may_have_been_carried_out(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster, request_timeout=0.2) as producer:
        ends.answer = lambda link, command: link.transport.abort()
        with pytest.raises(TransactionError, match=r"was not confirmed.*will ask group group") as failed:
            await producer.send_in_transaction(Message("T", b"half"), COMMIT)
        assert (failed.value.maybe_ended, failed.value.maybe_stored, failed.value.code) == (True, True, None)
        assert isinstance(failed.value.__cause__, errors.ConnectionLostError)
        ends.answer = lambda link, command: None
        with timed(0.2, 0.4), pytest.raises(TransactionError) as failed:
            await producer.send_in_transaction(Message("T", b"half"), ROLLBACK)
        assert (failed.value.maybe_ended, failed.value.maybe_stored) == (True, False)
        assert isinstance(failed.value.__cause__, errors.RequestTimeoutError)
        assert len(ends.told) == 2


async def test_an_end_that_was_never_sent_was_not_carried_out(cluster: Cluster) -> None:
    async def execute(message: Message, arg: object) -> TransactionStatus:
        await cluster.a.stop()
        await until(lambda: cluster.a.address not in producer._sender.connections)
        return COMMIT

    ends = Ends(cluster.a)
    async with transactions(cluster, execute=execute, request_timeout=0.3) as producer:
        with pytest.raises(TransactionError) as failed:
            await producer.send_in_transaction(Message("T", b"half"))
    assert (failed.value.maybe_ended, failed.value.maybe_stored, failed.value.result.local_status) == (False, True, COMMIT)
    assert ends.told == []


async def test_a_half_message_that_nobody_could_end_is_an_error_before_anything_is_executed(cluster: Cluster) -> None:
    cluster.answer(silent)
    async with transactions(cluster, execute=never, retries=0) as producer:
        with pytest.raises(errors.RequestTimeoutError):
            await producer.send_in_transaction(Message("T", b"half"), timeout=0.05)
        for bad in ({"msgId": "not an id"}, {"queueOffset": "-1"}, {"msgId": None}):
            cluster.answer(lambda link, sent, bad=bad: link.reply(sent.command, 0, None, usable(sent) | bad))  # type: ignore[misc]
            with pytest.raises(errors.RemoteProtocolError) as failed:
                await producer.send_in_transaction(Message("T", b"half"))
            assert failed.value.maybe_stored


def usable(sent: Any) -> dict[str, Any]:
    fields: dict[str, Any] = sent.broker.stored_fields(sent)
    return fields


async def test_a_slow_half_message_leaves_the_transaction_its_own_time(cluster: Cluster) -> None:
    cluster.answer(late(0.08))

    async def execute(message: Message, arg: object) -> TransactionStatus:
        await asyncio.sleep(0.1)
        return COMMIT

    async with transactions(cluster, execute=execute) as producer:
        assert (await producer.send_in_transaction(Message("T", b"half"), timeout=0.12)).local_status is COMMIT


async def test_an_execute_that_is_cancelled_by_its_own_doing_has_failed(
    cluster: Cluster, loop_errors: list[dict[str, Any]]
) -> None:
    running = asyncio.Event()

    async def execute(message: Message, arg: object = None) -> TransactionStatus:
        task = asyncio.create_task(asyncio.sleep(10))
        if arg is None:
            asyncio.get_running_loop().call_soon(task.cancel)
        else:
            running.set()
        await task
        return COMMIT

    ends = Ends(cluster.a)
    async with transactions(cluster, execute, execute=execute) as producer:
        result = await producer.send_in_transaction(Message("T", b"half"))
        assert result.local_status is UNKNOWN
        assert "nobody had cancelled it" in str(result.local_error)
        ask(cluster.a.links[0], question("U1"))
        await until(lambda: len(ends.told) == 2)
        call = asyncio.create_task(producer.send_in_transaction(Message("T", b"half"), "wait"))
        await running.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert [command.remark for command in ends.told[:2]] == ["execute: RuntimeError", "check: RuntimeError"]
    assert len(loop_errors) == 2
    loop_errors.clear()


async def test_traces_leave_while_stop_waits_for_a_transaction(cluster: Cluster) -> None:
    async def execute(*_: object) -> TransactionStatus:
        await asyncio.sleep(10)
        return COMMIT

    cluster.name_server.routes["RMQ_SYS_TRACE_TOPIC"] = cluster.route()
    Ends(cluster.a)
    async with transactions(cluster, execute=execute, trace=True, stop_timeout=0.2) as producer:
        await producer.send(Message("T", b"traced"))
        call = asyncio.create_task(producer.send_in_transaction(Message("T", b"half")))
        await until(lambda: b"half" in cluster.a.bodies)
    with pytest.raises(errors.ClientStateError):
        await call
    assert any(sent.queue.topic == "RMQ_SYS_TRACE_TOPIC" for sent in cluster.sends)


# -- questions


async def test_a_check_that_goes_on_when_it_is_cancelled_does_not_hold_up_stop(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checks, "LAST_STEPS", 0.1)
    running, go_on = asyncio.Event(), asyncio.Event()

    async def check(message: MessageExt) -> TransactionStatus:
        try:
            running.set()
            await asyncio.sleep(10)
        finally:
            await go_on.wait()
        return COMMIT

    async with transactions(cluster, check, topics=["T"]) as producer:
        ask(await link_of(cluster), question("U1"))
        await running.wait()
        tasks = tuple(producer._checks._tasks) if producer._checks is not None else ()
        with timed(0.1, 0.4):
            await producer.stop(0.1)
    assert "1 of its checks (<function" in caplog.text
    go_on.set()
    await asyncio.wait(tasks)


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
        link = pair.b.links[0]
        ask(link, *[question(name, offset) for offset, name in enumerate(answers, 5)])  # of broker a, as far as names go
        await until(lambda: len(ends["b"].told) == 3)
    assert ends["a"].told == []
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
        await until(lambda: len(ends.told) == 2)
        await asyncio.sleep(0.02)
    assert calls == ["running", "waiting"]
    assert [fields["tranStateTableOffset"] for fields in ends.fields] == ["9", "9"]


async def test_a_copy_that_the_broker_asks_about_after_the_end_is_taken_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides whom to ask before it asks. On another connection it may be one that lost the message in a crash."""
    monkeypatch.setattr(checks, "MOST_ENDED", 2)
    ends, asked = Ends(cluster.a), []

    def check(message: MessageExt) -> TransactionStatus:
        asked.append(message.msg_id)
        return COMMIT

    async with transactions(cluster, check) as producer:
        half = [await producer.send_in_transaction(Message("T", b"half"), status) for status in (COMMIT, COMMIT, ROLLBACK)]
        own = await producer.send_in_transaction(Message("T", b"half", unique_id="own"), COMMIT)
        names = [result.msg_id for result in (*half, own)]
        ask(cluster.a.links[0], *[question(name) for name in names])
        await until(lambda: len(ends.told) == 8)
        assert asked == [names[0], "own"]
        assert sorted(ends.said[4:]) == sorted(
            [(names[0], "8", False), (names[1], "12", True), (names[2], "12", True), ("own", "8", False)]
        )
        assert {(fields["tranStateTableOffset"], fields["fromTransactionCheck"]) for fields in ends.fields[4:]} == {
            ("7", "true")
        }
        ask(cluster.a.links[0], question("own", 8), question("own", 9, body=b"another of the same id"))
        await until(lambda: len(ends.told) == 10)
        assert sorted(ends.said[8:]) == [("own", "12", True), ("own", "8", False)]
        assert asked.pop() == "own"
        cluster.a.links[0].transport.abort()
        await until(lambda: not cluster.a.links)
        await producer.send(Message("T", b"another connection"))
        ask(cluster.a.links[0], question(names[2]))
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
        await until(lambda: len(ends.told) == 3)
        assert ends.said == [(result.msg_id, "8", False), (result.msg_id, "0", True), (result.msg_id, "12", True)]
        assert [fields["tranStateTableOffset"] for fields in ends.fields] == [str(result.queue_offset), "17", "17"]
        ask(cluster.a.links[0], question("U1"))
        await until(lambda: len(ends.told) == 5)
    assert ends.said[3:] == [("U1", "8", False), ("U1", "12", True)]
    assert [fields["tranStateTableOffset"] for fields in ends.fields[3:]] == ["7", "17"]


async def test_questions_and_ends_of_a_broker_meet_by_its_first_port() -> None:
    """Messages and ends go to the second port, questions come from the first, where the heartbeats go."""
    async with with_second_ports(1) as (cluster, _):
        ends = Ends(cluster.a)

        async def execute(message: Message, arg: object) -> TransactionStatus:
            (asks,) = cluster.a.links
            ask(asks, question(message.unique_id or "", 8))
            await until(lambda: len(ends.told) == 1)
            return COMMIT

        async with transactions(cluster, execute=execute, vip_channel=True, topics=["T"]) as producer:
            await link_of(cluster)
            result = await producer.send_in_transaction(Message("T", b"half"))
            ask(cluster.a.links[0], question(result.msg_id, 9))
            await until(lambda: len(ends.told) == 3)
    assert [(fields["tranStateTableOffset"], fields["commitOrRollback"]) for fields in ends.fields] == [
        ("8", "0"), ("8", "8"), ("9", "12"),
    ]  # fmt: skip


async def test_under_an_id_of_the_callers_own_a_question_is_known_by_body_and_time(cluster: Cluster) -> None:
    ends, asked = Ends(cluster.a), []

    def check(message: MessageExt) -> TransactionStatus:
        asked.append(message.born_time_ms)
        return UNKNOWN

    async def execute(message: Message, arg: object) -> TransactionStatus:
        now = time_ns() // 1_000_000
        link = cluster.a.links[0]
        ask(link, question("own", 7, born_time_ms=now - 60_000), question("own", 8, body=b"another", born_time_ms=now))
        await until(lambda: len(ends.told) == 2)
        ask(link, question("own", 9, born_time_ms=now))
        await until(lambda: len(ends.told) == 3)
        return COMMIT

    async with transactions(cluster, check, execute=execute) as producer:
        await producer.send_in_transaction(Message("T", b"half", unique_id="own"))
    assert len(asked) == 2
    assert (ends.fields[2]["tranStateTableOffset"], ends.fields[3]["tranStateTableOffset"]) == ("9", "9")
    assert ends.said[3] == ("own", "8", False)


async def test_two_transactions_of_one_id_and_body_are_told_apart_by_nobody(cluster: Cluster) -> None:
    ends, asked, go_on = Ends(cluster.a), [], asyncio.Event()

    def check(message: MessageExt) -> TransactionStatus:
        asked.append(message.msg_id)
        return UNKNOWN

    async def execute(message: Message, arg: object) -> TransactionStatus:
        await go_on.wait()
        return COMMIT

    async with transactions(cluster, check, execute=execute) as producer:
        both = [asyncio.create_task(producer.send_in_transaction(Message("T", b"half", unique_id="own"))) for _ in range(2)]
        await until(lambda: producer._under_way == 2 and len(cluster.sends) == 2)
        await spin()
        ask(cluster.a.links[0], question("own", 9, born_time_ms=time_ns() // 1_000_000))
        await until(lambda: asked)
        go_on.set()
        results = await asyncio.gather(*both)
        assert not producer._checks or not producer._checks._under_way
    stored_at = {str(result.queue_offset) for result in results}
    assert {fields["tranStateTableOffset"] for fields in ends.fields if fields["commitOrRollback"] == "8"} == stored_at


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
        await until(lambda: len(ends.told) == 20)
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
        await until(lambda: "left to be asked again" in caplog.text)
        await asyncio.sleep(0.02)
        go_on.set()
        await until(lambda: len(ends.told) == 5)
        ask(link, *[question(f"U{number}", body=bytes(2400)) for number in (6, 7)])
        await until(lambda: len(ends.told) == 7)
    assert [fields["msgId"] for fields in ends.fields] == [f"U{number}" for number in (0, 1, 2, 3, 4, 6, 7)]
    assert [record.args[1] for record in caplog.records if "left to be" in record.message] == [1, 2]  # type: ignore[index]


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
        ask(cluster.a.links[0], question("U2"))
        await until(lambda: "COMMIT of transaction U2 was not confirmed" in caplog.text)


async def test_questions_of_no_group_here_are_not_answered(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster, lambda _: COMMIT, topics=["T"]):
        link = await link_of(cluster)
        ask(link, question("U1", group="another"), question("U2", group=""), question("U3"))
        await until(lambda: ends.told)
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
        await until(lambda: ends.told)
        assert [unique_id for unique_id, *_ in ends.said] == ["good"]
        ask(link, *random, question("last"))
        await until(lambda: ends.said[-1][0] == "last")
        assert cluster.a.links == [link]
    assert "questions about transactions could not be read" in caplog.text
    assert len(caplog.records) < 10
    assert len(ends.told) < 20  # a changed property is still a message


def changed(rng: Any, record: bytes) -> bytearray:
    twisted = bytearray(record)
    for _ in range(rng.randrange(1, 4)):
        twisted[rng.randrange(len(twisted))] = rng.randrange(256)
    return twisted


async def test_a_broker_that_does_not_read_gathers_nothing_here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """UNKNOWN is a courtesy: it is left out where the peer takes nothing."""
    monkeypatch.setattr(telling, "MOST_UNREAD", 10_000)
    ends, asked = Ends(cluster.a), []

    def check(message: MessageExt) -> TransactionStatus:
        asked.append(message.msg_id)
        return UNKNOWN

    async with transactions(cluster, check, topics=["T"], compress_over=4_000_000) as producer:
        link = await link_of(cluster)
        link.transport.pause_reading()
        connection = producer._sender.connections[cluster.a.address]
        bulk = [asyncio.ensure_future(producer.send(Message("T", bytes(2_000_000)))) for _ in range(8)]
        await until(lambda: connection._writer.paused)
        ask(link, *[question(f"U{number}") for number in range(100)])
        await until(lambda: len(asked) == 100)
        await spin()
        assert connection.buffered_bytes > 10_000
        assert not connection._held_oneways
        link.transport.resume_reading()
        await asyncio.gather(*bulk)
        ask(link, question("last"))
        await until(lambda: ends.told)
    assert [unique_id for unique_id, *_ in ends.said] == ["last"]
