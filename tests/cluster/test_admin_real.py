"""Every call of the admin on real brokers of both versions, and what it says when something is not there."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from time import monotonic, time

import pytest

from rmq_async import (
    Admin,
    BrokerNotFoundError,
    ClientConfig,
    ConfigError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    SendResult,
    TopicNotFoundError,
)
from rmq_async.errors import BrokerError, ClientStateError, GroupNotOnlineError, QueryNotFoundError, RequestTimeoutError
from rmq_async.testing.cluster import RealCluster

from ..support.instances import client_of
from .accounting import stored_count

NOWHERE = "F" * 24 + "0000"


def new(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def admin_of(cluster: RealCluster, **options: object) -> AsyncIterator[Admin]:
    async with Admin(client=ClientConfig(namesrv=cluster.namesrv, **({"request_timeout": 10.0} | options))) as admin:  # type: ignore[arg-type]
        yield admin


async def sent(cluster: RealCluster, topic: str, messages: Iterable[Message]) -> list[SendResult]:
    async with Producer(new("PG"), namesrv=cluster.namesrv) as producer:
        results = [await producer.send(message) for message in messages]
    await stored_count(cluster.namesrv, topic, len(results))
    return results


async def test_topics_and_queues(each_cluster: RealCluster) -> None:
    cluster = each_cluster
    async with admin_of(cluster) as admin:
        topic = new("Admin")
        await admin.create_topic(topic, queues=2, read_queues=3, perm=6)
        assert topic in await admin.topics()
        (data,) = (await admin.topic_route(topic)).queue_datas
        assert (data.write_queue_nums, data.read_queue_nums, data.perm) == (2, 3, 6)
        info = await admin.cluster_info()
        assert {data.broker_addrs[0] for data in info.broker_addr_table.values()} == {b.address for b in cluster.brokers}

        results = await sent(cluster, topic, [Message(topic, b"%d" % number) for number in range(5)])
        queue = results[0].queue
        async with PullConsumer(new("CG"), client=admin.config) as consumer:
            assert len([message async for message in consumer.read(topic)]) == 5
        stats = await admin.topic_stats(topic)
        assert list(stats.queues) == [MessageQueue(topic, queue.broker_name, number) for number in range(3)]
        assert sum(each.max_offset - each.min_offset for each in stats.queues.values()) == 5
        assert abs(stats.queues[queue].last_store_time_ms / 1000 - time()) < 60
        empty = MessageQueue(topic, queue.broker_name, 2)
        assert (stats.queues[empty].max_offset, stats.queues[empty].last_store_time_ms) == (0, 0)
        await admin.create_topic(topic, queues=1, read_queues=2)  # what is in the other queue is still there
        assert (await admin.topic_stats(topic)).queues == {key: stats.queues[key] for key in stats.queues if key != empty}
        assert (await admin.min_offset(queue), await admin.max_offset(queue)) == (0, stats.queues[queue].max_offset)
        first = await admin.earliest_store_time_ms(queue)
        assert first <= stats.queues[queue].last_store_time_ms
        assert await admin.search_offset(queue, first / 1000) == 0

        await admin.delete_topic(topic)
        assert topic not in await admin.topics()
        for call in (admin.delete_topic, admin.topic_route, admin.topic_stats):
            with pytest.raises(TopicNotFoundError):
                await call(topic)


async def test_offsets_by_time_are_exact(each_cluster: RealCluster) -> None:
    """Against the store times of all messages, some of which share a millisecond; old brokers only give hints."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    async with admin_of(each_cluster) as admin:
        topic = new("Time")
        await admin.create_topic(topic, queues=2)
        queue, empty = [MessageQueue(topic, (await admin.topic_route(topic)).queue_datas[0].broker_name, n) for n in (0, 1)]
        async with (
            Producer(new("PG"), client=admin.config) as producer,
            PullConsumer(new("CG"), client=admin.config) as consumer,
        ):
            for _ in range(12):
                await asyncio.gather(*[producer.send(Message(topic, b"x"), queue=queue) for _ in range(chance.randrange(1, 6))])
                await asyncio.sleep(chance.choice((0, 0.001, 0.01, 0.03)))
            times = [message.store_time_ms async for message in consumer.read(topic)]
            await _hold_against(admin, consumer, queue, times)
            assert await admin.search_offset(empty, time()) == 0
            assert await admin.search_offset(empty, 0, upper=True) == 0

            middle = datetime.fromtimestamp(times[len(times) // 2] / 1000, UTC)
            later = [m.queue_offset async for m in consumer.read(topic, start=middle)]
            earlier = [m.queue_offset async for m in consumer.read(topic, end=middle)]
            assert later == [offset for offset, when in enumerate(times) if when >= times[len(times) // 2]]
            assert earlier + later == list(range(len(times)))
            future = datetime.fromtimestamp(time() + 3600, UTC)
            assert len([m async for m in consumer.read(topic, end=future)]) == len(times)
            assert [m async for m in consumer.read(topic, start=future)] == []


async def _hold_against(admin: Admin, consumer: PullConsumer, queue: MessageQueue, times: list[int]) -> None:
    assert times == sorted(times)
    asked = sorted({time_ms + step for time_ms in times for step in (-1, 0, 1)} | {1, times[-1] + 100_000})
    for time_ms in asked:
        lower = next((offset for offset, when in enumerate(times) if when >= time_ms), len(times))
        upper = max([offset for offset, when in enumerate(times) if when <= time_ms], default=0)
        assert await consumer.search_offset(queue, time_ms / 1000) == lower, (time_ms, times)
        assert await admin.search_offset(queue, time_ms / 1000, upper=True) == upper, (time_ms, times)


async def test_messages_by_id_and_by_key(each_cluster: RealCluster) -> None:
    cluster = each_cluster
    async with admin_of(cluster) as admin:
        topic = new("View")
        await admin.create_topic(topic, queues=3)
        other = new("Other")
        await admin.create_topic(other, queues=1)
        async with Producer(new("PG"), client=admin.config, compress_over=1000) as producer:
            for number in range(5):
                message = Message(topic, b"%d" % number * 2000, keys=("all", f"key-{number}"), tags="t", properties={"a": "b"})
                result = await producer.send(message)
                by_unique = await admin.view_message(topic, result.msg_id)  # at once: it may not be indexed yet
                by_offset = await admin.view_message(topic, result.offset_msg_id)
                assert by_unique == by_offset
                assert (by_offset.body, by_offset.keys, by_offset.tags) == (message.body, message.keys, "t")
                assert (by_offset.queue, by_offset.queue_offset) == (result.queue, result.queue_offset)
                found = await admin.query_message(topic, f"key-{number}")
                assert [each.msg_id for each in found] == [result.msg_id]
            named = await producer.send(Message(topic, b"x", unique_id="an id of mine"))
        assert (await admin.view_message(topic, "an id of mine")).offset_msg_id == named.offset_msg_id

        every = await admin.query_message(topic, "all")
        assert [each.keys[1] for each in every] == [f"key-{number}" for number in range(5)]
        assert await admin.query_message(topic, "all", max_num=2) == every[-2:]
        second, fourth = every[1].store_time_ms / 1000, every[3].store_time_ms / 1000
        within = await admin.query_message(topic, "all", begin=second, end=fourth)
        assert within == tuple(each for each in every if second <= each.store_time_ms / 1000 <= fourth)
        assert await admin.query_message(topic, "all", begin=time() + 60) == ()
        assert await admin.query_message(topic, "missing") == ()
        assert await admin.query_message(other, "all") == ()

        with pytest.raises(TopicNotFoundError):
            await admin.query_message(new("Missing"), "all")
        with pytest.raises(TopicNotFoundError):
            await admin.view_message(new("Missing"), result.msg_id)
        host, offset = result.offset_msg_id[:16], int(result.offset_msg_id[16:], 16)
        for wrong in (
            "no such id",
            result.msg_id[:-4] + "FFFF",
            NOWHERE,
            f"{host}{offset + 7:016X}",  # in the middle of a record
            f"{host}{offset + 4:016X}",
            f"{host}{1 << 40:016X}",
            f"7F0000010000000{7}{offset:016X}",  # no broker there
        ):
            with pytest.raises(QueryNotFoundError) as caught:
                await admin.view_message(topic, wrong)
            assert "\n" not in str(caught.value)
        for right in (result.msg_id, result.offset_msg_id):
            with pytest.raises(QueryNotFoundError):
                await admin.view_message(other, right)


async def test_clients_of_groups(each_cluster: RealCluster) -> None:
    cluster = each_cluster
    async with admin_of(cluster) as admin:
        topic, producers, consumers = new("Clients"), new("PG"), new("CG")
        await admin.create_topic(topic, queues=1)
        for call in (admin.producer_connections, admin.consumer_connections):
            with pytest.raises(GroupNotOnlineError) as caught:
                await call(new("Missing"))
            assert caught.value.code == 206
        config = ClientConfig(namesrv=cluster.namesrv, instance_name=new("instance"))
        async with Producer(producers, client=config) as producer, PullConsumer(consumers, client=config) as consumer:
            await producer.send(Message(topic, b"x"))
            await consumer.queues(topic)
            (one,) = await _once_online(admin.producer_connections, producers)
            assert (one.language, one.version, one.broker) == ("PYTHON", 513, producer_queue(cluster))
            assert one.client_id.endswith(config.instance_name)
            assert one.address.startswith("127.0.0.1:")
            found = await _once_online(admin.consumer_connections, consumers)
            assert [each.client_id for each in found.connections] == [one.client_id]
            assert (found.consume_type, found.message_model) == ("CONSUME_ACTIVELY", "CLUSTERING")


def producer_queue(cluster: RealCluster) -> str:
    return cluster.brokers[0].name


async def _once_online(call: object, group: str) -> object:
    deadline = monotonic() + 10
    while True:
        try:
            return await call(group)  # type: ignore[operator]
        except GroupNotOnlineError:
            assert monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_reading_a_topic_without_read_permission(each_cluster: RealCluster) -> None:
    """An iteration that ended at once would say that nothing is there."""
    async with admin_of(each_cluster) as admin, PullConsumer(new("CG"), client=admin.config) as consumer:
        topic = new("Closed")
        await admin.create_topic(topic, queues=2)
        async with Producer("PG", client=admin.config) as producer:
            await producer.send(Message(topic, b"x"))
        await admin.create_topic(topic, queues=2, perm=2)
        assert await consumer.queues(topic) == ()
        with pytest.raises(BrokerNotFoundError, match=f"topic {topic} has no readable queue"):
            await anext(aiter(consumer.read(topic)))
        empty = MessageQueue(topic, each_cluster.brokers[0].name, 1)
        with pytest.raises(BrokerNotFoundError, match=f"queue 1 of topic {topic} on .* the topic has the permission 2 there"):
            await anext(aiter(consumer.read(topic, queues=[empty])))
        await admin.create_topic(topic, queues=2, perm=6)
        assert [message.body async for message in consumer.read(topic)] == [b"x"]


async def test_what_does_not_exist_is_one_clear_error(each_cluster: RealCluster) -> None:
    async with admin_of(each_cluster) as admin, PullConsumer(new("CG"), client=admin.config) as consumer:
        topic = new("Wrong")
        await admin.create_topic(topic, queues=2)
        broker = each_cluster.brokers[0].name
        for user in (admin, consumer):
            for ask in (user.min_offset, user.max_offset, lambda queue, user=user: user.search_offset(queue, 0)):
                with pytest.raises(TopicNotFoundError, match="Missing"):
                    await ask(MessageQueue("Missing", broker, 0))
                with pytest.raises(BrokerNotFoundError, match=f"not on broker-x, but on {broker}|not on broker broker-x"):
                    await ask(MessageQueue(topic, "broker-x", 0))
                with pytest.raises(ConfigError, match="has no queue 2 on"):
                    await ask(MessageQueue(topic, broker, 2))
        wrong = MessageQueue(topic, broker, 7)
        for call in (
            consumer.committed(wrong),
            consumer.commit(wrong, 1),
            admin.earliest_store_time_ms(wrong),
            anext(aiter(consumer.read(topic, queues=[wrong]))),
        ):
            with pytest.raises(ConfigError, match="has no queue 7"):
                await call
        with pytest.raises(BrokerNotFoundError, match="broker-x"):
            await admin.create_topic(new("T"), broker="broker-x")
        with pytest.raises(BrokerNotFoundError, match="nowhere"):
            await admin.delete_topic(topic, cluster="nowhere")
        with pytest.raises(BrokerNotFoundError, match="broker-x"):
            await admin.sync_topics(broker, "broker-x")
        with pytest.raises(ConfigError, match="itself"):
            await admin.sync_topics(broker, broker)


async def test_an_ordered_topic_is_written_down_on_the_name_servers(each_cluster: RealCluster) -> None:
    async with admin_of(each_cluster) as admin:
        topic = new("Order")
        await admin.create_topic(topic, queues=3, order=True)
        assert await _order_of(admin, topic) == f"{each_cluster.brokers[0].name}:3"
        await admin.delete_topic(topic)
        assert await _order_of(admin, topic) is None


async def _order_of(admin: Admin, topic: str) -> str | None:
    from rmq_protocol.command import RemotingCommand

    fields: dict[str, str | None] = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
    answer, _ = await (await client_of(admin)).name_servers.request(RemotingCommand(code=101, ext_fields=fields), 5.0)
    return (answer.ext_fields or {}).get("value")


async def test_attributes_are_checked_by_the_broker(cluster: RealCluster) -> None:
    async with admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match="nonsense"):
            await admin.create_topic(new("T"), queues=1, attributes={"nonsense": "x"})


async def test_topic_made_beside_a_silent_broker_is_an_error_that_names_both(two_brokers: RealCluster) -> None:
    silent, other = two_brokers.brokers
    async with admin_of(two_brokers, request_timeout=5.0) as admin:
        silent.pause()
        try:
            with pytest.raises(RequestTimeoutError) as caught:
                await admin.create_topic(topic := new("Half"), queues=1)
        finally:
            silent.resume()
        assert f"from {silent.name}: whether topic {topic} was created or changed there is not known" in str(caught.value)
        assert f"it was created or changed on {other.name}; repeat the call" in str(caught.value)
        assert caught.value.broker == silent.name


async def test_stopping_ends_calls_at_once(two_brokers: RealCluster) -> None:
    cluster = two_brokers
    async with admin_of(cluster, request_timeout=20.0) as admin:
        topic = new("Stop")
        await admin.create_topic(topic, queues=1)
        cluster.brokers[0].pause()
        try:
            calls = [
                asyncio.ensure_future(call)
                for call in (
                    admin.topic_stats(topic),
                    admin.create_topic(new("T")),
                    admin.max_offset(MessageQueue(topic, cluster.brokers[0].name, 0)),
                    admin.query_message(topic, "k"),
                    admin.view_message(topic, "id"),
                    admin.consumer_connections("G"),
                )
            ]
            await asyncio.sleep(0.3)
            assert not any(call.done() for call in calls)
            start = monotonic()
            await admin.stop()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert monotonic() - start < 1.0
            assert [type(outcome) for outcome in outcomes] == [ClientStateError] * len(calls)
        finally:
            cluster.brokers[0].resume()


async def test_a_running_producer_spreads_to_a_broker_that_was_added(two_brokers: RealCluster) -> None:
    """The topics of one broker are given to the other; what was not asked for stays where it is."""
    old, added = (broker.name for broker in two_brokers.brokers)
    async with admin_of(two_brokers) as admin:
        prefix = new("Sync")
        plain, fifo, order, apart = f"{prefix}_plain", f"{prefix}_fifo", f"{prefix}_order", new("Apart")
        await admin.create_topic(plain, queues=2, read_queues=4, broker=old)
        await admin.create_topic(fifo, queues=3, broker=old, attributes={"message.type": "FIFO"})
        await admin.create_topic(order, queues=1, broker=old, order=True)
        await admin.create_topic(apart, queues=1, broker=old)

        would = await admin.sync_topics(old, added, topics=f"{prefix}_*", dry_run=True)
        assert [(each.topic, each.action) for each in would] == [(fifo, "create"), (order, "create"), (plain, "create")]
        assert len((await admin.topic_route(plain)).queue_datas) == 1
        with pytest.raises(TopicNotFoundError, match="missing"):
            await admin.sync_topics(old, added, topics="missing*")

        async with Producer(new("PG"), namesrv=two_brokers.namesrv, route_poll_interval=0.5) as producer:
            assert {(await producer.send(Message(plain, b"x"))).queue.broker_name for _ in range(8)} == {old}
            assert await admin.sync_topics(old, added, topics=[f"{prefix}_*"]) == would
            start = monotonic()
            while (await producer.send(Message(plain, b"x"))).queue.broker_name != added:
                assert monotonic() - start < 35
                await asyncio.sleep(0.01)
        assert {
            d.broker_name: (d.write_queue_nums, d.read_queue_nums) for d in (await admin.topic_route(plain)).queue_datas
        } == {
            old: (2, 4),
            added: (2, 4),
        }
        assert await _order_of(admin, order) == f"{old}:1;{added}:1"
        assert [d.broker_name for d in (await admin.topic_route(apart)).queue_datas] == [old]

        assert {each.action for each in await admin.sync_topics(old, added, topics=f"{prefix}_*")} == {"same"}
        await admin.create_topic(fifo, queues=5, broker=added, attributes={"message.type": "NORMAL"})
        back = await admin.sync_topics(old, added, topics=fifo)
        assert [(each.action, each.config.write_queue_nums, each.config.attributes) for each in back] == [
            ("update", 3, {"message.type": "FIFO"})
        ]
        assert [each.action for each in await admin.sync_topics(old, added, topics=fifo)] == ["same"]
        everything = await admin.sync_topics(old, added, dry_run=True)
        assert {plain, fifo, order, apart} <= {each.topic for each in everything}
        print("would copy", [each.topic for each in everything])
