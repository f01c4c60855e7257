"""Consumer groups from the outside, on embedded brokers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from rmq_async import Admin, Consumer, Message, MessageQueue, Producer
from rmq_async.admin.group_offsets import look_pauses
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import (
    BrokerError,
    ClientStateError,
    ConfigError,
    GroupNotOnlineError,
    InvalidGroupError,
    SubscriptionGroupNotExistError,
    TopicNotFoundError,
)
from rmq_protocol.constants import RequestCode, ResponseCode

from ..consumer.group.support import until
from .support import send, worker

pytestmark = pytest.mark.virtual_time

# -- settings and members


async def test_create_group_with_settings_shows_them_on_all_brokers(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await admin.create_group("shipping", retry_max_times=3, consume_broadcast_enable=False)
    assert {"billing", "shipping"} <= set(await admin.groups())
    with pytest.raises(TypeError, match="a group has no setting retries; there are consume_enable"):
        await admin.create_group("shipping", retries=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="a setting of group shipping has an invalid value"):
        await admin.create_group("shipping", retry_max_times="3")  # type: ignore[arg-type]
    for name, value in {"retry_queue_nums": 0, "retry_max_times": -1, "broker_id": -1}.items():
        with pytest.raises(TypeError, match=f"{name} must be at least {value + 1}, not {value}"):
            await admin.create_group("shipping", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidGroupError):
        await admin.create_group("a group")


async def test_delete_group_with_members_is_refused_and_without_them_done(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await send(server, b"bad 1")
    consumer, _ = worker(server)
    async with consumer:
        await consumer.wait_settled(1)
        with pytest.raises(ClientStateError, match=r"group billing has 1 member .*: stop them first"):
            await admin.delete_group("billing")
    assert "%DLQ%billing" in await admin.topics()
    await admin.delete_group("billing")
    assert "billing" not in await admin.groups()
    assert not [topic for topic in await admin.topics() if topic.endswith("%billing")]
    with pytest.raises(SubscriptionGroupNotExistError, match="group billing has no offsets on broker-a, broker-b"):
        await admin.group_lag("billing")
    with pytest.raises(SubscriptionGroupNotExistError, match="there is no group billing on broker-a, broker-b"):
        await admin.delete_group("billing")


async def test_group_members_names_each_client_once(server: EmbeddedRocketMQ, admin: Admin) -> None:
    with pytest.raises(GroupNotOnlineError):
        await admin.group_members("billing")
    one, _ = worker(server, instance_name="one")
    two, _ = worker(server, instance_name="two")
    async with one, two:
        members = await admin.group_members("billing")
        assert [member.client_id.rpartition("@")[2] for member in members] == ["one", "two"]
        assert {member.brokers for member in members} == {("broker-a", "broker-b")}
        status = await admin.consumer_status("billing", members[0].client_id)
        assert {queue.topic for queue in status.mq_table} == {"OrderTopic", "%RETRY%billing"}
        with pytest.raises(GroupNotOnlineError, match="group billing has no member absent@here"):
            await admin.consumer_status("billing", "absent@here")


async def test_consume_directly_calls_the_handler_beside_all_others(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await send(server, b"good", b"bad")
    consumer, handled = worker(server)
    async with consumer:
        await consumer.wait_settled(2)
        (member,) = await admin.group_members("billing")
        results = [
            (await admin.consume_directly("billing", member.client_id, message)).consume_result
            for message in sorted(server.messages("OrderTopic"), key=lambda message: message.body)
        ]
        assert results == ["CR_LATER", "CR_SUCCESS"]
        assert sorted(handled) == [b"bad", b"bad", b"good", b"good"]
        with pytest.raises(BrokerError, match="not online"):
            await admin.consume_directly("billing", "absent@here", server.messages("OrderTopic")[0])


# -- lag


async def test_group_lag_counts_topics_and_retries_apart(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await send(server, *(b"%d" % number for number in range(8)))
    consumer, _ = worker(server)
    async with consumer:
        await consumer.wait_settled(8)
    await send(server, *(b"%d" % number for number in range(6)))
    lag = await admin.group_lag("billing")
    assert (lag.messages, lag.retries) == (6, 0)
    assert [each.committed for each in lag.queues.values()] == [2, 2, 2, 2]
    assert sorted(each.messages for each in lag.queues.values()) == [1, 1, 2, 2]
    assert {queue.topic for queue in lag.retry_queues} == {"%RETRY%billing"}
    assert (await admin.group_lag("billing", "OrderTopic")).queues == lag.queues
    with pytest.raises(SubscriptionGroupNotExistError, match="there is no group shipping on broker-a, broker-b"):
        await admin.group_lag("shipping", "OrderTopic")
    await admin.create_group("shipping")
    assert (await admin.group_lag("shipping", "OrderTopic")).messages == 14  # never consumed: counts whole


async def test_group_lag_above_the_end_of_a_queue_is_a_warning(
    server: EmbeddedRocketMQ, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Its broker has lost the newest messages, and has a new one since: the group will not get it, though its lag is 0."""
    await admin.create_topic("OneTopic", queues=1, broker="broker-a")
    async with Producer("orders", client=admin.config) as producer:
        for number in range(5):
            await producer.send(Message("OneTopic", b"%d" % number))
        await admin.reset_offsets("billing", "OneTopic", "latest")
        server.truncate("broker-a", 3)
        await producer.send(Message("OneTopic", b"new"))
    lag = await admin.group_lag("billing", "OneTopic")
    assert [(each.committed, each.end, each.messages) for each in lag.queues.values()] == [(5, 3, 0)]
    (line,) = [each.getMessage() for each in caplog.records if "ends at offset" in each.getMessage()]
    assert "ends at offset 3, below the offset 5 of group billing" in line
    await admin.reset_offsets("billing", "OneTopic", "latest")
    assert (await admin.group_lag("billing", "OneTopic")).messages == 0
    assert len([each for each in caplog.records if "ends at offset" in each.getMessage()]) == 1


