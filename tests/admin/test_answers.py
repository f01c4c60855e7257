"""What an admin makes of its brokers' answers, good and bad; which one it asks, and that it stops at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from time import monotonic
from typing import Any

import pytest

from rmq_async.admin import Admin, topics
from rmq_async.errors import (
    BrokerError,
    ClientStateError,
    ConfigError,
    CorruptMessageError,
    GroupNotOnlineError,
    PermissionDeniedError,
    QueryNotFoundError,
    RemoteProtocolError,
    RequestTimeoutError,
    RocketMQError,
)
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.ids import pack_offset_id
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData

from ..client.support import until
from ..consumer.support import record
from ..support.fakes import Broker, Link, NameServer, Peer, route, silence
from .support import one_broker, scripted

pytestmark = pytest.mark.virtual_time

CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC

CALLS: dict[str, Callable[[Admin], Any]] = {
    "create_topic": lambda admin: admin.create_topic("t"),
    "delete_topic": lambda admin: admin.delete_topic("t"),
    "topic_stats": lambda admin: admin.topic_stats("t"),
    "max_offset": lambda admin: admin.max_offset(MessageQueue("t", "broker-a", 0)),
    "search_offset": lambda admin: admin.search_offset(MessageQueue("t", "broker-a", 0), 0),
    "view_message": lambda admin: admin.view_message("t", "id"),
    "query_message": lambda admin: admin.query_message("t", "key"),
    "producer_connections": lambda admin: admin.producer_connections("g"),
    "consumer_connections": lambda admin: admin.consumer_connections("g"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_stopping_ends_a_call_at_once_though_others_share_the_client(name: str) -> None:
    async with one_broker({}, request_timeout=30.0) as (broker, admin), Admin(client=admin.config) as sharer:
        broker.serve = silence
        calls = [asyncio.ensure_future(CALLS[name](user)) for user in (admin, sharer)]
        await until(lambda: len(broker.requests) >= 2)
        start = monotonic()
        await admin.stop()
        with pytest.raises(ClientStateError, match="was stopped"):
            await calls[0]
        assert monotonic() - start < 0.01
        assert not calls[1].done()
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]


async def test_stopping_ends_waiting_for_a_name_server() -> None:
    async with NameServer({}) as server:
        admin = Admin(namesrv=server.address, request_timeout=30.0)
        await admin.start()
        server.serve = silence
        call = asyncio.ensure_future(admin.topics())
        await until(lambda: server.requests[-1].code == 206)
        await admin.stop()
        with pytest.raises(ClientStateError):
            await call


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"offsetTable":{{"topic":1}:{}}}', b'{"offsetTable":7,"connectionSet":7}', b"\xff"]
)
@pytest.mark.parametrize("name", ["topic_stats", "producer_connections", "consumer_connections"])
async def test_a_body_that_is_none_is_an_error_of_ours(name: str, body: bytes) -> None:
    async with one_broker({202: (0, None, body), 203: (0, None, body), 204: (0, None, body)}) as (_, admin):
        with pytest.raises(RocketMQError):
            await CALLS[name](admin)


async def test_a_refusal_names_request_and_broker() -> None:
    refused = (1, "no\nspace", b"")
    codes = (28, 202, 203, 204, 12, 30, 29, 17, 215)
    async with one_broker(dict.fromkeys(codes, refused)) as (broker, admin):
        for name, call in CALLS.items():
            with pytest.raises(BrokerError, match="SYSTEM_ERROR") as caught:
                await call(admin)
            assert (caught.value.broker, caught.value.address) == ("broker-a", broker.address), name
            assert "\n" not in str(caught.value)


async def test_figures_of_single_queues_end_in_time() -> None:
    """4.x brokers leave queues that are only read from out of a topic's figures: each is asked for by requests of its own."""
    timeout, answered_after = 0.8, 0.6

    def answer(link: Link, request: RemotingCommand) -> None:
        if request.code == RequestCode.GET_TOPIC_STATS_INFO:
            link.reply(request, body=b'{"offsetTable":{}}')
        elif request.code == RequestCode.GET_MIN_OFFSET:
            link.reply_later(answered_after, request, ext_fields={"offset": "0"})
        elif request.code != RequestCode.GET_MAX_OFFSET:  # never answered
            link.reply(request)

    async with Broker() as broker:
        broker.serve = answer
        data = TopicRouteData((QueueData("broker-a", 1, 0, 6),), (BrokerData("broker-a", {0: broker.address}, "c"),))
        async with (
            NameServer({"c": {"broker-a": broker.address}}, t=data) as server,
            Admin(namesrv=server.address, request_timeout=timeout) as admin,
        ):
            with pytest.raises(RequestTimeoutError):
                began = monotonic()
                await admin.topic_stats("t")
            took = monotonic() - began
    assert {request.code for request in broker.requests} >= {RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET}
    assert took == pytest.approx(timeout, abs=0.01)  # not a time for each request


