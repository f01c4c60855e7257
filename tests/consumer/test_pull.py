"""PullConsumer.pull and its small sisters: one request, one truthful answer."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import UTC, datetime
from time import monotonic, thread_time, time
from typing import Any

import pytest

from rmq_async.admin import Admin
from rmq_async.consumer import PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import (
    BrokerError,
    BrokerNotFoundError,
    ConfigError,
    RemoteProtocolError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from rmq_async.results import PullStatus
from rmq_async.testing import Answer, ScriptedPeer, routes_to
from rmq_async.testing.scripted import HEARTBEATS
from rmq_protocol.command import RemotingCommand
from rmq_protocol.compression import CompressionType, compress
from rmq_protocol.constants import RequestCode, ResponseCode, SysFlag
from rmq_protocol.headers import PullMessageRequestHeader
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import BrokerData, QueueData, TopicQueueMapping, TopicRouteData, encode_route
from rmq_protocol.stored import decode_pull

from ..support.fakes import silence
from .support import TOPIC, embedded, put, record, scripted, under_way

QUEUE = MessageQueue(TOPIC, "broker-a", 0)


async def test_what_was_put_is_pulled_with_its_place_in_the_queue() -> None:
    async with embedded() as (_, consumer):
        bodies = [os.urandom(random.randrange(1, 2000)) for _ in range(10)]
        await put(consumer, QUEUE, bodies, tags="red")
        result = await consumer.pull(QUEUE, 0)
        assert result.status is PullStatus.FOUND
        assert [message.body for message in result.messages] == bodies
        assert [message.queue_offset for message in result.messages] == list(range(10))
        assert (result.next_offset, result.min_offset, result.max_offset) == (10, 0, 10)
        assert (result.messages[0].queue, result.messages[0].tags, result.corrupt) == (QUEUE, "red", ())
        part = await consumer.pull(QUEUE, 3, max_messages=2)
        assert [message.queue_offset for message in part.messages] == [3, 4]
        assert part.next_offset == 5


class Text(str):
    """As NumPy's."""


async def test_subclasses_of_str_are_text() -> None:
    async with embedded() as (server, feeder):
        await put(feeder, QUEUE, [b"x"], tags="red")
        async with PullConsumer(Text("other"), namesrv=Text(server.namesrv)) as consumer:
            topic = Text(TOPIC)
            queue = MessageQueue(topic, Text("broker-a"), 0)
            assert queue in await consumer.queues(topic)
            assert (await consumer.pull(queue, 0, tags=Text("red"))).messages[0].body == b"x"
            assert [message.body async for message in consumer.read(topic, tags=Text("red"))] == [b"x"]
            await consumer.commit(queue, 1)
            assert (await consumer.committed(queue), await consumer.max_offset(queue)) == (1, 1)


async def test_an_empty_end_and_a_wrong_offset_are_results() -> None:
    async with embedded() as (server, consumer):
        empty = await consumer.pull(QUEUE, 0)
        assert (empty.status, empty.messages, empty.next_offset) == (PullStatus.NO_NEW, (), 0)
        await put(consumer, QUEUE, [b"1", b"2"])
        assert (await consumer.pull(QUEUE, 2)).status is PullStatus.NO_NEW
        above = await consumer.pull(QUEUE, 9)
        assert (above.status, above.next_offset) == (PullStatus.OFFSET_ILLEGAL, 2)
        server.clear()
        below = await consumer.pull(QUEUE, 1)
        assert (below.status, below.next_offset, below.min_offset) == (PullStatus.OFFSET_ILLEGAL, 2, 2)


async def test_tags_are_filtered_by_text_not_by_hash() -> None:
    async with embedded() as (_, consumer):
        await put(consumer, QUEUE, [b"1"], tags="Aa")
        await put(consumer, QUEUE, [b"2"], tags="BB")
        await put(consumer, QUEUE, [b"3"], tags="C")
        await put(consumer, QUEUE, [b"4"])
        result = await consumer.pull(QUEUE, 0, tags="Aa || C")
        assert [message.body for message in result.messages] == [b"1", b"3"]
        nothing = await consumer.pull(QUEUE, 0, tags="D")
        assert (nothing.status, nothing.next_offset) == (PullStatus.NO_MATCH, 4)


