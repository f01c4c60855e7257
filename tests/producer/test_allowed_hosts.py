"""``allowed_broker_hosts`` wherever a broker's address is used: those of routes, and those that message ids carry."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_async import Admin, ConnectError, Message, Producer, PullConsumer, RocketMQError, SendError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.route import BrokerData, TopicRouteData

from ..support.fakes import Cluster


@pytest.mark.virtual_time
async def test_no_call_reaches_a_host_that_is_not_allowed_and_each_says_so() -> None:
    async with EmbeddedRocketMQ() as rocketmq:
        async with Admin(namesrv=rocketmq.namesrv) as admin, Producer("G", namesrv=rocketmq.namesrv) as producer:
            await admin.create_topic("T", queues=1)
            stored = await producer.send(Message("T", b"1"))
        options: dict[str, Any] = {"namesrv": rocketmq.namesrv, "allowed_broker_hosts": ["10.0.0.0/8"]}
        async with Producer("G", **options) as producer, Admin(**options) as admin, PullConsumer("C", **options) as consumer:
            for call in (
                producer.send(Message("T", b"2")),
                producer.send_batch([Message("T", b"2")]),
                producer.send_oneway(Message("T", b"2")),
                admin.view_message("T", stored.offset_msg_id),
                admin.view_message("T", stored.msg_id),
                admin.topic_stats("T"),
                admin.create_topic("Other"),
                consumer.pull(stored.queue, 0),
                consumer.max_offset(stored.queue),
            ):
                with pytest.raises(RocketMQError, match=r"allowed_broker_hosts does not allow 127\.0\.0\.1") as caught:
                    await call
                assert isinstance(caught.value, ConnectError) or isinstance(caught.value.__cause__, ConnectError)
        assert [message.body for message in rocketmq.messages("T")] == [b"1"]


async def test_sends_go_to_the_broker_that_is_allowed(pair: Cluster) -> None:
    route = pair.route()
    brokers = tuple(
        BrokerData(each.name, {0: f"localhost:{each.port}" if each is pair.b else each.address}, "c") for each in pair.brokers
    )
    pair.name_server.routes["T"] = TopicRouteData(route.queue_datas, brokers)
    async with Producer("G", namesrv=pair.namesrv, allowed_broker_hosts=["localhost"]) as producer:
        for _ in range(4):
            assert (await producer.send(Message("T", b"x"))).queue.broker_name == "b"
        with pytest.raises((ConnectError, SendError), match="allowed_broker_hosts"):
            await producer.send(Message("T", b"x"), queue=pair.queue(pair.a))
    assert not pair.a.open_links
    assert len(pair.b.sends) == 4


async def test_every_attempt_says_that_the_host_is_not_allowed(pair: Cluster) -> None:
    async with Producer("G", namesrv=pair.namesrv, allowed_broker_hosts=["10.0.0.0/8"], retries=1) as producer:
        for _ in range(3):
            with pytest.raises(SendError) as caught:
                await producer.send(Message("T", b"x"))
            assert all("allowed_broker_hosts does not allow" in str(attempt.error) for attempt in caught.value.attempts)
            assert len(caught.value.attempts) == 2
