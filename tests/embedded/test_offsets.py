"""Minimum, maximum, by time, committed; and one message by its place in the log."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.bodies import ResetOffsetBody, decode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.ids import unpack_offset_id
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import decode_messages

from ..support.fakes import RawClient

MAX = RequestCode.GET_MAX_OFFSET
MIN = RequestCode.GET_MIN_OFFSET
SEARCH = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
EARLIEST = RequestCode.GET_EARLIEST_MSG_STORETIME
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
VIEW = RequestCode.VIEW_MESSAGE_BY_ID


async def test_minimum_and_maximum(broker: RawClient) -> None:
    for _ in range(3):
        await broker.send("T", queue=1)
    assert [await broker.offset(code, "T", 1) for code in (MIN, MAX)] == [0, 3]
    for topic, queue_id in (("T", 0), ("T", 99), ("nope", 0)):
        assert [await broker.offset(code, topic, queue_id) for code in (MIN, MAX)] == [0, 0]
    for code in (MIN, MAX):
        assert (await broker.ask(code, {"topic": "T"})).code == 1


class Time(ManualClock):
    """A clock that tests set."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now


async def test_by_time() -> None:
    clock = Time()
    start = clock.now
    async with EmbeddedRocketMQ(clock=clock) as server, RawClient(server.brokers["broker-a"]) as broker:
        for offset in (0, 10, 10, 20):
            clock.now = start + offset
            await broker.send("T")

        async def search(offset: int, boundary: str | None = None) -> int:
            extra = {} if boundary is None else {"boundaryType": boundary}
            return await broker.offset(SEARCH, "T", timestamp=str(start + offset), **extra)

        assert [await search(offset) for offset in (-5, 0, 5, 10, 15, 20, 21)] == [0, 0, 1, 1, 3, 3, 4]
        assert [await search(offset, "UPPER") for offset in (-5, 0, 5, 10, 15, 20, 21)] == [0, 0, 0, 2, 2, 3, 3]
        assert await search(10, "lower") == await search(10, "nonsense") == 1
        assert await broker.offset(SEARCH, "T", 3, timestamp="0") == 0
        assert await broker.offset(SEARCH, "nope", timestamp="0") == 0
        assert await broker.offset(SEARCH, "T", timestamp="-1") == 0
        earliest = await broker.ask(EARLIEST, {"topic": "T", "queueId": "0"})
        assert (earliest.code, earliest.ext_fields) == (0, {"timestamp": str(start)})
        for topic, queue_id in (("T", "2"), ("nope", "0")):
            empty = await broker.ask(EARLIEST, {"topic": topic, "queueId": queue_id})
            assert (empty.code, empty.ext_fields) == (0, {"timestamp": "-1"})


async def test_a_clock_that_goes_back_does_not_break_the_order() -> None:
    clock = Time()
    async with EmbeddedRocketMQ(clock=clock) as server, RawClient(server.brokers["broker-a"]) as broker:
        await broker.send("T")
        clock.now -= 60_000
        await broker.send("T")
        times = [message.store_time_ms for message in server.messages("T")]
        assert times == sorted(times)


async def test_committed_offsets(broker: RawClient) -> None:
    await broker.send("T")
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "0"}
    assert await broker.offset(QUERY, "T", consumerGroup="CG") == 0  # the queue still has its first message
    not_zero = await broker.ask(QUERY, {**fields, "setZeroIfNotFound": "false"})
    assert (not_zero.code, not_zero.remark) == (22, "Not found, do not set to zero, maybe this group boot first")
    for other in ({"queueId": "1"}, {"queueId": "9"}, {"topic": "nope"}):
        missing = await broker.ask(QUERY, {**fields, **other})
        assert missing.code == 22
        assert missing.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    unknown = await broker.ask(UPDATE, {**fields, "commitOffset": "20000"})
    assert (unknown.code, unknown.remark, unknown.ext_fields) == (26, "Group CG not exist!", {})
    await broker.pull("T")  # brings the group into being
    updated = await broker.ask(UPDATE, {**fields, "commitOffset": "20000"})
    assert (updated.code, updated.ext_fields) == (0, {})
    assert await broker.offset(QUERY, "T", consumerGroup="CG") == 20000
    assert await broker.offset(QUERY, "T", consumerGroup="other") == 0


async def test_offsets_that_cannot_be_committed(broker: RawClient) -> None:
    fields = {"consumerGroup": "CG", "topic": "nope", "queueId": "0", "commitOffset": "1"}
    await broker.pull("TBW102")
    unknown = await broker.ask(UPDATE, fields)
    assert (unknown.code, unknown.remark) == (17, "Topic nope not exist!")
    await broker.create_topic("T")
    assert (await broker.ask(UPDATE, {**fields, "topic": "T", "consumerGroup": "a b"})).code == 26
    assert (await broker.ask(UPDATE, {**fields, "topic": "T", "commitOffset": "x"})).code == 1


