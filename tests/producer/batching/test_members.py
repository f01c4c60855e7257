"""The members of one batch: each has its own time and its own outcome, independent of the others."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from rmq_async import Batching, Message, Producer, errors
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import Answer, Expect, ScriptedPeer, routes_to
from rmq_protocol.constants import RequestCode

from ..support import outcomes, timed, until
from .support import later

pytestmark = pytest.mark.virtual_time

SINGLE, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
STORED = {"msgId": "7F00000100002A9F0000000000000001", "queueId": "0", "queueOffset": "1"}


@asynccontextmanager
async def producing(*, brokers: int = 1, **options: Any) -> AsyncIterator[tuple[EmbeddedRocketMQ, Producer]]:
    """Servers, and a producer with ``batching=True`` unless ``options`` say otherwise."""
    async with (
        EmbeddedRocketMQ(brokers=brokers) as server,
        Producer("members", namesrv=server.namesrv, **({"batching": True} | options)) as producer,
    ):
        yield server, producer


async def stored_bodies(server: EmbeddedRocketMQ, topic: str, last: bytes) -> list[bytes]:
    await until(lambda: last in [found.body for found in server.messages(topic)])
    return [found.body for found in server.messages(topic)]


# -- maybe_stored of one whose batch goes on for others


Held = tuple[EmbeddedRocketMQ, Producer, asyncio.Future[Any], asyncio.Future[Any], asyncio.Future[Any]]


@asynccontextmanager
async def held_batch() -> AsyncIterator[Held]:
    """A batch of two members, ``short`` and ``long``, that ``broker_window`` holds back behind the send ``ahead``."""
    async with producing(broker_window=1, timeout=20.0) as (server, producer):
        await producer.send(Message("MemberTopic", b"warm"))
        server.stall("broker-a")
        ahead = later(producer.send(Message("MemberTopic", b"ahead")))
        await asyncio.sleep(0.05)
        short = later(producer.send(Message("MemberTopic", b"short"), timeout=0.2))
        long = later(producer.send(Message("MemberTopic", b"long")))
        yield server, producer, ahead, short, long


async def test_member_of_held_batch_may_be_stored() -> None:
    """The frame is held back when the first member's time is over, and leaves for the second."""
    async with held_batch() as (server, _, ahead, short, long):
        with pytest.raises(errors.RequestTimeoutError, match="MemberTopic") as caught:
            await short
        server.resume("broker-a")
        await asyncio.gather(ahead, long)
        assert b"short" in await stored_bodies(server, "MemberTopic", b"long")
    assert caught.value.maybe_stored


async def test_member_of_unread_batch_may_be_stored() -> None:
    """The same while the peer does not read."""
    async with producing(timeout=20.0, compress_over=1 << 30) as (server, producer):
        await producer.send(Message("MemberTopic", b"warm"))
        server.stall("broker-a")
        ahead = [later(producer.send(Message("MemberTopic", bytes(3_000_000)))) for _ in range(5)]
        await asyncio.sleep(0.2)
        short = later(producer.send(Message("MemberTopic", b"short"), timeout=0.2))
        long = later(producer.send(Message("MemberTopic", b"long")))
        with pytest.raises(errors.RequestTimeoutError) as caught:
            await short
        server.resume("broker-a")
        await asyncio.gather(long, *ahead)
        assert b"short" in await stored_bodies(server, "MemberTopic", b"long")
    assert caught.value.maybe_stored


