"""Reports to OpenTelemetry: spans, durations and counts of sends and of handler calls, and trace contexts in messages.

    producer = Producer("orders", hooks=[OpenTelemetryHook()])
    consumer = Consumer("billing", hooks=[OpenTelemetryHook()])
    outbox = Outbox(engine, producer, on_status=OutboxGauges())

The module requires the extra ``otel`` (opentelemetry-api). Names follow the semantic conventions for messaging and for RocketMQ,
version 1.36. Names that the conventions do not define begin with ``rmq_async.``.

Each attempt of a send has its own span, a child of the span that was current when the call was made. So a stored message carries
the context of the attempt that stored it, and the spans of a retried send show the time of each attempt. Each handler call is the
root of a trace, with links to the contexts that its messages carry, because one call may have messages of many senders. With an
iterator or ``receive()``, the messages that are returned together also have a span that is the root of a trace, but it is not
current in the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as missing:
    raise ImportError(f'rmq_async.otel cannot import opentelemetry-api ({missing}): pip install "rmq-async[otel]"') from missing

from rmq_protocol.constants import ResponseCode
from rmq_protocol.message import Message, MessageExt
from rmq_protocol.trace import MessageType

from . import machine
from .consumer import DeadLetter, Delivery, Outcome, RetryLater
from .errors import BrokerError
from .producer import Hook, SendContext

if TYPE_CHECKING:
    from .outbox import OutboxStatus

__all__ = ["OpenTelemetryHook", "OutboxGauges", "context_of"]

SCOPE: Final = "rmq_async"
SCHEMA: Final = "https://opentelemetry.io/schemas/1.36.0"
BOUNDARIES: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
TYPES: Final = {
    MessageType.NORMAL: "normal",
    MessageType.TRANSACTION_HALF: "transaction",
    MessageType.TRANSACTION_COMMIT: "transaction",
    MessageType.DELAY: "delay",
    MessageType.ORDER: "fifo",
}


class OpenTelemetryHook(Hook):
    """A hook that reports sends and handler calls, for the ``hooks`` of producers and group consumers. Several clients may share
    one hook.

    A message that already has a trace context in its properties keeps that context, and the span of the send links to it. If a
    message of a batch has a trace context, no context is added to the other messages of the batch.

    Args:
        tracer_provider: The tracer provider. None means the global one.
        meter_provider: The meter provider. None means the global one.
        propagator: The propagator. None means the global one.
        inject: Whether the hook adds trace contexts to messages.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
        *,
        inject: bool = True,
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider, schema_url=SCHEMA)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider, schema_url=SCHEMA)
        self._propagator = propagator
        self._inject = inject
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of the attempts to send.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        self._messages = meter.create_counter(
            "messaging.client.sent.messages", unit="{message}", description="Messages that the producer attempted to send."
        )

        self._processing = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of handler calls.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", unit="{message}", description="Messages that were passed to handlers."
        )

    def before_send(self, context: SendContext) -> None:
        links = [Link(found) for message in _messages(context) if (found := self._own_context(message)) is not None]
        shared = _shared_attributes(context)
        span = self._tracer.start_span(
            f"send {context.queue.topic}",
            kind=SpanKind.CLIENT if links else SpanKind.PRODUCER,
            attributes=shared | _attributes(context),
            links=links,
        )
        inside = trace.set_span_in_context(span)
        context.state[self] = span, inside, shared
        if self._inject and not links:
            (self._propagator or propagate.get_global_textmap()).inject(context.properties, inside)

    def after_send(self, context: SendContext) -> None:
        begun = context.state.pop(self, None)
        if begun is None:  # before_send raised
            return
        span, inside, attributes = begun
        if context.error is not None:
            attributes["error.type"] = error_type(context.error)
        if span.is_recording():
            _finish(span, context, attributes.get("error.type"))
        span.end()
        self._duration.record(context.elapsed, attributes, inside)
        self._messages.add(len(_messages(context)), attributes, inside)

    def before_consume(self, delivery: Delivery) -> None:
        contexts = [_extract(message.properties, self._propagator, Context()) for message in delivery.messages]
        is_batch = delivery.subscription.batch_size is not None or len(delivery.messages) > 1  # several when reading by hand
        links = [
            Link(found, {"messaging.message.id": message.msg_id} if is_batch else None)
            for message, context in zip(delivery.messages, contexts, strict=True)
            if (found := _span_context(context)) is not None
        ]
        shared = _consume_attributes(delivery)
        began = round(machine.time() * 1e9)
        span = self._tracer.start_span(
            f"process {delivery.topic}",
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes=shared | _delivery_attributes(delivery, is_batch=is_batch),
            links=links,
            start_time=began,
        )
        # The handler of a single message sees the baggage of the sender. The baggage of several senders would be mixed up.
        inside = trace.set_span_in_context(span, Context() if is_batch else contexts[0])
        delivery.values[self] = span, began, inside, shared, attach(inside)

    def after_consume(self, delivery: Delivery) -> None:
        begun = delivery.values.pop(self, None)
        if begun is None:  # before_consume raised
            return
        span, began, inside, attributes, token = begun
        detach(token)
        elapsed = delivery.elapsed or 0.0
        if delivery.error is not None:
            attributes["error.type"] = error_type(delivery.error)
        elif delivery.outcome is Outcome.ABANDONED:
            attributes["error.type"] = "CancelledError"
        try:
            if span.is_recording():
                _finish_call(span, delivery, attributes.get("error.type"))
        finally:  # str() of a user's error may raise
            span.end(began + round(elapsed * 1e9))
            self._processing.record(elapsed, attributes, inside)
            self._consumed.add(len(delivery.messages), attributes, inside)

    def _own_context(self, message: Message) -> trace.SpanContext | None:
        """Return the trace context that the message already has in its properties, or None."""
        if not message.properties:
            return None
        return _span_context(_extract(message.properties, self._propagator, Context()))


