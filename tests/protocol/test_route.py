"""Routes and cluster information: what a name server says, turned into queues and addresses."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ, addresses, broker_datas, damaged, json_values, names, routes, texts

from rmq_protocol.cluster import ClusterInfo, decode_cluster_info, encode_cluster_info
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.json_body import MAX_JSON_BODY_SIZE
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import (
    MAX_ROUTE_QUEUES,
    NO_BROKER,
    BrokerData,
    QueueData,
    TopicQueueMapping,
    TopicRouteData,
    broker_address,
    decode_route,
    encode_route,
    master_address,
    master_addresses,
    publish_queues,
    route_fingerprint,
    split_address,
    static_topic_endpoints,
    subscribe_queues,
)
from rmq_protocol.topics import TopicConfig, decode_topic_config, encode_topic_config

MEMBERS = [
    *("brokerDatas", "queueDatas", "orderTopicConf", "filterServerTable", "topicQueueMappingByBroker", "brokerName"),
    *("brokerAddrs", "cluster", "perm", "readQueueNums", "writeQueueNums", "topicSysFlag", "currIdMap", "epoch", "scope"),
    *("totalQueues", "bname", "brokerAddrTable", "clusterAddrTable", "0", "1"),
]


def queue_data(broker: str, *, read: int = 4, write: int = 4, perm: int = 6) -> QueueData:
    return QueueData(broker, read, write, perm)


def broker_data(broker: str, **addrs: str) -> BrokerData:
    return BrokerData(broker, {int(name[1:]): address for name, address in addrs.items()}, "c")


A = broker_data("a", b0="10.0.0.1:10911", b1="10.0.0.2:10911")
B = broker_data("b", b0="10.0.0.3:10911")


def route(*queues: QueueData, brokers: tuple[BrokerData, ...] = (A, B), **more: Any) -> TopicRouteData:
    return TopicRouteData(queues, brokers, **more)


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


def pairs(queues: tuple[MessageQueue, ...]) -> list[tuple[str, int]]:
    assert all(queue.topic == "T" for queue in queues)
    return [(queue.broker_name, queue.queue_id) for queue in queues]


# What is published to and read from.


def test_publish_queues_go_by_broker_name_and_need_write_permission_and_a_master() -> None:
    slave_only = broker_data("c", b1="10.0.0.4:10911")
    found = route(
        queue_data("b", write=2),
        queue_data("a", write=1, read=9),
        queue_data("c"),
        queue_data("ghost"),
        brokers=(A, B, slave_only),
    )
    assert pairs(publish_queues("T", found)) == [("a", 0), ("b", 0), ("b", 1)]
    assert publish_queues("T", route(queue_data("a", perm=4))) == ()


def test_subscribe_queues_need_read_permission_only_and_come_once() -> None:
    found = route(
        queue_data("ghost", read=2, perm=4), queue_data("a", read=1), queue_data("a", read=2), queue_data("b", perm=2)
    )
    assert pairs(subscribe_queues("T", found)) == [("a", 0), ("a", 1), ("ghost", 0), ("ghost", 1)]


def test_an_order_conf_wins_over_permissions_and_masters() -> None:
    found = route(queue_data("a", perm=0), order_topic_conf="gone:2;a:1;")
    assert pairs(publish_queues("T", found)) == [("gone", 0), ("gone", 1), ("a", 0)]
    assert publish_queues("T", route(queue_data("a"), order_topic_conf=";")) == ()
    assert len(publish_queues("T", route(queue_data("a"), order_topic_conf=""))) == 4
    assert pairs(publish_queues("T", route(order_topic_conf="a:-3;b:1"))) == [("b", 0)]


@pytest.mark.parametrize(
    "conf", ["a", "a:", "a:x", "a: 1", "a:1;;b:1", ":", "a:1_0", "a:99999999999999", "a:65537", "a:65000;b:537"]
)
def test_an_order_conf_that_cannot_be_is_the_servers_fault(conf: str) -> None:
    found = decode_route(body(orderTopicConf=conf, queueDatas=[], brokerDatas=[]))
    with pytest.raises(RemoteProtocolError, match="orderTopicConf"):
        publish_queues("T", found)
    assert subscribe_queues("T", found) == ()


def test_static_topics_live_on_a_pseudo_broker() -> None:
    mapping = {
        "a": TopicQueueMapping("T", total_queues=4, bname="a", epoch=10, curr_id_map={0: 0, 1: 1}),
        "b": TopicQueueMapping("T", total_queues=4, bname="b", epoch=11, curr_id_map={1: 0, 2: 1}),
        "none": TopicQueueMapping("T", scope=None, total_queues=9),
    }
    found = route(queue_data("a"), topic_queue_mapping_by_broker=mapping)
    queues = [("__syslo__global__", queue_id) for queue_id in range(4)]
    assert pairs(publish_queues("T", found)) == queues
    assert pairs(subscribe_queues("T", found)) == queues
    endpoints = static_topic_endpoints("T", found)
    assert [endpoints[MessageQueue("T", *queue)] for queue in queues] == ["a", "b", "b", NO_BROKER]
    other = TopicQueueMapping("T", scope="x", total_queues=1, bname="a", curr_id_map={0: 0})
    assert static_topic_endpoints("T", route(topic_queue_mapping_by_broker={"a": other})) == {
        MessageQueue("T", "__syslo__x", 0): "a"
    }


def test_an_empty_order_conf_hides_a_static_topic_from_publishers_only() -> None:
    mapping = {"a": TopicQueueMapping("T", total_queues=1, bname="a", curr_id_map={0: 0})}
    found = route(queue_data("a", write=1, read=1), topic_queue_mapping_by_broker=mapping, order_topic_conf="")
    assert pairs(publish_queues("T", found)) == [("a", 0)]
    assert pairs(subscribe_queues("T", found)) == [("__syslo__global__", 0)]


def test_brokers_sort_by_utf16_units_as_java_has_it() -> None:
    high, private = "\U00010000", "\ue000"  # D800 DC00 and E000
    brokers = tuple(broker_data(name, b0="h:1") for name in (private, high))
    found = route(queue_data(private, write=1, read=1), queue_data(high, write=1, read=1), brokers=brokers)
    assert pairs(publish_queues("T", found)) == [(high, 0), (private, 0)]
    assert pairs(subscribe_queues("T", found)) == [(high, 0), (private, 0)]


# Addresses.


def test_addresses_of_masters_and_of_others() -> None:
    found = route()
    assert master_address(found, "a") == "10.0.0.1:10911"
    assert broker_address(found, "a", 1) == "10.0.0.2:10911"
    assert broker_address(found, "b", 1) is None
    assert master_address(found, "ghost") is None
    assert master_addresses(found) == {"a": "10.0.0.1:10911", "b": "10.0.0.3:10911"}


def test_of_two_entries_with_one_name_the_first_counts() -> None:
    found = route(queue_data("a"), brokers=(broker_data("a", b1="h:1"), A))
    assert master_address(found, "a") is None
    assert master_addresses(found) == {}
    assert publish_queues("T", found) == ()


@pytest.mark.parametrize(
    "address",
    ["h:0", "h:70000", "h:-1", "h:", "h", ":1", "", "h:1x", "h:٣", "a b:1", "a\n:1", "h/x:1", "x" * 300 + ":1", "[]:1"],
)
def test_a_broker_that_refuses_connections_is_left_out(address: str) -> None:
    with pytest.raises(RemoteProtocolError, match="address"):
        split_address(address)
    found = decode_route(encode_route(route(queue_data("a"), queue_data("b"), brokers=(broker_data("a", b0=address), B))))
    assert master_address(found, "a") is None
    assert {queue.broker_name for queue in publish_queues("T", found)} == {"b"}


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("10.0.0.1:10911", ("10.0.0.1", 10911)),
        ("b.example:1", ("b.example", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("fd00::1:10911", ("fd00::1", 10911)),
    ],
)
def test_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@given(addresses | texts)
@FUZZ
def test_any_text_is_an_address_or_our_error(text: str) -> None:
    try:
        host, port = split_address(text)
    except RemoteProtocolError:
        return
    assert host
    assert 0 < port < 65536


# Forms of the body.


@given(routes)
@FUZZ
def test_a_route_survives_both_forms(found: TopicRouteData) -> None:
    assert decode_route(encode_route(found)) == found
    assert decode_route(encode_route(found, standard=False)) == found


def test_the_servers_old_form_has_broker_ids_without_quotes() -> None:
    assert b'{0:"10.0.0.3:10911"}' in encode_route(route(), standard=False)
    assert b'{"0":"10.0.0.3:10911"}' in encode_route(route())


def test_numbers_as_text_nulls_unknown_and_missing_members_are_taken() -> None:
    found = decode_route(
        body(
            queueDatas=[
                {"brokerName": "a", "perm": "6", "writeQueueNums": "2", "topicSynFlag": 1, "readQueueNums": None},
                None,
            ],
            brokerDatas=[{"brokerName": "a", "brokerAddrs": {"0": "h:1", "1": None}, "enableActingMaster": "true", "new": {}}],
            filterServerTable=None,
            more=[1],
        )
    )
    assert found.queue_datas == (QueueData("a", 0, 2, 6, 0),)
    assert found.broker_datas == (BrokerData("a", {0: "h:1"}, enable_acting_master=True),)
    assert decode_route(b"{}") == TopicRouteData()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"not json",
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"queueDatas":' + b"[" * 10_000,
        b'{"queueDatas":{}}',
        b'{"queueDatas":[1]}',
        b'{"queueDatas":[{"perm":6}]}',
        b'{"queueDatas":[{"brokerName":"a","perm":"x"}]}',
        b'{"queueDatas":[{"brokerName":"a","perm":1.5}]}',
        b'{"queueDatas":[{"brokerName":"a","perm":2147483648}]}',
        b'{"queueDatas":[{"brokerName":"a","perm":1' + b"0" * 5000 + b"}]}",
        b'{"queueDatas":[{"brokerName":7}]}',
        b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"x":"h:1"}}]}',
        b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"0":7}}]}',
        b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":["h:1"]}]}',
        b'{"orderTopicConf":5}',
        b'{"queueDatas":[{"brokerName":"\\ud800"}]}',
        b'{"brokerDatas":[]}x',
    ],
)
def test_a_body_that_is_no_route(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_route(data)


def test_more_queues_than_any_topic_has_are_refused_before_they_are_counted_out() -> None:
    began = time.process_time()
    for counts in ({"writeQueueNums": 1_000_000}, {"readQueueNums": 2**31 - 1}):
        with pytest.raises(RemoteProtocolError, match=f"above the limit of {MAX_ROUTE_QUEUES}"):
            decode_route(body(queueDatas=[{"brokerName": "a", "perm": 6, **counts}]))
    with pytest.raises(RemoteProtocolError, match=r"80000 write queues are above"):
        decode_route(encode_route(route(*[queue_data("a", write=20_000)] * 4)))
    huge = TopicQueueMapping("T", total_queues=2**31 - 1)
    with pytest.raises(RemoteProtocolError, match="static queues"):
        publish_queues("T", route(topic_queue_mapping_by_broker={"a": huge}))
    scopes = {str(n): TopicQueueMapping("T", scope=str(n), total_queues=MAX_ROUTE_QUEUES) for n in range(50)}
    with pytest.raises(RemoteProtocolError, match="static queues"):
        subscribe_queues("T", route(topic_queue_mapping_by_broker=scopes))
    assert time.process_time() - began < 2
    most = route(queue_data("a", read=MAX_ROUTE_QUEUES, write=MAX_ROUTE_QUEUES))
    assert len(publish_queues("T", decode_route(encode_route(most)))) == MAX_ROUTE_QUEUES


def test_negative_counts_are_none() -> None:
    found = decode_route(encode_route(route(queue_data("a", read=-1, write=-(2**31)), queue_data("b", read=1, write=1))))
    assert pairs(publish_queues("T", found)) == pairs(subscribe_queues("T", found)) == [("b", 0)]


def test_many_brokers_cost_no_more_than_their_number() -> None:
    count = 4000
    brokers = tuple(broker_data(f"b{n}", b0="h:1") for n in range(count))
    found = route(*(queue_data(f"b{n}", write=1) for n in range(count)), brokers=brokers)
    began = time.process_time()
    assert len(publish_queues("T", found)) == count
    assert time.process_time() - began < 1


def test_a_body_above_the_limit_is_not_read() -> None:
    with pytest.raises(RemoteProtocolError, match=f"above the limit of {MAX_JSON_BODY_SIZE}"):
        decode_route(b"{" + b" " * MAX_JSON_BODY_SIZE + b"}")


# Change.


@given(routes)
@FUZZ
def test_the_order_of_its_lists_does_not_change_what_a_route_says(found: TopicRouteData) -> None:
    turned = TopicRouteData(
        found.queue_datas[::-1],
        found.broker_datas[::-1],
        found.order_topic_conf,
        {},
        found.topic_queue_mapping_by_broker,
    )
    assert route_fingerprint(turned) == route_fingerprint(found)


def test_every_other_change_is_one() -> None:
    base = route(queue_data("a"), queue_data("b"))
    mapping = {"a": TopicQueueMapping("T", total_queues=1)}
    variants = [
        base,
        route(queue_data("a"), queue_data("b", write=5)),
        route(queue_data("a"), queue_data("b", perm=4)),
        route(queue_data("a"), queue_data("b"), queue_data("b")),
        route(queue_data("a"), queue_data("b"), brokers=(A,)),
        route(queue_data("a"), queue_data("b"), brokers=(A, broker_data("b", b0="10.0.0.9:1"))),
        route(queue_data("a"), queue_data("b"), order_topic_conf=""),
        route(queue_data("a"), queue_data("b"), topic_queue_mapping_by_broker=mapping),
    ]
    assert len({route_fingerprint(variant) for variant in variants}) == len(variants)


# Any bytes.


def use(found: TopicRouteData) -> None:
    """Everything a client asks a route; only our own error may come of it."""
    route_fingerprint(found)
    master_addresses(found)
    for ask in (publish_queues, subscribe_queues, static_topic_endpoints):
        try:
            ask("T", found)
        except RemoteProtocolError:
            continue


@given(damaged(routes.map(encode_route)) | damaged(routes.map(lambda found: encode_route(found, standard=False))))
@FUZZ
def test_damaged_bodies_are_routes_or_our_error(data: bytes) -> None:
    for decode in (decode_route, decode_cluster_info, decode_topic_config):
        try:
            found = decode(data)
        except RemoteProtocolError:
            continue
        if isinstance(found, TopicRouteData):
            use(found)


@given(json_values(MEMBERS))
@FUZZ
def test_any_json_is_a_route_or_our_error(value: Any) -> None:
    for shape in (value, {"queueDatas": value}, {"brokerDatas": [value]}, {"topicQueueMappingByBroker": {"a": value}}):
        try:
            found = decode_route(json.dumps(shape).encode())
        except RemoteProtocolError:
            continue
        use(found)


@given(json_values(MEMBERS))
@FUZZ
def test_any_json_is_cluster_information_or_our_error(value: Any) -> None:
    for shape in (value, {"brokerAddrTable": value}, {"brokerAddrTable": {"a": value}}, {"clusterAddrTable": {"a": value}}):
        try:
            info = decode_cluster_info(json.dumps(shape).encode())
        except RemoteProtocolError:
            continue
        assert decode_cluster_info(encode_cluster_info(info)) == info


# The cluster, and topic settings.


@given(
    st.builds(
        ClusterInfo,
        st.dictionaries(names, broker_datas, max_size=4),
        st.dictionaries(names, st.lists(names, max_size=3).map(tuple), max_size=3),
    )
)
@FUZZ
def test_cluster_information_survives_both_forms(info: ClusterInfo) -> None:
    assert decode_cluster_info(encode_cluster_info(info)) == info
    assert decode_cluster_info(encode_cluster_info(info, standard=False)) == info


def test_cluster_information_as_name_servers_write_it() -> None:
    text = (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"a","cluster":"c","enableActingMaster":false}},'
    )
    text += b'"clusterAddrTable":{"c":["a"]}}'
    info = decode_cluster_info(text)
    assert info.broker_addr_table["a"].broker_addrs == {0: "h:1", 1: "h:2"}
    assert info.cluster_addr_table == {"c": ("a",)}
    assert json.loads(encode_cluster_info(info))["brokerAddrTable"]["a"]["brokerAddrs"] == {"0": "h:1", "1": "h:2"}


def test_topic_settings() -> None:
    config = TopicConfig("T", read_queue_nums=4, attributes={"+message.type": "FIFO"})
    assert decode_topic_config(encode_topic_config(config)) == config
    assert json.loads(encode_topic_config(config))["topicFilterType"] == "SINGLE_TAG"
    with pytest.raises(RemoteProtocolError, match="TopicConfig"):
        decode_topic_config(b"{}")