async def test_group_lag_of_a_topic_that_is_misspelled_is_an_error(server: EmbeddedRocketMQ, admin: Admin) -> None:
    """The group's retry topic has queues, which must not hide that the topic has none."""
    await send(server, b"0")
    consumer, _ = worker(server)
    async with consumer:
        await consumer.wait_settled(1)
        with pytest.raises(
            SubscriptionGroupNotExistError, match=r"for topic OderTopic .*; they subscribe to OrderTopic: name a topic"
        ):
            await admin.group_lag("billing", "OderTopic")
    with pytest.raises(SubscriptionGroupNotExistError, match=r"for topic OderTopic on broker-a, broker-b; check the names"):
        await admin.group_lag("billing", "OderTopic")


async def test_group_lag_without_offsets_says_what_the_members_do(server: EmbeddedRocketMQ, admin: Admin) -> None:
    nothing = "group billing has no offsets on broker-a, broker-b"
    waiting = Consumer("billing", namesrv=server.namesrv, commit_interval=600.0)
    waiting.subscribe("LaterTopic", lambda message: None)  # which does not exist yet
    async with Producer("orders", namesrv=server.namesrv, topics=["OrderTopic"]), waiting:  # one client, and so a heartbeat
        await until(lambda: waiting.assignment)  # the retry topic's queue: the broker knows the member
        (member,) = await admin.group_members("billing")
        said = f", though it has members: {member.client_id}, subscribed to LaterTopic; they have committed nothing yet"
        with pytest.raises(SubscriptionGroupNotExistError, match=re.escape(nothing + said)):
            await admin.group_lag("billing")
        for refusal in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR):
            server.fail_next(refusal, 2, request=RequestCode.GET_CONSUMER_CONNECTION_LIST)
            with pytest.raises(SubscriptionGroupNotExistError, match=re.escape(nothing + "; check the names, and start")):
                await admin.group_lag("billing")


