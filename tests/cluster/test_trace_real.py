"""What a real broker keeps of traces and trace contexts, read back by us and by the official mqadmin."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from time import monotonic

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer, PullConsumer, RetryLater
from rmq_async.errors import BrokerError
from rmq_async.otel import OpenTelemetryHook, context_of
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.trace import TRACE_TOPIC, TraceContext, TraceType, decode_trace

from ..support.java.program import require_javac, started
from ..support.waiting import until

TOPIC = "trace-real"


@pytest.fixture
def topic(feature_cluster: RealCluster) -> str:
    async def create() -> None:
        async with Admin(namesrv=feature_cluster.namesrv, request_timeout=30.0) as admin:
            await admin.create_topic(TOPIC, queues=2, broker="broker-a")

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(create())
    return TOPIC


async def records_of(namesrv: str, msg_id: str, key: str, count: int, timeout: float = 20.0) -> list[TraceContext]:
    """The records of a message in the trace messages of that key, as soon as the broker's index has so many."""
    deadline = monotonic() + timeout
    found: list[TraceContext] = []
    async with Admin(namesrv=namesrv, request_timeout=10.0) as admin:
        while len(found) < count and monotonic() < deadline:
            messages = await admin.query_message(TRACE_TOPIC, key)
            found = [record for message in messages for record in decode_trace(message.body.decode())]
            found = [record for record in found if record.beans[0].msg_id == msg_id]
            await asyncio.sleep(0.05)
    return sorted(found, key=lambda record: record.time_stamp)


async def mqadmin(namesrv: str, home: Path, *words: str) -> str:
    async with started(home, "org.apache.rocketmq.tools.command.MQAdminStartup", *words, "-n", namesrv) as process:
        output, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, (output + errors).decode()
    return output.decode()


async def test_mqadmin_finds_both_attempts_of_a_message_and_so_do_we(
    feature_cluster: RealCluster, topic: str, tmp_path: Path
) -> None:
    require_javac()
    namesrv = feature_cluster.namesrv
    unique_id = uuid.uuid4().hex.upper()
    item = Message(topic, b"12345", tags="paid", keys=["order-17", unique_id[::-1]], unique_id=unique_id)
    async with Producer("trace-real-group", namesrv=namesrv, trace=True, timeout=15.0) as sender:
        result = await sender.send(item)
        with pytest.raises(BrokerError, match="queueId"):
            await sender.send(item, queue=MessageQueue(topic, "broker-a", 99))
        batch = await sender.send_batch([Message(topic, b"%d" % number) for number in range(3)])

    for key in (unique_id, unique_id[::-1]):
        records = await records_of(namesrv, unique_id, key, 2)
        outcomes = {record.success: record.beans[0].offset_msg_id for record in records}
        assert outcomes == {True: result.offset_msg_id, False: None}
    for msg_id, offset_id in zip(batch.msg_ids, batch.offset_msg_ids, strict=True):
        (record,) = await records_of(namesrv, msg_id, msg_id, 1)
        assert (record.success, record.beans[0].offset_msg_id) == (True, offset_id)
    bean = records[0].beans[0]
    assert (bean.topic, bean.tags, bean.keys, bean.body_length) == (topic, "paid", " ".join(item.keys), 5)
    assert (records[0].group_name, records[0].region_id) == ("trace-real-group", "DefaultRegion")

    table = await mqadmin(namesrv, tmp_path, "queryMsgTraceById", "-i", unique_id)
    rows = [line.split() for line in table.splitlines() if line.startswith("Pub")]
    assert sorted((row[1], row[2], row[-2], row[-1]) for row in rows) == sorted(
        ("trace-real-group", "127.0.0.1", f"{record.cost_time}ms", "success" if record.success else "failed")
        for record in records
    )


async def test_mqadmin_shows_the_calls_of_handlers(feature_cluster: RealCluster, topic: str, tmp_path: Path) -> None:
    """One that asks for the message again, and the next one, which succeeds, under the group and with the number of the retry."""
    require_javac()
    namesrv, group = feature_cluster.namesrv, f"trace-real-readers-{uuid.uuid4().hex[:8]}"
    unique_id = uuid.uuid4().hex.upper()  # chosen here: the handler may be called before send() returns
    attempts: list[int] = []

    async def handle(message: MessageExt) -> None:
        if message.msg_id == unique_id:
            attempts.append(message.reconsume_times)
            await asyncio.sleep(0.05)
            if not message.reconsume_times:
                raise RetryLater(1)

    consumer = Consumer(group, namesrv=namesrv, trace=True)
    consumer.subscribe(topic, handle)
    async with consumer, Producer("trace-real-senders", namesrv=namesrv) as sender:
        await sender.send(Message(topic, b"x", keys=uuid.uuid4().hex, unique_id=unique_id))
        await until(lambda: 1 in attempts, 30)
    assert attempts == [0, 1]
    before, after = [], []
    for record in await records_of(namesrv, unique_id, unique_id, 4):
        if record.trace_type is TraceType.SUB_BEFORE:
            before.append((record.group_name, record.region_id, record.beans[0].retry_times))
        else:
            after.append((record.group_name, record.success, record.context_code))
            assert record.cost_time >= 50
    assert before == [(group, "DefaultRegion", 0), (group, "DefaultRegion", 1)]
    assert after == [(group, False, 4), (group, True, 0)]

    table = await mqadmin(namesrv, tmp_path, "queryMsgTraceById", "-i", unique_id)
    rows = [line.split() for line in table.splitlines() if line.startswith("Sub")]
    assert [(row[1], row[2], row[-1]) for row in rows] == [(group, "127.0.0.1", "failed"), (group, "127.0.0.1", "success")]


async def test_trace_contexts_of_messages_and_batches_come_back(feature_cluster: RealCluster, topic: str) -> None:
    namesrv = feature_cluster.namesrv
    tracer = (provider := TracerProvider()).get_tracer("test")
    async with PullConsumer("trace-real-reader", namesrv=namesrv) as consumer:
        starts = {queue: await consumer.max_offset(queue) for queue in await consumer.queues(topic)}
        async with Producer("otel-real", namesrv=namesrv, hooks=[OpenTelemetryHook(provider)], timeout=15.0) as sender:
            with tracer.start_as_current_span("request") as span:
                await sender.send(Message(topic, b"one"))
                await sender.send_batch([Message(topic, b"two"), Message(topic, b"three", properties={"colour": "red"})])
        found = {each.body: each async for each in consumer.read(topic, start=starts)}
    contexts = {body: get_current_span(context_of(each)).get_span_context() for body, each in found.items()}
    assert contexts.keys() == {b"one", b"two", b"three"}
    assert {context.trace_id for context in contexts.values()} == {span.get_span_context().trace_id}
    assert contexts[b"two"].span_id == contexts[b"three"].span_id != contexts[b"one"].span_id
    assert found[b"three"].properties["colour"] == "red"