async def test_connections_of_a_group_are_those_of_all_brokers() -> None:
    def of(client: str, **more: Any) -> bytes:
        connection = {"clientId": client, "clientAddr": "1.2.3.4:5", "language": "JAVA", "version": 407}
        return json.dumps({"connectionSet": [connection], **more}).encode()

    subscribed = {"T": {"topic": "T", "subString": "a", "subVersion": 2}}
    async with Broker() as one, Broker() as two, Broker() as three:
        scripted(
            one, {204: (0, None, of("x")), 203: (0, None, of("x", subscriptionTable=subscribed, consumeType="CONSUME_POP"))}
        )
        scripted(two, {204: (0, None, of("w")), 203: (0, None, of("x", consumeType="CONSUME_POP"))})
        scripted(three, {204: (1, "the producer group[g] not exist", b""), 203: (206, "not online", b"")})
        clusters = {"c": {"a": one.address, "b": two.address}, "d": {"e": three.address}}
        async with NameServer(clusters) as server, Admin(namesrv=server.address) as admin:
            producers = await admin.producer_connections("g")
            assert [(each.client_id, each.broker, each.version) for each in producers] == [("w", "b", 407), ("x", "a", 407)]
            consumers = await admin.consumer_connections("g")
            assert [(each.client_id, each.broker) for each in consumers.connections] == [("x", "a"), ("x", "b")]
            assert consumers.consume_type == "CONSUME_POP"
            assert {topic: each.sub_string for topic, each in consumers.subscriptions.items()} == {"T": "a"}
            for server_answers in (one, two):
                scripted(server_answers, {204: (0, None, b'{"connectionSet":[]}'), 203: (206, "not online", b"")})
            for call in (admin.producer_connections, admin.consumer_connections):
                with pytest.raises(GroupNotOnlineError, match="group g is connected to a, b, e"):
                    await call("g")


# -- messages


def stored(broker: Broker, offset: int, **changes: Any) -> bytes:
    fields = {"store_host": broker.address, "commit_log_offset": offset, "properties": b"UNIQ_KEY\x01id\x02KEYS\x01k l\x02"}
    return record(0, **(fields | changes))


NOT_FOUND = (22, "can not find message, maybe time range not correct", b"")
SETTLED = (0, None, b'{"table":{"commitLogMaxOffset":"5","dispatchBehindBytes":"0"}}')


async def test_an_id_chooses_the_broker_only_among_those_of_the_cluster() -> None:
    async with Peer() as stranger, one_broker({12: NOT_FOUND, 28: SETTLED}) as (broker, admin):
        scripted(broker, {33: lambda request: (0, None, stored(broker, int((request.ext_fields or {})["offset"] or 0)))})
        found = await admin.view_message("t", pack_offset_id(broker.address, 700))
        assert (found.commit_log_offset, found.queue.broker_name, found.msg_id) == (700, "broker-a", "id")
        with pytest.raises(
            QueryNotFoundError, match=f"the id may contain the address {stranger.address}, which is not a broker"
        ):
            await admin.view_message("t", pack_offset_id(stranger.address, 700))
        assert stranger.requests == []


