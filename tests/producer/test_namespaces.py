"""Namespaces: those of the first kind are a prefix on the wire that users need not know of; those of the second, two fields."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq_async import (
    Admin,
    BrokerNotFoundError,
    ConfigError,
    InvalidMessageError,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    SelectorError,
    TopicNotFoundError,
    TransactionProducer,
    TransactionStatus,
)
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_async.errors import GroupNotOnlineError, OffsetRangeError, QueryNotFoundError
from rmq_protocol.constants import RequestCode

from ..support.fakes import TOPIC, Cluster
from ..support.instances import client_of
from .support import messages, producer, until

pytestmark = pytest.mark.virtual_time

NS = "MQ_INST_1"
WIRE = f"{NS}%{TOPIC}"


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(auto_create_topics=False) as running:
        async with Admin(namesrv=running.namesrv) as admin:
            await admin.create_topic(WIRE, queues=2)
        yield running


@pytest.mark.parametrize("topic", [TOPIC, WIRE])
async def test_every_way_of_sending(server: EmbeddedRocketMQ, topic: str) -> None:
    seen: list[MessageQueue] = []

    def first(queues: Any, message: Message, key: object) -> MessageQueue:
        seen.extend(queues)
        return queues[0]  # type: ignore[no-any-return]

    item = Message(topic, b"x", tags="t", properties={"p": "v"})
    async with Producer("group", namesrv=server.namesrv, namespace=NS) as sender:
        queues = await sender.fetch_publish_queues(topic)
        assert queues == (MessageQueue(TOPIC, "broker-a", 0), MessageQueue(TOPIC, "broker-a", 1))
        results = [
            await sender.send(item),
            await (await sender.send_async(item)),
            *(await sender.send_batch([item, item])).results,
            *(await (await sender.send_batch_async([item]))).results,
            await sender.send(item, selector=first),
            await sender.send(item, key=7),
            await sender.send(item, queue=queues[1]),
            await sender.send(item, queue=MessageQueue(WIRE, "broker-a", 1)),
            await (await sender.send_async(item, queue=queues[1])),
            *(await sender.send_batch([item], queue=queues[0])).results,
        ]
        await sender.send_oneway(item)
        await sender.send_oneway(item, queue=queues[0])
        await sender.flush()
        await until(lambda: len(server.messages(WIRE)) == len(results) + 2)
    assert {result.queue for result in results} == set(queues)
    assert set(seen) == set(queues)
    assert item.topic == topic
    found = server.messages(WIRE)
    assert {(each.topic, each.tags, each.properties["p"]) for each in found} == {(WIRE, "t", "v")}
    single = [each for each in found if "INSTANCE_ID" in each.properties]
    assert {each.properties["INSTANCE_ID"] for each in single} == {NS}
    assert len(single) == len(found) - 4  # the messages of batches have the properties of their own only


async def test_consumers_see_no_namespace(server: EmbeddedRocketMQ) -> None:
    options: dict[str, Any] = {"namesrv": server.namesrv, "namespace": NS, "request_timeout": 1.0}
    async with Producer("group", **options) as sender, PullConsumer("readers", **options) as consumer:
        for each in messages(6):
            await sender.send(each)
        for topic in (TOPIC, WIRE):
            queues = await consumer.queues(topic)
            assert {queue.topic for queue in queues} == {TOPIC}
            found = [message async for message in consumer.read(topic)]
            assert len(found) == 6
            assert {(message.topic, message.queue.topic) for message in found} == {(TOPIC, TOPIC)}
        wired = [queue._replace(topic=WIRE) for queue in queues]
        for given in (queues, wired):
            assert len([message async for message in consumer.read(TOPIC, queues=given)]) == 6
            start = dict.fromkeys(given, 1)
            assert len([message async for message in consumer.read(TOPIC, start=start, end="latest")]) == 4
            result = await consumer.pull(given[0], 0)
            assert {(message.topic, message.queue) for message in result.messages} == {(TOPIC, queues[0])}
            await consumer.commit(given[0], 2)
            assert await consumer.committed(given[1]) is None
            assert await consumer.committed(queues[0]) == 2
            assert (await consumer.min_offset(given[0]), await consumer.max_offset(given[0])) == (0, 3)
            assert await consumer.search_offset(given[0], 0.0) == 0
        with pytest.raises(OffsetRangeError) as range_error:
            async for _ in consumer.read(TOPIC, start={queues[0]: 99}, end={queues[0]: 100}):
                pass
        assert NS not in str(range_error.value)
        with pytest.raises(ConfigError, match=r"is not a queue of topic other \(of namespace MQ_INST_1\)") as config_error:
            consumer.read("other", queues=queues)
        assert WIRE not in str(config_error.value)
        with pytest.raises(ConfigError, match=r"topic T \(of namespace MQ_INST_1\) has no queue 7 on broker"):
            await consumer.max_offset(queues[0]._replace(queue_id=7))
        with pytest.raises(BrokerNotFoundError, match=r"topic T \(of namespace MQ_INST_1\) is not on broker nowhere"):
            await consumer.max_offset(queues[0]._replace(broker_name="nowhere"))
        with pytest.raises(ConfigError, match=r"consumer group readers \(of namespace MQ_INST_1\) is already in use"):
            await PullConsumer("readers", client=consumer.config).start()
    async with PullConsumer(f"{NS}%readers", namesrv=server.namesrv) as outside:
        assert await outside.committed(MessageQueue(WIRE, "broker-a", 0)) == 2


async def test_following_sees_new_messages_and_new_queues(server: EmbeddedRocketMQ) -> None:
    options: dict[str, Any] = {"namesrv": server.namesrv, "namespace": NS, "route_poll_interval": 0.1}
    async with Admin(**options) as admin, Producer("p", **options) as sender, PullConsumer("c", **options) as consumer:
        stream = consumer.read(TOPIC, start="latest", end=None)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        await sender.send(Message(TOPIC, b"1"))
        assert (await first).body == b"1"
        await admin.create_topic(TOPIC, queues=3)
        await sender.send(Message(TOPIC, b"2"), queue=MessageQueue(TOPIC, "broker-a", 2))
        assert (await anext(stream)).queue == MessageQueue(TOPIC, "broker-a", 2)
        await stream.aclose()


async def test_admins_see_their_namespace_only(server: EmbeddedRocketMQ) -> None:
    options: dict[str, Any] = {"namesrv": server.namesrv, "namespace": NS, "request_timeout": 1.0}
    async with Admin(namesrv=server.namesrv) as outside:
        await outside.create_topic("elsewhere")
        await outside.create_topic("other%mine")
        async with (
            Admin(**options) as admin,
            Producer("pg", topics=[TOPIC], **options) as sender,
            PullConsumer("cg", **options),
        ):
            await admin.create_topic("mine", queues=1)
            assert f"{NS}%mine" in await outside.topics()
            names = await admin.topics()
            assert {TOPIC, "mine"} <= set(names)
            assert not {"elsewhere", "other%mine", "other", f"{NS}%mine"} & set(names)
            assert (await admin.topic_route("mine")).queue_datas[0].write_queue_nums == 1
            result = await sender.send(Message("mine", b"x", keys="k"))
            assert set((await admin.topic_stats("mine")).queues) == {MessageQueue("mine", "broker-a", 0)}
            assert await admin.max_offset(result.queue) == 1
            for msg_id in (result.msg_id, result.offset_msg_id):
                found = await admin.view_message("mine", msg_id)
                assert (found.topic, found.queue, found.body) == ("mine", result.queue, b"x")
            [by_key] = await admin.query_message("mine", "k")
            assert (by_key.topic, by_key.queue) == ("mine", result.queue)
            with pytest.raises(QueryNotFoundError, match=r"belongs to topic mine, not to T \(of namespace"):
                await admin.view_message(TOPIC, result.offset_msg_id)
            assert len(await admin.producer_connections("pg")) == 1
            assert await outside.producer_connections(f"{NS}%pg") == await admin.producer_connections("pg")
            assert len((await admin.consumer_connections("cg")).connections) == 1
            with pytest.raises(GroupNotOnlineError, match=r"group missing \(of namespace MQ_INST_1\)"):
                await admin.producer_connections("missing")
            await admin.delete_topic("mine")
            assert f"{NS}%mine" not in await outside.topics()
            with pytest.raises(TopicNotFoundError, match=r"^topic mine \(of namespace MQ_INST_1\) was not found"):
                await admin.topic_route("mine")
        with pytest.raises(GroupNotOnlineError):
            await outside.producer_connections(f"{NS}%pg")


async def test_topics_of_a_namespace_are_copied_under_their_own_names() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server, Admin(namesrv=server.namesrv) as outside:
        for topic in (f"{NS}%orders", "orders", "x%orders"):
            await outside.create_topic(topic, broker="broker-a")
        async with Admin(namesrv=server.namesrv, namespace=NS) as admin:
            [done] = await admin.sync_topics("broker-a", "broker-b", topics="orders*")
        assert (done.topic, done.action, done.config.topic_name) == ("orders", "create", "orders")
        assert {data.broker_name for data in (await outside.topic_route(f"{NS}%orders")).queue_datas} == {
            "broker-a",
            "broker-b",
        }
        assert {data.broker_name for data in (await outside.topic_route("orders")).queue_datas} == {"broker-a"}


async def test_names_of_errors(cluster: Cluster) -> None:
    async with producer(cluster, namespace=NS, create_topic_key="none", client_ip="10.0.0.1") as sender:
        with pytest.raises(TopicNotFoundError, match=r"^topic U \(of namespace MQ_INST_1\) was not found"):
            await sender.send(Message("U", b"x"))
        with pytest.raises(InvalidMessageError, match="has 131 characters, the limit is 127"):
            await sender.send(Message("t" * 121, b"x"))
        with pytest.raises(SelectorError):
            await sender.send(Message(TOPIC, b"x"), queue=MessageQueue("other%T", "a", 0))
        with pytest.raises(ConfigError, match=r"producer group group \(of namespace MQ_INST_1\) is already in use"):
            await producer(cluster, client=sender.client_config).start()
        cluster.name_server.routes[WIRE] = cluster.route(perm=4)
        with pytest.raises(BrokerNotFoundError, match=r"^topic T has no writable queue"):
            await sender.send(Message(TOPIC, b"x"))
    with pytest.raises(InvalidMessageError, match="group"):
        await Producer("g" * 115, namesrv=cluster.namesrv, namespace=NS).start()
    with pytest.raises(InvalidMessageError, match="group"):
        PullConsumer("g" * 115, namesrv=cluster.namesrv, namespace=NS)


async def test_topics_and_groups_of_the_brokers_have_no_namespace(cluster: Cluster) -> None:
    cluster.name_server.routes["RMQ_SYS_TRACE_TOPIC"] = cluster.route()
    cluster.name_server.routes[f"%RETRY%{NS}%g"] = cluster.route()
    async with producer(cluster, group="CID_RMQ_SYS_x", namespace=NS) as sender:
        await sender.send(Message("RMQ_SYS_TRACE_TOPIC", b"x"))
        await sender.send(Message("%RETRY%g", b"x"))
    assert [(sent.fields["a"], sent.fields["b"]) for sent in cluster.sends] == [
        ("CID_RMQ_SYS_x", "RMQ_SYS_TRACE_TOPIC"),
        ("CID_RMQ_SYS_x", f"%RETRY%{NS}%g"),
    ]
    assert cluster.a.unregistered == ["CID_RMQ_SYS_x"]


async def test_requests_of_every_kind_name_the_instance(cluster: Cluster) -> None:
    cluster.name_server.routes[WIRE] = cluster.route()
    async with producer(cluster, namespace=NS, oneway_window=0) as sender:
        await sender.send(Message(TOPIC, b"x"))
        await (await sender.send_async(Message(TOPIC, b"x", tags="t")))
        await sender.send_oneway(Message(TOPIC, b"x"))
        await sender.send_batch(messages(2))
        await sender.send_batch([Message(TOPIC, b"x", wait_store=False)])
        await sender.flush()
    await until(lambda: len(cluster.sends) == 5)
    assert {sent.properties["INSTANCE_ID"] for sent in cluster.sends} == {NS}
    assert {(sent.fields["a"], sent.fields["b"]) for sent in cluster.sends} == {(f"{NS}%group", WIRE)}
    too_long = {"p": "x" * (32767 - 60)}
    async with producer(cluster, namespace=NS) as sender:
        with pytest.raises(InvalidMessageError, match="the limit is 32767"):
            await sender.send(Message(TOPIC, b"x", properties=too_long))
    async with producer(cluster) as sender:
        await sender.send(Message(TOPIC, b"x", properties=too_long))


async def test_a_changed_route_reaches_a_topic_that_is_known_without_its_namespace(pair: Cluster) -> None:
    pair.name_server.routes[WIRE] = pair.route(pair.a)
    async with producer(pair, namespace=NS) as sender:
        for topic in (TOPIC, WIRE):
            assert (await sender.send(Message(topic, b"x"))).queue.broker_name == "a"
        pair.name_server.routes[WIRE] = pair.route(pair.b)
        await (await client_of(sender)).routes.refresh(WIRE)
        for topic in (TOPIC, WIRE):
            queue = (await sender.send(Message(topic, b"x"))).queue
            assert (queue.topic, queue.broker_name) == (TOPIC, "b")
        assert len(pair.b.sends) == 2


async def test_requests_replies_and_recalls(server: EmbeddedRocketMQ) -> None:
    """Replies go by a topic of the brokers, which is in no namespace; without creation by sending nothing else would do."""
    options: dict[str, Any] = {"namesrv": server.namesrv, "namespace": NS}
    async with (
        Producer("asks", **options) as asking,
        Producer("answers", **options) as answering,
        PullConsumer("c", **options) as consumer,
    ):
        asked = asyncio.ensure_future(asking.request(Message(TOPIC, b"?")))
        [question] = [message async for message in _first(consumer.read(TOPIC, end=None))]
        assert question.topic == TOPIC
        result = await answering.reply(question, b"!")
        assert (await asked).body == b"!"
        assert result.queue.topic == "DefaultCluster_REPLY_TOPIC"
        later = await asking.send(Message(TOPIC, b"x", delay=100))
        assert later.recall_handle is not None
        for topic in (TOPIC, WIRE):
            assert await asking.recall(topic, later.recall_handle) == later.msg_id


async def _first(stream: Any) -> AsyncIterator[Any]:
    yield await anext(stream)
    await stream.aclose()


async def test_transactions_are_asked_about_in_their_namespace() -> None:
    clock = ManualClock()
    asked: list[MessageExt] = []

    def check(message: MessageExt) -> TransactionStatus:
        asked.append(message)
        return TransactionStatus.COMMIT

    async with (
        EmbeddedRocketMQ(clock=clock) as server,
        TransactionProducer(
            "tx", execute=lambda message, arg: arg, check=check, namesrv=server.namesrv, namespace=NS
        ) as sender,
    ):
        done = await sender.send_in_transaction(Message(TOPIC, b"1"), TransactionStatus.COMMIT)
        assert done.queue.topic == TOPIC
        await sender.send_in_transaction(Message(WIRE, b"2"), TransactionStatus.UNKNOWN)
        await clock.advance(60)
        await until(lambda: len(server.messages(WIRE)) == 2)
    assert [(message.topic, message.queue.topic, message.body) for message in asked] == [(TOPIC, TOPIC, b"2")]


# -- the second kind


@pytest.mark.parametrize("form", ["json", "rocketmq"])
async def test_every_request_names_a_namespace_of_the_second_kind(cluster: Cluster, form: str) -> None:
    async with producer(cluster, namespace_v2="ns2", serialize_type=form, topics=[TOPIC], oneway_window=2) as sender:
        item = Message(TOPIC, b"x", tags="t")
        results = [await sender.send(item), await (await sender.send_async(item)), await sender.send(item, key=1)]
        for _ in range(3):
            await sender.send_oneway(item)
        await sender.send_batch([item])
        await sender.flush()
    await until(lambda: len(cluster.sends) == 7)
    assert {result.queue.topic for result in results} == {TOPIC}
    commands = [sent.command for sent in cluster.sends] + cluster.a.requests + cluster.name_server.requests
    assert {command.code for command in commands} == {
        RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO,
    }  # fmt: skip
    for command in commands:
        ext = command.ext_fields or {}
        assert (ext.get("ns"), ext.get("nsd")) == ("ns2", "true"), command
    assert {sent.fields["b"] for sent in cluster.sends} == {TOPIC}
    assert "INSTANCE_ID" not in cluster.sends[0].properties
    assert {sent.fields["a"] for sent in cluster.sends} == {"group"}


async def test_a_round_trip_in_a_namespace_of_the_second_kind() -> None:
    async with EmbeddedRocketMQ() as server:
        options: dict[str, Any] = {"namesrv": server.namesrv, "namespace_v2": "ns2"}
        async with Admin(**options) as admin, Producer("p", **options) as sender, PullConsumer("c", **options) as consumer:
            await admin.create_topic("orders", queues=1)
            await sender.send(Message("orders", b"x"))
            assert [message.topic async for message in consumer.read("orders")] == ["orders"]
