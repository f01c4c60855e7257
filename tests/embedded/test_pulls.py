"""Pulls: by offset, by tag, at the edges of a queue, and held until something comes."""

from __future__ import annotations

import asyncio
import time

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.filters import Filter
from rmq_async.embedded.pulls import HeldPulls, _Pull
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import PullMessageRequestHeader, from_ext
from rmq_protocol.stored import decode_messages

from ..support.fakes import RawClient, pull_fields, send_fields
from .inside import broker_of

SUSPEND = {"sysFlag": "6"}


def fields(response: RemotingCommand) -> tuple[int, str | None, int, int, int]:
    ext = response.ext_fields or {}
    next_offset, low, high = (int(ext[name] or "") for name in ("nextBeginOffset", "minOffset", "maxOffset"))
    return response.code, response.remark, next_offset, low, high


def bodies(response: RemotingCommand) -> list[bytes]:
    decoded = decode_messages(response.body)
    assert not decoded.corrupt
    return [message.body for message in decoded.messages]


async def fill(broker: RawClient, count: int, topic: str = "T", tags: str = "A") -> None:
    for index in range(count):
        broker.write(310, send_fields(topic, properties={"UNIQ_KEY": "u", "TAGS": tags}), b"%d" % index)
    for _ in range(count):
        assert (await broker.read()).code == 0


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_found_gives_concatenated_records_and_where_to_go_on(broker: RawClient, code: int) -> None:
    await fill(broker, 5)
    response = await broker.pull("T", offset=1, maxMsgNums="3", code=code)
    assert fields(response) == (0, "FOUND", 4, 0, 5)
    assert bodies(response) == [b"1", b"2", b"3"]
    assert response.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "4",
        "minOffset": "0",
        "maxOffset": "5",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