async def test_a_broker_known_by_name_is_found_by_its_address() -> None:
    async with Broker() as broker:
        scripted(broker, {33: (0, None, stored(broker, 700))})
        named = broker.address.replace("127.0.0.1", "localhost")
        async with NameServer({"c": {"broker-a": named}}, t=route(named)) as server, Admin(namesrv=server.address) as admin:
            assert (await admin.view_message("t", pack_offset_id(broker.address, 700))).commit_log_offset == 700


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((1, "can not find message by the offset, 700", b""), QueryNotFoundError),
        ((0, None, b""), QueryNotFoundError),
        ((0, None, b"\x00" * 100), QueryNotFoundError),
        ((0, None, record(0, commit_log_offset=701)), QueryNotFoundError),
        ((0, None, record(0, commit_log_offset=700, topic="other")), QueryNotFoundError),
        ((0, None, record(0, commit_log_offset=700, body_crc=1)), CorruptMessageError),
        ((0, None, record(0, commit_log_offset=700)[:60]), CorruptMessageError),
        ((16, "User:x has no permission to access Topic:t", b""), PermissionDeniedError),
        ((3, "not supported", b""), BrokerError),
    ],
)
async def test_what_a_broker_may_answer_to_an_offset_id(answer: Any, kind: type[Exception]) -> None:
    async with one_broker({33: answer}) as (broker, admin):
        with pytest.raises(kind) as caught:
            await admin.view_message("t", pack_offset_id(broker.address, 700))
        assert caught.type is kind or kind is BrokerError


async def test_what_only_shares_a_hash_is_left_out() -> None:
    async with one_broker({28: SETTLED}) as (broker, admin):
        records = [
            stored(broker, 3, store_time_ms=30),
            stored(broker, 2, store_time_ms=20, properties=b"KEYS\x01other\x02UNIQ_KEY\x01other\x02"),
            stored(broker, 1, store_time_ms=10),
            stored(broker, 4, store_time_ms=10, topic="other"),
            stored(broker, 5, body_crc=1),
        ]
        scripted(broker, {12: (0, None, b"".join(records))})
        assert [each.commit_log_offset for each in await admin.query_message("t", "k")] == [1, 3]
        assert [each.commit_log_offset for each in await admin.query_message("t", "l", max_num=1)] == [3]
        assert [each.commit_log_offset for each in await admin.query_message("t", "k", begin=0.011)] == [3]
        assert [each.commit_log_offset for each in await admin.query_message("t", "k", end=0.029)] == [1]
        assert (await admin.view_message("t", "id")).commit_log_offset == 1
        assert await admin.query_message("t", "id") == ()


FRESH = (1, "java.util.NoSuchElementException, java.base/java.util.LinkedList.getLast(LinkedList.java:261)", b"")
BEHIND = (0, None, b'{"table":{"commitLogMaxOffset":"5","dispatchBehindBytes":"3"}}')


@pytest.mark.parametrize("before", [[], [BEHIND], [FRESH, FRESH, BEHIND]], ids=["at once", "behind", "just started"])
async def test_an_id_that_is_not_indexed_yet_is_asked_for_again_when_it_is(before: list[Any]) -> None:
    async with one_broker({}) as (broker, admin):
        waited = False
        answers = [*before, SETTLED]

        def settle(request: RemotingCommand) -> Any:
            nonlocal waited
            waited = len(answers) == 1
            return answers.pop(0)

        scripted(broker, {28: settle, 12: lambda request: (0, None, stored(broker, 1)) if waited else NOT_FOUND})
        assert (await admin.view_message("t", "id")).commit_log_offset == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.view_message("t", ""),
        lambda admin: admin.view_message("t", "x" * 2000),
        lambda admin: admin.view_message("t", None),
        lambda admin: admin.query_message("t", ""),
        lambda admin: admin.query_message("t", "two keys"),
        lambda admin: admin.query_message("t", "k", max_num=0),
        lambda admin: admin.query_message("t", "k", begin=datetime(2020, 1, 1)),
        lambda admin: admin.query_message("t", "k", begin=1e308),
        lambda admin: admin.query_message("t", "k", end=float("nan")),
        lambda admin: admin.query_message("t", "k", end=10**400),
        lambda admin: admin.query_message("t", "k", begin=-(10**17)),
        lambda admin: admin.create_topic("t", attributes=[("+a", "b")]),
        lambda admin: admin.sync_topics("a", "b", topics=""),
        lambda admin: admin.sync_topics("a", "b", topics=[]),
        lambda admin: admin.sync_topics("a", "b", topics=5),
        lambda admin: admin.sync_topics(10**5000, "b"),
        lambda admin: admin.view_message("t", 10**5000),
    ],
)
async def test_arguments_that_cannot_be(call: Callable[[Admin], Any]) -> None:
    async with one_broker({}) as (broker, admin):
        with pytest.raises(ConfigError):
            await call(admin)
        assert broker.requests == []


