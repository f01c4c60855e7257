"""Topics: made on request, made by the first send, changed, refused."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.bodies import (
    CreateTopicListRequestBody,
    TopicConfigSerializeWrapper,
    TopicList,
    decode_body,
    encode_body,
)
from rmq_protocol.constants import RequestCode
from rmq_protocol.route import QueueData, decode_route
from rmq_protocol.topics import TopicConfig, decode_topic_config

from ..support.fakes import RawClient, pull_fields
from .inside import broker_of, log_of


async def queue_data(names: RawClient, topic: str) -> QueueData:
    response = await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    assert response.code == 0, response.remark
    return decode_route(response.body).queue_datas[0]


async def test_a_created_topic_shows_in_the_route_at_once(names: RawClient, broker: RawClient) -> None:
    response = await broker.create_topic("T", readQueueNums="4", writeQueueNums="3", perm="4", topicSysFlag="1")
    assert (response.code, response.ext_fields) == (0, None)
    assert await queue_data(names, "T") == QueueData("broker-a", 4, 3, 4, 1)


async def test_raised_queue_counts_show_in_the_route_and_keep_the_messages(
    server: EmbeddedRocketMQ, names: RawClient, broker: RawClient
) -> None:
    await broker.create_topic("T", 1)
    await broker.send("T")
    assert (await broker.send("T", queue=5)).code == 29
    await broker.create_topic("T", 6)
    assert await queue_data(names, "T") == QueueData("broker-a", 6, 6, 6, 0)
    assert (await broker.send("T", queue=5)).code == 0
    assert [message.queue.queue_id for message in server.messages("T")] == [0, 5]


@pytest.mark.parametrize(
    "name", ["a b", "", " ", "t" * 128, "../../x", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "broker-a", "DefaultCluster"]
)
async def test_names_no_user_may_create_are_29(names: RawClient, broker: RawClient, name: str) -> None:
    response = await broker.create_topic(name)
    assert response.code == 29
    assert response.remark


async def test_retry_topics_may_be_longer(broker: RawClient) -> None:
    assert (await broker.create_topic("%RETRY%" + "g" * 130)).code == 0
    assert (await broker.create_topic("%RETRY%" + "g" * 250)).code == 29


@pytest.mark.parametrize("over", [{"perm": "abc"}, {"topicFilterType": "nope"}, {"writeQueueNums": str(2**31)}])
async def test_unreadable_settings_are_1_and_name_the_field(broker: RawClient, over: dict[str, str]) -> None:
    response = await broker.create_topic("T", **over)
    assert response.code == 1
    assert next(iter(over)) in (response.remark or "")
    assert (await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, None)).code == 1


@pytest.mark.parametrize("count", ["-1", "16385"])
async def test_queue_counts_are_bounded(broker: RawClient, count: str) -> None:
    assert (await broker.create_topic("T", readQueueNums=count)).code == 29


async def test_attributes_known_to_brokers_are_taken_others_refused(broker: RawClient) -> None:
    assert (await broker.create_topic("T", attributes="+message.type=FIFO")).code == 0
    assert (await broker.create_topic("T", attributes="-message.type")).code == 0
    for code in (0, 1):
        again = await broker.create_topic("Old", attributes="+cleanup.policy=DELETE")
        assert again.code == code
    assert again.remark == "attempt to update an unchangeable attribute. key: cleanup.policy"
    assert (await broker.create_topic("Old")).code == 0
    for wrong in ("+nope=1", "nope", "+message.type=WRONG", "+cleanup.policy=COMPACTION"):
        assert (await broker.create_topic("U", attributes=wrong)).code == 1
    refused = await broker.send("T", queue=99)
    assert "attributes={}" in (refused.remark or "")


@pytest.mark.parametrize(("asked", "given"), [("4", 4), ("100", 8), ("1", 1)])
async def test_the_first_send_creates_the_topic_with_at_most_8_queues(
    names: RawClient, broker: RawClient, asked: str, given: int
) -> None:
    assert (await broker.send("fresh", d=asked)).code == 0
    assert await queue_data(names, "fresh") == QueueData("broker-a", given, given, 6, 0)


@pytest.mark.parametrize("default_topic", ["nope", "", "T"])
async def test_no_creation_after_a_default_topic_that_does_not_lend_itself(broker: RawClient, default_topic: str) -> None:
    await broker.create_topic("T")
    response = await broker.send("fresh", c=default_topic)
    assert response.code == 17
    assert response.ext_fields == {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
    assert (response.remark or "").startswith("topic[fresh] not exist, apply first please!\n")


async def test_no_creation_where_it_is_off() -> None:
    async with EmbeddedRocketMQ(auto_create_topics=False) as server, RawClient(server.brokers["broker-a"]) as broker:
        assert (await broker.send("fresh")).code == 17
        await broker.create_topic("fresh")
        assert (await broker.send("fresh")).code == 0


async def test_the_number_of_topics_is_bounded(broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.topics.MAX_TOPICS", 2)
    assert [(await broker.send(f"T{index}")).code for index in range(4)] == [0, 0, 1, 1]
    assert (await broker.send("T0")).code == 0


async def config(broker: RawClient, topic: str) -> TopicConfig:
    response = await broker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
    assert response.code == 0, response.remark
    return decode_topic_config(response.body)


async def test_a_list_of_topics_is_made_as_a_whole_or_not_at_all(broker: RawClient) -> None:
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    first = TopicConfig("A", 3, 2, attributes={"+message.type": "FIFO"})
    body = encode_body(CreateTopicListRequestBody((first, TopicConfig("B", 1, 1, attributes={"message.type": "DELAY"}))))
    assert (await broker.ask(code, None, body)).code == 0
    assert await config(broker, "A") == TopicConfig("A", 3, 2, attributes={"message.type": "FIFO"})
    assert (await config(broker, "B")).attributes == {"message.type": "DELAY"}
    body = encode_body(CreateTopicListRequestBody((TopicConfig("C"), TopicConfig("a b"))))
    refused = await broker.ask(code, None, body)
    assert (refused.code, refused.remark) == (
        29,
        "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    )
    missing = await broker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "C"})
    assert (missing.code, missing.remark) == (17, "No topic in this broker. topic: C")
    assert (await broker.ask(code)).code == 1


async def test_a_list_with_an_attribute_that_is_refused_is_made_up_to_it(broker: RawClient) -> None:
    """As on a real broker, which checks the names of all first, and the attributes one by one."""
    wrong = TopicConfig("B", attributes={"+message.type": "NONE"})
    body = encode_body(CreateTopicListRequestBody((TopicConfig("A", 3, 2), wrong, TopicConfig("C"))))
    assert (await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)).code == 1
    assert await config(broker, "A") == TopicConfig("A", 3, 2)
    for topic in ("B", "C"):
        assert (await broker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})).code == 17


async def test_all_topics_and_those_of_the_system(broker: RawClient) -> None:
    before = decode_body(TopicConfigSerializeWrapper, (await broker.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    await broker.create_topic("T", 5)
    response = await broker.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    after = decode_body(TopicConfigSerializeWrapper, response.body)
    assert response.ext_fields == {"totalTopicNum": "16"}
    assert after.topic_config_table == {**before.topic_config_table, "T": TopicConfig("T", 5, 5)}
    assert before.data_version is not None
    assert after.data_version is not None
    assert after.data_version.counter == before.data_version.counter + 1
    own = decode_body(TopicList, (await broker.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body).topic_list
    assert {*before.topic_config_table, "TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_TRACE_TOPIC"} <= {*own}
    assert "T" not in own


async def test_a_deleted_topic_is_gone_with_all_it_had(server: EmbeddedRocketMQ, names: RawClient, broker: RawClient) -> None:
    delete = RequestCode.DELETE_TOPIC_IN_BROKER
    await broker.create_topic("T", 2)
    for topic in ("T", "U", "T"):
        await broker.send(topic, b"x" * 1000)
    await broker.pull("T")
    offset = {"consumerGroup": "CG", "topic": "T", "queueId": "0"}
    await broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": "1"})
    async with RawClient(server.brokers["broker-a"]) as consumer:
        consumer.write(11, pull_fields("T", 1, sysFlag="6", suspendTimeoutMillis="20000"))
        await consumer.ask(9999)
        memory = log_of(server).memory
        assert (await broker.ask(delete, {"topic": "T"})).code == 0
        waited = await consumer.read()
        assert (waited.code, (waited.remark or "").splitlines()[0]) == (17, "topic[T] not exist, apply first please! ")
    assert log_of(server).memory < memory - 2000
    assert len(server.messages("T")) == 0
    assert len(server.messages("U")) == 1
    assert (await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 17
    assert (await broker.pull("T")).code == 17
    assert (await broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, offset)).code == 22
    assert (await broker.ask(delete, {"topic": "T"})).code == 0
    await broker.send("T")
    assert len(server.messages("T")) == 1
    assert (await broker.pull("T")).code == 0
    for _ in range(3):
        await broker.send("U")
    server.clear()
    assert log_of(server).memory == 0


async def test_topics_that_no_user_may_delete(broker: RawClient) -> None:
    for topic, remark in (
        (" ", "The specified topic is blank."),
        ("TBW102", "The topic[TBW102] is conflict with system topic."),
        ("broker-a", "The topic[broker-a] is conflict with system topic."),
    ):
        refused = await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        assert (refused.code, refused.remark) == (29, remark)


async def test_queues_in_use_are_bounded(server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.topics.MAX_QUEUES_IN_USE", broker_of(server).state.topics.queues_in_use + 2)
    await broker.create_topic("T", 8)
    assert [(await broker.pull("T", queue_id)).code for queue_id in range(3)] == [19, 19, 1]
    refused = await broker.send("T", queue=5)
    assert refused.code == 1
    assert (refused.remark or "").endswith(" queues in use, the maximum; delete topics")
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert (await broker.send("U")).code == 0
