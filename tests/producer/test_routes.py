"""Where a producer sends to, by what the routes say: which queues, in which order, on which broker."""

from __future__ import annotations

import logging

import pytest

from rmq_async import Message, MessageQueue, errors
from rmq_protocol.constants import ResponseCode
from rmq_protocol.route import NO_BROKER, BrokerData, QueueData, TopicQueueMapping, TopicRouteData

from ..support.fakes import TOPIC, Cluster, each, refuse, stored
from ..support.instances import client_of
from .support import Send, every_way, message, outcomes, producer, until

pytestmark = pytest.mark.virtual_time

STATIC = "__syslo__global__"


def static_route(cluster: Cluster, *held: dict[int, int], epoch: int = 1, total: int = 4) -> TopicRouteData:
    """``held``: for each broker, which of the topic's queues are on it: global id -> its own id."""
    mappings = {
        broker.name: TopicQueueMapping(TOPIC, total_queues=total, bname=broker.name, epoch=epoch, curr_id_map=queues)
        for broker, queues in zip(cluster.brokers, held, strict=True)
    }
    return TopicRouteData(
        tuple(QueueData(broker.name, 2, 2, 6) for broker in cluster.brokers),
        tuple(BrokerData(broker.name, {0: broker.address}, "c") for broker in cluster.brokers),
        topic_queue_mapping_by_broker=mappings,
    )


@every_way(2)
async def test_a_queue_of_a_static_topic_is_sent_to_on_the_broker_that_holds_it(cluster: Cluster, send: Send) -> None:
    cluster.name_server.routes[TOPIC] = static_route(cluster, {0: 5, 2: 6}, {1: 5, 3: 6})
    async with producer(cluster) as sender:
        queues = await sender.fetch_publish_queues(TOPIC)
        assert queues == tuple(MessageQueue(TOPIC, STATIC, queue_id) for queue_id in range(4))
        results = [await send(sender) for _ in range(4)] + [await send(sender, queue=queues[3])]
        await sender.send_oneway(message(), queue=queues[2])
        await sender.flush()
    assert sorted(result.queue for result in results) == sorted([*queues, queues[3]])
    assert sorted(sent.queue.queue_id for sent in cluster.a.sends) == [0, 2, 2]  # the broker knows which of its own that is
    assert sorted(sent.queue.queue_id for sent in cluster.b.sends) == [1, 3, 3]
    assert {sent.queue.broker_name for sent in cluster.a.sends} == {"a"}
    assert {sent.queue.broker_name for sent in cluster.b.sends} == {"b"}


async def test_a_retry_of_a_static_topic_goes_to_another_broker(pair: Cluster) -> None:
    pair.name_server.routes[TOPIC] = static_route(pair, {0: 0, 1: 1, 2: 2}, {3: 0})
    pair.a.answer = refuse(14)
    async with producer(pair) as sender:
        results = [await sender.send(message()) for _ in range(4)]
    assert {result.queue.queue_id for result in results} == {3}
    assert 2 in {result.attempts for result in results} <= {1, 2}


async def test_a_static_queue_that_no_broker_holds_is_for_keys_only(pair: Cluster) -> None:
    pair.name_server.routes[TOPIC] = static_route(pair, {0: 0}, {2: 0})
    async with producer(pair) as sender:
        assert [queue.queue_id for queue in await sender.fetch_publish_queues(TOPIC)] == [0, 1, 2, 3]
        assert {(await sender.send(message())).queue.queue_id for _ in range(4)} == {0, 2}
        with pytest.raises(errors.BrokerNotFoundError, match=STATIC):
            await sender.send(message(), queue=MessageQueue(TOPIC, STATIC, 1))
        instance = await client_of(sender)
        assert instance.routes.broker_of(MessageQueue(TOPIC, STATIC, 1)) == NO_BROKER
        assert instance.routes.broker_of(MessageQueue(TOPIC, STATIC, 2)) == "b"
        assert instance.routes.broker_of(MessageQueue("other", "x", 2)) == "x"


async def test_a_static_queue_that_moved_is_found_after_the_old_holder_refused(pair: Cluster) -> None:
    pair.name_server.routes[TOPIC] = static_route(pair, {0: 0}, {}, total=1)
    pair.a.answer = each(stored, refuse(ResponseCode.NOT_LEADER_FOR_QUEUE))
    async with producer(pair) as sender:
        await sender.send(message())
        pair.name_server.routes[TOPIC] = static_route(pair, {}, {0: 0}, epoch=2, total=1)
        with pytest.raises(errors.NotLeaderForQueueError):
            await sender.send(message())
        instance = await client_of(sender)
        await until(lambda: instance.routes.broker_of(MessageQueue(TOPIC, STATIC, 0)) == "b")
        assert (await sender.send(message())).attempts == 1
    assert len(pair.b.sends) == 1


