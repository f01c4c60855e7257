"""The outbox's status as gauges of OpenTelemetry."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.otel import OutboxGauges
from rmq_async.outbox import Outbox

from .support import Sessions, on_sqlite, settled, until


def values(reader: InMemoryMetricReader) -> dict[tuple[str, str], float]:
    """By name and state."""
    data = reader.get_metrics_data()
    found = {}
    for metric in (
        [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics] if data else []
    ):
        for point in metric.data.data_points:
            assert isinstance(point, NumberDataPoint)
            assert point.attributes is not None
            assert point.attributes["table"] == "orders"
            found[metric.name, str(point.attributes.get("rmq_async.outbox.state", ""))] = float(point.value)
    return found


@on_sqlite
async def test_gauges_follow_the_status(engine: AsyncEngine, sessions: Sessions, table: str, server: EmbeddedRocketMQ) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    try:
        gauges = OutboxGauges(provider, attributes={"table": "orders"})
        producer = Producer("orders", namesrv=server.namesrv)
        outbox = Outbox(engine, producer, table=table, on_status=gauges, status_interval=0.05)
        await outbox.create_table()
        for number in range(3):
            async with sessions.begin() as session:
                await outbox.add(session, Message("T", b"%d" % number))
        gauges(await outbox.status())
        before = values(reader)
        assert before["rmq_async.outbox.messages", "pending"] == 3
        assert before["rmq_async.outbox.oldest_age", ""] > 0
        async with outbox:
            await settled(outbox)
            await until(lambda: values(reader).get(("rmq_async.outbox.messages", "sent")) == 3)
        after = values(reader)
        assert after["rmq_async.outbox.messages", "pending"] == after["rmq_async.outbox.messages", "failed"] == 0
        assert after["rmq_async.outbox.oldest_age", ""] == 0
    finally:
        provider.shutdown()
