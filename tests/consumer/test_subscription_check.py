"""Whether the members of a group subscribe to the same: the comparison, and what brokers show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig
from rmq_async.consumer.group.subscription_check import BY_OFFSET, MODEL, SubscriptionConflict, compare, group_view
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.bodies import ConsumerConnection
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat
from rmq_protocol.subscription import build_subscription

from ..support.fakes import RawClient


def member(*subscriptions: SubscriptionData, model: str = "CLUSTERING") -> ConsumerData:
    return ConsumerData("g", "CONSUME_PASSIVELY", model, subscription_data_set=subscriptions)


def shown(*subscriptions: SubscriptionData, model: str = "CLUSTERING") -> ConsumerConnection:
    return ConsumerConnection(subscription_table={each.topic: each for each in subscriptions}, message_model=model)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (build_subscription("T", "A || B", sub_version=1), build_subscription("T", "B||A", sub_version=2)),
        (build_subscription("T"), SubscriptionData("T", "", expression_type="")),
        (build_subscription("T", "A||B"), SubscriptionData("T", " A|| B ")),
        (build_subscription("T", "a > 1", "SQL92"), build_subscription("T", "a > 1", "SQL92", sub_version=7)),
    ],
)
def test_what_wants_the_same_is_no_conflict(ours: SubscriptionData, theirs: SubscriptionData) -> None:
    assert compare(member(ours), shown(theirs)) == ()


def test_every_difference_is_a_conflict_with_both_sides() -> None:
    ours = member(build_subscription("A", "x"), build_subscription("B"), build_subscription("C", "a"), build_subscription("D"))
    theirs = shown(
        build_subscription("B", "y || z"), build_subscription("C", "a", "SQL92"), build_subscription("D"),
        build_subscription("E", "e"), model="BROADCASTING",
    )  # fmt: skip
    found = compare(ours, theirs)
    assert found == (
        SubscriptionConflict(MODEL, "CLUSTERING", "BROADCASTING"),
        SubscriptionConflict("A", "x", None),
        SubscriptionConflict("B", "*", "y || z"),
        SubscriptionConflict("C", "a", "SQL92: a"),
        SubscriptionConflict("E", None, "e"),
    )
    taken, same = "members miss messages", "give all members the same"
    assert str(found[0]) == f"this member is CLUSTERING, another one is BROADCASTING; {taken}; {same} model"
    texts = [
        "topic A: this member subscribes to 'x', another one to nothing",
        "topic B: this member subscribes to '*', another one to 'y || z'",
        "topic C: this member subscribes to 'a', another one to 'SQL92: a'",
        "topic E: this member subscribes to nothing, another one to 'e'",
    ]
    assert [str(each) for each in found[1:]] == [f"{text}; {taken}; {same} subscriptions" for text in texts]


def test_members_that_are_listed_without_any_subscription_are_no_conflict() -> None:
    """A broker lists the first member of a group before it stores what that subscribes to."""
    assert compare(member(build_subscription("T")), shown()) == ()
    (found,) = compare(member(build_subscription("T")), shown(model="BROADCASTING"))
    assert found.topic == MODEL


def test_pull_consumer_with_the_name_of_a_group_is_a_conflict() -> None:
    by_offset = ConsumerConnection(consume_type="CONSUME_ACTIVELY", message_model="CLUSTERING")
    (found,) = compare(member(build_subscription("T")), by_offset)
    assert (found.topic, found.theirs) == (BY_OFFSET, "a PullConsumer, or a pull consumer of Java")
    assert "members leave queues to it that it may never read; members miss messages; give it a separate group" in str(found)
    subscribed = ConsumerConnection(
        consume_type="CONSUME_ACTIVELY", message_model="CLUSTERING", subscription_table={"T": build_subscription("T")}
    )  # Java's lite pull consumer that shares the queues
    assert compare(member(build_subscription("T")), subscribed) == ()


@asynccontextmanager
async def joined(server: EmbeddedRocketMQ, ours: ConsumerData, **options: str) -> AsyncIterator[ClientInstance]:
    """A client whose heartbeats announce ``ours`` to all brokers."""
    instance = await ClientInstance.acquire(ClientConfig(namesrv=server.namesrv, instance_name="c1", **options))  # type: ignore[arg-type]
    try:
        await instance.routes.get("TBW102", 1.0)
        instance.register_consumer(ours)
        await instance.heartbeats.send_first(1.0)
        yield instance
    finally:
        await instance.release()


async def beat(client: RawClient, client_id: str, data: ConsumerData) -> None:
    await client.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(HeartbeatData(client_id, consumer_data_set=(data,))))


async def test_the_view_of_a_group_merges_its_brokers() -> None:
    ours = member(build_subscription("T", "a", sub_version=5))
    async with EmbeddedRocketMQ(brokers=2) as server, joined(server, ours) as instance:
        view = await group_view(instance, ours, 1.0)
        assert view.members.keys() == {"127.0.0.1@c1"}
        assert (view.conflicts, view.unanswered) == ((), frozenset())
        assert view.listed_by == frozenset(server.brokers.values())
        assert view.hosts(instance.client_id) == {"127.0.0.1"}
        assert view.hosts("another") == frozenset()

        async with RawClient(server.brokers["broker-b"]) as other:
            await beat(other, "c2", member(build_subscription("T", "b", sub_version=6)))
            view = await group_view(instance, ours, 1.0)
            assert view.conflicts == (SubscriptionConflict("T", "a", "b"),)
            assert view.members.keys() == {"127.0.0.1@c1", "c2"}


async def test_a_broker_that_does_not_list_us_yet_shows_no_conflict() -> None:
    ours = member(build_subscription("T"))
    async with EmbeddedRocketMQ(brokers=2) as server, joined(server, ours) as instance:
        async with RawClient(server.brokers["broker-a"]) as other:
            await beat(other, "c2", member(build_subscription("U")))
            server.drop_connections("broker-a")
        async with RawClient(server.brokers["broker-a"]) as other:
            await beat(other, "c3", member(build_subscription("U")))
            server.fail_next(1, 1, request=RequestCode.HEART_BEAT)
            view = await group_view(instance, ours, 1.0)
            assert view.listed_by == {server.brokers["broker-b"]}
            assert view.conflicts == ()


@pytest.mark.virtual_time
async def test_brokers_that_do_not_answer_are_named() -> None:
    ours = member(build_subscription("T"))
    async with EmbeddedRocketMQ(brokers=3) as server, joined(server, ours) as instance:
        server.fail_next(16, request=RequestCode.GET_CONSUMER_CONNECTION_LIST)
        server.stall("broker-b")
        view = await group_view(instance, ours, 0.2)
        assert len(view.unanswered) == 2
        assert server.brokers["broker-b"] in view.unanswered
        assert len(view.listed_by) == 1
        server.resume("broker-b")


async def test_topics_are_shown_without_their_namespace() -> None:
    ours = ConsumerData("shop%g", subscription_data_set=(build_subscription("shop%T", "a", sub_version=1),))
    theirs = ConsumerData("shop%g", subscription_data_set=(build_subscription("shop%T", "b", sub_version=2),))
    async with (
        EmbeddedRocketMQ() as server,
        joined(server, ours, namespace="shop") as instance,
        RawClient(server.brokers["broker-a"]) as other,
    ):
        await beat(other, "c2", theirs)
        assert (await group_view(instance, ours, 1.0)).conflicts == (SubscriptionConflict("T", "a", "b"),)