class OutboxGauges:
    """Gauges of an outbox, for its ``on_status``. They report the numbers of pending, sent and failed messages in its table, and
    the age of the oldest pending message in seconds.

    Args:
        meter_provider: The meter provider. None means the global one.
        attributes: Attributes of each value, such as the name of the service or the table if there are several.
    """

    def __init__(
        self, meter_provider: metrics.MeterProvider | None = None, *, attributes: Mapping[str, str] | None = None
    ) -> None:
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider, schema_url=SCHEMA)
        self._attributes = dict(attributes or {})
        self._messages = meter.create_gauge(
            "rmq_async.outbox.messages", unit="{message}", description="Rows of the outbox by state: pending, sent, failed."
        )
        self._age = meter.create_gauge(
            "rmq_async.outbox.oldest_age",
            unit="s",
            description="Age of the oldest pending message; 0 if no message is pending.",
        )

    def __call__(self, status: OutboxStatus) -> None:
        for state in ("pending", "sent", "failed"):
            self._messages.set(getattr(status, state), {**self._attributes, "rmq_async.outbox.state": state})
        self._age.set(status.oldest_age, self._attributes)


def context_of(message: MessageExt, propagator: TextMapPropagator | None = None, context: Context | None = None) -> Context:
    """Return the trace context in which the message was sent. Pass it to ``tracer.start_as_current_span(..., context=...)`` to
    continue the sender's trace.

    Args:
        propagator: The propagator. None means the global one.
        context: The context to which the trace context is added. With None, the propagator decides; the default propagator begins
            with an empty context.
    """
    return _extract(message.properties, propagator, context)


def _extract(properties: Mapping[str, str], propagator: TextMapPropagator | None, context: Context | None) -> Context:
    return (propagator or propagate.get_global_textmap()).extract(properties, context)


def _span_context(context: Context) -> trace.SpanContext | None:
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def error_type(error: BaseException) -> str:
    """Return the name of the error's class, such as SystemBusyError. If a broker's response code has no error class, return the
    name or number of the code.
    """
    if type(error) is BrokerError and error.code is not None:
        try:
            return ResponseCode(error.code).name
        except ValueError:
            return str(error.code)
    return type(error).__name__


