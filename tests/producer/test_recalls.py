"""Taking a timer message back: what is refused here, which broker is asked for what, what it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmq_async import Message, Producer, errors
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.constants import RequestCode
from rmq_protocol.recall import RecallHandle, encode_recall_handle

from ..support.fakes import TOPIC
from .support import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def servers(clock: ManualClock) -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(brokers=2, clock=clock) as running:
        yield running


async def test_a_message_that_is_recalled_is_not_delivered(servers: EmbeddedRocketMQ, clock: ManualClock) -> None:
    async with Producer("group", namesrv=servers.namesrv) as producer:
        sent = [await producer.send(Message(TOPIC, b"%d" % number, delay=30.0)) for number in range(6)]
        for result in sent[::2]:
            assert result.recall_handle is not None
            assert await producer.recall(TOPIC, result.recall_handle) == result.msg_id
        await clock.advance(40.0)
        await until(lambda: len(servers.messages(TOPIC)) >= 3)
        assert sorted(each.body for each in servers.messages(TOPIC)) == [b"1", b"3", b"5"]
        assert producer.health().unanswered == 0


async def test_what_cannot_be_recalled_is_refused_before_anybody_is_asked(servers: EmbeddedRocketMQ) -> None:
    handle = encode_recall_handle(RecallHandle("other", "broker-a", "1", "id"))
    async with Producer("group", namesrv=servers.namesrv) as producer:
        servers.fail_next(1, 1, request=RequestCode.RECALL_MESSAGE)
        for topic, text, why in (
            (TOPIC, handle, "belongs to topic 'other', not to T"),
            (TOPIC, "bm90IGEgaGFuZGxl", "is invalid"),
            (TOPIC, "", "is invalid"),
            (TOPIC, None, "handle None is invalid: it must be base64"),
            (TOPIC, 7, "handle 7 is invalid"),
            ("%RETRY%group", handle, "retry or dead letter topic"),
            ("%DLQ%group", handle, "retry or dead letter topic"),
            ("no topic!", handle, "no topic!"),
        ):
            with pytest.raises(errors.InvalidMessageError, match=why) as caught:
                await producer.recall(topic, text)  # type: ignore[arg-type]
            assert caught.value.code == -1
        assert not servers.requests[RequestCode.RECALL_MESSAGE]
    with pytest.raises(errors.ClientStateError):
        await producer.recall(TOPIC, handle)


async def test_a_broker_that_is_not_known_is_stood_in_for_by_another(servers: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=servers.namesrv) as producer:
        sent = await producer.send(Message(TOPIC, b"x", delay=30.0))
        handle = encode_recall_handle(RecallHandle(TOPIC, "gone", "1", sent.msg_id))
        with pytest.raises(errors.IllegalOperationError, match="broker service not available") as caught:
            await producer.recall(TOPIC, handle)
        assert caught.value.code == 604
        assert caught.value.broker in servers.brokers


async def test_a_namespace_is_in_the_handle_and_not_in_the_call(servers: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=servers.namesrv, namespace="ns") as producer:
        sent = await producer.send(Message(TOPIC, b"x", delay=30.0))
        assert sent.recall_handle is not None
        assert await producer.recall(TOPIC, sent.recall_handle) == sent.msg_id
