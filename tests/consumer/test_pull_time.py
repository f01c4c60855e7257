"""Time that a pull and what follows it take: gaps, large answers, answers that lead nowhere."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import MessageQueue, OffsetRangeError, PullStatus, RequestTimeoutError
from rmq_async.reading import reader as reading
from rmq_async.reading import skipped_offsets as continuity
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import PullMessageRequestHeader

from ..support.fakes import Link
from .support import TOPIC, collect, record, scripted

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue(TOPIC, "broker-a", 0)


@pytest.mark.parametrize("wait", [0.0, 0.1])
async def test_a_pull_with_gaps_ends_in_time(wait: float) -> None:
    """The topic's settings, which say whether a gap is a loss, are asked for within the time that the pull has."""
    timeout, answered_after = 0.6, 0.0 if wait else 0.45
    async with scripted(lambda header: (0, 10, record(5)), request_timeout=timeout) as (broker, consumer):
        serve = broker.serve

        def answer(link: Link, request: RemotingCommand) -> None:
            if request.code == RequestCode.PULL_MESSAGE:
                asyncio.get_running_loop().call_later(answered_after, serve, link, request)
            elif request.code != RequestCode.GET_TOPIC_CONFIG:  # never answered
                serve(link, request)

        broker.serve = answer
        await consumer.max_offset(Q0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(RequestTimeoutError):
            await consumer.pull(Q0, 0, wait=wait)
        assert loop.time() - began == pytest.approx(wait + timeout, abs=0.05)


async def test_an_answer_that_waited_for_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to decode a large one begins when the caller comes to it: it is not asked for again."""
    monkeypatch.setattr(reading, "BROKER_LATE", 0.0)
    monkeypatch.setattr(reading, "TAIL_SUSPEND", 0.05)

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        offset = int(header.queueOffset)
        return 0, offset + 10, b"".join(record(each, body=bytes(9000)) for each in range(offset, offset + 10))

    async with scripted(pull, request_timeout=0.8) as (broker, consumer):
        broker.high = 20
        loop = asyncio.get_running_loop()
        found = []
        async for message in consumer.read(TOPIC):
            found.append(message.queue_offset)
            if len(found) == 1:
                await asyncio.sleep(1.8)  # more than the 0.05 + 0.8 + 0.8 s that the next answer, which is there, had in all
                monkeypatch.setattr(loop, "job_delay", lambda: 0.15)  # other clients hold the threads
        assert found == [*range(20)]
        assert [header.queueOffset for header in broker.pulls] == [0, 10]


async def test_a_check_of_single_steps_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that leads the check from each offset to the next: what is known after a while is the loss."""
    monkeypatch.setattr(continuity, "CHECK_EVERY", 0.0)
    passed = 5_000_000

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        offset = int(header.queueOffset)
        if header.subscription == "*":
            return 20, offset + 1, b""
        return (20, passed, b"") if offset < passed else (19, offset, b"")

    async with scripted(pull, request_timeout=0.05) as (broker, consumer):
        broker.high = passed
        with pytest.raises(OffsetRangeError, match=r"were? deleted before") as caught:
            await asyncio.wait_for(collect(consumer.read(TOPIC, start={Q0: 0}, end=None, tags="rare")), 10)
        (lost,) = caught.value.lost
        assert lost.start == 0
        assert 0 < lost.stop < passed


@pytest.mark.parametrize(("code", "status"), [(19, PullStatus.NO_NEW), (20, PullStatus.NO_MATCH)])
@pytest.mark.parametrize("tags", ["*", "a"])
async def test_an_answer_leads_no_way_back(code: int, status: PullStatus, tags: str) -> None:
    async with scripted(lambda header: (code, 0, b"")) as (_, consumer):
        result = await consumer.pull(Q0, 50, tags=tags)
        assert (result.status, result.next_offset, result.lost) == (status, 50, ())
