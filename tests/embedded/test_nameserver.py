"""Routes and the cluster, in the bytes a 5.5.0 name server gives."""

from __future__ import annotations

import json

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.bodies import TopicList, decode_body
from rmq_protocol.cluster import decode_cluster_info
from rmq_protocol.constants import RequestCode, SerializeType
from rmq_protocol.route import decode_route, publish_queues

from ..support.fakes import RawClient

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


async def test_unknown_topic_is_17_and_names_it(names: RawClient) -> None:
    response = await names.ask(ROUTE, {"topic": "nope"})
    assert response.code == 17
    assert response.remark == (
        "No topic route info in name server for the topic: nope\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )
    assert response.body == b""


@pytest.mark.parametrize("ext", [None, {}, {"topic": ""}])
async def test_a_route_request_without_a_topic_is_17(names: RawClient, ext: dict[str, str] | None) -> None:
    assert (await names.ask(ROUTE, ext)).code == 17


async def test_route_of_tbw102_lets_clients_create_topics(server: EmbeddedRocketMQ, names: RawClient) -> None:
    response = await names.ask(ROUTE, {"topic": "TBW102", "acceptStandardJsonOnly": "true"})
    assert response.code == 0
    assert json.loads(response.body) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": server.brokers["broker-a"]},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 7, "readQueueNums": 8, "topicSysFlag": 0, "writeQueueNums": 8},
        ],
    }


@pytest.mark.parametrize(
    ("version", "asks", "standard"), [(513, False, True), (401, False, True), (399, False, False), (0, True, True)]
)
async def test_old_clients_get_unquoted_broker_ids_unless_they_ask(
    server: EmbeddedRocketMQ, names: RawClient, version: int, asks: bool, standard: bool
) -> None:
    ext = {"topic": "TBW102"} | ({"acceptStandardJsonOnly": "true"} if asks else {})
    body = (await names.ask(ROUTE, ext, version=version)).body
    assert (b'{"0":"127' in body) is standard
    assert (b'{0:"127' in body) is not standard
    assert decode_route(body).broker_datas[0].broker_addrs == {0: server.brokers["broker-a"]}


async def test_without_auto_creation_there_is_no_tbw102() -> None:
    async with EmbeddedRocketMQ(auto_create_topics=False) as server, RawClient(server.namesrv) as names:
        assert (await names.ask(ROUTE, {"topic": "TBW102"})).code == 17


async def test_cluster_names_every_broker_with_unquoted_ids() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server, RawClient(server.namesrv) as names:
        response = await names.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert response.code == 0
        assert b"{0:" in response.body
        info = decode_cluster_info(response.body)
        assert info.cluster_addr_table == {"DefaultCluster": ("broker-a", "broker-b")}
        assert {name: data.broker_addrs[0] for name, data in info.broker_addr_table.items()} == server.brokers


async def test_a_topic_is_routed_to_the_brokers_that_have_it() -> None:
    async with (
        EmbeddedRocketMQ(brokers=2) as server,
        RawClient(server.namesrv) as names,
        RawClient(server.brokers["broker-a"]) as a,
        RawClient(server.brokers["broker-b"]) as b,
    ):
        await b.create_topic("T", 2)
        route = decode_route((await names.ask(ROUTE, {"topic": "T"})).body)
        assert [(queue.broker_name, queue.queue_id) for queue in publish_queues("T", route)] == [
            ("broker-b", 0),
            ("broker-b", 1),
        ]
        await a.create_topic("T", 1)
        route = decode_route((await names.ask(ROUTE, {"topic": "T"})).body)
        assert [data.broker_name for data in route.queue_datas] == ["broker-a", "broker-b"]


async def test_binary_requests_get_json_answers(server: EmbeddedRocketMQ) -> None:
    async with RawClient(server.namesrv, serialize_type=SerializeType.ROCKETMQ) as names:
        response = await names.ask(ROUTE, {"topic": "TBW102"})
        assert response.code == 0
        assert names.last_frame is not None
        assert names.last_frame.serialize_type == SerializeType.JSON


async def test_unknown_codes_are_3_and_carry_no_fields(names: RawClient, broker: RawClient) -> None:
    for client, code in ((names, 9999), (names, RequestCode.HEART_BEAT), (broker, 9999), (broker, ROUTE)):
        response = await client.ask(code, {"topic": "TBW102"})
        assert (response.code, response.remark) == (3, f" request type {code:d} not supported")
        assert response.ext_fields is None


