"""Streaming reads of queues that come and go, as sequences of Spark's calls, on brokers in memory."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from rmq_async import Admin
from rmq_async.errors import OffsetRangeError, RocketMQError, TopicNotFoundError

from .conftest import Loop
from .scripted import Broker, Planner, everything, offsets, worker_of_its_own


class TestQueuesComeAndGo:
    def test_new_queues_and_brokers_are_read_from_their_beginning(self, broker: Broker) -> None:
        broker.topic("t", broker="broker-a")
        planner = Planner(broker, topic="t")
        broker.topic("t", 2, broker="broker-a")
        broker.topic("t", 1, broker="broker-b")
        sent = broker.send("t", 3, ("broker-a", 1)) + broker.send("t", 4, ("broker-b", 0))
        assert planner.step() == sent
        assert planner.read(restarted=True) == sent
        assert offsets(planner.log[-1]) == {"t/broker-a/0": 0, "t/broker-a/1": 3, "t/broker-b/0": 4}

    def test_a_new_queue_that_has_lost_its_beginning(self, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        broker.topic("t")
        broker.topic("u")
        broker.send("u", 5)
        broker.servers.clear()
        sent = broker.send("u", 2)
        planner = Planner(broker, subscribe="t", startingOffsets="earliest")
        assert planner.step() == []
        planner.begin(subscribe="t,u")
        with pytest.raises(
            OffsetRangeError, match="u/broker-a/0: the queue is new and its first messages were deleted already"
        ):
            planner.plan()
        planner.begin(subscribe="t,u", failOnDataLoss="false")
        assert planner.step() == sent
        assert "data is lost, the query continues: u/broker-a/0: the queue is new" in caplog.text
        planner.begin(subscribe="t,u")
        assert not planner.plan(), "it is reported once"

    def test_a_queue_that_was_made_anew(self, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        broker.topic("t")
        broker.send("t", 20)
        planner = Planner(broker, topic="t", startingOffsets="earliest")
        planner.step()
        broker.delete("t")
        broker.topic("t")
        sent = broker.send("t", 5)
        expected = (
            "t/broker-a/0: the queue was created again or has lost its end; offsets 20 to 20 were to be read, "
            "available are 0 to 5"
        )
        with pytest.raises(OffsetRangeError, match=expected):
            planner.plan()
        planner.begin(failOnDataLoss="false")
        assert planner.step() == sent
        assert expected in caplog.text
        assert planner.read() == sent
        more = broker.send("t", 30)
        planner.begin()
        assert planner.step() == more

    def test_one_that_is_in_no_route_keeps_its_place(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        now = 1000.0
        monkeypatch.setattr("rmq_async.spark.reading.monotonic", lambda: now)
        broker.topic("t")
        given = {"topic": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
        first = broker.send("t", 2) + broker.send("t", 2, ("broker-b", 0))
        planner = Planner(broker, **given)
        assert planner.step() == first
        broker.topic("t", broker="broker-b", perm=2)
        more = broker.send("t", 2)
        assert planner.step() == more
        now += 10**6
        assert not planner.plan()
        assert (
            caplog.text.count(
                "queue t/broker-b/0 is in no route now; its known messages have been read; its offset, 2, is kept"
            )
            == 1
        )
        broker.topic("t", broker="broker-b")
        late = broker.send("t", 9, ("broker-b", 0))
        assert planner.step() == late[:4]
        broker.topic("t", broker="broker-b", perm=2)
        assert not planner.plan(), "a restart takes a moment"
        assert "offsets 6 to 11 have not been read" in caplog.text
        now += 1
        with pytest.raises(
            OffsetRangeError, match="t/broker-b/0: the queue is gone; offsets 6 to 11 were to be read, nothing is"
        ):
            planner.plan()
        planner.begin()
        planner.reader.prepareForTriggerAvailableNow()
        assert not planner.plan(), "who does not know of unread messages says that it is absent"
        broker.topic("t", broker="broker-b")
        planner.begin()
        assert everything(planner) == late[4:]

    def test_a_broker_that_stays_away_does_not_stop_the_others(self, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        broker.topic("t")
        first = broker.send("t", 2) + broker.send("t", 2, ("broker-b", 0))
        planner = Planner(broker, topic="t", startingOffsets="earliest")
        assert planner.step() == first
        broker.lose("broker-b")
        more = broker.send("t", 2)
        assert planner.step() == more
        assert "queue t/broker-b/0 is in no route now; its known messages have been read" in caplog.text
        planner.begin()
        planner.reader.prepareForTriggerAvailableNow()
        assert not planner.plan()

    def test_a_driver_that_starts_while_the_only_broker_does(self, broker: Broker, loop: Loop) -> None:
        broker.topic("t", broker="broker-a")
        first = broker.send("t", 2)
        planner = Planner(broker, topic="t", startingOffsets="earliest", **{"fetchOffset.numRetries": "200"})
        assert planner.step() == first
        more = broker.send("t", 2)
        broker.lose("broker-a")

        async def come_back() -> None:
            await asyncio.sleep(0.3)
            await broker.regain("broker-a")

        with worker_of_its_own():
            planner.begin()
            timer = loop.start(come_back())
            assert planner.step() == more
            timer.result(60)
        broker.delete("t")
        with worker_of_its_own(), pytest.raises(TopicNotFoundError):
            planner.begin(**{"fetchOffset.numRetries": "2"})
            planner.plan()

    def test_a_planned_one_is_waited_for(self, broker: Broker, loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
        broker.topic("t")
        sent = broker.send("t", 2, ("broker-b", 0))
        given = {"topic": "t", "startingOffsets": "earliest", "fetchOffset.numRetries": "200"}
        planner = Planner(broker, **given)
        assert planner.plan()
        broker.topic("t", broker="broker-b", perm=2)

        async def come_back() -> None:
            await asyncio.sleep(0.4)
            async with Admin(namesrv=broker.namesrv) as admin:
                await admin.create_topic("t", queues=1, broker="broker-b")

        planner.begin()
        timer = loop.start(come_back())
        assert planner.read() == sent
        timer.result(60)
        broker.topic("t", broker="broker-b", perm=2)
        planner.options["fetchOffset.numRetries"] = "2"
        with pytest.raises(OffsetRangeError, match="t/broker-b/0: the queue is gone; offsets 0 to 2 were to be read, nothing"):
            planner.read(restarted=True)
        planner.options["failOnDataLoss"] = "false"
        assert planner.read(restarted=True) == []
        assert "data is lost, the query continues: t/broker-b/0: the queue is gone" in caplog.text

    @pytest.mark.parametrize("options", [{"subscribe": "t,u"}, {"subscribePattern": "[tu]"}], ids=["names", "pattern"])
    def test_a_planned_topic_that_is_gone(self, broker: Broker, loop: Loop, options: dict[str, str]) -> None:
        """The restarted driver names it after the tries of ``fetchOffset.numRetries``."""
        for topic in ("t", "u"):
            broker.topic(topic)
            broker.send(topic, 2)
        planner = Planner(broker, startingOffsets="earliest", **options)
        assert planner.plan()

        async def delete() -> None:
            async with Admin(namesrv=broker.namesrv) as admin:
                await admin.delete_topic("u")

        loop.run(delete())
        planner.begin()
        with (
            worker_of_its_own(),
            pytest.raises(
                RocketMQError, match=r"topic u was not found|u/broker-a/0: the queue is gone; offsets 0 to 2 were to be"
            ),
        ):
            planner.partitions()

    def test_messages_that_were_deleted_before_they_were_read(self, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        broker.topic("t")
        broker.send("t", 5)
        planner = Planner(broker, topic="t", startingOffsets="earliest")
        assert planner.plan()
        broker.servers.clear()
        broker.send("t", 2)
        expected = (
            "t/broker-a/0: messages were deleted before they were read; offsets 0 to 5 were to be read, available are 5 to 7"
        )
        with pytest.raises(OffsetRangeError, match=expected):
            planner.read(restarted=True)
        planner.options["failOnDataLoss"] = "false"
        assert planner.read(restarted=True) == []
        assert expected in caplog.text
