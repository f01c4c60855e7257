"""OpenTelemetry: a span for each attempt, where it belongs, and its context in what the broker stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rmq_async import Message, Producer, PullConsumer, errors
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.otel import OpenTelemetryHook, context_of

from ..support.fakes import TOPIC, Cluster, cut, each, refuse, silence, stored
from .support import message, messages, outcomes, producer, until

pytestmark = pytest.mark.virtual_time

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Telemetry:
    """What the hook reports, in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        nothing = Resource.get_empty()  # what is found out by default, it asks in threads
        provider = TracerProvider(resource=nothing)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        self.meters = MeterProvider(metric_readers=[self.reader], resource=nothing)
        self.hook = OpenTelemetryHook(provider, self.meters)

    @property
    def spans(self) -> list[ReadableSpan]:
        """Of sends, in the order in which they ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name == f"send {TOPIC}"]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        found = [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
        return [point for metric in found if metric.name == name for point in metric.data.data_points]


@pytest.fixture
def telemetry() -> Any:
    made = Telemetry()
    yield made
    made.meters.shutdown()


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as running:
        yield running


def traceparent(span: ReadableSpan) -> str:
    found = span.get_span_context()
    assert found is not None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    assert span.attributes is not None
    return dict(span.attributes)


async def test_a_span_says_what_was_sent_and_the_message_carries_it_on(server: EmbeddedRocketMQ, telemetry: Telemetry) -> None:
    item = Message(TOPIC, b"12345", tags="paid", keys=["order-17", "eu"], properties={"colour": "red"})
    async with Producer("orders", namesrv=server.namesrv, hooks=[telemetry.hook]) as sender:
        with telemetry.tracer.start_as_current_span("request") as request:
            result = await sender.send(item)
    (span,) = telemetry.spans
    assert span.kind is SpanKind.PRODUCER
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    (found,) = server.messages(TOPIC)
    host, _, port = found.store_host.rpartition(":")
    assert attributes(span) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": f"broker-a:{result.queue.queue_id}",
        "messaging.message.id": result.msg_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.client_group": "orders",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("order-17", "eu"),
        "server.address": host,
        "server.port": int(port),
        "rmq_async.attempt": 1,
        "rmq_async.mode": "sync",
        "rmq_async.send_status": "SEND_OK",
    }
    assert found.properties["traceparent"] == traceparent(span)
    assert found.properties["colour"] == "red"
    with telemetry.tracer.start_as_current_span("process", context=context_of(found)) as process:
        assert process.parent.span_id == span.get_span_context().span_id  # type: ignore[attr-defined]
        assert process.get_span_context().trace_id == request.get_span_context().trace_id
    assert item.properties == {"colour": "red"}


async def test_kinds_of_messages(telemetry: Telemetry) -> None:
    async with Cluster(1) as cluster, producer(cluster, hooks=[telemetry.hook], namespace_v2="eu") as sender:
        for options in ({"delay_level": 3}, {"deliver_at": 1.7e9}, {"sharding_key": "s"}):
            await sender.send(message(**options))
    prefix = "messaging.rocketmq."
    recorded = [
        {name.removeprefix(prefix): value for name, value in attributes(span).items() if name.startswith(prefix)}
        for span in telemetry.spans
    ]
    rest = {"client_group": "group", "namespace": "eu"}
    assert recorded == [
        {"message.type": "delay", "message.delay_time_level": 3, **rest},
        {"message.type": "delay", "message.delivery_timestamp": 1_700_000_000_000, **rest},
        {"message.type": "fifo", "message.group": "s", **rest},
    ]


async def test_every_attempt_is_a_child_of_the_span_the_call_was_made_in(telemetry: Telemetry) -> None:
    async def send_awaited(sender: Producer) -> Any:
        return await sender.send(message())

    async def send_async(sender: Producer) -> Any:
        return await sender.send_async(message())

    async with Cluster(2) as cluster, producer(cluster, hooks=[telemetry.hook], retries=3, async_retries=3) as sender:
        await sender.send(message())  # connections are made in no span at all
        await sender.send(message())
        for way in (send_awaited, send_async):
            before = len(telemetry.spans)
            cluster.answer(each(refuse(2), cut, stored))
            with telemetry.tracer.start_as_current_span("request") as request:
                future = await way(sender)
            result = await future if way is send_async else future
            spans = telemetry.spans[before:]
            assert [span.attributes["rmq_async.attempt"] for span in spans if span.attributes] == [1, 2, 3]
            parents = [span.parent.span_id for span in spans if span.parent]
            assert parents == [request.get_span_context().span_id] * 3
            assert [span.attributes.get("error.type") for span in spans if span.attributes] == [
                "SystemBusyError", "ConnectionLostError", None,
            ]  # fmt: skip
            assert [span.status.status_code for span in spans] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
            sent = [sent for sent in cluster.sends if sent.unique_id == result.msg_id]
            assert {sent.properties["traceparent"] for sent in sent} == {traceparent(span) for span in spans}


async def test_what_fails_says_so(telemetry: Telemetry) -> None:
    async with Cluster(1) as cluster:
        cluster.a.answer = each(refuse(999), refuse(13), silence)
        async with producer(cluster, hooks=[telemetry.hook], retries=0) as sender:
            results = await outcomes(*[sender.send(message(), timeout=0.5) for _ in range(3)])
            assert all(isinstance(result, errors.RocketMQError) for result in results)
            sending = asyncio.create_task(sender.send(message()))
            await until(lambda: len(cluster.sends) == 4)
            sending.cancel()
            await outcomes(sending)
            cluster.name_server.routes["nowhere"] = cluster.route()
            await cluster.a.stop()
            await until(lambda: not sender.health().brokers["a"].connected)
            await outcomes(sender.send(message(), timeout=0.3))
    recorded = [
        (span.attributes["error.type"], span.attributes["rmq_async.maybe_stored"])
        for span in telemetry.spans
        if span.attributes
    ]
    assert sorted(recorded) == [
        ("999", False), ("CancelledError", True), ("ConnectError", False), ("ConnectError", False),
        ("MessageIllegalError", False), ("RequestTimeoutError", True),
    ]  # fmt: skip


async def test_the_messages_of_a_batch_carry_the_context_of_its_span(server: EmbeddedRocketMQ, telemetry: Telemetry) -> None:
    async with Producer("group", namesrv=server.namesrv, hooks=[telemetry.hook]) as sender:
        await sender.send_batch(messages(3, properties={"colour": "red"}))
    (span,) = telemetry.spans
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(span)
    assert [each.properties["traceparent"] for each in server.messages(TOPIC)] == [traceparent(span)] * 3
    assert [each.properties["colour"] for each in server.messages(TOPIC)] == ["red"] * 3


async def test_a_context_that_a_message_has_already_is_kept_and_linked_to(
    server: EmbeddedRocketMQ, telemetry: Telemetry
) -> None:
    own = message(properties={"traceparent": PARENT})
    async with Producer("group", namesrv=server.namesrv, hooks=[telemetry.hook]) as sender:
        await sender.send(own)
        await sender.send_batch([own, message(b"other")])
    assert [each.properties.get("traceparent") for each in server.messages(TOPIC)] == [PARENT, PARENT, None]
    for span in telemetry.spans:
        assert span.kind is SpanKind.CLIENT
        (link,) = span.links
        assert f"{link.context.trace_id:032x}-{link.context.span_id:016x}" == PARENT[3:-3]


async def test_baggage_travels_too_and_nothing_does_without_inject(server: EmbeddedRocketMQ, telemetry: Telemetry) -> None:
    quiet = Telemetry()
    hook = OpenTelemetryHook(None, quiet.meters, inject=False)
    token = context.attach(baggage.set_baggage("tenant", "blue"))
    try:
        async with Producer("group", namesrv=server.namesrv, hooks=[telemetry.hook]) as sender:
            await sender.send(message())
        async with Producer("group", namesrv=server.namesrv, hooks=[hook]) as sender:
            await sender.send(message())
    finally:
        context.detach(token)
        quiet.meters.shutdown()
    carried, bare = server.messages(TOPIC)
    assert baggage.get_baggage("tenant", context_of(carried)) == "blue"
    assert not {"traceparent", "baggage"} & set(bare.properties)


async def test_durations_and_counts(telemetry: Telemetry) -> None:
    async with Cluster(1) as cluster:
        cluster.a.answer = each(stored, refuse(13))
        async with producer(cluster, hooks=[telemetry.hook]) as sender:
            await sender.send_batch(messages(3))
            await outcomes(sender.send(message()))
            await sender.send_oneway(message())
    shared = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "server.address": "127.0.0.1",
        "server.port": cluster.a.port,
    }
    failed = shared | {"error.type": "MessageIllegalError"}
    sent = {frozenset(point.attributes.items()): point.value for point in telemetry.points("messaging.client.sent.messages")}
    assert sent == {frozenset(shared.items()): 4, frozenset(failed.items()): 1}
    durations = telemetry.points("messaging.client.operation.duration")
    assert {frozenset(point.attributes.items()): point.count for point in durations} == {
        frozenset(shared.items()): 2, frozenset(failed.items()): 1,
    }  # fmt: skip
    assert all(0 < point.sum < 1 and len(point.explicit_bounds) == 14 for point in durations)


async def test_a_oneway_span_ends_when_the_message_is_on_its_way(telemetry: Telemetry) -> None:
    async with Cluster(1) as cluster, producer(cluster, hooks=[telemetry.hook]) as sender:
        await sender.send_oneway(message())
        (span,) = telemetry.spans
        assert attributes(span)["rmq_async.mode"] == "oneway"
        assert "rmq_async.send_status" not in attributes(span)
        await until(lambda: cluster.sends)
    assert cluster.sends[0].properties["traceparent"] == traceparent(span)


async def test_a_traceparent_of_ones_own_needs_no_package(server: EmbeddedRocketMQ) -> None:
    own = {"traceparent": PARENT, "tracestate": "vendor=1"}
    async with Producer("group", namesrv=server.namesrv) as sender:
        await sender.send(message(properties=own))
        await sender.send_batch([message(properties=own)])
    async with PullConsumer("reader", namesrv=server.namesrv) as consumer:
        found = [each async for each in consumer.read(TOPIC)]
    assert len(found) == 2
    assert all(own.items() <= each.properties.items() for each in found)


async def test_a_batch_without_room_for_contexts_is_sent_without(telemetry: Telemetry) -> None:
    async with Cluster(1) as cluster, producer(cluster, hooks=[telemetry.hook], max_message_size=1000) as sender:
        await sender.send_batch([message(b"x" * 300), message(b"y" * 300)])
        await sender.send_batch([message(b"x" * 400), message(b"y" * 400)])
    roomy, full = [[b"traceparent" in record.properties for record in sent.batch] for sent in cluster.sends]
    assert (roomy, full) == ([True, True], [False, False])
