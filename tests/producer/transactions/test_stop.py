"""The stop of a producer with transactions or checks under way."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import (
    ClientStateError,
    ConfigError,
    Message,
    MessageExt,
    Producer,
    TransactionError,
    TransactionProducer,
    TransactionStatus,
    errors,
)
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_async.embedded.transactions import HALF_TOPIC
from rmq_async.producer.transactions import checks
from rmq_protocol.constants import RequestCode

from ...support.fakes import Cluster
from ...support.instances import client_of
from ..support import tasks_named, timed, until
from .support import COMMIT, END, ROLLBACK, UNKNOWN, Ends, Records, ask, bodies, link_of, never, question, transactions

pytestmark = pytest.mark.virtual_time


async def test_a_stop_lets_transactions_end(server: EmbeddedRocketMQ) -> None:
    running = asyncio.Event()

    async def execute(message: Message, arg: object) -> TransactionStatus:
        running.set()
        await asyncio.sleep(0.1)
        return COMMIT

    producer = transactions(server, execute=execute)
    await producer.start()
    call = asyncio.ensure_future(producer.send_in_transaction(Message("T", b"half")))
    await running.wait()
    with timed(0.05, 0.3):
        await producer.stop()
    assert bodies(server) == [b"half"]
    assert call.done() or (await call).local_status is COMMIT
    with pytest.raises(ClientStateError):
        await producer.send_in_transaction(Message("T", b"half"))


async def test_a_stop_cancels_what_still_executes_at_its_deadline(server: EmbeddedRocketMQ) -> None:
    ended = []

    async def execute(message: Message, arg: object) -> TransactionStatus:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            ended.append("cancelled and tidied up")
            raise
        return COMMIT

    producer = transactions(server, execute=execute)
    await producer.start()
    call = asyncio.ensure_future(producer.send_in_transaction(Message("T", b"half")))
    await until(lambda: server.messages(HALF_TOPIC))
    await asyncio.sleep(0.02)
    with timed(0.1, 0.3):
        await producer.stop(0.05)
    assert (ended, bodies(server)) == (["cancelled and tidied up"], [])
    with pytest.raises(ClientStateError, match="during execute of transaction") as stopped:
        await call
    assert stopped.value.maybe_stored, "the half message is stored, and the broker will check it"


async def test_a_stop_at_its_deadline_ends_the_wait_for_the_broker(server: EmbeddedRocketMQ) -> None:
    def execute(message: Message, arg: object) -> TransactionStatus:
        server.stall()
        return COMMIT

    producer = transactions(server, execute=execute)
    await producer.start()
    call = asyncio.ensure_future(producer.send_in_transaction(Message("T", b"half")))
    await asyncio.sleep(0.05)
    with timed(0.05, 0.5):
        await producer.stop(0.05)
    with pytest.raises(TransactionError) as failed:
        await call
    error = failed.value
    assert (error.maybe_ended, error.maybe_stored, error.result.local_status) == (True, True, COMMIT)
    assert isinstance(error.__cause__, ClientStateError)
    server.resume()


async def test_a_stop_ends_checks(server: EmbeddedRocketMQ, clock: ManualClock) -> None:
    begun, ended = [], []

    async def check(message: MessageExt) -> TransactionStatus:
        begun.append(message.body)
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(message.body)
        return COMMIT

    async with transactions(server, check=check, max_concurrent_checks=2) as producer:
        for number in range(4):
            await producer.send_in_transaction(Message("T", b"%d" % number), UNKNOWN)
        await clock.advance(30)
        await until(lambda: len(begun) == 2)
        await asyncio.sleep(0.02)
    assert len(begun) == len(ended) == 2
    assert bodies(server) == []


async def test_cancelled_transaction_is_left_to_check(server: EmbeddedRocketMQ, clock: ManualClock) -> None:
    async def execute(message: Message, arg: object) -> TransactionStatus:
        await asyncio.sleep(30)
        return COMMIT

    check = Records(ROLLBACK)
    async with transactions(server, execute=execute, check=check) as producer:
        call = asyncio.ensure_future(producer.send_in_transaction(Message("T", b"half")))
        await until(lambda: server.messages(HALF_TOPIC))
        await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: server.requests[END] == 1)
        await clock.advance(30)
        await until(lambda: len(check.calls) == 1)
        await until(lambda: server.requests[END] == 2)
        with timed(most=0.5):  # no transaction counts as one that goes on
            await producer.stop(5.0)
    assert bodies(server) == []


async def test_a_producer_may_be_started_again(server: EmbeddedRocketMQ, clock: ManualClock) -> None:
    check = Records(COMMIT)
    producer = transactions(server, check=check)
    for number in range(2):
        async with producer:
            await producer.send_in_transaction(Message("T", b"%d" % number), UNKNOWN)
            await clock.advance(30)
            await until(lambda expected=number + 1: len(server.messages("T")) == expected)


async def test_what_cannot_be_is_refused_where_it_is_given(server: EmbeddedRocketMQ) -> None:
    with pytest.raises(TypeError, match="execute must be a function"):
        TransactionProducer("group", execute=None, check=never)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="check must be a function"):
        TransactionProducer("group", execute=never, check="check")  # type: ignore[arg-type]
    for number in (0, -1, True, 1.5, "3"):
        with pytest.raises(ConfigError, match="max_concurrent_checks"):
            TransactionProducer("group", execute=never, check=never, max_concurrent_checks=number)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retrys"):
        TransactionProducer("group", execute=never, check=never, retrys=7)
    with pytest.raises(ClientStateError):
        await transactions(server).send_in_transaction(Message("T", b"body"))
    check = Records(COMMIT)
    async with transactions(server, check=check):
        for twin in (transactions(server), Producer("group", namesrv=server.namesrv)):
            with pytest.raises(ConfigError, match="already in use"):
                await twin.start()
    async with Producer("group", namesrv=server.namesrv) as plain:
        with pytest.raises(ConfigError, match="already in use"):
            await transactions(server).start()
        assert RequestCode.CHECK_TRANSACTION_STATE not in (await client_of(plain)).handlers


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
        tasks = tasks_named("rmq_async transaction check")
        assert len(tasks) == 1
        with timed(0.1, 0.4):
            await producer.stop(0.1)
    assert "1 transaction checks (<function" in caplog.text
    go_on.set()
    await asyncio.wait(tasks)