async def test_member_after_blocked_loop_may_be_stored() -> None:
    """The frame is gathered and not written when the loop stands still for longer than the member's time."""
    async with (
        EmbeddedRocketMQ() as server,
        Producer("members", namesrv=server.namesrv, batching=True, timeout=20.0) as producer,
    ):
        for topic in ("MemberTopic", "OtherTopic"):
            await producer.send(Message(topic, b"warm"))
        other = later(producer.send(Message("OtherTopic", b"other")))
        short = later(producer.send(Message("MemberTopic", b"short"), timeout=0.2))
        long = later(producer.send(Message("MemberTopic", b"long")))

        async def block() -> None:
            time.sleep(0.4)

        await asyncio.gather(later(block()), other, long)
        await asyncio.wait([short])
        error = short.exception()
        assert b"short" in [found.body for found in server.messages("MemberTopic")]
    assert error is None or (isinstance(error, errors.RequestTimeoutError) and error.maybe_stored)


async def test_withdrawn_batch_is_not_stored() -> None:
    """The last member that waits for the held batch gives up: the batch is taken back."""
    async with held_batch() as (server, producer, ahead, short, long):
        await asyncio.sleep(0.05)
        long.cancel()
        with pytest.raises(errors.RequestTimeoutError) as caught:
            await short
        server.resume("broker-a")
        await ahead
        await producer.send(Message("MemberTopic", b"last"))
        assert await stored_bodies(server, "MemberTopic", b"last") == [b"warm", b"ahead", b"last"]
    assert caught.value.maybe_stored is False


# -- callers with a long time-out


async def test_patient_member_costs_others_nothing() -> None:
    """Two brokers, one of them silent: messages beside one of a patient caller reach the other broker in time."""
    async with producing(brokers=2, timeout=1.5, stop_timeout=0.0) as (server, producer):
        for _ in range(16):
            await producer.send(Message("MemberTopic", b"warm"))
        server.stall("broker-a")
        calls, patient = [], []
        for number in range(200):
            calls.append(later(producer.send(Message("MemberTopic", b"%d" % number))))
            if number in (20, 100, 180):
                patient.append(later(producer.send(Message("MemberTopic", b"patient"), timeout=60.0)))
        with timed(most=1.5):
            kinds = Counter(type(each).__name__ for each in await outcomes(*calls, *patient))
        server.resume("broker-a")
    assert kinds == {"SendResult": 203}


async def test_patient_member_of_three_brokers_costs_nothing() -> None:
    """Two of three are silent: the second attempt's share is not that of the patient caller either."""
    async with producing(brokers=3, batching=Batching(lanes_per_broker=1), timeout=1.5, stop_timeout=0.0) as (server, producer):
        for _ in range(12):
            await producer.send(Message("MemberTopic", b"warm"))
        server.stall("broker-a")
        server.stall("broker-b")
        calls = []
        for number in range(200):
            calls.append(later(producer.send(Message("MemberTopic", b"%d" % number))))
            if number % 40 == 20:
                calls.append(later(producer.send(Message("MemberTopic", b"patient"), timeout=60.0)))
        with timed(most=1.5):
            kinds = Counter(type(each).__name__ for each in await outcomes(*calls))
        server.resume("broker-a")
        server.resume("broker-b")
    assert kinds == {"SendResult": 205}


async def test_hurried_member_ends_alone() -> None:
    """A caller with hardly any time left does not make the others try again."""
    async with producing(brokers=2) as (server, producer):
        for _ in range(8):
            await producer.send(Message("MemberTopic", b"warm"))
        server.delay(0.1)
        calls = [later(producer.send(Message("MemberTopic", b"%d" % number))) for number in range(20)]
        hurried = later(producer.send(Message("MemberTopic", b"hurried"), timeout=0.02))
        assert {result.attempts for result in await asyncio.gather(*calls)} == {1}
        (error,) = await outcomes(hurried)
    assert isinstance(error, errors.RequestTimeoutError)
    assert error.maybe_stored