def _messages(context: SendContext) -> tuple[Message, ...]:
    return context.message if isinstance(context.message, tuple) else (context.message,)


def _shared_attributes(context: SendContext) -> dict[str, Any]:
    """Return the attributes that the span and the metrics of a send have in common."""
    host, _, port = context.address.rpartition(":")
    return {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": context.queue.topic,
        "server.address": host.strip("[]"),
        "server.port": int(port),
    }


def _attributes(context: SendContext) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.destination.partition.id": f"{context.queue.broker_name}:{context.queue.queue_id}",
        "messaging.rocketmq.client_group": context.group,
        "messaging.rocketmq.message.type": TYPES[context.message_type],
        "rmq_async.attempt": context.attempt,
        "rmq_async.mode": context.mode,
    }
    if context.namespace:
        attributes["messaging.rocketmq.namespace"] = context.namespace
    if isinstance(context.message, tuple):
        attributes["messaging.batch.message_count"] = len(context.message)
    else:
        attributes["messaging.message.id"] = context.msg_id
        attributes["messaging.message.body.size"] = len(context.message.body)
        attributes |= _message_attributes(context.message, context.message_type)
    return attributes


def _message_attributes(message: Message, kind: MessageType) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if message.tags is not None:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = list(message.keys)
    if message.delay_level:
        attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    if message.deliver_at is not None:
        at = message.deliver_at
        seconds = at.timestamp() if isinstance(at, datetime) else at
        attributes["messaging.rocketmq.message.delivery_timestamp"] = round(seconds * 1000)
    if kind is MessageType.ORDER and message.sharding_key is not None:
        attributes["messaging.rocketmq.message.group"] = message.sharding_key
    return attributes


def _finish(span: Span, context: SendContext, failed: str | None) -> None:
    if context.result is not None:
        span.set_attribute("rmq_async.send_status", context.result.status.value)
    if failed is not None:
        span.set_attribute("error.type", failed)
        span.set_status(Status(StatusCode.ERROR, str(context.error)))
        span.set_attribute("rmq_async.maybe_stored", getattr(context.error, "maybe_stored", True))


def _consume_attributes(delivery: Delivery) -> dict[str, Any]:
    """Return the attributes that the span and the metrics of a handler call have in common."""
    attributes: dict[str, Any] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": delivery.topic,
        "messaging.consumer.group.name": delivery.group,
    }
    hosts = {message.store_host for message in delivery.messages}
    if len(hosts) == 1 and (address := hosts.pop()):
        host, _, port = address.rpartition(":")
        attributes |= {"server.address": host.strip("[]"), "server.port": int(port)}
    return attributes


def _delivery_attributes(delivery: Delivery, *, is_batch: bool) -> dict[str, Any]:
    attributes: dict[str, Any] = {"rmq_async.attempt": delivery.attempt}
    if delivery.namespace:
        attributes["messaging.rocketmq.namespace"] = delivery.namespace
    queues = {message.queue for message in delivery.messages}
    if len(queues) == 1:
        queue = queues.pop()
        attributes["messaging.destination.partition.id"] = f"{queue.broker_name}:{queue.queue_id}"
    if is_batch:
        attributes["messaging.batch.message_count"] = len(delivery.messages)
        return attributes
    message = delivery.messages[0]
    attributes["messaging.message.id"] = message.msg_id
    attributes["messaging.message.body.size"] = len(message.body)
    if message.tags is not None:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = list(message.keys)
    if message.sharding_key is not None:
        attributes["messaging.rocketmq.message.group"] = message.sharding_key
    return attributes


def _finish_call(span: Span, delivery: Delivery, failed: str | None) -> None:
    if delivery.outcome is not None:
        span.set_attribute("rmq_async.outcome", delivery.outcome.value)
    if failed is None:
        return
    span.set_attribute("error.type", failed)
    error = delivery.error
    span.set_status(Status(StatusCode.ERROR, "the call was cancelled" if error is None else str(error)))
    if error is not None and not isinstance(error, RetryLater | DeadLetter):
        span.record_exception(error)
