"""What an admin sees: topics, groups, subscriptions, the broker itself; and queues allocated by the broker."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.assignments import allocate
from rmq_protocol.bodies import (
    ConsumeStats,
    GroupList,
    KVTable,
    OffsetWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    QuerySubscriptionResponseBody,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    decode_body,
    encode_body,
)
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat
from rmq_protocol.message import MessageQueue

from ..support.fakes import RawClient

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


def queue(queue_id: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


async def subscribe(client: RawClient, client_id: str, *topics: str) -> None:
    subscriptions = tuple(SubscriptionData(topic) for topic in topics)
    data = HeartbeatData(client_id, (), (ConsumerData("CG", subscription_data_set=subscriptions),))
    assert (await client.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(data))).code == 0


async def test_topic_statistics(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T", readQueueNums="3", writeQueueNums="1")
    for _ in range(2):
        await broker.send("T")
    response = await broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    last = server.messages("T")[-1].store_time_ms
    assert decode_body(TopicStatsTable, response.body).offset_table == {
        queue(0): TopicOffset(0, 2, last),
        queue(1): TopicOffset(),
        queue(2): TopicOffset(),
    }
    missing = await broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "nope"})
    assert (missing.code, missing.remark) == (17, "topic[nope] not exist")


async def consume_stats(broker: RawClient, **over: str) -> dict[MessageQueue, OffsetWrapper]:
    response = await broker.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", **over})
    assert response.code == 0, response.remark
    return decode_body(ConsumeStats, response.body).offset_table


async def test_how_far_a_group_is(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    for topic in ("T", "U"):
        await broker.create_topic(topic, 2)
        for _ in range(3):
            await broker.send(topic)
    assert await consume_stats(broker) == {}
    await broker.pull("T", 0, 2)
    await broker.pull("U")
    for topic in ("T", "U"):
        await broker.ask(COMMIT, {"consumerGroup": "CG", "topic": topic, "queueId": "0", "commitOffset": "1"})
    first = server.messages("T")[0].store_time_ms
    t = {queue(0): OffsetWrapper(3, 1, 2, first), queue(1): OffsetWrapper(0, 0, 0, 0)}
    first = server.messages("U")[0].store_time_ms
    u = {queue(0, "U"): OffsetWrapper(3, 1, 1, first), queue(1, "U"): OffsetWrapper(0, 0, 0, 0)}
    assert await consume_stats(broker) == {**t, **u}
    assert await consume_stats(broker, topic="T") == t
    assert await consume_stats(broker, topic="nope") == {}
    assert await consume_stats(broker, topicList="U;nope") == u
    await subscribe(broker, "c1", "T")
    assert await consume_stats(broker) == t  # U was given up
    assert await consume_stats(broker, topicList="U") == u


async def test_statistics_of_too_many_queues_are_refused(broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.stats.MAX_QUEUES_SHOWN", 5)
    await broker.create_topic("T", 4)
    await broker.create_topic("U", 4)
    assert len(await consume_stats(broker, topicList="T")) == 4
    refused = await broker.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topicList": "T;U"})
    assert (refused.code, refused.remark) == (1, "the group's topics have 8 queues, 5 can be shown at once; ask for one topic")


async def test_who_consumes_a_topic_and_what_a_group_consumes(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    async def groups(topic: str) -> tuple[str, ...]:
        response = await broker.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
        return decode_body(GroupList, response.body).group_list

    await broker.send("T")
    assert await groups("T") == ()
    await broker.pull("T", consumerGroup="A")
    await broker.ask(COMMIT, {"consumerGroup": "A", "topic": "T", "queueId": "0", "commitOffset": "1"})
    await subscribe(broker, "c1", "T", "U")
    assert await groups("T") == ("A", "CG")
    assert await groups("U") == ("CG",)
    response = await broker.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "A"})
    assert decode_body(TopicList, response.body) == TopicList(("T",), server.brokers["broker-a"])
    fields = {"group": "CG", "topic": "U"}
    response = await broker.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields)
    assert decode_body(QuerySubscriptionResponseBody, response.body) == QuerySubscriptionResponseBody(
        "CG", "U", SubscriptionData("U")
    )
    response = await broker.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {**fields, "topic": "V"})
    assert response.body == b'{"group":"CG","topic":"V"}'


async def test_the_broker_about_itself(broker: RawClient) -> None:
    await broker.send("T")
    table = decode_body(KVTable, (await broker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert (table["brokerVersionDesc"], table["msgPutTotalTodayNow"], table["commitLogMinOffset"]) == ("V5_5_0", "1", "0")
    assert int(table["commitLogMaxOffset"]) > 100
    assert int(table["earliestMessageTimeStamp"]) > 1_700_000_000_000
    assert all(len(table[name].split()) == 3 for name in ("putTps", "getTransferredTps"))


async def assigned(broker: RawClient, **over: str) -> list[MessageQueue] | None:
    """None: the client is to keep what it has."""
    request = {"topic": "T", "consumer_group": "CG", "client_id": "c1", "strategy_name": "AVG", **over}
    response = await broker.ask(RequestCode.QUERY_ASSIGNMENT, None, encode_body(QueryAssignmentRequestBody(**request)))
    assert response.code == 0
    if response.body == b"{}":
        return None
    assignments = decode_body(QueryAssignmentResponseBody, response.body).message_queue_assignments
    assert {each.mode for each in assignments} <= {"PULL"}
    return [each.message_queue for each in assignments]


async def test_queues_of_all_brokers_are_allocated() -> None:
    async with (
        EmbeddedRocketMQ(brokers=2) as server,
        RawClient(server.brokers["broker-a"]) as a,
        RawClient(server.brokers["broker-b"]) as b,
    ):
        await a.create_topic("T", 2)
        await b.create_topic("T", 1)
        everything = [queue(0), queue(1), queue(0, broker="broker-b")]
        assert await assigned(a) is None  # no member is known
        await subscribe(a, "c1", "T")
        assert await assigned(a) == everything
        await subscribe(b, "c1", "T")
        assert await assigned(b) == everything
        await subscribe(a, "c2", "T")
        assert await assigned(a) == everything[:2]
        assert await assigned(a, client_id="c2") == everything[2:]
        assert await assigned(a, client_id="c3") == []
        assert await assigned(a, strategy_name="AVG_BY_CIRCLE") == [everything[0], everything[2]]
        assert await assigned(a, message_model="BROADCASTING", client_id="c2") == everything
        assert await assigned(a, strategy_name="nope") is None
        assert await assigned(a, topic="nope") is None
        assert (await a.ask(RequestCode.QUERY_ASSIGNMENT, None, b"[]")).code == 1


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_every_queue_goes_to_one_client(strategy: str, count: int) -> None:
    queues = [queue(queue_id) for queue_id in range(7)]
    clients = [f"c{number:02}" for number in range(count)]
    shares = [allocate(strategy, queues, clients, client) for client in clients]
    assert sorted(each for share in shares for each in share or ()) == queues
    sizes = [len(share or ()) for share in shares]
    assert max(sizes) - min(sizes) <= 1
