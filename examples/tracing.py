"""Where a message went: OpenTelemetry spans of sends and of handlers, linked to each other, and RocketMQ's own message trace.

Needs opentelemetry-sdk. In production the spans go to a collector instead of a list, and mqadmin's queryMsgTraceById or a dashboard
reads the message trace.
"""

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rmq_async
from rmq_async import Admin, Consumer, Message, MessageExt, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.otel import OpenTelemetryHook
from rmq_protocol.constants import ResponseCode
from rmq_protocol.trace import TRACE_TOPIC, decode_trace

exporter = InMemorySpanExporter()
trace.set_tracer_provider(provider := TracerProvider())
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = trace.get_tracer("shop")


async def bill(message: MessageExt) -> None:
    with tracer.start_as_current_span("write the bill"):
        pass


async def main() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        async with Producer("orders", namesrv=server.namesrv, hooks=[OpenTelemetryHook()], trace=True) as producer:
            server.fail_next(ResponseCode.SYSTEM_BUSY)  # the first broker is busy
            with tracer.start_as_current_span("POST /orders"):
                result = await producer.send(Message("TracedTopic", b"order 17 paid", keys="order-17"))

        consumer = Consumer("billing", namesrv=server.namesrv, start_from="earliest", hooks=[OpenTelemetryHook()], trace=True)
        consumer.subscribe("TracedTopic", bill)
        async with consumer:
            await consumer.wait_settled(1)

        for span in sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0):
            attributes = span.attributes or {}
            names = ("error.type", "rmq_async.send_status", "rmq_async.outcome")
            print(span.name, "-", next((attributes[name] for name in names if name in attributes), "ours"))
        spans = {span.name: span for span in exporter.get_finished_spans()}  # the last span of a name: the send that stored
        (link,), sent = spans["process TracedTopic"].links, spans["send TracedTopic"].get_span_context()
        assert sent is not None
        print("linked:", (link.context.trace_id, link.context.span_id) == (sent.trace_id, sent.span_id))

        async with Admin(namesrv=server.namesrv) as admin:
            messages = await admin.query_message(TRACE_TOPIC, result.msg_id)
        records = [record for kept in messages for record in decode_trace(kept.body.decode())]
        for record in sorted(records, key=lambda record: record.time_stamp):
            assert record.beans[0].msg_id == result.msg_id
            print("message trace:", record.trace_type, record.group_name, "success" if record.success else "failed")


rmq_async.run(main())