@pytest.mark.virtual_time
async def test_a_waiting_pull_ends_with_the_message() -> None:
    async with embedded() as (_, consumer):
        pull = asyncio.ensure_future(consumer.pull(QUEUE, 0, wait=5.0))
        await asyncio.sleep(0.1)
        assert not pull.done()
        start = monotonic()
        await put(consumer, QUEUE, [b"x"])
        result = await pull
        assert monotonic() - start < 0.01
        assert [message.body for message in result.messages] == [b"x"]


@pytest.mark.virtual_time
async def test_a_waiting_pull_ends_in_time_without_one() -> None:
    async with embedded() as (_, consumer):
        start = monotonic()
        result = await consumer.pull(QUEUE, 0, wait=0.3)
        assert result.status is PullStatus.NO_NEW
        assert 0.29 < monotonic() - start < 0.31


@pytest.mark.virtual_time
async def test_a_broker_that_holds_pulls_too_long_does_not_make_them_late() -> None:
    async with scripted(lambda header: (19, header.queueOffset, b"")) as (broker, consumer):
        inner = broker.serve

        def hold(link: Any, request: RemotingCommand) -> None:
            if request.code != 11 or not int((request.ext_fields or {}).get("sysFlag") or 0) & 2:
                inner(link, request)

        broker.serve = hold
        start = monotonic()
        result = await consumer.pull(QUEUE, 5, wait=0.2)
        assert (result.status, result.next_offset) == (PullStatus.NO_NEW, 5)
        assert 0.19 < monotonic() - start < 0.21


@pytest.mark.virtual_time
async def test_the_request_is_what_every_broker_understands() -> None:
    async with scripted(lambda header: (19, header.queueOffset, b"")) as (broker, consumer):
        await consumer.pull(QUEUE, 5, max_messages=7, tags="a||b", wait=0.1)
        sent = broker.pulls[0]
        assert sent == PullMessageRequestHeader(
            consumerGroup="g", topic=TOPIC, queueId=0, queueOffset=5, maxMsgNums=7, sysFlag=6, commitOffset=0,
            suspendTimeoutMillis=100, subscription="a||b", subVersion=0, expressionType="TAG", bname="broker-a",
        )  # fmt: skip
        await consumer.pull(QUEUE, 5)
        assert (broker.pulls[-1].sysFlag, broker.pulls[-1].suspendTimeoutMillis) == (4, 0)


async def test_damaged_records_are_reported_and_the_others_delivered() -> None:
    body = record(0, b"good") + record(1, b"bad", body_crc=1) + record(2, b"good too")
    async with scripted(lambda header: (0, 3, body)) as (broker, consumer):
        result = await consumer.pull(QUEUE, 0)
        assert [message.body for message in result.messages] == [b"good", b"good too"]
        assert len(result.corrupt) == 1
        assert (result.corrupt[0].queue_offset, result.corrupt[0].broker) == (1, "broker-a")
        assert result.corrupt[0].address == broker.address
        assert result.next_offset == 3


async def test_a_bomb_is_reported_and_costs_no_more_than_the_bound() -> None:
    bomb = compress(bytes(8 * 1024 * 1024), CompressionType.ZLIB, 9)
    flags = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
    body = record(0) + record(1, bomb, sys_flag=int(flags)) + record(2)
    async with scripted(lambda header: (0, 3, body), max_decompressed_size=1024 * 1024) as (_, consumer):
        result = await consumer.pull(QUEUE, 0)
        assert [message.queue_offset for message in result.messages] == [0, 2]
        assert len(result.corrupt) == 1


