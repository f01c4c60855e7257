"""retry_another_broker_when_not_store_ok: stored, and not confirmed as it was asked for, so it is stored elsewhere once more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import ClientStateError, SendStatus
from rmq_protocol.constants import ResponseCode

from ..support.fakes import Cluster, each, late, refuse, silence, status, stored
from .support import Calls, Send, awaited, batched, deferred, message, messages, producer, timed, until

pytestmark = pytest.mark.virtual_time

WAYS: dict[str, Send] = {"sync": awaited, "async": deferred, "batch": batched}
FLUSH_DISK, FLUSH_SLAVE, NO_SLAVE = 10, 12, 11
ON: dict[str, Any] = {"retry_another_broker_when_not_store_ok": True}


def test_the_codes_are_those_of_the_wire() -> None:
    assert FLUSH_DISK == ResponseCode.FLUSH_DISK_TIMEOUT
    assert FLUSH_SLAVE == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert NO_SLAVE == ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize("code", [FLUSH_DISK, FLUSH_SLAVE, NO_SLAVE])
@pytest.mark.parametrize("name", WAYS)
async def test_another_broker_confirms(pair: Cluster, name: str, code: int) -> None:
    pair.a.answer = status(code)
    async with producer(pair, **ON) as sender:
        results = [await WAYS[name](sender) for _ in range(4)]
    assert {(result.status, result.queue.broker_name) for result in results} == {(SendStatus.SEND_OK, "b")}
    assert {result.attempts for result in results} == {1, 2}
    assert len(pair.b.sends) == 4
    assert len(pair.a.sends) == sum(result.attempts == 2 for result in results)


@pytest.mark.parametrize("name", WAYS)
async def test_no_broker_confirms(trio: Cluster, name: str) -> None:
    """Each broker is asked once; the last one's result is the call's, and it is no error."""
    answers = each(status(FLUSH_DISK), status(FLUSH_SLAVE), status(NO_SLAVE))
    trio.answer(lambda link, sent: answers(link, sent))
    async with producer(trio, **ON, retries=5, async_retries=5) as sender:
        result = await WAYS[name](sender)
    assert (result.status, result.attempts) == (SendStatus.SLAVE_NOT_AVAILABLE, 3)
    assert {len(broker.sends) for broker in trio.brokers} == {1}


@pytest.mark.parametrize("name", WAYS)
async def test_with_one_broker_the_result_stays_as_it_is(cluster: Cluster, name: str) -> None:
    cluster.a.answer = status(FLUSH_DISK)
    async with producer(cluster, **ON) as sender:
        with timed(0.0, 0.2):
            result = await WAYS[name](sender)
    assert (result.status, result.attempts) == (SendStatus.FLUSH_DISK_TIMEOUT, 1)
    assert len(cluster.sends) == 1


@pytest.mark.parametrize("options", [{}, {"retry_same_queue": True}], ids=["once", "same queue"])
@pytest.mark.parametrize("name", WAYS)
async def test_a_queue_of_the_callers_choice_is_kept(pair: Cluster, name: str, options: dict[str, Any]) -> None:
    pair.answer(status(FLUSH_SLAVE))
    async with producer(pair, **ON, **options) as sender:
        result = await WAYS[name](sender, queue=pair.queue())
    assert (result.status, result.attempts, result.queue) == (SendStatus.FLUSH_SLAVE_TIMEOUT, 1, pair.queue())
    assert len(pair.sends) == 1


@pytest.mark.parametrize("name", WAYS)
async def test_without_retries_there_is_one_attempt(pair: Cluster, name: str) -> None:
    pair.answer(status(FLUSH_DISK))
    async with producer(pair, **ON, retries=0, async_retries=0) as sender:
        result = await WAYS[name](sender)
    assert (result.status, result.attempts) == (SendStatus.FLUSH_DISK_TIMEOUT, 1)
    assert len(pair.sends) == 1


@pytest.mark.parametrize("how", ["retriable", "final", "silent", "no connection"])
@pytest.mark.parametrize("name", WAYS)
async def test_what_is_stored_stays_stored_when_a_later_attempt_fails(pair: Cluster, name: str, how: str) -> None:
    second = {"retriable": refuse(1), "final": refuse(13), "silent": silence, "no connection": stored}[how]
    answers = each(status(FLUSH_DISK), second)
    pair.answer(lambda link, sent: answers(link, sent))
    if how == "no connection":
        await pair.b.stop()
        pair.a.answer = status(FLUSH_DISK)
    async with producer(pair, **ON, timeout=0.4) as sender:
        with timed(0.0, 0.6):
            result = await WAYS[name](sender)
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(pair.sends) == (1 if how == "no connection" else 2)


@pytest.mark.parametrize("name", WAYS)
async def test_an_attempt_that_failed_and_one_that_is_not_confirmed(trio: Cluster, name: str) -> None:
    answers = each(refuse(1), status(FLUSH_DISK), stored)
    trio.answer(lambda link, sent: answers(link, sent))
    async with producer(trio, **ON) as sender:
        result = await WAYS[name](sender)
    assert (result.status, result.attempts) == (SendStatus.SEND_OK, 3)
    assert len({sent.broker.name for sent in trio.sends}) == 3


@pytest.mark.parametrize("name", WAYS)
async def test_a_late_answer_that_is_not_confirmed_is_a_result_too(pair: Cluster, name: str) -> None:
    answers = each(late(0.3, status(FLUSH_DISK)), late(0.2, refuse(13)))
    pair.answer(lambda link, sent: answers(link, sent))
    async with producer(pair, **ON, attempt_timeout=0.2, timeout=2.0) as sender:
        result = await WAYS[name](sender)
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT


@pytest.mark.parametrize("name", WAYS)
async def test_a_stop_gives_back_what_is_stored(pair: Cluster, name: str) -> None:
    answers = each(status(FLUSH_DISK), silence)
    pair.answer(lambda link, sent: answers(link, sent))
    sender = producer(pair, **ON)
    await sender.start()
    call = asyncio.ensure_future(WAYS[name](sender))
    await until(lambda: len(pair.sends) == 2)
    await sender.stop(0.05)
    assert (await call).status is SendStatus.FLUSH_DISK_TIMEOUT
    with pytest.raises(ClientStateError):
        await WAYS[name](sender)


async def test_callbacks_get_the_confirmed_result_once(pair: Cluster) -> None:
    pair.a.answer = status(FLUSH_DISK)
    calls = Calls()
    async with producer(pair, **ON) as sender:
        futures = [await sender.send_async(each_, **calls.both) for each_ in messages(4)]
        results = await asyncio.gather(*futures)
        batch = await (await sender.send_batch_async(messages(2), **calls.both))
    assert {id(result) for result in results} < {id(result) for result in calls.results}
    assert {result.status for result in [*calls.results, batch]} == {SendStatus.SEND_OK}
    assert (len(calls.results), len(calls.errors)) == (5, 0)


async def test_one_way_sends_are_not_repeated(pair: Cluster) -> None:
    pair.answer(status(FLUSH_DISK))
    async with producer(pair, **ON, oneway_window=1) as sender:
        for _ in range(3):
            await sender.send_oneway(message())
        await sender.flush()
    assert len(pair.sends) == 3