async def test_the_number_of_committed_offsets_is_bounded(broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.offsets.MAX_OFFSETS", 2)
    await broker.create_topic("T")
    await broker.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "CG"})
    codes = [
        (await broker.ask(UPDATE, {"consumerGroup": "CG", "topic": "T", "queueId": queue_id, "commitOffset": "1"})).code
        for queue_id in ("0", "1", "2", "0")
    ]
    assert codes == [0, 0, 1, 0]


async def test_a_message_by_its_offset_id(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    ids = [((await broker.send("T", b"%d" % index)).ext_fields or {})["msgId"] for index in range(3)]
    for index, msg_id in enumerate(ids):
        host, offset = unpack_offset_id(msg_id or "")
        assert host == server.brokers["broker-a"]
        response = await broker.ask(VIEW, {"offset": str(offset)})
        assert (response.code, response.ext_fields) == (0, None)
        (message,) = decode_messages(response.body).messages
        assert (message.body, message.offset_msg_id) == (b"%d" % index, msg_id)
    for offset in (1, -1, 99999999999):
        missing = await broker.ask(VIEW, {"offset": str(offset)})
        assert (missing.code, missing.remark) == (1, f"can not find message by the offset, {offset}")
    assert (await broker.ask(VIEW, {})).code == 1


async def test_brokers_show_only_their_own_messages() -> None:
    async with (
        EmbeddedRocketMQ(brokers=2) as server,
        RawClient(server.brokers["broker-a"]) as a,
        RawClient(server.brokers["broker-b"]) as b,
    ):
        await a.send("T", b"1")
        reply = await b.send("T", b"2")
        await a.send("T", b"3")
        offset = str(unpack_offset_id((reply.ext_fields or {})["msgId"] or "").offset)
        assert (await b.ask(VIEW, {"offset": offset})).code == 0
        assert (await a.ask(VIEW, {"offset": offset})).code == 1
        assert await a.offset(MAX, "T") == 2
        assert await b.offset(MAX, "T") == 1
        assert [(message.body, message.queue.broker_name) for message in server.messages("T")] == [
            (b"1", "broker-a"),
            (b"2", "broker-b"),
            (b"3", "broker-a"),
        ]


async def test_all_committed_offsets(broker: RawClient) -> None:
    await broker.send("T")
    await broker.pull("T")
    await broker.ask(UPDATE, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"})
    response = await broker.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert (response.code, response.body) == (0, b'{"offsetTable":{"T@CG":{0:1}}}')


async def reset(broker: RawClient, **over: str) -> RemotingCommand:
    fields = {"topic": "T", "group": "CG", "timestamp": "0", "isForce": "true"}
    return await broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**fields, **over})


async def test_a_group_that_is_sent_back_goes_on_from_there(broker: RawClient) -> None:
    await broker.create_topic("T", 2)
    for _ in range(4):
        await broker.send("T")
    assert (await broker.pull("T", 0, 0)).code == 0
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "0"}
    await broker.ask(UPDATE, {**fields, "commitOffset": "4"})
    response = await reset(broker)
    queues = {MessageQueue("T", "broker-a", 0): 0, MessageQueue("T", "broker-a", 1): 0}
    assert decode_body(ResetOffsetBody, response.body).offset_table == queues
    assert await broker.offset(QUERY, "T", consumerGroup="CG") == 0
    ignored = await broker.ask(UPDATE, {**fields, "commitOffset": "3"})
    assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
    moved = await broker.pull("T", 0, 4)
    assert (moved.code, moved.remark, (moved.ext_fields or {})["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
    assert (await broker.pull("T", 0, 0)).code == 0  # reported once
    assert await broker.offset(QUERY, "T", consumerGroup="CG") == 0
    assert (await broker.ask(UPDATE, {**fields, "commitOffset": "3"})).remark is None


async def test_where_a_group_can_be_sent(broker: RawClient) -> None:
    await broker.create_topic("T", 2)
    for _ in range(4):
        await broker.send("T")
    await broker.pull("T")

    async def offsets(**over: str) -> list[int]:
        response = await reset(broker, **over)
        assert response.code == 0, response.remark
        return list(decode_body(ResetOffsetBody, response.body).offset_table.values())

    assert await offsets(timestamp="-1") == [4, 0]
    assert await offsets(queueId="0", offset="2") == [2]
    assert await offsets(queueId="0", timestamp="9999999999999") == [4]
    refused = await reset(broker, queueId="0", offset="6")
    assert (refused.code, refused.remark) == (1, "Target offset 6 not in consume queue range [0-4]")
    assert (await reset(broker, topic="nope")).code == 17
    assert (await reset(broker, group="nope")).code == 26