async def test_group_lag_of_members_that_broadcast_says_so(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await send(server, b"1")
    rates, _ = worker(server, "rates", broadcast=True)
    async with rates:
        with pytest.raises(SubscriptionGroupNotExistError, match=r"they broadcast and keep their positions themselves: call"):
            await admin.group_lag("rates")


async def test_group_lag_of_a_user_who_may_not_list_groups(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await send(server, b"1", b"2")
    listing = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    server.fail_next(ResponseCode.NO_PERMISSION, 2, request=listing)
    assert (await admin.group_lag("billing", "OrderTopic")).messages == 2
    server.fail_next(ResponseCode.NO_PERMISSION, 2, request=listing)
    assert {change.after for change in await admin.reset_offsets("billing", "OrderTopic", "earliest", dry_run=True)} == {0}


# -- resets


async def offsets(admin: Admin) -> list[int]:
    return [each.committed for each in (await admin.group_lag("billing", "OrderTopic")).queues.values()]


@pytest.mark.parametrize("by_server", [True, False], ids=["by the server", "by members"])
async def test_reset_offsets_without_members_moves_the_offsets(by_server: bool) -> None:
    async with EmbeddedRocketMQ(server_side_reset=by_server) as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("OrderTopic", queues=2)
        await admin.create_group("billing")
        await send(server, *(b"%d" % number for number in range(10)))
        one, two = (MessageQueue("OrderTopic", "broker-a", number) for number in range(2))
        for to, expected in (
            ("latest", [5, 5]),
            ("earliest", [0, 0]),
            (3, [3, 3]),
            ({two: 1}, [3, 1]),
            (datetime.now(UTC) + timedelta(hours=1), [5, 5]),
            (datetime.now(UTC) - timedelta(hours=1), [0, 0]),
            (4, [4, 4]),
            (datetime(1969, 12, 31, tzinfo=UTC), [0, 0]),
            ({one: 4711}, [5, 0]),
        ):
            before = await offsets(admin)
            planned = await admin.reset_offsets("billing", "OrderTopic", to, dry_run=True)  # type: ignore[arg-type]
            assert await offsets(admin) == before
            changes = await admin.reset_offsets("billing", "OrderTopic", to)  # type: ignore[arg-type]
            assert await offsets(admin) == expected
            assert all(change.verified for change in changes)
            assert [(each.queue, each.before, each.after) for each in planned] == [
                (each.queue, each.before, each.after) for each in changes
            ]


@pytest.mark.parametrize("by_server", [True, False], ids=["by the server", "by members"])
async def test_reset_offsets_with_members_makes_them_read_again(by_server: bool) -> None:
    async with EmbeddedRocketMQ(server_side_reset=by_server) as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("OrderTopic", queues=2)
        await send(server, *(b"%d" % number for number in range(6)))
        consumer, handled = worker(server)
        async with consumer:
            await consumer.wait_settled(6)
            await consumer.commit()
            changes = await admin.reset_offsets("billing", "OrderTopic", "earliest")
            await send(server, b"wakes", b"wakes")  # a pull that waits takes the reset when it ends
            await until(lambda: len(handled) >= 14, 30.0)
            await consumer.wait_idle()
        assert [(each.before, each.after) for each in changes] == [(3, 0), (3, 0)]
        if by_server:  # the members of the others may have handled all again before the first look
            assert all(change.verified for change in changes)
        assert sorted(handled) == sorted([*(b"%d" % number for number in range(6))] * 2 + [b"wakes"] * 2)


async def test_reset_offsets_by_offset_of_members_that_need_a_time_is_refused() -> None:
    async with EmbeddedRocketMQ(server_side_reset=False) as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("OrderTopic", queues=1)
        consumer, _ = worker(server)
        async with consumer:
            with pytest.raises(ClientStateError, match="offsets of members by time only: stop them first, or give a time"):
                await admin.reset_offsets("billing", "OrderTopic", 0)


async def test_reset_offsets_with_bad_arguments_raises(server: EmbeddedRocketMQ, admin: Admin) -> None:
    for bad in (-1, "newest", True, 1.5, None):
        with pytest.raises(
            ConfigError, match='to must be a non-negative offset, "earliest", "latest", an aware datetime or offsets by queue'
        ):
            await admin.reset_offsets("billing", "OrderTopic", bad)  # type: ignore[arg-type]
    queue = MessageQueue("OrderTopic", "broker-a", 0)
    of_queue = re.escape("the offset for queue ('OrderTopic', 'broker-a', 0) must be a non-negative integer, not ")
    wrong: Any
    for wrong in (-1, "x", 1.5):
        with pytest.raises(ConfigError, match=of_queue):
            await admin.reset_offsets("billing", "OrderTopic", {queue: wrong})
    with pytest.raises(ConfigError, match="no time zone"):
        await admin.reset_offsets("billing", "OrderTopic", datetime(2026, 1, 1))
    with pytest.raises(TopicNotFoundError):
        await admin.reset_offsets("billing", "NoTopic", "latest")
    await admin.create_topic("OtherTopic", queues=1)
    with pytest.raises(ConfigError, match="whose offsets are reset"):
        await admin.reset_offsets("billing", "OrderTopic", {MessageQueue("OtherTopic", "broker-a", 0): 0})
    for dry_run in (True, False):
        with pytest.raises(SubscriptionGroupNotExistError, match="there is no group shipping on broker-a, broker-b"):
            await admin.reset_offsets("shipping", "OrderTopic", "latest", dry_run=dry_run)


async def test_clone_offsets_gives_a_group_those_of_another(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await admin.create_group("audit")
    await send(server, *(b"%d" % number for number in range(8)))
    with pytest.raises(SubscriptionGroupNotExistError, match="group billing has no offsets for topic OrderTopic"):
        await admin.clone_offsets("billing", "audit", "OrderTopic")
    await admin.reset_offsets("billing", "OrderTopic", 1)
    changes = await admin.clone_offsets("billing", "audit", "OrderTopic")
    assert [(each.before, each.after, each.verified) for each in changes] == [(None, 1, True)] * 4
    assert (await admin.group_lag("audit", "OrderTopic")).messages == 4
    await admin.reset_offsets("audit", "OrderTopic", "earliest")  # until a member pulls, commits are ignored
    changes = await admin.clone_offsets("billing", "audit", "OrderTopic")
    assert [(each.before, each.after, each.verified) for each in changes] == [(0, 1, True)] * 4
    with pytest.raises(SubscriptionGroupNotExistError):
        await admin.clone_offsets("billing", "unknown", "OrderTopic")
    consumer, _ = worker(server, "audit")
    async with consumer:
        with pytest.raises(ClientStateError, match="would overwrite the offsets: stop them first"):
            await admin.clone_offsets("billing", "audit", "OrderTopic")


async def test_resets_and_dead_letters_take_the_time_that_their_requests_take(server: EmbeddedRocketMQ) -> None:
    async with Admin(namesrv=server.namesrv, request_timeout=0.5) as admin:
        await admin.create_topic("OrderTopic", queues=30, broker="broker-a")
        await admin.create_topic("%DLQ%billing", queues=1, broker="broker-a")
        await admin.create_group("billing")
        async with Producer("orders", namesrv=server.namesrv) as producer:
            await producer.send_batch([Message("%DLQ%billing", b"bad") for _ in range(400)])
        server.delay(0.03)
        changes = await admin.reset_offsets("billing", "OrderTopic", 0)
        assert [change.verified for change in changes] == [True] * 30
        assert len(await admin.dead_letters("billing")) == 400


def test_a_reset_looks_less_and_less_often() -> None:
    pauses = [*islice(look_pauses(), 8)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


async def test_groups_in_a_namespace_have_the_users_names(server: EmbeddedRocketMQ) -> None:
    async with Admin(namesrv=server.namesrv, namespace="shop") as admin:
        await admin.create_topic("OrderTopic", queues=1)
        await admin.create_group("billing")
        assert "billing" in await admin.groups()
        changes = await admin.reset_offsets("billing", "OrderTopic", "earliest")
        assert {each.queue.topic for each in changes} == {"OrderTopic"}
        assert {queue.topic for queue in (await admin.group_lag("billing", "OrderTopic")).queues} == {"OrderTopic"}
    async with Admin(namesrv=server.namesrv) as admin:
        assert "shop%billing" in await admin.groups()


async def test_lower_number_of_queues_names_the_messages_that_are_left(
    server: EmbeddedRocketMQ, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    await admin.create_topic("Shrinks", queues=4)
    async with Producer("p", namesrv=server.namesrv) as producer:
        for number in (0, 2, 3, 3):
            await producer.send(Message("Shrinks", b"m"), queue=MessageQueue("Shrinks", "broker-a", number))
    await admin.create_topic("Shrinks", queues=2, read_queues=4)
    assert "former queues" not in caplog.text
    await admin.create_topic("Shrinks", queues=2)
    (record,) = [record for record in caplog.records if "former queues" in record.getMessage()]
    assert record.levelname == "WARNING"
    text = "topic Shrinks now has 2 read queues on broker broker-a; members no longer read 3 messages in its former queues"
    assert f"{text}, up to queue 3" in caplog.text
