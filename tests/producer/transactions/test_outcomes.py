"""Transactions against the embedded broker: what consumers see, what the broker asks about, and what goes wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import InvalidMessageError, Message, MessageExt, SendResult, SendStatus, TransactionSendResult, TransactionStatus
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_async.embedded.transactions import CHECK_MAX_TOPIC, HALF_TOPIC
from rmq_protocol.constants import RequestCode
from rmq_protocol.trace import TRACE_TOPIC, MessageType

from ...support.instances import client_of
from ..support import seeded, until
from .support import COMMIT, END, ROLLBACK, UNKNOWN, Records, bodies, never, transactions

pytestmark = pytest.mark.virtual_time


async def test_only_what_was_committed_is_seen_and_only_what_is_unknown_is_asked_about(
    server: EmbeddedRocketMQ, clock: ManualClock
) -> None:
    check = Records(COMMIT)
    async with transactions(server, check=check) as producer:
        for status in TransactionStatus:
            message = Message("T", status.name.encode(), tags="tag", keys="key", properties={"a": "b"})
            result = await producer.send_in_transaction(message, status)
            assert isinstance(result, SendResult)
            assert isinstance(result, TransactionSendResult)
            assert (result.status, result.local_status, result.local_error) == (SendStatus.SEND_OK, status, None)
            assert (result.transaction_id, result.attempts, result.queue.topic) == (result.msg_id, 1, "T")
        assert bodies(server) == [b"COMMIT"]
        await clock.advance(30)
        await until(lambda: bodies(server) == [b"COMMIT", b"UNKNOWN"])
        await clock.advance(600)
        ((asked,),) = check.calls
        assert (asked.body, asked.topic, asked.msg_id, asked.transaction_id) == (b"UNKNOWN", "T", result.msg_id, result.msg_id)
        assert (asked.tags, asked.keys, asked.properties["a"]) == ("tag", ("key",), "b")
        assert asked.queue == result.queue
    assert bodies(server) == [b"COMMIT", b"UNKNOWN"]
    assert server.requests[END] == 4


@pytest.mark.parametrize("plain", [True, False])
async def test_execute_gets_the_message_with_its_id_and_what_was_given_with_it(server: EmbeddedRocketMQ, plain: bool) -> None:
    execute = Records(COMMIT)
    message = Message("T", b"body", keys="k", properties={"a": "b"})
    async with transactions(server, execute=execute if plain else execute.coroutine) as producer:
        first = await producer.send_in_transaction(message, {"order": 17})
        second = await producer.send_in_transaction(message)
        own = Message("T", b"own", unique_id="chosen")
        third = await producer.send_in_transaction(own)
    assert [(given.unique_id, arg) for given, arg in execute.calls] == [
        (first.msg_id, {"order": 17}),
        (second.msg_id, None),
        ("chosen", None),
    ]
    assert third.msg_id == "chosen"
    assert execute.calls[0][0] == Message("T", b"body", keys="k", properties={"a": "b"}, unique_id=first.msg_id)
    assert (message, message.unique_id) == (Message("T", b"body", keys="k", properties={"a": "b"}), None)
    assert len(server.messages("T")) == 3


async def test_the_three_answers_of_a_check_and_the_end_of_asking(server: EmbeddedRocketMQ, clock: ManualClock) -> None:
    answers = {b"commit": COMMIT, b"rollback": ROLLBACK, b"unknown": UNKNOWN}
    asked: list[bytes] = []

    async def check(message: MessageExt) -> TransactionStatus:
        asked.append(message.body)
        return answers[message.body]

    async with transactions(server, check=check) as producer:
        for body in answers:
            await producer.send_in_transaction(Message("T", body), UNKNOWN)
        for ended in (6, *range(7, 21), 20):  # a broker that asks before it has read an answer would ask once more
            await clock.advance(30)
            await until(lambda expected=ended: server.requests[END] == expected)
        assert bodies(server) == [b"commit"]
    assert [asked.count(body) for body in answers] == [1, 1, 15]
    assert bodies(server, CHECK_MAX_TOPIC) == [b"unknown"]


async def test_a_producer_that_has_sent_nothing_is_asked_about_its_topics(server: EmbeddedRocketMQ, clock: ManualClock) -> None:
    """Java's clients say who they are only to brokers that they have sent to (apache/rocketmq#7567)."""
    async with transactions(server) as first:
        sent = await first.send_in_transaction(Message("T", b"half"), UNKNOWN)
    check = Records(COMMIT)
    async with transactions(server, check=check):
        await clock.advance(30)
        assert check.calls == []
    async with transactions(server, check=check, topics=["T"]):
        await clock.advance(30)
        await until(lambda: bodies(server) == [b"half"])
    assert [message.msg_id for (message,) in check.calls] == [sent.msg_id]


