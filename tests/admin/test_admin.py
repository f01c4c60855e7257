"""Admin: topics that can be used at once, routes and offsets as they are, and errors that say who refused what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from rmq_async import Message, Producer, RocketMQError
from rmq_async.admin import Admin
from rmq_async.config import ClientConfig
from rmq_async.consumer import PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import (
    BrokerError,
    BrokerNotFoundError,
    ClientStateError,
    ConfigError,
    InvalidMessageError,
    NameServerError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageQueue

from ..client.support import until
from ..consumer.support import put
from ..support.fakes import Broker, Link, NameServer, route
from ..support.instances import client_of

pytestmark = pytest.mark.virtual_time

CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC


@asynccontextmanager
async def embedded(*, brokers: int = 1, **options: Any) -> AsyncIterator[tuple[EmbeddedRocketMQ, Admin]]:
    async with EmbeddedRocketMQ(brokers=brokers) as server, Admin(namesrv=server.namesrv, **options) as admin:
        yield server, admin


async def test_a_new_topic_can_be_used_at_once() -> None:
    async with embedded(brokers=2) as (_, admin):
        await admin.create_topic("t", queues=3, read_queues=5)
        data = await admin.topic_route("t")
        assert [(d.broker_name, d.write_queue_nums, d.read_queue_nums, d.perm) for d in data.queue_datas] == [
            ("broker-a", 3, 5, 6),
            ("broker-b", 3, 5, 6),
        ]
        queue = MessageQueue("t", "broker-b", 2)
        await put(admin, queue, [b"x"])
        assert (await admin.min_offset(queue), await admin.max_offset(queue)) == (0, 1)
        assert await admin.search_offset(queue, 0.0) == 0
        assert await admin.earliest_store_time_ms(queue) > 1_600_000_000_000
        assert await admin.earliest_store_time_ms(MessageQueue("t", "broker-b", 1)) == -1


async def test_one_broker_can_be_chosen_and_settings_changed() -> None:
    async with embedded(brokers=2) as (_, admin):
        await admin.create_topic("t", queues=2, broker="broker-b", perm=4)
        assert [(d.broker_name, d.perm) for d in (await admin.topic_route("t")).queue_datas] == [("broker-b", 4)]
        await admin.create_topic("t", queues=6, cluster="DefaultCluster")
        assert {d.broker_name: d.write_queue_nums for d in (await admin.topic_route("t")).queue_datas} == {
            "broker-a": 6,
            "broker-b": 6,
        }


async def test_sharers_of_the_client_see_new_queues_at_once() -> None:
    async with embedded() as (_, admin), PullConsumer("g", client=admin.config) as consumer:
        await admin.create_topic("t", queues=1)
        await consumer.queues("t")
        routes = (await client_of(consumer)).routes
        old = routes.cached("t")
        assert old is not None
        await admin.create_topic("t", queues=4)
        new = routes.cached("t")
        assert new is not None
        assert (len(old.publish_queues), len(new.publish_queues)) == (1, 4)


async def test_what_goes_to_the_broker() -> None:
    async with (
        Broker() as broker,
        NameServer({"c": {"broker-a": broker.address}}, t=route(broker.address, queues=8)) as server,
    ):
        async with Admin(namesrv=server.address) as admin:
            await admin.create_topic("t", order=True, topic_sys_flag=1, attributes={"message.type": "FIFO", "a": "b"})
        assert [(request.code, request.ext_fields) for request in broker.requests] == [
            (
                CREATE,
                {
                    "topic": "t",
                    "defaultTopic": "TBW102",
                    "readQueueNums": "8",
                    "writeQueueNums": "8",
                    "perm": "6",
                    "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "1",
                    "order": "true",
                    "attributes": "+message.type=FIFO,+a=b",
                    "force": "false",
                },
            )
        ]


async def test_a_topic_that_is_not_shown_in_time_is_reported() -> None:
    async with (
        Broker() as broker,
        NameServer({"c": {"broker-a": broker.address}}) as server,
        Admin(namesrv=server.address, request_timeout=0.3) as admin,
    ):
        start = monotonic()
        with pytest.raises(RequestTimeoutError, match="was created or changed on broker-a"):
            await admin.create_topic("t")
        assert monotonic() - start == pytest.approx(0.3, abs=0.01)
        server.routes["t"] = route(broker.address, queues=4)
        with pytest.raises(RequestTimeoutError, match="was created or changed on broker-a, but no name server shows"):
            await admin.create_topic("t", queues=8)
        asyncio.get_running_loop().call_later(0.1, server.routes.update, {"t": route(broker.address, queues=8)})
        await admin.create_topic("t", queues=8)


async def test_create_topic_repeats_a_lost_registration_with_another_change() -> None:
    """A broker of 5.5.0 ignores a request that changes nothing, and registers only changes."""
    async with (
        Broker() as broker,
        NameServer({"c": {"broker-a": broker.address}}) as server,
        Admin(namesrv=server.address, request_timeout=30.0) as admin,
    ):
        asked: list[float] = []
        changes: list[dict[str, str | None]] = []

        def create(link: Link, request: RemotingCommand) -> None:
            asked.append(monotonic())
            settings = {**(request.ext_fields or {})}
            if settings not in changes[-1:]:
                changes.append(settings)
                if len(changes) > 1:
                    server.routes["t"] = route(broker.address, queues=8)
            link.reply(request)

        broker.answers[CREATE] = create
        await admin.create_topic("t", queues=8)
        assert asked[1:] == [pytest.approx(asked[0] + 5.0, abs=0.1)] * 2
        assert [each["topicFilterType"] for each in changes] == ["SINGLE_TAG", "MULTI_TAG", "SINGLE_TAG"]
        assert changes[0] == changes[2]


async def test_create_topic_names_the_brokers_that_do_not_answer_in_time() -> None:
    async with embedded(brokers=3, request_timeout=1.0) as (server, admin):
        server.stall("broker-a")
        server.stall("broker-c")
        with pytest.raises(RequestTimeoutError) as caught:
            await admin.create_topic("t")
        assert str(caught.value) == (
            "no answer to UPDATE_AND_CREATE_TOPIC came in time from broker-a, broker-c: whether topic t was created or changed "
            "there is not known; it was created or changed on broker-b; repeat the call"
        )
        assert (caught.value.broker, caught.value.address) == ("broker-a", server.brokers["broker-a"])
        server.stall("broker-b")
        with pytest.raises(RequestTimeoutError, match=r"from broker-a, broker-b, broker-c: whether .* is not known; repeat"):
            await admin.create_topic("t")


async def test_message_is_found_by_its_id_while_another_broker_is_silent() -> None:
    async with embedded(brokers=2, request_timeout=1.0) as (server, admin):
        await admin.create_topic("t", queues=1)
        async with Producer("p", namesrv=server.namesrv) as producer:
            sent = await producer.send(Message("t", b"x", keys="k"), queue=MessageQueue("t", "broker-b", 0))
        server.stall("broker-a")
        assert (await admin.view_message("t", sent.msg_id)).body == b"x"
        with pytest.raises(RequestTimeoutError):
            await admin.view_message("t", "another")
        with pytest.raises(RocketMQError):  # there may be others with the key
            await admin.query_message("t", "k")


async def test_create_topic_says_that_it_was_created_where_name_servers_are_silent() -> None:
    async with embedded(request_timeout=1.0) as (server, admin):
        server.lose_answers(1000, request=RequestCode.PUT_KV_CONFIG)
        with pytest.raises(RequestTimeoutError, match=r"t was created or changed on broker-a, but some name servers may lack "):
            await admin.create_topic("t", order=True)
        server.lose_answers(1000, request=RequestCode.GET_ROUTEINFO_BY_TOPIC)
        text = (
            r"t was created or changed on broker-a, but no name server shows its settings there yet \(no name server answered "
        )
        with pytest.raises(RequestTimeoutError, match=text):
            await admin.create_topic("t")


async def test_create_topic_waits_out_a_name_server_that_fails_for_a_moment() -> None:
    async with embedded() as (server, admin):
        server.fail_next(1, 2, request=RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await admin.create_topic("t")
        assert len((await admin.topic_route("t")).queue_datas) == 1


async def test_a_refusal_names_the_broker_and_the_others_are_waited_for() -> None:
    async with Broker() as good, Broker() as bad, NameServer({"c": {"a": bad.address, "b": good.address}}) as server:
        bad.serve = lambda link, request: link.reply(request, code=16, remark="User:x has no permission to access Topic:t")
        async with Admin(namesrv=server.address) as admin:
            with pytest.raises(BrokerError, match="UPDATE_AND_CREATE_TOPIC") as caught:
                await admin.create_topic("t")
            assert (caught.value.broker, caught.value.address, caught.value.code) == ("a", bad.address, 16)
            assert len(good.requests) == 1


async def test_where_to_create_must_be_clear() -> None:
    clusters = {"one": {"a": "127.0.0.1:1"}, "two": {"b": "127.0.0.1:2"}}
    async with NameServer(clusters) as server, Admin(namesrv=server.address) as admin:
        with pytest.raises(ConfigError, match="one, two"):
            await admin.create_topic("t")
        with pytest.raises(BrokerNotFoundError, match="three"):
            await admin.create_topic("t", cluster="three")
        with pytest.raises(BrokerNotFoundError, match="x"):
            await admin.create_topic("t", broker="x")
        with pytest.raises(BrokerNotFoundError, match="one has no broker b"):
            await admin.create_topic("t", cluster="one", broker="b")
        server.clusters.clear()
        with pytest.raises(BrokerNotFoundError, match="any broker"):
            await admin.create_topic("t")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"topic": "no spaces"}, InvalidMessageError),
        ({"topic": "x" * 128}, InvalidMessageError),
        ({"topic": "TBW102"}, InvalidMessageError),
        ({"topic": "rmq_sys_x"}, InvalidMessageError),
        ({"queues": 0}, ConfigError),
        ({"queues": 70_000}, ConfigError),
        ({"read_queues": -1}, ConfigError),
        ({"attributes": {"a": "b,c"}}, ConfigError),
        ({"attributes": {"": "b"}}, ConfigError),
        ({"attributes": {"a": 1}}, ConfigError),
        ({"attributes": {1: "a"}}, ConfigError),
        ({"queues": 10**5000}, ConfigError),
        *(({"perm": perm}, ConfigError) for perm in (0, 1, 8, 99, -1, 3.5, True, "6")),
        *(({"order": order}, ConfigError) for order in ("false", 0, None)),
        *(({"topic_sys_flag": flag}, ConfigError) for flag in (None, True, 1.5, -1, "1")),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_sent(arguments: dict[str, Any], kind: type[Exception]) -> None:
    async with embedded() as (server, admin):
        before = server.requests.total()
        with pytest.raises(kind):
            await admin.create_topic(**({"topic": "t"} | arguments))
        assert server.requests.total() == before


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("sync_topics", ("broker-a", "broker-b"), {"dry_run": "no"}),
        ("sync_topics", (None, "broker-b"), {"from_broker": None}),
        ("sync_topics", ("broker-a", " "), {"to_broker": " "}),
        ("reset_offsets", ("g", "t", "earliest"), {"dry_run": 0}),
        ("search_offset", (MessageQueue("t", "broker-a", 0), 0), {"upper": "no"}),
        ("overview", (), {"system": 1}),
        ("query_message", ("t", "\ud800"), {"key": "\ud800"}),
        ("query_message", ("t", "k"), {"begin": 7, "end": 5}),
        ("view_message", ("t", "\ud800"), {"msg_id": "\ud800"}),
        ("consume_directly", ("g", None, "m"), {"client_id": None}),
        ("consume_directly", ("g", "one", "m"), {"message": "m"}),
        ("consumer_status", ("g", 7), {"client_id": 7}),
    ],
)
async def test_argument_of_a_wrong_kind_is_named_before_anything_is_sent(
    method: str, arguments: tuple[object, ...], text: dict[str, object]
) -> None:
    """``text``: the argument that the error names; an option that is not among ``arguments`` is given as well."""
    options = {name: value for name, value in text.items() if not any(value is each for each in arguments)}
    async with embedded() as (server, admin):
        before = server.requests.total()
        with pytest.raises(ConfigError, match=next(iter(text))):
            await getattr(admin, method)(*arguments, **options)
        assert server.requests.total() == before


async def test_an_unknown_topic_has_no_route() -> None:
    async with embedded() as (server, admin):
        with pytest.raises(TopicNotFoundError) as caught:
            await admin.topic_route("Missing")
        assert caught.value.address == server.namesrv
        assert (await client_of(admin)).routes.topics == ()


async def test_the_cluster_is_shown() -> None:
    async with embedded(brokers=2) as (server, admin):
        info = await admin.cluster_info()
        assert {name: data.broker_addrs[0] for name, data in info.broker_addr_table.items()} == server.brokers
        assert info.cluster_addr_table == {"DefaultCluster": ("broker-a", "broker-b")}


async def test_topics_are_listed_and_deleted() -> None:
    """By scripted peers: which peer is asked for what."""
    async with (
        Broker() as broker,
        NameServer({"c": {"a": broker.address}}, t=route(broker.address)) as one,
        NameServer({"c": {"a": broker.address}}, t=route(broker.address)) as two,
    ):
        for server in (one, two):
            server.answers[206] = lambda link, request: link.reply(request, body=b'{"topicList":["b","a"]}')
        async with Admin(namesrv=[one.address, two.address]) as admin:
            assert await admin.topics() == ("a", "b")
            await admin.delete_topic("t")
            with pytest.raises(TopicNotFoundError):
                await admin.delete_topic("Missing")
        assert [(r.code, r.ext_fields) for r in broker.requests] == [(215, {"topic": "t"})]
        for server in (one, two):
            asked = [(r.code, r.ext_fields) for r in server.requests if r.code not in (105, 106, 206)]
            assert asked == [(216, {"topic": "t"}), (102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "t"})]


async def test_an_admin_makes_no_heartbeats() -> None:
    async with embedded(heartbeat_interval=0.05) as (server, admin):
        await admin.create_topic("t")
        await admin.max_offset(MessageQueue("t", "broker-a", 0))
        await asyncio.sleep(0.2)
        assert server.requests[34] == 0


async def test_life() -> None:
    with pytest.raises(NameServerError):
        await Admin().start()
    with pytest.raises(TypeError, match="group"):
        Admin(group="g")
    async with EmbeddedRocketMQ() as server:
        admin = Admin(client=ClientConfig(namesrv=server.namesrv))
        with pytest.raises(ClientStateError):
            await admin.topics()
        async with admin:
            with pytest.raises(ConfigError):
                await admin.max_offset(("t", 1))  # type: ignore[arg-type]
        with pytest.raises(ClientStateError, match="stopped"):
            await admin.cluster_info()


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21])
async def test_cancelling_a_creation_leaves_nothing(steps: int) -> None:
    async with (
        Broker() as broker,
        NameServer({"c": {"broker-a": broker.address}}) as server,
        Admin(namesrv=server.address) as admin,
    ):
        call = asyncio.ensure_future(admin.create_topic("t"))
        for _ in range(steps):
            await asyncio.sleep(0.002)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        instance = await client_of(admin)
        await until(lambda: not any(connection.pending for connection in instance.pool.connections))


async def test_sync_topics_sets_no_attribute_again_that_the_other_broker_has() -> None:
    async with embedded(brokers=2) as (_, admin):
        attributes = {"cleanup.policy": "DELETE", "message.type": "FIFO"}
        await admin.create_topic("Kept", queues=1, broker="broker-a", attributes=attributes)
        (copied,) = await admin.sync_topics("broker-a", "broker-b")
        await admin.create_topic("Kept", queues=3, broker="broker-a", attributes={"message.type": "NORMAL"})
        (changed,) = await admin.sync_topics("broker-a", "broker-b")
        (same,) = await admin.sync_topics("broker-a", "broker-b")
    assert [each.action for each in (copied, changed, same)] == ["create", "update", "same"]
    assert same.config.attributes == {"cleanup.policy": "DELETE", "message.type": "NORMAL"}
