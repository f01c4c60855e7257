"""Sends and ends of transactions that a broker refuses because too few replicas are in sync, before it stores them, or after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import Message, Producer, SendError, SendStatus, TransactionError, errors
from rmq_protocol.constants import RequestCode

from ..support.fakes import TOPIC, Answer, Cluster, each, refuse, silence, stored
from .support import message, messages, outcomes, producer
from .transactions.support import COMMIT, Ends, transactions

pytestmark = pytest.mark.virtual_time

TOO_FEW = "in-sync replicas not enough"
CONFIG = int(RequestCode.GET_BROKER_CONFIG)
WAYS: dict[str, Callable[[Producer, Any], Any]] = {
    "plain": lambda sender, _: sender.send(message()),
    "queue": lambda sender, queue: sender.send(message(), queue=queue),
    "key": lambda sender, _: sender.send(message(), key=1),
    "selector": lambda sender, _: sender.send(message(), selector=lambda queues, *_: queues[0]),
    "batch": lambda sender, _: sender.send_batch(messages(3)),
    "batch to a queue": lambda sender, queue: sender.send_batch(messages(3), queue=queue),
    "asynchronous": lambda sender, _: _accepted(sender.send_async(message())),
}


async def _accepted(call: Any) -> Any:
    return await (await call)


def config(*lines: str) -> Answer:
    return lambda link, request: link.reply(request, body="\n".join(("brokerName=a", *lines, "")).encode())


COUNTS_FIRST = config("enableControllerMode=true", "enableDLegerCommitLog=false")
NOT_SHOWN = {
    "DLedger": config("enableDLegerCommitLog=true"),
    "no such setting": config(),
    "not permitted": refuse(16, "no permission"),
    "unknown request": refuse(3),
    "silence": silence,
    "cut": lambda link, _: link.close(),
}


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("way", WAYS)
async def test_send_to_too_few_replicas_is_tried_again_within_its_time(way: str, retries: int, cluster: Cluster) -> None:
    cluster.a.answers[CONFIG] = COUNTS_FIRST
    async with producer(cluster, retries=retries, async_retries=retries) as sender:
        cluster.answer(each(*[refuse(1, TOO_FEW)] * 5, stored))
        result = await WAYS[way](sender, cluster.queue())
        assert (result.status, result.attempts) == (SendStatus.SEND_OK, 6)
        assert cluster.a.codes[CONFIG] == 1
        cluster.answer(refuse(1, TOO_FEW))
        began = asyncio.get_running_loop().time()
        (error,) = await outcomes(WAYS[way](sender, cluster.queue()))
        assert (type(error), error.code, error.maybe_stored) == (SendError, 1, False)
        assert isinstance(error.__cause__, errors.NotEnoughReplicasError)
        assert error.made > 4
        assert 2.0 < asyncio.get_running_loop().time() - began < 3.05
        assert cluster.a.codes[CONFIG] == 1


@pytest.mark.parametrize("shown", NOT_SHOWN)
@pytest.mark.parametrize("way", WAYS)
async def test_send_to_a_broker_that_may_use_dledger_may_be_stored(way: str, shown: str, cluster: Cluster) -> None:
    cluster.a.answers[CONFIG] = NOT_SHOWN[shown]
    cluster.answer(refuse(1, TOO_FEW))
    async with producer(cluster, retries=0, async_retries=0) as sender:
        (error,) = await outcomes(WAYS[way](sender, cluster.queue()))
        assert (type(error), error.code, error.maybe_stored) == (errors.BrokerSystemError, 1, True)
        assert len(cluster.sends) == 1


async def test_replicas_are_asked_about_once_by_many_sends(cluster: Cluster) -> None:
    cluster.a.answers[CONFIG] = lambda link, request: link.reply_later(0.05, request, body=b"enableDLegerCommitLog=false\n")
    cluster.answer(each(*[refuse(1, TOO_FEW)] * 50, stored))
    async with producer(cluster) as sender:
        done = await outcomes(*[sender.send(item) for item in messages(50)])
        assert {result.attempts for result in done} == {2}
        assert cluster.a.codes[CONFIG] == 1


async def test_replicas_are_asked_about_again_on_a_new_connection(cluster: Cluster) -> None:
    cluster.a.answers[CONFIG] = COUNTS_FIRST
    async with producer(cluster, retries=0) as sender:
        cluster.answer(each(refuse(1, TOO_FEW), stored))
        assert (await sender.send(message())).attempts == 2
        cluster.a.link.rst()
        cluster.a.answers[CONFIG] = NOT_SHOWN["DLedger"]
        cluster.answer(refuse(1, TOO_FEW))
        (error,) = await outcomes(sender.send(message()))
        assert error.maybe_stored


async def test_stop_ends_a_send_that_asks_about_replicas(cluster: Cluster) -> None:
    cluster.a.answers[CONFIG] = silence
    cluster.answer(refuse(1, TOO_FEW))
    async with producer(cluster, stop_timeout=0.1) as sender:
        sending = asyncio.ensure_future(sender.send(message()))
        while not cluster.a.codes[CONFIG]:
            await asyncio.sleep(0.001)
    with pytest.raises(errors.ClientStateError) as failed:
        await sending
    assert failed.value.maybe_stored


async def test_busy_page_cache_of_a_broker_without_dledger_has_stored_nothing(cluster: Cluster) -> None:
    cluster.a.answers[CONFIG] = COUNTS_FIRST
    cluster.answer(refuse(1, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"))
    async with producer(cluster, retries=0) as sender:
        (error,) = await outcomes(sender.send(message()))
        assert (type(error), error.maybe_stored) == (errors.BrokerSystemError, False)


async def test_end_of_a_transaction_at_too_few_replicas_has_not_happened(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    cluster.a.answers[CONFIG] = COUNTS_FIRST
    ends.answer = lambda link, command: link.reply(command, 1, TOO_FEW)
    async with transactions(cluster) as sender:
        with pytest.raises(TransactionError, match="was refused") as failed:
            await sender.send_in_transaction(Message(TOPIC, b"half"), COMMIT)
        assert (failed.value.maybe_ended, failed.value.maybe_stored) == (False, True)