async def test_a_question_while_the_transaction_runs_is_not_asked_and_does_not_double_the_message(
    server: EmbeddedRocketMQ, clock: ManualClock
) -> None:
    async def execute(message: Message, arg: object) -> TransactionStatus:
        for asked in (1, 2):
            await clock.advance(30)
            await until(lambda expected=asked: server.requests[END] == expected)
        return COMMIT

    async with transactions(server, execute=execute) as producer:
        assert (await producer.send_in_transaction(Message("T", b"slow"))).local_status is COMMIT
        await clock.advance(600)
        await asyncio.sleep(0.02)
    assert bodies(server) == [b"slow"]
    assert (len(server.messages(HALF_TOPIC)), server.requests[END]) == (3, 3)


async def test_groups_of_one_instance_are_asked_each_for_itself(server: EmbeddedRocketMQ, clock: ManualClock) -> None:
    first, second = Records(COMMIT), Records(COMMIT)
    async with transactions(server, first, "first") as one:
        async with transactions(server, second, "second") as two:
            assert await client_of(one) is await client_of(two)
            await one.send_in_transaction(Message("T", b"one"), UNKNOWN)
            await two.send_in_transaction(Message("T", b"two"), UNKNOWN)
            await clock.advance(30)
            await until(lambda: bodies(server) == [b"one", b"two"])
            await two.send_in_transaction(Message("T", b"two's last"), UNKNOWN)
        await one.send_in_transaction(Message("T", b"one's last"), UNKNOWN)
        await clock.advance(30)
        await until(lambda: b"one's last" in bodies(server))
        instance = await client_of(one)
        assert RequestCode.CHECK_TRANSACTION_STATE in instance.handlers
    assert RequestCode.CHECK_TRANSACTION_STATE not in instance.handlers
    assert [message.body for (message,) in first.calls] == [b"one", b"one's last"]
    assert [message.body for (message,) in second.calls] == [b"two"]


async def test_names_of_a_namespace_are_bare_here_and_whole_there(server: EmbeddedRocketMQ, clock: ManualClock) -> None:
    check, execute = Records(COMMIT), Records(UNKNOWN)
    async with transactions(server, execute=execute, check=check, namespace="ns") as producer:
        result = await producer.send_in_transaction(Message("T", b"half"))
        assert result.queue.topic == "T"
        await clock.advance(30)
        await until(lambda: bodies(server, "ns%T") == [b"half"])
    ((asked,),) = check.calls
    assert (asked.topic, asked.queue, execute.calls[0][0].topic) == ("T", result.queue, "T")
    (seen,) = server.messages("ns%T")
    assert (seen.properties["PGROUP"], seen.properties["INSTANCE_ID"]) == ("ns%group", "ns")


async def test_everything_else_a_producer_does_it_does_too(server: EmbeddedRocketMQ) -> None:
    body = seeded().randbytes(1000) * 200
    async with transactions(server, compress_over=1000) as producer:
        await producer.send(Message("T", b"ordinary"))
        keyed = [
            await producer.send_in_transaction(Message("T", b"keyed %d" % number, sharding_key="key"), COMMIT)
            for number in range(3)
        ]
        await producer.send_in_transaction(Message("T", body), COMMIT)
    assert len({result.queue for result in keyed}) == 1
    found = {message.body for message in server.messages("T")}
    assert {b"ordinary", b"keyed 0", body} <= found
    assert len(found) == 5