async def test_configuration_codes_are_not_supported(names: RawClient, broker: RawClient) -> None:
    for client in (names, broker):
        for code in (RequestCode.UPDATE_BROKER_CONFIG, 318, 319):
            assert (await client.ask(code, None, b"rocketmqHome=/tmp\n")).code == 3
    assert (await names.ask(RequestCode.GET_BROKER_CONFIG, None)).code == 3


async def test_configuration_of_a_broker_is_shown(broker: RawClient) -> None:
    shown = await broker.ask(RequestCode.GET_BROKER_CONFIG, None)
    assert shown.code == 0
    assert shown.body.decode().splitlines() == [
        "brokerName=broker-a",
        "useServerSideResetOffset=true",
        "enablePropertyFilter=true",
        "popConsumerKVServiceEnable=false",
        "enableRetryTopicV2=false",
        "enableDLegerCommitLog=false",
        "enableLmq=true",
        "enableMultiDispatch=true",
    ]


async def topics(names: RawClient, code: int, ext: dict[str, str] | None = None) -> TopicList:
    response = await names.ask(code, ext)
    assert response.code == 0
    return decode_body(TopicList, response.body)


async def test_topics_of_all_brokers() -> None:
    async with (
        EmbeddedRocketMQ(brokers=2) as server,
        RawClient(server.namesrv) as names,
        RawClient(server.brokers["broker-b"]) as b,
    ):
        await b.create_topic("T")
        found = await topics(names, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert {"T", "TBW102", "broker-a", "broker-b"} <= {*found.topic_list}
        assert len(set(found.topic_list)) == len(found.topic_list)
        by_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
        assert (await topics(names, by_cluster, {"cluster": "DefaultCluster"})).topic_list == found.topic_list
        assert (await topics(names, by_cluster, {"cluster": "nope"})).topic_list == ()
        assert (await topics(names, by_cluster)).topic_list == ()
        system = await topics(names, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        assert system == TopicList(("DefaultCluster", "broker-a", "broker-b"), server.brokers["broker-a"])
        for ext in ({"topic": "T"}, {"topic": "T", "clusterName": "DefaultCluster"}):
            assert (await names.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)).code == 0
        assert (await names.ask(ROUTE, {"topic": "T"})).code == 0  # a broker still has it


async def test_settings_by_namespace(names: RawClient) -> None:
    put, get, delete, of = (
        RequestCode.PUT_KV_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
    )
    key = {"namespace": "N", "key": "K"}
    missing = await names.ask(get, key)
    assert (missing.code, missing.remark, missing.ext_fields) == (22, "No config item, Namespace: N Key: K", {})
    missing = await names.ask(of, {"namespace": "N"})
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: N")
    assert (await names.ask(put, {**key, "value": "V"})).code == 0
    assert (await names.ask(put, {**key, "value": "W"})).code == 0
    assert (await names.ask(get, key)).ext_fields == {"value": "W"}
    assert (await names.ask(of, {"namespace": "N"})).body == b'{"table":{"K":"W"}}'
    for _ in range(2):
        assert (await names.ask(delete, key)).code == 0
    assert (await names.ask(of, {"namespace": "N"})).body == b'{"table":{}}'
    refused = await names.ask(put, {"namespace": "N"})
    assert (refused.code, refused.remark) == (1, "namespace or key is null")


async def test_settings_are_bounded(names: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.nameserver.MAX_SETTINGS", 3)
    monkeypatch.setattr("rmq_async.embedded.nameserver.MAX_SETTINGS_SIZE", 100)

    async def put(namespace: str, key: str, value: str = "v") -> int:
        fields = {"namespace": namespace, "key": key, "value": value}
        return (await names.ask(RequestCode.PUT_KV_CONFIG, fields)).code

    assert [await put("N", key) for key in ("a", "b", "c", "a")] == [0, 0, 1, 0]
    assert await put("N", "a", "v" * 100) == 1
    await names.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "N", "key": "b"})
    assert [await put("M", "a"), await put("N", "c")] == [1, 0]


async def test_names_of_namespaces_that_were_emptied_stay_counted(names: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.nameserver.MAX_SETTINGS_SIZE", 100)
    codes = []
    for number in range(4):
        fields = {"namespace": f"{number}" * 40, "key": "k", "value": "v"}
        codes.append((await names.ask(RequestCode.PUT_KV_CONFIG, fields)).code)
        await names.ask(RequestCode.DELETE_KV_CONFIG, fields)
    assert codes == [0, 0, 1, 1]