# -- order and copies


async def test_order_is_merged_on_every_name_server() -> None:
    async with (
        Broker() as broker,
        NameServer({"c": {"b": broker.address}}, t=route(broker.address, queues=8, name="b")) as one,
    ):
        one.answers[101] = lambda link, request: link.reply(request, ext_fields={"value": "a:4;b:2;"})
        async with Admin(namesrv=one.address) as admin:
            await admin.create_topic("t", order=True, broker="b")
            await admin.create_topic("t", order=True)
            await admin.create_topic("t")
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "t"}
        assert [request.ext_fields for request in one.requests if request.code == 100] == [
            {**fields, "value": "a:4;b:8"},
            {**fields, "value": "b:8"},
        ]


async def test_a_copy_changes_only_what_differs() -> None:
    def table(**topics: dict[str, Any]) -> bytes:
        return json.dumps(
            {"topicConfigTable": {name: {"topicName": name} | config for name, config in topics.items()}}
        ).encode()

    async with Broker() as source, Broker() as target:
        same = {"readQueueNums": 4, "writeQueueNums": 4}
        own = {
            name: {}
            for name in ("TBW102", "c", "broker-a", "broker-b", "c_REPLY_TOPIC", "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX")
        }
        mapped = b'"topicQueueMappingDetailMap":{"static":{"currIdMap":{0:0}}},'
        have = table(same=same, new=same | {"attributes": {"message.type": "FIFO"}}, other=same, static=same, **own)
        scripted(source, {21: (0, None, b"{" + mapped + have[1:])})
        scripted(target, {21: (0, None, table(same=same, other=same | {"perm": 4, "attributes": {"x": "y"}}))})
        routes = {name: route(target.address, queues=4, name="broker-b") for name in ("new", "other")}
        clusters = {"c": {"broker-a": source.address, "broker-b": target.address}}
        async with NameServer(clusters, **routes) as server, Admin(namesrv=server.address) as admin:
            done = await admin.sync_topics("broker-a", "broker-b")
        assert [(each.topic, each.action) for each in done] == [("new", "create"), ("other", "update"), ("same", "same")]
        created = {(r.ext_fields or {})["topic"]: r.ext_fields or {} for r in target.requests if r.code == CREATE}
        assert {name: fields["attributes"] for name, fields in created.items()} == {"new": "+message.type=FIFO", "other": "-x"}
        assert {fields["perm"] for fields in created.values()} == {"6"}
        assert not [request for request in source.requests if request.code == CREATE]


async def test_large_settings_that_are_nested_deeply_are_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_JSON_BODY_SIZE", 50_000)
    async with Broker() as source, Broker() as target:
        scripted(source, {21: (0, None, b'{"topicQueueMappingDetailMap":{"t":' + b"[" * 100_000)})
        scripted(target, {21: (0, None, b"{}")})
        clusters = {"c": {"broker-a": source.address, "broker-b": target.address}}
        async with NameServer(clusters) as server, Admin(namesrv=server.address) as admin:
            with pytest.raises(RemoteProtocolError):
                await admin.sync_topics("broker-a", "broker-b", dry_run=True)


async def test_a_broker_may_have_many_topics() -> None:
    config = json.dumps(
        {"readQueueNums": 4, "writeQueueNums": 4, "topicName": "x" * 100, "attributes": {"message.type": "NORMAL"}}
    )
    many = "{" + ",".join(f'"{number}":{config}' for number in range(30_000)) + "}"
    async with Broker() as source, Broker() as target:
        scripted(source, {21: (0, None, b'{"topicConfigTable":%b}' % many.encode())})
        scripted(target, {21: (0, None, b"{}")})
        clusters = {"c": {"broker-a": source.address, "broker-b": target.address}}
        async with NameServer(clusters) as server, Admin(namesrv=server.address) as admin:
            assert len(await admin.sync_topics("broker-a", "broker-b", dry_run=True)) == 30_000
            assert len(await admin.sync_topics("broker-a", "broker-b", topics="?", dry_run=True)) == 10