async def test_hooks_and_traces_mark_half_messages(server: EmbeddedRocketMQ, clock: ManualClock) -> None:
    class Watches:
        def __init__(self) -> None:
            self.seen: list[tuple[MessageType, Any]] = []

        def after_send(self, context: Any) -> None:
            self.seen.append((context.message_type, context.result and context.result.status))

    hook = Watches()
    async with transactions(server, hooks=[hook], trace=True, check=Records(ROLLBACK)) as producer:
        await producer.send_in_transaction(Message("T", b"half"), UNKNOWN)
        await clock.advance(30)
        await until(lambda: server.requests[END] == 2)
        await producer.send_in_transaction(Message("T", b"half"), COMMIT)
    assert hook.seen == [(MessageType.TRANSACTION_HALF, SendStatus.SEND_OK)] * 2
    traced = b"".join(message.body for message in server.messages(TRACE_TOPIC)).decode()
    assert [traced.count(word) for word in ("EndTransaction", "UNKNOW", "ROLLBACK_MESSAGE", "COMMIT_MESSAGE")] == [3, 1, 1, 1]


@pytest.mark.parametrize("answer", [LookupError("no such order"), "COMMIT", None])
async def test_what_execute_does_wrong_leaves_the_transaction_unknown_and_is_not_lost(
    server: EmbeddedRocketMQ, clock: ManualClock, loop_errors: list[dict[str, Any]], answer: object
) -> None:
    check = Records(ROLLBACK)
    async with transactions(server, execute=Records(answer), check=check) as producer:
        result = await producer.send_in_transaction(Message("T", b"half"))
        assert result.local_status is UNKNOWN
        error = result.local_error
        assert error is answer if isinstance(answer, Exception) else "must return a TransactionStatus" in str(error)
        assert [context["exception"] for context in loop_errors] == [error]
        loop_errors.clear()
        await clock.advance(30)
        await until(lambda: len(check.calls) == 1)
        await until(lambda: server.requests[END] == 2)
    assert bodies(server) == []


@pytest.mark.parametrize("answer", [LookupError("no such order"), "COMMIT"])
async def test_what_check_does_wrong_is_unknown_and_asked_again(
    server: EmbeddedRocketMQ, clock: ManualClock, loop_errors: list[dict[str, Any]], answer: object
) -> None:
    check = Records(answer)
    async with transactions(server, check=check.coroutine) as producer:
        await producer.send_in_transaction(Message("T", b"half"), UNKNOWN)
        await clock.advance(30)
        await until(lambda: len(loop_errors) == 1)
        loop_errors.clear()
        check.answer = COMMIT
        await clock.advance(30)
        await until(lambda: bodies(server) == [b"half"])
    assert len(check.calls) == 2


@pytest.mark.parametrize("delay", [{"delay_level": 3}, {"delay": 1.5}, {"deliver_at": 4_000_000_000.0}])
async def test_a_delay_in_a_transaction_is_refused(server: EmbeddedRocketMQ, delay: dict[str, Any]) -> None:
    async with transactions(server, execute=never) as producer:
        with pytest.raises(InvalidMessageError, match="cannot be delayed"):
            await producer.send_in_transaction(Message("T", b"late", **delay))
        with pytest.raises(InvalidMessageError, match="empty"):
            await producer.send_in_transaction(Message("T", b""))
        with pytest.raises(ValueError, match="timeout"):
            await producer.send_in_transaction(Message("T", b"body"), timeout=0)
    assert server.messages(HALF_TOPIC) == []


async def test_the_broker_may_be_connected_to_anew_to_end_a_transaction(server: EmbeddedRocketMQ) -> None:
    async def execute(message: Message, arg: object) -> TransactionStatus:
        connection = (await client_of(producer)).pool.open[address]
        server.drop_connections()
        await connection.closed
        return COMMIT

    async with transactions(server, execute=execute) as producer:
        (address,) = server.brokers.values()
        assert (await producer.send_in_transaction(Message("T", b"half"))).local_status is COMMIT
    assert bodies(server) == [b"half"]


async def test_a_half_message_that_is_not_confirmed_is_rolled_back_unexecuted(
    server: EmbeddedRocketMQ, clock: ManualClock
) -> None:
    async with transactions(server, execute=never) as producer:
        for code, status in ((10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")):
            server.fail_next(code)
            result = await producer.send_in_transaction(Message("T", b"half"))
            assert (result.status.name, result.local_status) == (status, ROLLBACK)
        await clock.advance(600)
    assert (bodies(server), bodies(server, CHECK_MAX_TOPIC), len(server.messages(HALF_TOPIC))) == ([], [], 3)
