"""Secrets of a query are seen nowhere but by the broker: not in plans, errors, logs, the event log, checkpoints or progress.

The user's name counts as one here: nothing needs to show it. The values are others than those of the whole suite's look-out, as
py4j's own log shows every call to the JVM at level DEBUG, options and all.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from rmq_async.errors import RocketMQError
from rmq_async.spark.source import RocketMQDataSource
from rmq_async.spark.writing import Sent

from .conftest import Topics
from .scripted import worker_of_its_own

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKER = "broker-a"
SECRETS = {"accessKey": "canary-user-Qm5rT9", "secretKey": "canary-key-Yd2sW6", "securityToken": "canary-session-Hb8nC4"}


def found_in(seen: dict[str, str]) -> list[tuple[str, str]]:
    return [(place, name) for place, text in seen.items() for name, canary in SECRETS.items() if canary in text]


@pytest.fixture
def alone() -> Iterator[None]:
    """This process has no clients of the source before, and none after."""
    with worker_of_its_own():
        yield


@pytest.mark.usefixtures("alone")
def test_what_travels_and_what_is_shown_holds_none(embedded_topics: Topics) -> None:
    """All but the reader and the writer themselves, which carry them to the executors."""
    topic = embedded_topics.make(2)
    source = RocketMQDataSource({"nameserver": embedded_topics.namesrv, "topic": topic, **SECRETS})
    reader = source.reader(StructType().add("body", "binary"))
    stream = source.streamReader(StructType().add("body", "binary"))
    writer = source.writer(StructType().add("body", "binary"), overwrite=False)
    start = stream.initialOffset()
    assert SECRETS["secretKey"] in repr(pickle.dumps(reader)), "what this test looks for is there"
    partitions = [*reader.partitions(), *stream.partitions(start, start)]

    def error_of(wrong: dict[str, str]) -> str:
        with pytest.raises(RocketMQError) as caught:
            RocketMQDataSource(dict(source.options) | wrong).reader(StructType()).partitions()
        return f"{caught.value!s} {caught.value!r} {caught.value.__dict__}"

    seen = {f"repr of {thing!r}": repr([thing, vars(thing), str(thing)]) for thing in (reader, stream, writer)}
    seen |= {
        "repr of the source": repr(source),
        "partitions": repr([pickle.dumps(partitions), [(one, vars(one)) for one in partitions]]),
        "offsets": json.dumps(start),
        "errors": "".join(map(error_of, ({"topic": "NoSuchTopic"}, {"tokenOfSecurity": "x"}, {"startingOffsets": "{"}))),
        "commit message": repr(pickle.dumps(Sent(**dict.fromkeys(Sent.__dataclass_fields__, 0)))),
    }
    assert found_in(seen) == []


def test_a_session_shows_none(
    spark: SparkSession, embedded_topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = embedded_topics.make(2)
    options = {"nameserver": embedded_topics.namesrv, "topic": topic, **SECRETS}
    seen: dict[str, str] = {}
    events, log = Path(unquote(urlparse(spark.conf.get("spark.eventLog.dir")).path)), Path(spark.conf.get("spark.test.log"))
    checkpoint = tmp_path / "checkpoint"
    spark.sparkContext.setLogLevel("INFO")
    try:
        rows = spark.range(20).selectExpr("cast(id as string) body", f"'{BROKER}' brokerName", "cast(id % 2 as int) queueId")
        rows.write.format("rocketmq").mode("append").options(**options).save()
        frame = spark.read.format("rocketmq").options(**options).load()
        assert frame.select("body").count() == 20
        frame.explain(True)
        stream = (
            spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="10").load()
        )
        writer = stream.selectExpr("if(offset < 5, body, null) body").writeStream.format("rocketmq").options(**options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        with pytest.raises(PySparkException, match="column body is NULL") as caught:
            query.awaitTermination()
        query.explain(True)
        seen["error"] = f"{caught.value!s} {caught.value!r} {caught.value.__dict__} {query.exception()}"
        seen["progress"] = json.dumps([query.recentProgress, query.status], default=repr)
        seen["explained"] = capsys.readouterr().out
        spark.sparkContext.setJobDescription(f"the end of {tmp_path}")
        spark.range(1).count()
        spark.sparkContext.setJobDescription(None)
    finally:
        spark.sparkContext.setLogLevel("OFF")
    assert "rocketmq" in seen["explained"]
    deadline = time.monotonic() + 60
    while f"the end of {tmp_path}" not in (event_log := "".join(file.read_text() for file in events.iterdir())):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    seen |= {"event log": event_log, "log": log.read_text()}
    seen |= {str(file): file.read_bytes().decode(errors="replace") for file in checkpoint.rglob("*") if file.is_file()}
    assert sum("/offsets/" in place for place in seen) >= 2
    assert all(f"{topic}/{BROKER}" in seen[place] for place in ("event log", "log", "progress"))
    assert len(embedded_topics.read(topic)) == 30
    assert found_in(seen) == []
