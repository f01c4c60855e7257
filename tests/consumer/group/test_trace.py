"""Message traces of consumption."""

from __future__ import annotations

import asyncio
import logging
from time import time
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import (
    Admin,
    Batch,
    ConfigError,
    Consumer,
    DeadLetter,
    Delivery,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    Retry,
    RetryLater,
)
from rmq_async.client import Names
from rmq_async.consumer.delivery import Call
from rmq_async.consumer.handling.trace import ConsumeTracer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.trace import TRACE_TOPIC, TraceContext, TraceType, decode_trace

from .support import Seen, create, member, send, until

pytestmark = pytest.mark.virtual_time


def records(server: EmbeddedRocketMQ, topic: str = TRACE_TOPIC) -> list[TraceContext]:
    """The records in a trace topic, by time, those before a call first."""
    found = [record for message in server.messages(topic) for record in decode_trace(message.body.decode())]
    return sorted(found, key=lambda record: record.time_stamp)


async def test_each_call_has_a_record_before_and_after_it_found_by_id_and_key() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        began = time() * 1000

        async def work(message: MessageExt) -> None:
            await asyncio.sleep(0.05)

        async with Producer("p", namesrv=server.namesrv) as producer:
            result = await producer.send(Message("T", b"x", keys=["order-17", "eu"]))
        async with member("billing", server.namesrv, "one", work, start_from="earliest", trace=True) as consumer:
            await consumer.wait_settled(1)
        async with Admin(namesrv=server.namesrv) as admin:
            for key in (result.msg_id, "order-17", "eu"):
                (found,) = await admin.query_message(TRACE_TOPIC, key)
                before, after = decode_trace(found.body.decode())
                assert (before.trace_type, after.trace_type) == (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)
                assert before.request_id == after.request_id
                assert len(before.request_id or "") == 32
                assert (before.region_id, before.group_name, after.group_name) == ("DefaultRegion", "billing", "billing")
                (one,), (other,) = before.beans, after.beans
                assert (one.msg_id, one.keys, one.retry_times) == (result.msg_id, "order-17 eu", 0)
                assert (other.msg_id, other.keys) == (result.msg_id, "order-17 eu")
                assert after.success
                assert (after.context_code, 50 <= after.cost_time < 52) == (0, True)
                assert began - 2 <= before.time_stamp <= after.time_stamp <= time() * 1000 + 2


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("x"), 2), (RetryLater(1), 4), (asyncio.CancelledError(), 2), (None, 1)],
    ids=["raises", "again", "cancels", "times out"],
)
async def test_failed_calls_have_javas_code_and_the_retry_its_number(error: BaseException | None, code: int) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)

        async def work(message: MessageExt) -> None:
            if message.reconsume_times:
                return
            if error is not None:
                raise error
            await asyncio.sleep(30)

        consumer = Consumer("g", namesrv=server.namesrv, trace=True, retry=Retry(delays=(1,)))
        consumer.subscribe("T", work, timeout=0.2 if error is None else 10.0)
        async with consumer:
            await send(server.namesrv, b"x")
            await consumer.wait_settled(2)
        found = records(server)
        before = [record.beans[0].retry_times for record in found if record.trace_type is TraceType.SUB_BEFORE]
        after = [(record.success, record.context_code) for record in found if record.trace_type is TraceType.SUB_AFTER]
        assert before == [0, 1]
        assert after == [(False, code), (True, 0)]


