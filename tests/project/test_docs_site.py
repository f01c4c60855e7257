"""The site has every page and every public name, and the dashboard the metrics that are there. (The build itself: tox -e docs.)"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import rmq_async
from rmq_async import Consumer, Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.otel import OpenTelemetryHook, OutboxGauges
from rmq_async.outbox import OutboxStatus

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = [
    "rmq_async",
    *(f"rmq_async.{part}" for part in ("admin", "consumer", "embedded", "errors", "otel", "outbox", "inbox", "testing")),
]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert pages <= listed
    assert {page for page in listed - pages if not (ROOT / page).exists()} == set()


def documented() -> set[str]:
    pages = [page.read_text() for page in (DOCS / "reference").glob("*.md")]
    return {name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)}


@pytest.mark.parametrize("package", [*PACKAGES, "rmq_async.testing.simulation"])
def test_every_public_name_is_in_the_reference(package: str) -> None:
    names = importlib.import_module(package).__all__
    found = {name.rpartition(".")[2] for name in documented()}
    assert not set(names) - found - {"__version__"}


def test_no_name_in_the_reference_is_gone() -> None:
    for name in sorted(documented()):
        if name.startswith("rmq_async.spark"):  # needs pyspark
            continue
        parts = name.split(".")
        thing: Any = rmq_async if parts[0] == "rmq_async" else importlib.import_module(parts[0])
        for number, part in enumerate(parts[1:], 2):
            thing = getattr(thing, part) if hasattr(thing, part) else importlib.import_module(".".join(parts[:number]))


async def test_the_dashboard_shows_metrics_and_labels_that_are_there() -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    hook = OpenTelemetryHook(meter_provider=meters)
    async with EmbeddedRocketMQ() as server:
        async with Producer("orders", namesrv=server.namesrv, hooks=[hook]) as producer:
            await producer.send(Message("OrderTopic", b"order 17"))
        consumer = Consumer("billing", namesrv=server.namesrv, hooks=[hook], start_from="earliest")
        consumer.subscribe("OrderTopic", lambda message: None)
        async with consumer:
            await consumer.wait_settled(1)
    OutboxGauges(meters)(OutboxStatus(1, 2.0, 0, 0))
    names, labels = {"le"}, {"le", "error_type"}
    collected = reader.get_metrics_data()
    assert collected is not None
    for metric in [
        each for resource in collected.resource_metrics for scope in resource.scope_metrics for each in scope.metrics
    ]:
        stem = metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")
        kind = type(metric.data).__name__
        suffixes = {"Histogram": ("_bucket", "_count", "_sum"), "Sum": ("_total",), "Gauge": ("",)}[kind]
        names |= {stem + suffix for suffix in suffixes}
        labels |= {str(label).replace(".", "_") for point in metric.data.data_points for label in point.attributes or {}}
    meters.shutdown()

    board = json.loads((DOCS / "grafana-dashboard.json").read_text())
    text = " ".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
    text = re.sub(r'"[^"]*"', "", text)
    asked = set(re.findall(r"\b(?:messaging|rmq_async|error)_\w+", text))
    assert asked <= names | labels
    assert {name for name in names if name.endswith(("_bucket", "_total"))} <= asked
    page = (DOCS / "dashboard.md").read_text()
    assert not [panel["title"] for panel in board["panels"] if f"| {panel['title']} |" not in page]