async def test_queues_stand_in_the_order_of_brokers_and_ids_for_any_route(trio: Cluster) -> None:
    a, b, c = trio.brokers
    trio.name_server.routes[TOPIC] = trio.route(c, a, b)
    async with producer(trio) as sender:
        queues = await sender.fetch_publish_queues(TOPIC)
        assert queues == tuple(MessageQueue(TOPIC, broker.name, queue_id) for broker in (a, b, c) for queue_id in (0, 1))
        used = [(await sender.send(message())).queue for _ in range(6)]
    first = queues.index(used[0])
    assert used == [*queues[first:], *queues[:first]]


async def test_an_order_conf_decides_about_the_queues(pair: Cluster) -> None:
    route = pair.route()
    pair.name_server.routes[TOPIC] = TopicRouteData(route.queue_datas, route.broker_datas, "b:3;a:1;gone:7")
    async with producer(pair) as sender:
        queues = await sender.fetch_publish_queues(TOPIC)
        there = (*[MessageQueue(TOPIC, "b", queue_id) for queue_id in range(3)], MessageQueue(TOPIC, "a", 0))
        assert queues == (*there, *[MessageQueue(TOPIC, "gone", queue_id) for queue_id in range(7)])
        assert {(await sender.send(message())).queue for _ in range(4)} == {*there}


async def test_a_topic_that_may_not_be_written_to_says_so(pair: Cluster) -> None:
    pair.name_server.routes[TOPIC] = pair.route(perm=4)
    async with producer(pair) as sender:
        with pytest.raises(errors.BrokerNotFoundError, match=r"no writable queue .*; no write permission on a, b"):
            await sender.send(message())
    assert pair.sends == []


@every_way(2)
async def test_a_queue_on_a_broker_without_an_address_makes_the_route_be_asked_for_once(cluster: Cluster, send: Send) -> None:
    cluster.name_server.routes[TOPIC] = cluster.route(cluster.a)
    async with producer(cluster) as sender:
        await send(sender)
        cluster.name_server.routes[TOPIC] = cluster.route()
        assert (await send(sender, queue=cluster.queue(cluster.b))).queue == cluster.queue(cluster.b)
        assert cluster.name_server.asked.count(TOPIC) == 2
        with pytest.raises(errors.BrokerNotFoundError, match="another broker: a, b"):
            await send(sender, queue=MessageQueue(TOPIC, "c", 0))
        assert cluster.name_server.asked.count(TOPIC) == 3
    assert [sent.broker.name for sent in cluster.sends] == ["a", "b"]


@every_way(1)
async def test_a_route_without_a_master_is_asked_for_again_by_the_next_send(cluster: Cluster, send: Send) -> None:
    whole = cluster.route()
    slave = BrokerData("a", {1: cluster.a.address}, "c")
    cluster.name_server.routes[TOPIC] = TopicRouteData(whole.queue_datas, (slave,))
    async with producer(cluster) as sender:
        for count in (1, 2):
            with pytest.raises(errors.BrokerNotFoundError, match="no writable queue on a broker with a master"):
                await send(sender)
            assert cluster.name_server.asked.count(TOPIC) == count
        cluster.name_server.routes[TOPIC] = whole
        assert (await send(sender)).attempts == 1


@every_way(1)
async def test_no_topic_no_name_server_and_no_right_are_three_errors(cluster: Cluster, send: Send) -> None:
    async with producer(cluster, timeout=0.5) as sender:
        (unknown,) = await outcomes(send(sender, topic="unknown"))
        assert type(unknown) is errors.TopicNotFoundError
        assert (unknown.code, unknown.address) == (10005, cluster.namesrv)
        cluster.a.answer = refuse(16, "User:bob has no permission to access Topic:T from 127.0.0.1, no matched policies.")
        (denied,) = await outcomes(send(sender))
        assert type(denied) is errors.PermissionDeniedError
        assert (denied.code, denied.broker, len(cluster.sends)) == (16, "a", 1)
        cluster.a.answer = stored
        await cluster.name_server.stop()
        (unreachable,) = await outcomes(send(sender, topic="another"))
        assert type(unreachable) is errors.NameServerError
        assert unreachable.code == 10004
        assert cluster.namesrv in str(unreachable)
        await send(sender)
        assert not any(error.maybe_stored for error in (unknown, denied, unreachable))


async def test_a_topic_made_by_sending_is_warned_of_in_one_line(pair: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    pair.name_server.routes["TBW102"] = pair.route()
    async with producer(pair) as sender:
        for _ in range(10):
            await sender.send(Message("new", b"x"))
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("topic new does not exist: the first message creates it on a, b")
    assert "only some of these brokers; do not rely on this in production" in line


async def test_queue_id_that_is_a_bool_is_the_number(cluster: Cluster) -> None:
    """A bool equals a number and hashes as it does, but its text is another one: brokers read the queue id from the text."""
    odd = MessageQueue(TOPIC, "a", True)
    async with producer(cluster) as sender:
        assert (await sender.send(message(), queue=odd)).queue == cluster.queue(queue_id=1)
        assert (await sender.send(message(), selector=lambda *_: odd)).queue == cluster.queue(queue_id=1)
        for _ in range(4):
            await sender.send(message())
    assert {sent.fields["e"] for sent in cluster.sends} == {"0", "1"}