async def test_messages_of_a_batch_have_a_record_each_by_their_marks() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, b"fine", b"dead", b"again")

        async def work(batch: Batch) -> None:
            for message in batch:
                if message.body == b"dead":
                    batch.mark_dead_letter(message)
                if message.body == b"again":
                    batch.mark_retry(message)

        consumer = Consumer("g", namesrv=server.namesrv, trace=True, start_from="earliest")
        consumer.subscribe("T", work, batch_size=3, batch_wait=0.5)  # type: ignore[arg-type]
        async with consumer:
            await consumer.wait_settled(3)
        ids = {message.msg_id: message.body for message in server.messages("T")}
        found = [record for record in records(server) if record.trace_type is TraceType.SUB_AFTER]
        outcomes = {ids[record.beans[0].msg_id or ""]: (record.success, record.context_code) for record in found}
        assert outcomes == {b"fine": (True, 0), b"dead": (False, 4), b"again": (False, 4)}
        assert len({record.request_id for record in records(server)}) == 1


async def test_traces_go_to_a_topic_of_ones_own_in_the_namespace_and_name_groups_without_it() -> None:
    async with EmbeddedRocketMQ() as server:
        async with Admin(namesrv=server.namesrv, namespace="blue") as admin:
            await admin.create_topic("T", queues=1)
        options: dict[str, Any] = {"namespace": "blue", "trace": "Traces", "start_from": "earliest"}
        async with Producer("p", namesrv=server.namesrv, namespace="blue") as producer:
            await producer.send(Message("T", b"x"))
        async with member("g", server.namesrv, "one", Seen(), **options) as consumer:
            await consumer.wait_settled(1)
        assert [record.group_name for record in records(server, "blue%Traces")] == ["g", "g"]
        assert not server.messages(TRACE_TOPIC)


async def test_traces_never_stand_in_the_way_of_messages(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a trace topic that does not exist nor a text with a separator of the form of traces."""
    async with EmbeddedRocketMQ(auto_create_topics=False) as server:
        await create(server.namesrv)
        await send(server.namesrv, b"x")

        def fails(message: MessageExt) -> None:
            raise DeadLetter

        caplog.set_level(logging.WARNING, "rmq_async.consumer.trace")
        async with member("g", server.namesrv, "one", fails, start_from="earliest", trace="NoSuchTopic") as consumer:
            await consumer.wait_settled(1)
            assert len(server.dead_letters("g")) == 1
        texts = [record.getMessage() for record in caplog.records if record.name == "rmq_async.consumer.trace"]
        assert texts[-1].startswith("2 traces so far were not sent to topic NoSuchTopic; last reason: ")


async def test_consumption_of_traces_is_not_traced() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        seen = Seen()
        async with member("g", server.namesrv, "one", seen, trace=True) as consumer:
            await send(server.namesrv, b"x")
            await consumer.wait_settled(1)
            await until(lambda: len(records(server)) == 2, 5)
            traces = Consumer("traces", namesrv=server.namesrv, trace=True, start_from="earliest")
            traces.subscribe(TRACE_TOPIC, seen)
            async with traces:
                await traces.wait_settled(1)
        assert len(records(server)) == 2


@pytest.mark.parametrize(("trace_on", "count"), [("false", 0), ("true", 1), (None, 1)])
async def test_messages_of_brokers_that_want_no_traces_have_none(trace_on: str | None, count: int) -> None:
    """A broker with ``traceOn=false`` gives them the property along."""
    properties = {} if trace_on is None else {"TRACE_ON": trace_on}
    message = MessageExt(topic="T", body=b"x", properties=properties, queue=MessageQueue("T", "broker-a", 0))
    instance: Any = SimpleNamespace(names=Names(None), unique_ids=SimpleNamespace(next=lambda: "0" * 32))
    tracer = ConsumeTracer(instance, "g", True)
    delivery = Delivery(Call(Consumer("g", namesrv="127.0.0.1:1").subscribe("T", Seen()), (message,), 1))
    tracer.before_consume(delivery)
    tracer.after_consume(delivery)
    tracer.end()
    assert tracer.lost == 2 * count


def test_trace_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"trace: .*topic"):
        Consumer("g", trace="no topic!")
    with pytest.raises(ConfigError, match="trace must be True or False"):
        Consumer("g", trace=3)  # type: ignore[arg-type]
