"""Messages that a broker deletes under a reader: named, with every kind of answer; and gaps that are none."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from rmq_async import BrokerNotFoundError, MessageQueue, OffsetRangeError, Producer, PullStatus
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import BrokerError, RemoteProtocolError
from rmq_async.reading import skipped_offsets as continuity
from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import PullMessageRequestHeader
from rmq_protocol.message import Message
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData
from rmq_protocol.topics import LogicQueueMappingItem, TopicConfigAndQueueMapping, TopicQueueMappingDetail

from ..support.fakes import Link
from .support import TOPIC, collect, each, embedded, offsets_by_queue, put, record, scripted

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue(TOPIC, "broker-a", 0)


async def fill(server: EmbeddedRocketMQ, count: int, *, topic: str = TOPIC, rare: int = 10) -> None:
    """One in ``rare`` is tagged so."""
    async with Producer("fills", namesrv=server.namesrv) as producer:
        for start in range(0, count, 500):
            messages = [
                Message(topic, b"%d" % number, tags="rare" if number % rare == 0 else "often")
                for number in range(start, min(start + 500, count))
            ]
            await producer.send_batch(messages, queue=Q0._replace(topic=topic))


# One pull.


async def test_pull_names_what_was_deleted() -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 2000)
        server.expire(Q0, 860)
        found = await consumer.pull(Q0, 100)
        assert (found.status, found.lost, found.min_offset) == (PullStatus.FOUND, (range(100, 860),), 0)
        assert [message.queue_offset for message in found.messages] == list(range(860, 892))
        nothing = await consumer.pull(Q0, 0)
        assert (nothing.status, nothing.messages) == (PullStatus.NO_MATCH, ())
        assert (nothing.next_offset, nothing.lost) == (800, (range(800),))
        server.expire(Q0, 860, corrected=True)
        outside = await consumer.pull(Q0, 100)
        assert (outside.status, outside.next_offset, outside.lost) == (PullStatus.OFFSET_ILLEGAL, 860, (range(100, 860),))


async def test_pull_of_all_loses_nothing() -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 100)
        asked = server.requests[RequestCode.GET_TOPIC_CONFIG]
        offset = 0
        while (result := await consumer.pull(Q0, offset)).status is PullStatus.FOUND:
            assert result.lost == ()
            offset = result.next_offset
        assert (offset, result.lost) == (100, ())
        assert (await consumer.pull(Q0, 200)).lost == ()
        assert server.requests[RequestCode.GET_TOPIC_CONFIG] == asked


async def test_pull_with_tags_loses_nothing() -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 2000)
        server.expire(Q0, 860)
        for offset in (0, 100, 860):
            assert (await consumer.pull(Q0, offset, tags="rare")).lost == ()


async def test_pull_finds_a_hole_between_messages() -> None:
    async with scripted(lambda header: (0, 9, record(2) + record(3) + record(6))) as (_, consumer):
        result = await consumer.pull(Q0, 1)
        assert result.lost == (range(1, 2), range(4, 6), range(7, 9))
        assert [message.queue_offset for message in result.messages] == [2, 3, 6]


async def test_pull_of_a_damaged_record_loses_nothing() -> None:
    damaged = record(2, b"bad", body_crc=7)
    async with scripted(lambda header: (0, 4, record(1) + damaged + record(3))) as (_, consumer):
        result = await consumer.pull(Q0, 1)
        assert (result.lost, [error.queue_offset for error in result.corrupt]) == ((), [2])
        assert (await consumer.pull(Q0, 0)).lost == (range(1),)
    async with scripted(lambda header: (0, 40, record(30) + b"\xff" * 200)) as (_, consumer):
        result = await consumer.pull(Q0, 0)
        assert (result.lost, len(result.corrupt)) == ((), 1)  # the record that cannot be read may be any of them


async def test_pull_leaves_out_foreign_records() -> None:
    """Of another topic, of another queue, and from before the offset asked for."""
    block = record(4) + record(5) + record(6, topic="other") + record(7, queue_id=1) + record(8)
    async with scripted(lambda header: (0, 9, block)) as (_, consumer):
        result = await consumer.pull(Q0, 5)
        assert [message.queue_offset for message in result.messages] == [5, 8]
        assert (result.next_offset, result.lost, result.corrupt) == (9, (range(6, 8),), ())


@pytest.mark.parametrize("tags", ["*", "a"])
@pytest.mark.parametrize(
    "stranger",
    [
        record(5, queue_id=1),
        record(70),
        record(3, topic="other", body_crc=1),
        record(0, queue_id=1, body=bytes(500))[:300],
        record(5, topic=f"{TOPIC}-too"),
    ],
)
async def test_a_record_in_the_place_of_a_deleted_one(stranger: bytes, tags: str) -> None:
    """While the first file of its log is deleted, 5.5.0 gives what the next file begins with instead of its very first message:
    as many bytes as that had."""
    tagged = b"TAGS\x01a\x02"

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        first = max(header.queueOffset, 65)
        block = b"".join(record(offset, properties=tagged) for offset in range(first, 81))
        return (0, 81, (stranger if header.queueOffset == 0 else b"") + block) if first < 81 else (19, 81, b"")

    async with scripted(pull) as (broker, consumer):
        broker.high = 81
        result = await consumer.pull(Q0, 0, tags=tags)
        assert (result.messages, result.corrupt, result.next_offset) == ((), (), 1)
        assert result.lost == ((range(1),) if tags == "*" else ())
        expected = "offsets 0 to 64 of" if tags == "a" else "offset 0 of .* was deleted before it was read"
        with pytest.raises(OffsetRangeError, match=expected):
            await collect(consumer.read(TOPIC, start={Q0: 0}, tags=tags))
        found = await collect(consumer.read(TOPIC, tags=tags))
        assert [message.queue_offset for message in found] == [*range(65, 81)]


async def test_pull_is_not_led_beyond_the_end() -> None:
    """A broker that misses a file of its consume queue says to go on at the beginning of the next one."""
    async with scripted(lambda header: (19, 300_000, b"")) as (_, consumer):
        result = await consumer.pull(Q0, 5)
        assert (result.next_offset, result.lost) == (100, (range(5, 100),))
    async with scripted(lambda header: (0, 3, b"")) as (_, consumer):
        with pytest.raises(RemoteProtocolError, match="at offset 5 has the next offset 3"):
            await consumer.pull(Q0, 5)


def compacted(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
    """Of 100 messages every seventh is left."""
    offsets = [offset for offset in range(0, 100, 7) if offset >= header.queueOffset][:5]
    return (0, offsets[-1] + 1, b"".join(map(record, offsets))) if offsets else (20, 100, b"")


async def test_a_compacted_topic_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted(compacted) as (broker, consumer):
        broker.settings = TopicConfigAndQueueMapping(TOPIC, attributes={"cleanup.policy": "COMPACTION"})
        assert [(await consumer.pull(Q0, offset)).lost for offset in (0, 1, 99)] == [(), (), ()]
        for start in ({Q0: 0}, "earliest"):
            found = await collect(consumer.read(TOPIC, start=start, end={Q0: 100}))
            assert [message.queue_offset for message in found] == [*range(0, 100, 7)]
        assert (broker.settings_asked, caplog.text) == (1, "")
        broker.settings = TopicConfigAndQueueMapping(TOPIC, attributes={"cleanup.policy": "DELETE"})
    async with scripted(compacted) as (_, consumer):
        assert (await consumer.pull(Q0, 1)).lost[0] == range(1, 7)


async def test_a_moved_queue_loses_nothing() -> None:
    """Of a static topic: it was on one broker up to offset 10, and is on another one from 10,000 on."""
    old = LogicQueueMappingItem(bname="broker-b", end_offset=10)
    items = (old, LogicQueueMappingItem(gen=1, bname="broker-a", logic_offset=10_000))

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        return 20, 10_050, b""

    async with scripted(pull) as (broker, consumer):
        broker.high = 10_100
        broker.settings = TopicConfigAndQueueMapping(TOPIC, mapping_detail=TopicQueueMappingDetail(hosted_queues={0: items}))
        assert (await consumer.pull(Q0, 7)).lost == (range(7, 10), range(10_000, 10_050))


async def test_settings_that_are_refused_are_no_excuse(caplog: pytest.LogCaptureFixture) -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 1000)
        server.expire(Q0, 860)
        server.fail_next(16, request=RequestCode.GET_TOPIC_CONFIG)
        assert (await consumer.pull(Q0, 100)).lost == (range(100, 860),)
        assert "does not show whether the topic is compacted" in caplog.text
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 1000)
        server.expire(Q0, 860)
        server.fail_next(2, request=RequestCode.GET_TOPIC_CONFIG)
        with pytest.raises(BrokerError):  # another try may find out
            await consumer.pull(Q0, 100)
        assert (await consumer.pull(Q0, 100)).lost == (range(100, 860),)


# Reading.


async def test_read_raises_for_deleted_messages() -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 2000)
        for before, lost in ((860, range(500, 860)), (1900, range(500, 1300))):  # found after the gap; nothing found
            server.expire(Q0, before)
            with pytest.raises(OffsetRangeError, match=rf"offsets 500 to {lost.stop - 1} of .* were deleted") as caught:
                await collect(consumer.read(TOPIC, start={Q0: 500}))
            assert (caught.value.lost, caught.value.broker, caught.value.code) == ((lost,), "broker-a", 21)
        server.expire(Q0, 1900, corrected=True)
        with pytest.raises(OffsetRangeError, match=r"offset 500 of .* is outside 1900\.\.2000; start a new read") as caught:
            await collect(consumer.read(TOPIC, start={Q0: 500}))
        assert caught.value.lost == (range(500, 1900),)


async def test_read_names_only_what_it_wants() -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 1000)
        server.expire(Q0, 500)
        with pytest.raises(OffsetRangeError) as caught:
            await collect(consumer.read(TOPIC, start={Q0: 400}, end={Q0: 450}))
        assert caught.value.lost == (range(400, 450),)
        assert len(await collect(consumer.read(TOPIC, start={Q0: 500}, end={Q0: 510}))) == 10


async def test_read_delivers_what_comes_before_the_loss() -> None:
    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        return (
            (0, 10, b"".join(map(record, (0, 1, 2, 6, 7, 8, 9)))) if header.queueOffset == 0 else (19, header.queueOffset, b"")
        )

    async with scripted(pull) as (broker, consumer):
        broker.high = 10
        found: list[int] = []
        with pytest.raises(OffsetRangeError, match="offsets 3 to 5 of"):
            await each(consumer.read(TOPIC, start={Q0: 0}), lambda message: found.append(message.queue_offset))
        assert found == [0, 1, 2]


@pytest.mark.parametrize("tags", ["*", "rare"])
async def test_earliest_goes_on_with_a_warning(caplog: pytest.LogCaptureFixture, tags: str) -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 2000)
        server.expire(Q0, 860)
        found = await collect(consumer.read(TOPIC, tags=tags))
        assert offsets_by_queue(found) == {0: [*range(860, 2000, 1 if tags == "*" else 10)]}
        warnings = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
        assert any("were deleted before they were read; the read continues" in text for text in warnings)


async def test_earliest_reports_a_jump_on_its_way(caplog: pytest.LogCaptureFixture) -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 1000)
        server.expire(Q0, 100, corrected=True)
        assert len(await collect(consumer.read(TOPIC))) == 900
        assert caplog.text == ""  # nothing had been read that was not there
        async with aclosing(consumer.read(TOPIC)) as messages:
            found = [(await anext(messages)).queue_offset]
            server.expire(Q0, 900, corrected=True)
            found += [message.queue_offset async for message in messages]
        assert found[-1] == 999
        missing = set(range(100, 1000)) - set(found)
        assert missing == set(range(min(missing), 900))
        assert f"offsets {min(missing)} to 899 of" in caplog.text


# Reading with tags: the broker says nothing about what it passes over.


async def test_read_with_tags_raises_for_deleted_messages() -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 3000)
        server.expire(Q0, 1700)
        with pytest.raises(OffsetRangeError, match=r"offsets 500 to 1699 of .* were deleted") as caught:
            await collect(consumer.read(TOPIC, start={Q0: 500}, tags="rare"))
        assert caught.value.lost == (range(500, 1700),)
        assert (caught.value.min_offset, caught.value.max_offset) == (1700, 3000)
        with pytest.raises(OffsetRangeError) as caught:  # none with this tag was there
            await collect(consumer.read(TOPIC, start={Q0: 500}, end={Q0: 1000}, tags="none"))
        assert caught.value.lost == (range(500, 1000),)


async def test_read_with_tags_checks_at_its_end() -> None:
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 3000)
        asked = server.requests[RequestCode.PULL_MESSAGE]
        assert await collect(consumer.read(TOPIC, start={Q0: 5}, end={Q0: 2500}, tags="none")) == []
        assert server.requests[RequestCode.PULL_MESSAGE] == asked + 1 + 4 + 1  # 800 offsets each; a look before, and a check
        assert await collect(consumer.read(TOPIC, start={Q0: 5}, end={Q0: 2500}, tags="often", queues=[Q0]))
        server.expire(Q0, 1000)
        assert len(await collect(consumer.read(TOPIC, start={Q0: 1000}, tags="rare"))) == 200


async def test_following_with_tags_checks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuity, "CHECK_EVERY", 0.05)
    async with embedded(queues=1) as (server, consumer):
        await fill(server, 3000)
        server.expire(Q0, 1700)

        async def follow() -> None:
            await collect(consumer.read(TOPIC, start={Q0: 500}, end=None, tags="rare"))

        following = asyncio.ensure_future(follow())
        await asyncio.sleep(0.1)
        await put(consumer, Q0, [b"late"], tags="rare")
        with pytest.raises(OffsetRangeError) as caught:
            await asyncio.wait_for(following, 5)
        assert caught.value.lost == (range(500, 1700),)


async def test_a_slow_check_in_long_steps_names_all_that_is_lost() -> None:
    """Each pull takes a third of ``request_timeout`` and leads 800 offsets on: the check goes on to its end."""
    stop = 8000

    async def later(link: Link, request: RemotingCommand) -> None:
        await asyncio.sleep(0.1)
        serve(link, request)

    def answer(link: Link, request: RemotingCommand) -> None:
        header = request.ext_fields or {}
        if request.code == RequestCode.PULL_MESSAGE and header.get("subscription") == "*":
            tasks.append(asyncio.ensure_future(later(link, request)))
        else:
            serve(link, request)

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        offset = int(header.queueOffset)
        return (
            (0, stop + 1, record(stop, properties=b"TAGS\x01a\x02")) if offset >= stop else (20, min(offset + 800, stop), b"")
        )

    tasks: list[asyncio.Task[None]] = []
    async with scripted(pull, request_timeout=0.3) as (broker, consumer):
        serve, broker.serve, broker.high = broker.serve, answer, stop + 1
        with pytest.raises(OffsetRangeError) as caught:
            await collect(consumer.read(TOPIC, start={Q0: 0}, tags="a"))
        assert caught.value.lost == (range(stop),)
        assert len(tasks) >= 10


@pytest.mark.parametrize("acting", [False, True])
async def test_a_loss_is_not_believed_of_a_replica(acting: bool) -> None:
    """It may be behind its master, or have deleted more. Once there is a master again, its word counts.

    ``acting``: the name server names it in its master's place; only the list of brokers shows what it is.
    """
    replica = True

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        if replica:
            return answers.get(header.queueOffset, (19, header.queueOffset, b""))
        return 0, 10, b"".join(map(record, range(header.queueOffset, 10)))

    answers = {0: (20, 5, b""), 2: (19, 2, b""), 3: (21, 1, b""), 4: (0, 10, record(8) + record(9))}

    def led(master: bool) -> TopicRouteData:
        data = BrokerData("broker-a", {0 if master else 1: broker.address}, "DefaultCluster")
        broker.name_server.cluster = encode_cluster_info(ClusterInfo({"broker-a": data}, {}))
        if acting:
            data = BrokerData("broker-a", {0: broker.address}, "DefaultCluster", enable_acting_master=True)
        return TopicRouteData((QueueData("broker-a", 1, 1, 6),), (data,))

    async with scripted(pull, route_poll_interval=0.1) as (broker, consumer):
        broker.high = 10
        broker.name_server.routes[TOPIC] = led(False)
        await consumer.queues(TOPIC)
        for bounds in ({}, {"start": "latest", "end": None}, {"start": datetime.now(UTC)}, {"start": {Q0: 0}}):
            with pytest.raises(BrokerNotFoundError, match="broker-a has no master now"):  # what it ends at is no end
                await collect(consumer.read(TOPIC, **bounds))
        readings = {
            offset: asyncio.ensure_future(collect(consumer.read(TOPIC, start={Q0: offset}, end={Q0: 10}))) for offset in answers
        }
        await asyncio.sleep(1.2)
        assert not any(reading.done() for reading in readings.values())
        replica = False
        broker.name_server.routes[TOPIC] = led(True)
        for offset, reading in readings.items():
            assert [message.queue_offset for message in await reading] == [*range(offset, 10)]
