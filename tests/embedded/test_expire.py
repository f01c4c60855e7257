"""Messages deleted before the minimum offset is corrected, as real brokers do it (tests/cluster/test_vanished_real)."""

from __future__ import annotations

import re

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import decode_messages

from ..support.fakes import RawClient, send_fields

QUEUE = MessageQueue("T", "broker-a", 0)
MIN, MAX, EARLIEST, SEARCH = 31, 30, 32, 29


def outcome(response: RemotingCommand) -> tuple[int, str | None, int, int]:
    ext = response.ext_fields or {}
    return response.code, response.remark, int(ext["nextBeginOffset"] or ""), int(ext["minOffset"] or "")


def offsets(response: RemotingCommand) -> list[int]:
    return [message.queue_offset for message in decode_messages(response.body).messages]


@pytest.fixture
async def filled(broker: RawClient) -> RawClient:
    """2000 messages, every tenth tagged "rare"."""
    for number in range(2000):
        tags = "often" if number % 10 else "rare"
        broker.write(310, send_fields("T", properties={"UNIQ_KEY": "u", "TAGS": tags}), b"%d" % number)
    for _ in range(2000):
        assert (await broker.read()).code == 0
    return broker


async def test_pulls_pass_over_what_is_expired(server: EmbeddedRocketMQ, filled: RawClient) -> None:
    server.expire(QUEUE, 860)
    assert outcome(await filled.pull("T", offset=0)) == (20, "MESSAGE_WAS_REMOVING", 800, 0)
    gap = await filled.pull("T", offset=100)
    assert outcome(gap) == (0, "FOUND", 892, 0)
    assert offsets(gap) == list(range(860, 892))
    rare = await filled.pull("T", offset=100, subscription="rare")
    assert (outcome(rare)[0], offsets(rare)[0]) == (0, 860)
    assert outcome(await filled.pull("T", offset=0, subscription="rare")) == (20, "MESSAGE_WAS_REMOVING", 800, 0)
    assert outcome(await filled.pull("T", offset=860)) == (0, "FOUND", 892, 0)


@pytest.mark.virtual_time
async def test_the_minimum_stays_until_it_is_corrected(server: EmbeddedRocketMQ, filled: RawClient) -> None:
    server.expire(QUEUE, 860)
    assert [await filled.offset(code, "T") for code in (MIN, MAX)] == [0, 2000]
    assert await filled.offset(SEARCH, "T", timestamp="0") == 860
    earliest = await filled.ask(EARLIEST, {"topic": "T", "queueId": "0"})
    assert (earliest.ext_fields or {})["timestamp"] == "-1"
    assert len(server.messages("T")) == 1140
    server.expire(QUEUE, 860, corrected=True)
    assert await filled.offset(MIN, "T") == 860
    assert outcome(await filled.pull("T", offset=100)) == (21, "OFFSET_TOO_SMALL", 860, 860)
    assert (await filled.ask(EARLIEST, {"topic": "T", "queueId": "0"})).ext_fields != earliest.ext_fields


async def test_memory_takes_what_was_not_expired() -> None:
    """The next message that goes corrects the minimum."""
    async with EmbeddedRocketMQ(max_memory=40_000) as server, RawClient(server.brokers["broker-a"]) as broker:
        for _ in range(50):
            await broker.send("T", bytes(100))
        server.expire(QUEUE, 20)
        assert await broker.offset(MIN, "T") == 0
        sent = 50
        while await broker.offset(MIN, "T") == 0:
            await broker.send("T", bytes(100))
            sent += 1
        low = await broker.offset(MIN, "T")
        assert low == 21
        assert [message.queue_offset for message in server.messages("T")] == list(range(low, sent))
        server.clear()
        assert await broker.offset(MIN, "T") == sent
        assert (await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0


@pytest.mark.parametrize("before", [0, 3, 2000])
async def test_clear_after_expire(server: EmbeddedRocketMQ, filled: RawClient, before: int) -> None:
    """The minimum becomes the maximum, also where it had still to be corrected."""
    server.expire(QUEUE, before)
    server.clear()
    assert [await filled.offset(code, "T") for code in (MIN, MAX)] == [2000, 2000]
    assert outcome(await filled.pull("T", offset=0)) == (21, "OFFSET_TOO_SMALL", 2000, 2000)
    await filled.send("T", b"next")
    assert offsets(await filled.pull("T", offset=2000)) == [2000]


async def test_expire_refuses_what_is_not_there(server: EmbeddedRocketMQ, filled: RawClient) -> None:
    server.expire(QUEUE, 2000)
    assert outcome(await filled.pull("T", offset=1900)) == (20, "MESSAGE_WAS_REMOVING", 2000, 0)
    server.expire(QUEUE, 5)  # gone already
    for queue in (QUEUE._replace(topic="nope"), QUEUE._replace(queue_id=77)):
        with pytest.raises(
            ValueError, match=f"^broker-a has never used {re.escape(str(queue))}; give a queue to which messages"
        ):
            server.expire(queue, 1)
    with pytest.raises(ValueError, match=r"^no broker has .*; give a queue of one of broker-a$"):
        server.expire(QUEUE._replace(broker_name="broker-z"), 1)
    for before in (-1, 2001):
        with pytest.raises(ValueError, match="before must be from 0 to 2000"):
            server.expire(QUEUE, before)
    with pytest.raises(TypeError, match=r"^queue must be a MessageQueue, not \('T', 'broker-a', 0\)$"):
        server.expire(("T", "broker-a", 0), 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^before must be a whole number, not 1\.5$"):
        server.expire(QUEUE, 1.5)  # type: ignore[arg-type]
