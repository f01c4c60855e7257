"""Spans and metrics of handler calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import attach, detach
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rmq_async import Batch, Consumer, Message, MessageExt, Producer, Retry, RetryLater
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.otel import OpenTelemetryHook

from .support import create, member, send, until

pytestmark = pytest.mark.virtual_time


class Telemetry:
    """A hook, and what it has exported."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        nothing = Resource.get_empty()  # what is found out by default, it asks in threads
        self.provider = TracerProvider(resource=nothing)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], resource=nothing)
        propagator = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
        self.hook = OpenTelemetryHook(self.provider, self.meters, propagator)
        self.tracer = self.provider.get_tracer("test")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


def id_of(found: Any) -> tuple[int, int]:
    """Of a span or a link: its trace and its span."""
    return found.context.trace_id, found.context.span_id


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    found = Telemetry()
    yield found
    found.meters.shutdown()
    found.provider.shutdown()


@pytest.mark.parametrize("plain", [False, True])
async def test_call_is_a_span_that_links_to_the_senders_and_is_current_in_the_handler(
    telemetry: Telemetry, plain: bool
) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen: list[object] = []

        def plain_work(message: MessageExt) -> None:
            seen.append(baggage.get_baggage("tenant"))
            with telemetry.tracer.start_as_current_span("of the handler"):
                pass

        async def work(message: MessageExt) -> None:
            plain_work(message)
            await asyncio.sleep(0.05)

        with telemetry.tracer.start_as_current_span("start of the service"):
            consumer = member("billing", server.namesrv, "one", plain_work if plain else work, hooks=[telemetry.hook])
            await consumer.start()
        async with Producer("p", namesrv=server.namesrv, hooks=[telemetry.hook]) as producer:
            blue = baggage.set_baggage("tenant", "blue")
            with telemetry.tracer.start_as_current_span("request", context=blue):
                inside = attach(trace.set_span_in_context(trace.get_current_span(), blue))
                result = await producer.send(Message("T", b"12345", tags="paid", keys="order-17"))
                detach(inside)
        await consumer.wait_settled(1)
        await until(lambda: telemetry.spans("process T"))
        await consumer.stop()
        (sent,), (call,), (inner,) = telemetry.spans("send T"), telemetry.spans("process T"), telemetry.spans("of the handler")
        assert seen == ["blue"]
        assert call.kind is SpanKind.CONSUMER
        assert call.parent is None
        assert [id_of(link) for link in call.links] == [id_of(sent)]
        assert inner.parent is not None
        assert (inner.parent.trace_id, inner.parent.span_id) == id_of(call)
        assert dict(call.attributes or {}) == {
            "messaging.system": "rocketmq",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "T",
            "messaging.destination.partition.id": f"broker-a:{result.queue.queue_id}",
            "messaging.consumer.group.name": "billing",
            "messaging.message.id": result.msg_id,
            "messaging.message.body.size": 5,
            "messaging.rocketmq.message.tag": "paid",
            "messaging.rocketmq.message.keys": ("order-17",),
            "server.address": "127.0.0.1",
            "server.port": int(server.messages("T")[0].store_host.rpartition(":")[2]),
            "rmq_async.attempt": 1,
            "rmq_async.outcome": "done",
        }
        assert call.start_time is not None
        assert call.end_time is not None
        if not plain:
            assert call.end_time - call.start_time == pytest.approx(0.05e9, abs=1e6)


async def test_failed_call_has_its_error_and_each_attempt_is_a_span(telemetry: Telemetry) -> None:
    async with EmbeddedRocketMQ(delay_levels=[0.01]) as server:
        await create(server.namesrv)

        async def work(message: MessageExt) -> None:
            if message.reconsume_times == 0:
                raise KeyError("order 17")
            if message.reconsume_times == 1:
                raise RetryLater(1)

        async with Producer("p", namesrv=server.namesrv, hooks=[telemetry.hook]) as producer:
            hooks = [telemetry.hook]
            async with member("g", server.namesrv, "one", work, hooks=hooks, retry=Retry(delays=(1,))) as consumer:
                await producer.send(Message("T", b"x"))
                await consumer.wait_settled(3)
        (sent,), calls = telemetry.spans("send T"), telemetry.spans("process T")
        assert [span.attributes and span.attributes["rmq_async.attempt"] for span in calls] == [1, 2, 3]
        assert [span.attributes and span.attributes["rmq_async.outcome"] for span in calls] == ["retried", "retried", "done"]
        assert [span.attributes and span.attributes.get("error.type") for span in calls] == ["KeyError", "RetryLater", None]
        assert [span.status.status_code for span in calls] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
        assert [len(span.events) for span in calls] == [1, 0, 0]
        text = (calls[0].events[0].attributes or {})["exception.stacktrace"]
        assert "in work" in str(text)
        assert {id_of(link) for span in calls for link in span.links} == {id_of(sent)}
        counts = {
            point.attributes.get("error.type"): point.value for point in telemetry.points("messaging.client.consumed.messages")
        }
        assert counts == {"KeyError": 1, "RetryLater": 1, None: 1}
        durations = telemetry.points("messaging.process.duration")
        assert sum(point.count for point in durations) == 3
        assert {point.attributes["messaging.consumer.group.name"] for point in durations} == {"g"}


async def test_batch_has_a_link_for_each_message(telemetry: Telemetry) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with Producer("p", namesrv=server.namesrv, hooks=[telemetry.hook]) as producer:
            results = [await producer.send(Message("T", b"%d" % number)) for number in range(3)]
        await send(server.namesrv, b"without")

        async def work(batch: Batch) -> None:
            """Takes the batch."""

        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", hooks=[telemetry.hook])
        consumer.subscribe("T", work, batch_size=10, batch_wait=0.03)  # type: ignore[arg-type]
        async with consumer:
            await consumer.wait_settled(4)
        (call,) = telemetry.spans("process T")
        assert (call.attributes or {})["messaging.batch.message_count"] == 4
        assert "messaging.message.id" not in (call.attributes or {})
        assert [id_of(link) for link in call.links] == [id_of(span) for span in telemetry.spans("send T")]
        assert [(link.attributes or {})["messaging.message.id"] for link in call.links] == [each.msg_id for each in results]
        assert sum(point.value for point in telemetry.points("messaging.client.consumed.messages")) == 4


async def test_step_by_hand_is_a_span_until_its_messages_are_settled(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """In another task than that of the step, too; the caller's span is no other one meanwhile."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with Producer("p", namesrv=server.namesrv, hooks=[telemetry.hook]) as producer:
            results = [await producer.send(Message("T", b"%d" % number)) for number in range(3)]
        consumer = Consumer("g", namesrv=server.namesrv, topics="T", start_from="earliest", hooks=[telemetry.hook])
        async with consumer:
            batch = [message for _ in range(2) for message in await consumer.receive(1)]
            batch += await consumer.receive(1)
            assert not trace.get_current_span().get_span_context().is_valid
            assert not telemetry.spans("process T")

            async def settle() -> None:
                assert consumer.done(*batch[1:])
                await consumer.dead_letter(batch[0])

            await asyncio.create_task(settle())
            assert not trace.get_current_span().get_span_context().is_valid
        calls = telemetry.spans("process T")
        assert [(call.attributes or {})["messaging.message.id"] for call in calls] == [
            results[number].msg_id for number in (1, 2, 0)
        ]
        outcomes = [(call.attributes or {})["rmq_async.outcome"] for call in calls]
        assert outcomes == ["done", "done", "dead-lettered"]
    assert "Failed to detach" not in caplog.text