async def test_a_large_body_does_not_block_the_loop() -> None:
    packed = compress(os.urandom(1024) * 15 * 1024, CompressionType.ZLIB, 1)
    assert len(packed) > 64 * 1024
    flags = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)
    body = b"".join(record(offset, packed, sys_flag=flags) for offset in range(4))
    options = {"max_decompressed_size": 64 * 1024 * 1024, "request_timeout": 10.0}
    async with scripted(lambda header: (0, 4, body), **options) as (_, consumer):
        start = thread_time()  # the time of this thread, not of the machine: others may be busy
        decode_pull(body, QUEUE, max_decompressed_size=64 * 1024 * 1024)
        on_the_loop = thread_time() - start
        pull = asyncio.ensure_future(consumer.pull(QUEUE, 0))
        longest, last = 0.0, thread_time()
        while not pull.done():
            await asyncio.sleep(0)
            now = thread_time()
            longest, last = max(longest, now - last), now
        assert sum(len(message.body) for message in (await pull).messages) == 60 * 1024 * 1024
        assert longest < on_the_loop / 2


async def test_what_does_not_fit_is_left_for_the_next_pull() -> None:
    packed = compress(bytes(600 * 1024), CompressionType.ZLIB, 9)
    flags = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)
    body = b"".join(record(offset, packed, sys_flag=flags) for offset in range(3))
    async with scripted(lambda header: (0, 3, body), max_decompressed_size=1024 * 1024) as (_, consumer):
        result = await consumer.pull(QUEUE, 0)
        assert [message.queue_offset for message in result.messages] == [0]
        assert (result.next_offset, result.corrupt) == (1, ())


@pytest.mark.parametrize("code", [1, 2, 13, 16, 17, 24, 26, 29, 1500, 4711])
async def test_refusals_raise_with_the_brokers_words(code: int) -> None:
    async with scripted(lambda header: (code, 0, b"")) as (broker, consumer):
        with pytest.raises(BrokerError, match=r"PULL_MESSAGE.*said the script") as caught:
            await consumer.pull(QUEUE, 0)
        assert (caught.value.code, caught.value.broker, caught.value.address) == (code, "broker-a", broker.address)


async def test_an_answer_without_its_fields_is_a_protocol_error() -> None:
    async with scripted() as (broker, consumer):
        broker.serve = lambda link, request: link.reply(request, code=0, ext_fields=None)
        with pytest.raises(RemoteProtocolError, match="suggestWhichBrokerId") as caught:
            await consumer.pull(QUEUE, 0)
        assert caught.value.broker == "broker-a"
        with pytest.raises(RemoteProtocolError, match="offset"):
            await consumer.max_offset(QUEUE)


@pytest.mark.virtual_time
async def test_a_silent_broker_ends_by_the_deadline_and_leaves_no_entry() -> None:
    async with scripted(request_timeout=0.2) as (broker, consumer):
        broker.serve = silence
        start = monotonic()
        with pytest.raises(RequestTimeoutError) as caught:
            await consumer.pull(QUEUE, 0)
        assert caught.value.broker == "broker-a"
        with pytest.raises(RequestTimeoutError):
            await consumer.pull(QUEUE, 0, wait=0.2)
        assert 0.59 < monotonic() - start < 0.61
        assert not under_way(consumer)


async def test_what_is_not_there_has_its_own_errors() -> None:
    async with embedded() as (_, consumer):
        with pytest.raises(TopicNotFoundError, match="Missing"):
            await consumer.queues("Missing")
        with pytest.raises(TopicNotFoundError):
            await consumer.pull(MessageQueue("Missing", "broker-a", 0), 0)
        await consumer.queues(TOPIC)
        with pytest.raises(BrokerNotFoundError):
            await consumer.pull(MessageQueue(TOPIC, "broker-x", 0), 0)
        with pytest.raises(BrokerError):
            await consumer.pull(MessageQueue(TOPIC, "broker-a", 99), 0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("t", 0), "MessageQueue"),
        ((QUEUE, -1), "offset"),
        ((QUEUE, 1 << 63), "offset"),
        ((QUEUE, True), "offset"),
        ((QUEUE, 10**5000), "offset"),
        ((MessageQueue(TOPIC, "broker-a", 10**5000), 0), "MessageQueue"),
        ((QUEUE, 0, {"max_messages": -(10**5000)}), "max_messages"),
        ((QUEUE, 0, {"wait": 10**400}), "wait"),
        ((QUEUE, 0, {"tags": 10**5000}), "tags"),
        ((QUEUE, 0, {"max_messages": 0}), "max_messages"),
        ((QUEUE, 0, {"max_messages": 4096}), "max_messages"),
        ((QUEUE, 0, {"wait": -1.0}), "wait"),
        ((QUEUE, 0, {"wait": float("nan")}), "wait"),
        ((QUEUE, 0, {"tags": ""}), "tags"),
        ((QUEUE, 0, {"tags": "||"}), "tags"),
        ((QUEUE, 0, {"tags": None}), "tags"),
    ],
)
async def test_senseless_arguments_are_refused_before_anything_is_sent(arguments: tuple[Any, ...], named: str) -> None:
    async with scripted() as (broker, consumer):
        options = arguments[2] if len(arguments) > 2 else {}
        with pytest.raises(ConfigError, match=named):
            await consumer.pull(*arguments[:2], **options)
        assert broker.received == 0


