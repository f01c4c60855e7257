"""Ends that are refused, lost or never sent, and half messages that nothing can end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import Message, TransactionError, TransactionStatus, errors

from ...support.cycles import frozen as frozen
from ...support.cycles import no_cycle
from ...support.fakes import Cluster, late, silence
from ...support.instances import client_of
from ..support import timed, until
from .support import COMMIT, ROLLBACK, UNKNOWN, Ends, ask, each_end, never, question, transactions

pytestmark = pytest.mark.virtual_time


async def test_an_end_that_is_refused_is_reported_with_the_brokers_words_and_not_tried_again(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster) as producer:
        for code, status in ((1, COMMIT), (604, ROLLBACK), (16, COMMIT), (1500, COMMIT), (4711, ROLLBACK)):
            ends.received.clear()
            ends.answer = lambda link, command, code=code: link.reply(command, code, "not so\x00")  # type: ignore[misc]
            with pytest.raises(TransactionError, match=rf"{status.value} of transaction \w+ was refused") as failed:
                await producer.send_in_transaction(Message("T", b"half"), status)
            error = failed.value
            assert (error.code, error.remark, error.broker, error.address) == (code, "not so\\x00", "a", cluster.a.address)
            assert (error.maybe_ended, error.maybe_stored, error.retriable) == (False, status is COMMIT, False)
            assert (error.result.local_status, error.result.msg_id) == (status, cluster.sends[-1].unique_id)
            assert isinstance(error.__cause__, errors.BrokerError)
            assert len(ends.received) == (2 if code == 1500 else 1), (
                "a broker that sends its clients away has not read the request"
            )
        ends.answer = each_end(1500, 0)
        assert (await producer.send_in_transaction(Message("T", b"half"), COMMIT)).local_status is COMMIT


async def test_end_at_a_busy_broker_is_sent_again_within_its_time(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster, request_timeout=0.5) as producer:
        ends.answer = each_end(2, 215, 0)
        assert (await producer.send_in_transaction(Message("T", b"half"), COMMIT)).local_status is COMMIT
        assert len(ends.received) == 3
        ends.answer = lambda link, command: link.reply(command, 2, "[TIMEOUT_CLEAN_QUEUE]broker busy")
        with timed(0.2, 0.5), pytest.raises(TransactionError, match="was refused") as failed:
            await producer.send_in_transaction(Message("T", b"half"), ROLLBACK)
        assert (failed.value.code, failed.value.maybe_ended) == (2, False)


@pytest.mark.parametrize("remark", ["in-sync replicas not enough", "OS page cache busy, please try another machine"])
async def test_end_that_replicas_have_not_confirmed_may_have_been_carried_out(remark: str, cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    ends.answer = lambda link, command: link.reply(command, 1, remark)
    async with transactions(cluster) as producer:
        with pytest.raises(TransactionError, match="was refused") as failed:
            await producer.send_in_transaction(Message("T", b"half"), COMMIT)
        assert (failed.value.code, failed.value.maybe_ended, failed.value.maybe_stored) == (1, True, True)


async def test_an_end_whose_answer_is_lost_may_have_been_carried_out(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster, request_timeout=0.2) as producer:
        ends.answer = lambda link, command: link.transport.abort()
        with pytest.raises(TransactionError, match=r"was not confirmed.*will send a check to group group") as failed:
            await producer.send_in_transaction(Message("T", b"half"), COMMIT)
        assert (failed.value.maybe_ended, failed.value.maybe_stored, failed.value.code) == (True, True, None)
        assert isinstance(failed.value.__cause__, errors.ConnectionLostError)
        ends.answer = silence
        with timed(0.2, 0.4), pytest.raises(TransactionError) as failed:
            await producer.send_in_transaction(Message("T", b"half"), ROLLBACK)
        assert (failed.value.maybe_ended, failed.value.maybe_stored) == (True, False)
        assert isinstance(failed.value.__cause__, errors.RequestTimeoutError)
        assert len(ends.received) == 2


@pytest.mark.parametrize("code", [1, None])
async def test_failed_ends_leave_no_cycle(cluster: Cluster, frozen: None, code: int | None) -> None:
    ends = Ends(cluster.a)
    ends.answer = lambda link, command: None if code is None else link.reply(command, code, "no")
    async with transactions(cluster, request_timeout=0.05) as producer, no_cycle("ends"):
        for _ in range(4):
            with pytest.raises(TransactionError):
                await producer.send_in_transaction(Message("T", b"half"), COMMIT)


async def test_an_end_that_was_never_sent_was_not_carried_out(cluster: Cluster) -> None:
    async def execute(message: Message, arg: object) -> TransactionStatus:
        connections = (await client_of(producer)).pool.open
        await cluster.a.stop()
        await until(lambda: cluster.a.address not in connections)
        return COMMIT

    ends = Ends(cluster.a)
    async with transactions(cluster, execute=execute, request_timeout=0.3) as producer:
        with pytest.raises(TransactionError) as failed:
            await producer.send_in_transaction(Message("T", b"half"))
    assert (failed.value.maybe_ended, failed.value.maybe_stored, failed.value.result.local_status) == (False, True, COMMIT)
    assert ends.received == []


async def test_a_half_message_that_cannot_be_ended_is_an_error_before_anything_is_executed(cluster: Cluster) -> None:
    cluster.answer(silence)
    async with transactions(cluster, execute=never, retries=0) as producer:
        with pytest.raises(errors.RequestTimeoutError):
            await producer.send_in_transaction(Message("T", b"half"), timeout=0.05)
        for bad in ({"msgId": "not an id"}, {"queueOffset": "-1"}, {"msgId": None}):
            cluster.answer(lambda link, sent, bad=bad: link.reply(sent, 0, None, usable(sent) | bad))  # type: ignore[misc]
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
        assert "raised CancelledError without being cancelled" in str(result.local_error)
        ask(cluster.a.open_links[0], question("U1"))
        await until(lambda: len(ends.received) == 2)
        call = asyncio.create_task(producer.send_in_transaction(Message("T", b"half"), "wait"))
        await running.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert [command.remark for command in ends.received[:2]] == ["execute: RuntimeError", "check: RuntimeError"]
    assert len(loop_errors) == 2
    loop_errors.clear()