async def test_unanswered_patient_calls_block_no_topic() -> None:
    """A broker loses as many requests as may be under way; their callers wait for a minute, others send on."""
    lost = [Expect(SINGLE, body=b"lost"), Expect(SINGLE, body=b"lost"), Expect(SINGLE, body=b"lost")]
    sent = [Expect(SINGLE, body=b"next"), Answer(ext_fields=STORED)]
    warm = [Expect(SINGLE, body=b"warm"), Answer(ext_fields=STORED)]
    async with ScriptedPeer(*warm, *lost, *sent) as broker, ScriptedPeer(aside=routes_to(broker.address)) as names:
        options: dict[str, Any] = {"batching": Batching(lanes_per_broker=3), "timeout": 0.5, "stop_timeout": 0.0}
        async with Producer("members", namesrv=names.address, **options) as producer:
            await producer.send(Message("MemberTopic", b"warm"))
            patient = []
            for count in range(1, 4):
                patient.append(later(producer.send(Message("MemberTopic", b"lost"), timeout=60.0)))
                await until(lambda count=count: len(broker.requests) == 1 + count)  # type: ignore[misc]
            with timed(most=0.5):
                assert (await producer.send(Message("MemberTopic", b"next"), timeout=1.0)).attempts == 1
        failed = await outcomes(*patient)
    assert [type(error) for error in failed] == [errors.ClientStateError] * 3
    assert all(error.maybe_stored for error in failed)


# -- lingering


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"timeout": 0.4}], ids=["plain", "by key", "own time-out"])
async def test_linger_leaves_time_to_send(options: dict[str, Any]) -> None:
    """A ``linger`` beyond the time-out: the message leaves when half of its time is over."""
    async with producing(batching=Batching(linger=2.0), timeout=0.4) as (_, producer):
        await producer.send(Message("MemberTopic", b"first"), **options)
        with timed(0.2, 0.25):
            await producer.send(Message("MemberTopic", b"second"), **options)


async def test_linger_ends_for_hurried_member() -> None:
    """The batch leaves with the first, which alone would have waited for longer."""
    async with producing(batching=Batching(linger=5.0), timeout=10.0) as (_, producer):
        first = later(producer.send(Message("MemberTopic", b"first")))
        await asyncio.sleep(0.05)
        with timed(0.15, 0.2):
            await asyncio.gather(first, producer.send(Message("MemberTopic", b"second"), timeout=0.3))


@pytest.mark.parametrize("warm", [False, True])
async def test_linger_ends_for_plain_member(warm: bool) -> None:
    """The first has more time than the producer gives by default; one that joins it leaves in time all the same."""
    async with producing(batching=Batching(linger=4.0), timeout=1.0) as (_, producer):
        if warm:
            await producer.send_batch([Message("MemberTopic", b"warm")])
        first = later(producer.send(Message("MemberTopic", b"first"), timeout=8.0))
        await asyncio.sleep(0.05)
        with timed(0.4, 1.0):
            await asyncio.gather(first, producer.send(Message("MemberTopic", b"second")))


async def test_unsent_message_names_its_reason() -> None:
    """What waits behind a request that is not answered was not sent, and its error says so."""
    async with producing(batching=Batching(lanes_per_broker=1), stop_timeout=0) as (server, producer):
        for options in ({}, {"key": "k"}):
            await producer.send(Message("MemberTopic", b"warm"), **options)
            server.stall("broker-a")
            ahead = later(producer.send(Message("MemberTopic", b"ahead"), **options))
            await asyncio.sleep(0.05)
            with pytest.raises(errors.RequestTimeoutError, match=r"MemberTopic.*was not sent: it waited") as caught:
                await producer.send(Message("MemberTopic", b"behind"), timeout=0.1, **options)
            assert caught.value.maybe_stored is False
            server.resume("broker-a")
            await ahead


def test_linger_below_a_millisecond_on_uvloop() -> None:
    async def sends() -> None:
        async with producing(batching=Batching(linger=0.0002)) as (server, producer):
            await asyncio.gather(*[producer.send(Message("T", b"%d" % i), timeout=1 + i) for i in reversed(range(3))])
            assert len(server.messages("T")) == 3

    uvloop.run(sends())