async def test_the_edges_of_a_queue(broker: RawClient) -> None:
    await broker.create_topic("T")
    assert fields(await broker.pull("T", offset=0)) == (19, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    assert fields(await broker.pull("T", offset=5)) == (21, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    assert fields(await broker.pull("T", offset=-1)) == (21, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    await fill(broker, 2)
    assert fields(await broker.pull("T", offset=2)) == (19, "OFFSET_OVERFLOW_ONE", 2, 0, 2)
    assert fields(await broker.pull("T", offset=3)) == (21, "OFFSET_OVERFLOW_BADLY", 2, 0, 2)
    assert fields(await broker.pull("T", offset=2**63 - 1)) == (21, "OFFSET_OVERFLOW_BADLY", 2, 0, 2)
    assert fields(await broker.pull("T", offset=-1)) == (21, "OFFSET_TOO_SMALL", 0, 0, 2)


async def test_at_most_32_records_and_256_kib_but_at_least_one(broker: RawClient) -> None:
    await fill(broker, 40)
    assert len(bodies(await broker.pull("T", maxMsgNums="1000"))) == 32
    assert len(bodies(await broker.pull("T", maxMsgNums="0"))) == 1
    assert len(bodies(await broker.pull("T", maxMsgNums="-5"))) == 1
    for _ in range(5):
        await broker.send("big", bytes(100_000))
    assert len(bodies(await broker.pull("big"))) == 2
    await broker.send("huge", bytes(1_000_000))
    assert len(bodies(await broker.pull("huge"))) == 1


async def test_whole_topics_are_read_in_order(broker: RawClient) -> None:
    await fill(broker, 1000)
    offset, got = 0, []
    while (response := await broker.pull("T", offset=offset)).code == 0:
        got += bodies(response)
        offset = fields(response)[2]
    assert got == [b"%d" % index for index in range(1000)]
    assert response.code == 19


async def test_who_may_pull_what(broker: RawClient) -> None:
    await broker.create_topic("T", 4)
    await broker.create_topic("write_only", perm="2")
    unknown = await broker.pull("nope")
    assert (unknown.code, unknown.ext_fields) == (17, {})
    for queue_id in (-1, 4):
        response = await broker.pull("T", queue_id)
        assert response.code == 29
        assert response.remark == (
            f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[/{broker.local}]"
        )
    forbidden = await broker.pull("write_only")
    assert (forbidden.code, forbidden.ext_fields) == (16, {"forbiddenType": "3"})
    assert (await broker.pull("T", consumerGroup="no such name")).code == 26
    assert (await broker.pull("T", consumerGroup="g" * 121)).code == 26
    assert (await broker.ask(RequestCode.PULL_MESSAGE, {"topic": "T"})).code == 1


async def test_tags_select_by_hash_code(broker: RawClient) -> None:
    for tags in ("A", "B", "Aa", "BB", "文"):
        await fill(broker, 1, tags=tags)

    async def found(expression: str) -> list[str | None]:
        response = await broker.pull("T", subscription=expression)
        return [message.tags for message in decode_messages(response.body).messages]

    assert await found("*") == await found("") == ["A", "B", "Aa", "BB", "文"]
    assert await found("A || 文 ||") == ["A", "文"]
    assert await found("Aa") == ["Aa", "BB"]  # one hash code: the client compares the texts
    assert fields(await broker.pull("T", subscription="none")) == (20, "NO_MATCHED_MESSAGE", 5, 0, 5)
    assert (await broker.pull("T", subscription="||||")).code == 23


async def test_untagged_messages_match_no_tag(broker: RawClient) -> None:
    await broker.send("T", properties={"UNIQ_KEY": "u"})
    assert (await broker.pull("T", subscription="A")).code == 20
    assert (await broker.pull("T")).code == 0


async def test_a_filtered_pull_looks_at_a_bounded_number_of_records(broker: RawClient) -> None:
    await fill(broker, 900)
    assert fields(await broker.pull("T", subscription="B")) == (20, "NO_MATCHED_MESSAGE", 800, 0, 900)
    assert fields(await broker.pull("T", offset=800, subscription="B")) == (20, "NO_MATCHED_MESSAGE", 900, 0, 900)


async def test_other_expression_types_are_refused_without_a_property_filter(unfiltering: RawClient) -> None:
    await unfiltering.create_topic("T")
    response = await unfiltering.pull("T", subscription="a > 1", expressionType="SQL92")
    assert (response.code, response.remark) == (1, "The broker does not support consumer to filter message by SQL92")
    assert (await unfiltering.pull("T", expressionType="")).code == 19


async def test_a_pull_can_commit_an_offset(broker: RawClient) -> None:
    await fill(broker, 3)
    await broker.pull("T", sysFlag="5", commitOffset="2")
    assert await broker.offset(RequestCode.QUERY_CONSUMER_OFFSET, "T", consumerGroup="CG") == 2


@pytest.mark.virtual_time
async def test_a_held_pull_is_answered_by_the_next_message(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T")
    async with RawClient(server.brokers["broker-a"]) as consumer:
        opaque = consumer.write(11, pull_fields("T", suspendTimeoutMillis="20000", **SUSPEND))
        with pytest.raises(TimeoutError):
            await consumer.read(0.1)
        start = time.monotonic()
        await fill(broker, 3)
        response = await consumer.read()
        assert response.opaque == opaque
        assert fields(response)[0] == 0
        assert bodies(response)[0] == b"0"
        assert time.monotonic() - start < 0.01


@pytest.mark.virtual_time
async def test_sends_of_one_read_wake_a_held_pull_together(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T")
    async with RawClient(server.brokers["broker-a"]) as consumer:
        consumer.write(11, pull_fields("T", suspendTimeoutMillis="20000", **SUSPEND))
        await asyncio.sleep(0.05)
        server.stall("broker-a")
        filling = asyncio.create_task(fill(broker, 5))
        await asyncio.sleep(0.05)
        server.resume("broker-a")
        assert len(bodies(await consumer.read())) == 5
        await filling


@pytest.mark.virtual_time
async def test_a_held_pull_ends_with_19_at_its_deadline(broker: RawClient) -> None:
    await broker.create_topic("T")
    start = time.monotonic()
    response = await broker.pull("T", suspendTimeoutMillis="200", **SUSPEND)
    assert time.monotonic() - start == pytest.approx(0.2, abs=0.01)
    assert fields(response) == (19, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    for suspend in ("0", "-5"):
        assert (await broker.pull("T", suspendTimeoutMillis=suspend, **SUSPEND)).code == 19


@pytest.mark.virtual_time
async def test_a_held_pull_waits_for_its_tag(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T")
    async with RawClient(server.brokers["broker-a"]) as consumer:
        consumer.write(11, pull_fields("T", subscription="B", suspendTimeoutMillis="20000", **SUSPEND))
        await asyncio.sleep(0.05)
        await fill(broker, 3, tags="A")
        with pytest.raises(TimeoutError):
            await consumer.read(0.1)
        await fill(broker, 1, tags="B")
        response = await consumer.read()
        assert fields(response) == (0, "FOUND", 4, 0, 4)
        assert [message.tags for message in decode_messages(response.body).messages] == ["B"]


@pytest.mark.virtual_time
async def test_a_held_pull_without_a_match_says_how_far_it_looked(broker: RawClient, server: EmbeddedRocketMQ) -> None:
    await broker.create_topic("T")
    async with RawClient(server.brokers["broker-a"]) as consumer:
        consumer.write(11, pull_fields("T", subscription="B", suspendTimeoutMillis="300", **SUSPEND))
        await asyncio.sleep(0.05)
        await fill(broker, 3, tags="A")
        assert fields(await consumer.read()) == (20, "NO_MATCHED_MESSAGE", 3, 0, 3)


async def test_held_pulls_of_a_connection_are_bounded(broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.pulls.MAX_HELD_PER_CONNECTION", 3)
    await broker.create_topic("T")
    opaques = [broker.write(11, pull_fields("T", suspendTimeoutMillis="20000", **SUSPEND)) for _ in range(5)]
    early = [await broker.read() for _ in range(2)]
    assert [answer.opaque for answer in early] == opaques[3:]
    assert {(answer.code, answer.remark) for answer in early} == {
        (2, "this connection has 3 pulls that wait for messages, the maximum; pull without waiting")
    }
    broker.write(310, send_fields("T"), b"x")
    answers = [await broker.read() for _ in range(4)]
    assert sorted(answer.opaque for answer in answers if answer.opaque in opaques[:3]) == opaques[:3]


async def test_held_pulls_of_all_connections_and_their_tags_are_bounded(
    broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.pulls.MAX_HELD", 1)
    monkeypatch.setattr("rmq_async.embedded.pulls.MAX_HELD_TAGS", 2)
    await broker.create_topic("T")
    many = await broker.ask(11, pull_fields("T", subscription="A||B||C", suspendTimeoutMillis="20000", **SUSPEND))
    assert (many.code, many.remark) == (2, "a pull of 3 tags cannot wait for messages, the limit is 2; name fewer tags")
    broker.write(11, pull_fields("T", subscription="A||B", suspendTimeoutMillis="20000", **SUSPEND))
    refused = await broker.ask(11, pull_fields("T", suspendTimeoutMillis="20000", **SUSPEND))
    assert (refused.code, refused.remark) == (
        2,
        "this broker holds 1 pulls that wait for messages, the maximum; pull without waiting",
    )


async def test_forgetting_the_held_pulls_of_a_connection_looks_at_no_others_and_leaves_their_order(
    server: EmbeddedRocketMQ, broker: RawClient
) -> None:
    compared = 0

    class Counted(_Pull):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        __hash__ = object.__hash__

    await broker.create_topic("T")
    answered: list[int] = []
    held = HeldPulls(lambda connection, command, response: answered.append(command.opaque))
    queue = broker_of(server).state.topics.ensure("T").queue(0)
    header = from_ext(PullMessageRequestHeader, {**pull_fields("T")})
    async with RawClient(server.brokers["broker-a"]) as other:
        await other.ask(9999)
        first, second = broker_of(server).listener.connections
        for opaque in range(600):
            command = RemotingCommand(code=11, opaque=opaque)
            held.hold(Counted(first if opaque % 2 else second, command, header, queue, Filter()), 20_000)
        held.disconnected(second)
        assert len(held) == 300
        assert compared < 3000  # each with all before it: 90,000
        await broker.send("T")
        held.arrived(queue)
        held._wake()  # noqa: SLF001
        assert answered == list(range(1, 600, 2))
        held.close()


@pytest.mark.virtual_time
async def test_a_connection_that_ends_takes_its_held_pulls_along(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T")
    async with RawClient(server.brokers["broker-a"]) as consumer:
        consumer.write(11, pull_fields("T", suspendTimeoutMillis="300", **SUSPEND))
        await asyncio.sleep(0.05)
        assert len(broker_of(server).held) == 1
    await broker.ask(9999)
    assert len(broker_of(server).held) == 0
    await fill(broker, 2)
    await asyncio.sleep(0.4)
    assert (await broker.pull("T")).code == 0
