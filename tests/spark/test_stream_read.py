"""Streaming reads as sequences of Spark's calls, on brokers in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from rmq_async import PullConsumer
from rmq_async.errors import ConfigError, OffsetRangeError, TopicNotFoundError
from rmq_async.reading import pull_body
from rmq_protocol.message import MessageQueue

from .conftest import Loop
from .scripted import Broker, Planner, everything, offsets, ranges_of


class TestRestart:
    @pytest.mark.parametrize("start", ["latest", "timestamp", "earliest"])
    def test_before_the_first_commit(self, broker: Broker, start: str) -> None:
        """The end that was written says where the stream began; what the initial offset is by now does not matter."""
        broker.topic("t", 2)
        old = broker.send("t", 100)
        options = {
            "latest": {"startingOffsets": "latest"},
            "earliest": {"startingOffsets": "earliest"},
            "timestamp": {"startingTimestamp": "253402300799999", "startingOffsetsByTimestampStrategy": "latest"},
        }[start]
        planner = Planner(broker, topic="t", **options)
        planned = broker.send("t", 50)
        assert planner.plan()
        late = broker.send("t", 30)
        expected = old + planned if start == "earliest" else planned
        assert planner.read(restarted=True) == expected
        assert planner.read(restarted=True) == expected, "and again"
        assert planner.step() == late
        assert planner.read(restarted=True) == late
        assert not planner.plan()

    def test_the_initial_offset_is_found_once(self, broker: Broker) -> None:
        broker.topic("t")
        planner = Planner(broker, topic="t")
        first = planner.reader.initialOffset()
        broker.send("t", 1)
        before = broker.servers.requests.total()
        assert planner.reader.initialOffset() == first
        assert broker.servers.requests.total() == before


class TestLimits:
    def test_all_that_is_there_is_read_when_spark_says_so(self, broker: Broker) -> None:
        broker.topic("t")
        sent = broker.send("t", 25)
        planner = Planner(broker, topic="t", startingOffsets="earliest", maxOffsetsPerTrigger="10")
        assert planner.reader.getDefaultReadLimit() == ReadMaxRows(10)
        assert planner.step() == sent[:10]
        assert planner.step(ReadAllAvailable()) == sent[10:]
        assert Planner(broker, topic="t").reader.getDefaultReadLimit() == ReadAllAvailable()

    def test_available_now_reads_what_there_was_in_several_micro_batches(self, broker: Broker) -> None:
        broker.topic("t")
        sent = broker.send("t", 25)
        planner = Planner(broker, topic="t", startingOffsets="earliest", maxOffsetsPerTrigger="10")
        planner.reader.prepareForTriggerAvailableNow()
        broker.send("t", 5)
        broker.topic("t", 3)
        broker.send("t", 5, ("broker-a", 2))
        found = [planner.step() for _ in range(4)]
        assert found == [sent[:10], sent[10:20], sent[20:], None]
        planner.begin()
        planner.reader.prepareForTriggerAvailableNow()
        assert len(everything(planner)) == 10

    def test_available_now_from_latest_begins_after_the_snapshot(self, broker: Broker) -> None:
        """Spark asks for the snapshot first; a message between the two questions is of neither."""
        broker.topic("t")
        planner = Planner(broker, topic="t")
        planner.reader.prepareForTriggerAvailableNow()
        broker.send("t", 3)
        planner.log = [json.dumps({"v": 1, "q": {"t/broker-a/0": 3, "t/broker-b/0": 0}})]
        assert planner.step() == []
        assert not planner.plan()

    def test_fewest_offsets_and_the_longest_delay(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1000.0
        monkeypatch.setattr("rmq_async.spark.reading.monotonic", lambda: now)
        broker.topic("t")
        given = {"topic": "t", "startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s"}
        planner = Planner(broker, **given)
        sent = broker.send("t", 9)
        assert planner.step() == sent, "the first one of a run does not wait"
        sent = broker.send("t", 9)
        assert not planner.plan()
        planner.begin()
        assert planner.step() == sent, "nor does the first one after a restart"
        sent = broker.send("t", 9)
        assert not planner.plan()
        sent += broker.send("t", 1)
        assert planner.step() == sent
        more = broker.send("t", 2)
        now += 59
        assert not planner.plan()
        now += 2
        assert planner.step() == more
        now += 600
        assert not planner.plan(), "nothing is there"
        last = broker.send("t", 1)
        assert planner.step() == last, "the last one is long ago"
        few = broker.send("t", 3)
        assert not planner.plan()
        planner.begin()
        planner.reader.prepareForTriggerAvailableNow()
        assert planner.step() == few, "a run that ends does not wait"


class TestWhatIsRead:
    def test_patterns_take_up_topics_as_they_come(self, broker: Broker) -> None:
        with pytest.raises(ConfigError, match=r"option subscribePattern: no readable topic matches 'orders-\.\*'"):
            Planner(broker, subscribePattern="orders-.*")
        for name in ("orders-1", "my-orders-1", "%DLQ%orders-1"):
            broker.topic(name) if not name.startswith("%") else broker.send(name, 1)
        planner = Planner(broker, subscribePattern="orders-.*")
        broker.topic("orders-2")
        sent = broker.send("orders-1", 1) + broker.send("orders-2", 2)
        assert planner.step() == sent
        broker.delete("orders-1")
        broker.delete("orders-2")
        assert not planner.plan(), "all that was seen of them is read"
        every = json.loads(Planner(broker, subscribePattern=".*").log[0])["q"]
        assert {key.partition("/")[0] for key in every} == {"my-orders-1"}
        dead = Planner(broker, subscribePattern="%DLQ%.*", startingOffsets="earliest")
        assert len(everything(dead)) == 1

    def test_topics_of_groups_are_read_by_name(self, broker: Broker) -> None:
        sent = broker.send("%DLQ%g", 2) + broker.send("%RETRY%g", 3)
        assert sorted(everything(Planner(broker, subscribe="%DLQ%g,%RETRY%g", startingOffsets="earliest"))) == sorted(sent)

    def test_assigned_queues(self, broker: Broker) -> None:
        broker.topic("t", 3)
        for number in range(3):
            broker.send("t", number + 1, ("broker-a", number))
        planner = Planner(broker, assign='{"t": {"broker-a": [0, 2]}}', startingOffsets="earliest")
        assert len(everything(planner)) == 4
        assert offsets(planner.log[-1]) == {"t/broker-a/0": 1, "t/broker-a/2": 3}
        with pytest.raises(ConfigError, match="option assign: t/broker-a/3 is not a readable queue of topic t"):
            Planner(broker, assign='{"t": {"broker-a": [0, 3]}}')
        broker.topic("t", broker="broker-a", perm=2)
        assert not planner.plan(), "of a stream that has begun it is one that is in no route"

    def test_offsets_of_the_option(self, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        broker.topic("t", 2, broker="broker-a")
        sent = broker.send("t", 10)
        given = json.dumps({"t": {"broker-a": {"0": 7}}})
        with pytest.raises(ConfigError, match="option startingOffsets does not name t/broker-a/1; name it"):
            Planner(broker, topic="t", startingOffsets=given)
        given = json.dumps({"t": {"broker-a": {"0": 7, "1": -2}}})
        planner = Planner(broker, topic="t", startingOffsets=given)
        assert everything(planner) == sent[7:]
        broker.topic("t", 3, broker="broker-a")
        added = broker.send("t", 3, ("broker-a", 2))
        assert everything(planner) == added, "a queue that is added later is read from its beginning"
        expected = "t/broker-a/0: the start is beyond the last message; offsets 11 to 11 were to be read, available are 0 to 10"
        beyond = json.dumps({"t/broker-a/0": 11, "t": -1})
        with pytest.raises(OffsetRangeError, match=expected):
            Planner(broker, topic="t", startingOffsets=beyond)
        planner = Planner(broker, topic="t", startingOffsets=beyond, failOnDataLoss="false")
        assert expected in caplog.text
        more = broker.send("t", 2)
        assert everything(planner) == more

    def test_namespaces_are_not_seen_in_offsets(self, broker: Broker) -> None:
        broker.topic("eu%t")
        sent = broker.send("t", 3, namespace="eu")
        planner = Planner(
            broker, topic="t", namespace="eu", startingOffsets="earliest", commitOffsets="true", consumerGroup="g"
        )
        assert everything(planner) == sent
        assert set(offsets(planner.log[-1])) == {"t/broker-a/0", "t/broker-b/0"}
        matching = Planner(broker, subscribePattern="t", namespace="eu", startingOffsets="earliest")
        assert everything(matching) == sent

    def test_a_checkpoint_of_another_topic_and_a_topic_that_is_not_there(self, broker: Broker) -> None:
        broker.topic("t")
        broker.topic("u")
        planner = Planner(broker, subscribe="t")
        planner.begin(subscribe="u")
        with pytest.raises(
            ConfigError, match="the checkpoint belongs to topic t, but this query reads u; give the query its own"
        ):
            planner.plan()
        planner.begin(subscribe="t,u")
        with pytest.raises(ConfigError):
            Planner(broker, topic="t", subscribe="u")
        with pytest.raises(TopicNotFoundError, match="nowhere"):
            Planner(broker, topic="nowhere")


class TestReports:
    def test_the_newest_offsets_are_reported_for_the_lag(self, broker: Broker) -> None:
        broker.topic("t", broker="broker-a")
        planner = Planner(broker, topic="t", startingOffsets="earliest", maxOffsetsPerTrigger="2")
        assert planner.reader.reportLatestOffset() is None
        broker.send("t", 5)
        planner.plan()
        stored = broker.servers.messages("t")[2].store_time_ms
        assert planner.reader.reportLatestOffset() == {"v": 1, "q": {"t/broker-a/0": 5}, "t": {"t": stored}}

    def test_tasks_pull_in_the_group_of_their_query(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tasks know the id of their query, planners do not."""
        groups = []

        async def pull(instance: Any, request: Any, *arguments: Any) -> Any:
            groups.append(request.group)
            return await pull_body(instance, request, *arguments)

        class Context:
            def attemptNumber(self) -> int:
                return 0

            def getLocalProperty(self, name: str) -> str | None:
                return {"sql.streaming.queryId": "7f3e"}.get(name)

        monkeypatch.setattr("rmq_async.spark.pulling.pull_body", pull)
        monkeypatch.setattr(TaskContext, "get", Context)
        broker.topic("t", broker="broker-a")
        sent = broker.send("t", 2)
        assert Planner(broker, topic="t", startingOffsets="earliest", consumerGroupPrefix="shop").step() == sent
        assert Planner(broker, topic="t", startingOffsets="earliest", consumerGroup="shop").step() == sent
        assert groups == ["shop-7f3e", "shop"]

    def test_commits_are_for_brokers_only_and_trouble_with_one_is_reported(
        self, broker: Broker, loop: Loop, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker.topic("t")
        broker.send("t", 5)
        planner = Planner(broker, topic="t", startingOffsets="earliest", commitOffsets="true", consumerGroup="dashboard")
        assert planner.step() is not None

        async def committed(name: str) -> int | None:
            async with PullConsumer("dashboard", namesrv=broker.namesrv) as consumer:
                return await consumer.committed(MessageQueue("t", name, 0))

        assert loop.run(committed("broker-a")) is None
        end = json.loads(planner.log[-1])
        end["q"] |= {"t/broker-c/0": 17, "t/broker-d/0": 17}
        planner.reader.commit(end)
        assert [loop.run(committed(name)) for name in ("broker-a", "broker-b")] == [5, None]
        assert "group dashboard: not all offsets were committed, so dashboards may show old ones; first error: " in caplog.text
        assert "names a master of broker broker-" in caplog.text
        quiet = Planner(broker, topic="t")
        quiet.reader.commit(end)

    def test_slices_hold_ranges_and_nothing_else(self, broker: Broker) -> None:
        broker.topic("t", 2, broker="broker-a")
        broker.send("t", 10)
        given = {"accessKey": "k", "secretKey": "hush-hush"}
        planner = Planner(broker, topic="t", startingOffsets="earliest", minPartitions="4", **given)
        planner.plan()
        slices = planner.partitions()
        assert [[(each.start, each.end) for each in part] for part in ranges_of(slices)] == [
            [(0, 2)],
            [(2, 5)],
            [(5, 7)],
            [(7, 10)],
        ]
        assert "hush" not in repr(slices) + planner.log[-1]