async def test_queues_are_the_readable_ones_as_they_are_now() -> None:
    async with (
        EmbeddedRocketMQ(brokers=2) as server,
        Admin(namesrv=server.namesrv) as admin,
        PullConsumer("g", namesrv=server.namesrv) as consumer,
    ):
        await admin.create_topic(TOPIC, queues=1, read_queues=2)
        assert await consumer.queues(TOPIC) == tuple(
            MessageQueue(TOPIC, name, number) for name in ("broker-a", "broker-b") for number in (0, 1)
        )
        await admin.create_topic(TOPIC, queues=1, read_queues=3, broker="broker-a")
        assert len(await consumer.queues(TOPIC)) == 5


@pytest.mark.virtual_time
async def test_offsets_and_times() -> None:
    async with embedded() as (_, consumer):
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 0)
        before = time()
        await put(consumer, QUEUE, [b"1", b"2"])
        await asyncio.sleep(0.01)
        between = datetime.now(UTC)
        await asyncio.sleep(0.01)
        await put(consumer, QUEUE, [b"3"])
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 3)
        assert await consumer.search_offset(QUEUE, before - 1) == 0
        assert await consumer.search_offset(QUEUE, between) == 2
        for wrong in (datetime(2026, 1, 1), "now", float("inf"), True):
            with pytest.raises(ConfigError):
                await consumer.search_offset(QUEUE, wrong)  # type: ignore[arg-type]


async def test_a_committed_offset_is_kept_by_the_broker() -> None:
    async with embedded() as (server, consumer):
        await put(consumer, QUEUE, [b"1"])
        assert await consumer.committed(QUEUE) is None
        await consumer.commit(QUEUE, 1)
        assert await consumer.committed(QUEUE) == 1
        async with PullConsumer("other", namesrv=server.namesrv) as other:
            assert await other.committed(QUEUE) is None
        with pytest.raises(ConfigError):
            await consumer.commit(QUEUE, -1)


async def test_static_queue_is_pulled_without_its_route() -> None:
    """The topic was not asked for, or it is forgotten: the pseudo broker of the queue says nothing about who holds it."""
    offsets = {"suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3"}
    nothing = Answer(code=ResponseCode.PULL_NOT_FOUND, ext_fields=offsets)
    async with ScriptedPeer(aside={**HEARTBEATS, RequestCode.PULL_MESSAGE: nothing}) as broker:
        route = TopicRouteData(
            (QueueData("broker-a", 1, 1, 6),),
            (BrokerData("broker-a", {0: broker.address}, "c"),),
            topic_queue_mapping_by_broker={
                "broker-a": TopicQueueMapping("T", total_queues=1, bname="broker-a", curr_id_map={0: 0})
            },
        )
        names = {**routes_to(broker.address), RequestCode.GET_ROUTEINFO_BY_TOPIC: Answer(body=encode_route(route))}
        async with ScriptedPeer(aside=names) as server, PullConsumer("g", namesrv=server.address) as consumer:
            result = await consumer.pull(MessageQueue("T", "__syslo__global__", 0), 3)
            with pytest.raises(ConfigError, match="topic T has no queue 1 on broker __syslo__global__, only queues 0 to 0"):
                await consumer.min_offset(MessageQueue("T", "__syslo__global__", 1))
    assert (result.status, result.next_offset) == (PullStatus.NO_NEW, 3)
