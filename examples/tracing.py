"""Where a message went: OpenTelemetry spans that go on in the consumer, and RocketMQ's own message trace.

Needs opentelemetry-sdk. In production the spans go to a collector instead of a list, and mqadmin's queryMsgTraceById or a dashboard
reads the message trace.
"""

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rmq_async
from rmq_async import Admin, Message, Producer, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.otel import OpenTelemetryHook, context_of
from rmq_protocol.trace import TRACE_TOPIC, decode_trace

exporter = InMemorySpanExporter()
trace.set_tracer_provider(provider := TracerProvider())
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = trace.get_tracer("shop")


async def main() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        async with Producer("orders", namesrv=server.namesrv, hooks=[OpenTelemetryHook()], trace=True) as producer:
            server.fail_next(2)  # the first broker is busy
            with tracer.start_as_current_span("POST /orders"):
                result = await producer.send(Message("TracedTopic", b"order 17 paid", keys="order-17"))

        async with PullConsumer("billing", namesrv=server.namesrv) as consumer:
            async for message in consumer.read("TracedTopic", start={result.queue: result.queue_offset}):
                with tracer.start_as_current_span("process TracedTopic", context_of(message), kind=trace.SpanKind.CONSUMER):
                    pass

        for span in sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0):
            attributes = span.attributes or {}
            print(span.name, "-", attributes.get("error.type") or attributes.get("rmq_async.send_status") or "ours")
        print("traces:", len({span.context.trace_id for span in exporter.get_finished_spans() if span.context}))

        async with Admin(namesrv=server.namesrv) as admin:
            for kept in await admin.query_message(TRACE_TOPIC, result.msg_id):
                for record in decode_trace(kept.body.decode()):
                    assert record.beans[0].msg_id == result.msg_id
                    print("message trace:", "stored" if record.success else "not stored")


rmq_async.run(main())
