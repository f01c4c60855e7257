"""Hooks see every request of their client exactly once before and once after it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from rmq_async import Message, MessageQueue, Producer, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import encode_command, make_response
from rmq_protocol.constants import RequestCode

from ...support.fakes import TOPIC, Cluster, late
from ...support.instances import client_of
from ..support import batched, deferred, message, outcomes, producer, until
from .support import SEND, Requests

pytestmark = pytest.mark.virtual_time


async def test_requests_of_every_kind_are_seen_once() -> None:
    requests = Requests()
    async with EmbeddedRocketMQ() as server:
        options: dict[str, Any] = {"namesrv": server.namesrv}
        async with (
            Producer("p", hooks=[requests], oneway_window=2, **options) as sender,
            PullConsumer("c", **options) as consumer,  # shares the producer's client
        ):
            await sender.send(Message(TOPIC, b"x"))
            await sender.send(Message(TOPIC, b"x"), key=1)
            await deferred(sender)
            await batched(sender)
            for _ in range(3):
                await sender.send_oneway(Message(TOPIC, b"x"))
            await sender.flush()
            await consumer.pull(MessageQueue(TOPIC, "broker-a", 0), 0)
            server.fail_next(2, request=RequestCode.SEND_MESSAGE_V2)
            await sender.send(Message(TOPIC, b"x"))
            await until(lambda: requests.balanced)
            seen = Counter(requests.before)
            assert seen[RequestCode.SEND_MESSAGE_V2] == 8
            assert seen[RequestCode.SEND_BATCH_MESSAGE] == 1
            assert {RequestCode.HEART_BEAT, RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.PULL_MESSAGE} <= set(seen)
            assert Counter(requests.of(*SEND)) == {(0, None): 8 - requests.of(*SEND).count((None, None)), (2, None): 1} | {
                (None, None): requests.of(*SEND).count((None, None))
            }


@pytest.mark.parametrize("end", ["answer", "reset"])
async def test_a_request_that_ends_as_its_call_is_cancelled_is_reported(cluster: Cluster, end: str) -> None:
    requests = Requests()
    async with producer(cluster, hooks=[requests]) as sender:
        await sender.send(message())
        asked: list[Any] = []
        cluster.a.answer = lambda link, sent: asked.append(sent)
        call = asyncio.ensure_future(sender.send(message()))
        await until(lambda: asked)
        connection = (await client_of(sender)).pool.open[cluster.a.address]
        reply = make_response(asked[0].command, 0, None, cluster.a.stored_fields(asked[0]))
        call.cancel()
        if end == "answer":
            connection.data_received(b"".join(encode_command(reply)))
        else:
            connection.connection_lost(ConnectionResetError())
        await outcomes(call)
        assert requests.of(*SEND)[1:] == [(0, None) if end == "answer" else (None, "ConnectionLostError")]


async def test_a_hook_that_got_a_request_gets_its_end(cluster: Cluster) -> None:
    """Hooks that come or leave while a request is out."""
    early, late_ = Requests(), Requests()
    one = producer(cluster, group="one", hooks=[early])
    async with producer(cluster, group="plain") as sender:
        await one.start()
        await sender.send(message())
        cluster.a.answer = late(0.1)
        call = asyncio.ensure_future(sender.send(message()))
        await until(lambda: len(cluster.sends) == 2)
        async with producer(cluster, group="two", hooks=[late_]):
            await one.stop()
            await call
        assert early.of(*SEND) == [(0, None)] * 2
        assert not late_.of(*SEND)


async def test_one_hook_in_two_producers_sees_each_request_once(cluster: Cluster) -> None:
    requests = Requests()
    async with producer(cluster, group="one", hooks=[requests]) as one:
        async with producer(cluster, group="two", hooks=[requests]) as two:
            await one.send(message())
            await two.send(message())
            assert requests.of(*SEND) == [(0, None)] * 2
        await one.send(message())
        assert requests.of(*SEND) == [(0, None)] * 3
