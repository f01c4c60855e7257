"""Golden vectors of signatures, namespaces and the small formats; see vectors.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rmq_protocol import namespace as ns
from rmq_protocol import pop
from rmq_protocol.allocation import allocate_machine_room
from rmq_protocol.client_id import build_client_id, build_instance_name
from rmq_protocol.message import MessageQueue
from rmq_protocol.message_type import topic_message_type
from rmq_protocol.recall import RecallHandle, decode_recall_handle, encode_recall_handle
from rmq_protocol.reply import create_reply
from rmq_protocol.signing import SIGNATURE, SessionCredentials, sign, signature, signed_content
from rmq_protocol.subscription import build_subscription
from rmq_protocol.trace import (
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
    decode_trace,
    encode_trace,
    trace_keys,
)
from vectors import EXTRA_KINDS, Case, Suite, check_bytes, data, is_error, refused

SUITE = Suite(*EXTRA_KINDS)


@pytest.mark.parametrize("path", SUITE.files(), ids=lambda path: path.name)
def test_golden_vectors(path: Path) -> None:
    SUITE.run(path)


# Signatures.


@SUITE.handles("acl", "sign")
def acl_sign(case: Case) -> None:
    given, expected = case.given, case.expected
    credentials = SessionCredentials(given["accessKey"], given["secretKey"], given["securityToken"])
    ext = None if given["ext_pairs"] is None else dict(given["ext_pairs"])
    body = data(given["body"])
    signed = sign(credentials, ext, [body[:3], body[3:]])
    assert signed == expected["extFields"]
    assert signed[SIGNATURE] == expected["signature"]
    check_bytes(signed_content(signed, [body]), expected["content"])
    assert sign(credentials, signed, [body])[SIGNATURE] == expected["signature_when_signed_again"]


@SUITE.handles("acl", "hmac")
def acl_hmac(case: Case) -> None:
    assert signature(case.given["text"].encode(), case.given["key"]) == case.expected["signature"]


# Namespaces; Java's null is an empty text here.


@SUITE.handles("namespace", "with_namespace")
def namespace_with(case: Case) -> None:
    namespace, resource, expected = case.given["namespace"] or "", case.given["resource"] or "", case.expected
    assert ns.with_namespace(namespace, resource) == (expected["wrap"] or "")
    assert ns.has_namespace(resource, namespace) == expected["already_with"]
    assert ns.without_namespace(resource, namespace) == (expected["without"] or "")
    assert ns.with_namespace_and_retry(namespace, resource) == (expected["wrap_and_retry"] or "")


@SUITE.handles("namespace", "without_namespace")
def namespace_without(case: Case) -> None:
    resource, expected = case.given["resource"] or "", case.expected
    assert ns.without_namespace(resource) == (expected["result"] or "")
    assert ns.namespace_of(resource) == expected["namespace_of"]
    assert ns.without_retry_and_dlq(resource) == expected["without_retry_dlq"]
    assert ns.is_retry_topic(resource) == expected["is_retry"]
    assert ns.is_dlq_topic(resource) == expected["is_dlq"]


# Small formats.


@SUITE.handles("extras", "subscription")
def extras_subscription(case: Case) -> None:
    given, expected = case.given, case.expected
    if is_error(expected):
        with refused():
            build_subscription(given["topic"], given["expression"], given["type"])
        return
    built = build_subscription(given["topic"], given["expression"], given["type"], sub_version=5)
    assert (built.topic, built.sub_version) == (given["topic"], 5)
    assert built.sub_string == expected["subString"]
    assert built.expression_type == expected["expressionType"]
    assert sorted(built.tags_set) == sorted(expected["tagsSet"])
    assert sorted(built.code_set) == sorted(expected["codeSet"])


@SUITE.handles("extras", "trace")
def extras_trace(case: Case) -> None:
    given, expected = case.given, case.expected
    context = TraceContext(
        trace_type=TraceType(given["traceType"]),
        time_stamp=given["timeStamp"],
        region_id=given["regionId"],
        group_name=given["groupName"],
        cost_time=given["costTime"],
        success=given["success"],
        request_id=given["requestId"],
        context_code=given["contextCode"],
        beans=tuple(_trace_bean(bean) for bean in given["beans"]),
    )
    cloud = given["accessChannel"] == "CLOUD"
    assert encode_trace(context, cloud=cloud) == expected["data"]
    assert sorted(trace_keys([context])) == sorted(expected["keys_sorted"])
    decoded = decode_trace(expected["data"])
    assert [bean.msg_id for each in decoded for bean in each.beans] == [bean.msg_id for bean in context.beans]
    again = "".join(encode_trace(each, cloud=cloud) for each in decoded)
    assert again == expected["data"]


def _trace_bean(given: dict[str, Any]) -> TraceBean:
    return TraceBean(
        topic=given["topic"],
        msg_id=given["msgId"],
        offset_msg_id=given["offsetMsgId"],
        tags=given["tags"],
        keys=given["keys"],
        store_host=given["storeHost"],
        body_length=given["bodyLength"],
        msg_type=MessageType(given["msgTypeOrdinal"]),
        retry_times=given["retryTimes"],
        transaction_id=given["transactionId"],
        transaction_state=given["transactionState"],
        from_transaction_check=given["fromTransactionCheck"],
    )


@SUITE.handles("extras", "recall_build")
def extras_recall_build(case: Case) -> None:
    given = case.given
    handle = RecallHandle(given["topic"], given["brokerName"], given["timestamp"], given["messageId"])
    assert encode_recall_handle(handle) == case.expected["handle"]
    assert decode_recall_handle(case.expected["handle"]) == handle


@SUITE.handles("extras", "recall_decode")
def extras_recall_decode(case: Case) -> None:
    expected = case.expected
    if is_error(expected):
        with refused():
            decode_recall_handle(case.given["handle"])
        return
    assert decode_recall_handle(case.given["handle"]) == RecallHandle(
        expected["topic"], expected["brokerName"], expected["timestamp"], expected["messageId"]
    )


@SUITE.handles("extras", "pop_extra_info")
def extras_pop_extra_info(case: Case) -> None:
    given, expected = case.given, case.expected
    info = pop.ExtraInfo(
        given["ckQueueOffset"],
        given["popTime"],
        given["invisibleTime"],
        given["reviveQid"],
        pop.retry_flag(given["topic"]),
        given["brokerName"],
        given["queueId"],
    )
    assert pop.build_extra_info(info) == expected["without_offset"]
    whole = info._replace(msg_queue_offset=given["msgQueueOffset"])
    assert pop.build_extra_info(whole) == expected["with_offset"]
    assert pop.parse_extra_info(expected["without_offset"]) == info
    assert pop.parse_extra_info(expected["with_offset"]) == whole
    assert pop.real_topic(info.retry, "T", "CG") == expected["real_topic"]


_INFOS = {
    "startOffsetInfo": pop.parse_start_offset_info,
    "msgOffsetInfo": pop.parse_msg_offset_info,
    "orderCountInfo": pop.parse_order_count_info,
}


@SUITE.handles("extras", "pop_parse")
def extras_pop_parse(case: Case) -> None:
    parse = _INFOS[case.given["what"]]
    if is_error(case.expected):
        with refused():
            parse(case.given["text"])
        return
    found = parse(case.given["text"])
    assert found == {
        key: tuple(value) if isinstance(value, list) else value for key, value in (case.expected["map"] or {}).items()
    }
    assert pop.build_info(found) == case.given["text"].rstrip(";")


@SUITE.handles("extras", "pop_retry_topic")
def extras_pop_retry_topic(case: Case) -> None:
    topic, group = case.given["topic"], case.given["group"]
    assert pop.pop_retry_topic_v1(topic, group) == case.expected["v1"]
    assert pop.pop_retry_topic(topic, group) == case.expected["v2"]


@SUITE.handles("extras", "topic_message_type")
def extras_topic_message_type(case: Case) -> None:
    assert topic_message_type(case.given["properties"]) == case.expected["type"]


@SUITE.handles("extras", "create_reply")
def extras_create_reply(case: Case) -> None:
    properties, expected = case.given["request_properties"] or {}, case.expected
    if is_error(expected):
        with refused():
            create_reply(properties)
        return
    reply = create_reply(properties)
    assert reply.topic == expected["topic"]
    assert reply.properties == {name: value for name, value in expected["property_pairs_sorted"] if value is not None}


@SUITE.handles("extras", "client_id")
def extras_client_id(case: Case) -> None:
    given = case.given
    built = build_client_id(
        given["clientIP"], given["instanceName"], given["unitName"], stream=given["enableStreamRequestType"]
    )
    assert built == case.expected["clientId"]


@SUITE.handles("extras", "instance_name")
def extras_instance_name(case: Case) -> None:
    pid, nanos = re.fullmatch(r"(\d+)#(\d+)", case.expected["instanceName"]).groups()  # type: ignore[union-attr]
    assert int(pid) == case.given["pid"]
    assert build_instance_name(int(pid), int(nanos)) == case.expected["instanceName"]


@SUITE.handles("extras", "allocate_machine_room")
def extras_allocate_machine_room(case: Case) -> None:
    given = case.given
    queues = [MessageQueue("T", name, queue_id) for name, queue_id in given["queues"]]
    shares = {
        client: allocate_machine_room(client, queues, given["consumer_ids"], given["consumeridcs"])
        for client in given["consumer_ids"]
    }
    assert {client: [[q.broker_name, q.queue_id] for q in share] for client, share in shares.items()} == case.expected
    assert allocate_machine_room("stranger", queues, given["consumer_ids"], given["consumeridcs"]) == ()
