"""Facts about groups on real brokers: ids of clients, dead letters that brokers make, resets, copies and retries of pops."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from rmq_async import Admin, ClientConfig, Consumer, Message, MessageExt, Producer, RetryLater
from rmq_async.errors import SubscriptionGroupNotExistError
from rmq_async.testing.cluster import OLD_VERSION, RealCluster
from rmq_protocol.constants import RequestCode

from ..consumer.group.support import until
from .dead_letters import readable_dead_letters
from .test_draining import asked


async def test_members_with_other_configs_in_a_process_share_the_queues(each_cluster: RealCluster) -> None:
    topic = group = f"Ids_{uuid.uuid4().hex}"
    handled: Counter[bytes] = Counter()
    config = ClientConfig(namesrv=each_cluster.namesrv)
    members = [Consumer(group, client=each, start_from="latest") for each in (config, replace(config, request_timeout=5.0))]
    for member in members:

        @member.handler(topic)
        async def count(message: MessageExt) -> None:
            handled[message.body] += 1

    async with Admin(client=config) as admin, Producer("p", client=config) as producer:
        await admin.create_topic(topic, queues=4)
        async with members[0], members[1]:
            await until(lambda: [_queues(member, topic) for member in members] == [2, 2], 60.0)
            for number in range(40):
                await producer.send(Message(topic, b"%d" % number))
            await until(lambda: len(handled) == 40, 30.0)
        assert set(handled.values()) == {1}


def _queues(member: Consumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in member.assignment)


@pytest.mark.parametrize(
    "options", [{}, {"mode": "pop", "start_from": "earliest"}, {"broadcast": True}], ids=["pull", "pop", "broadcast"]
)
async def test_member_of_a_group_that_the_broker_may_not_create_does_not_start(
    cluster: RealCluster, options: dict[str, Any]
) -> None:
    topic, group = f"Missing_{uuid.uuid4().hex}", f"G_{uuid.uuid4().hex}"
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=1)
        address = cluster.brokers[0].address
        member = Consumer(group, namesrv=cluster.namesrv, **options)
        member.subscribe(topic, print)
        try:
            await asked(admin, address, RequestCode.UPDATE_BROKER_CONFIG, b"autoCreateSubscriptionGroup=false\n")
            with pytest.raises(
                SubscriptionGroupNotExistError, match=f"group {group} does not exist, and the broker does not create it"
            ):
                await member.start()
            await admin.create_group(group)
            async with member:
                assert member.health().ready
        finally:
            await asked(admin, address, RequestCode.UPDATE_BROKER_CONFIG, b"autoCreateSubscriptionGroup=true\n")


async def test_member_of_a_group_that_an_old_broker_may_not_create_says_so(old_cluster: RealCluster) -> None:
    """A broker of 4.9 stores offsets of any group, and answers no request for one group's settings: pulls fail."""
    topic, group = f"Missing_{uuid.uuid4().hex}", f"May_not_create_{uuid.uuid4().hex}"
    async with Admin(namesrv=old_cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=1)
        address = old_cluster.brokers[0].address
        member = Consumer(group, namesrv=old_cluster.namesrv)
        member.subscribe(topic, print)
        try:
            await asked(admin, address, RequestCode.UPDATE_BROKER_CONFIG, b"autoCreateSubscriptionGroup=false\n")
            async with member:
                await until(lambda: any("SUBSCRIPTION_GROUP_NOT_EXIST" in each.text for each in member.health().problems), 20.0)
        finally:
            await asked(admin, address, RequestCode.UPDATE_BROKER_CONFIG, b"autoCreateSubscriptionGroup=true\n")


async def test_dead_letter_that_a_broker_makes_is_counted_and_logged(
    each_cluster: RealCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """By brokers of 5.x, which say when they give a message up; those of 4.9 answer no request for one group's settings."""
    says = each_cluster.version != OLD_VERSION
    topic = group = f"Dead_{uuid.uuid4().hex}"
    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=each_cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        await admin.create_group(group, retry_max_times=0)
        consumer = Consumer(group, namesrv=each_cluster.namesrv, start_from="earliest")

        @consumer.handler(topic)
        async def handle(message: MessageExt) -> None:
            raise ValueError("no such order")

        async with consumer:
            await producer.send(Message(topic, b"x"))
            await until(lambda: consumer.stats().dead_lettered + consumer.stats().retried == 1, 30.0)
            stats = consumer.stats()
        assert (stats.dead_lettered, stats.retried) == ((1, 0) if says else (0, 1))
        assert [message.body for message in await readable_dead_letters(admin, group, 1)] == [b"x"]
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [line.startswith("dead-lettered: ") and line.endswith("ValueError('no such order')") for line in lines] == [
        True
    ] * says


async def test_dead_letter_of_a_member_without_its_handler_is_logged(
    cluster: RealCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic, other, group = (f"{name}_{uuid.uuid4().hex}" for name in ("Dead", "Other", "G"))
    async with (
        Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=cluster.namesrv) as producer,
    ):
        for name in (topic, other):
            await admin.create_topic(name, queues=1)
        await admin.create_group(group, retry_max_times=1)
        first = Consumer(group, namesrv=cluster.namesrv, start_from="earliest")

        @first.handler(topic)
        async def handle(message: MessageExt) -> None:
            raise RetryLater(1)

        async with first:
            await producer.send(Message(topic, b"x"))
            await first.wait_settled(1, timeout=30.0)
        second = Consumer(group, namesrv=cluster.namesrv, start_from="earliest")
        second.subscribe(other, handle)
        async with second:
            await until(lambda: second.stats().dead_lettered == 1, 60.0)
        assert [message.body for message in await readable_dead_letters(admin, group, 1)] == [b"x"]
    (line,) = [text for record in caplog.records if (text := record.getMessage()).startswith("dead-lettered: ")]
    assert f" of {topic} (" in line
    assert line.endswith("attempt 2: no handler here subscribes to its topic")


async def test_dead_letter_with_a_sharding_key_is_sent_again_to_the_queue_of_its_key(each_cluster: RealCluster) -> None:
    topic = group = f"Again_{uuid.uuid4().hex}"
    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=each_cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=8)
        await admin.create_group(group, retry_max_times=0)
        keys = [f"key-{number}" for number in range(6)]
        sent = {key: (await producer.send(Message(topic, b"first", sharding_key=key))).queue for key in keys}
        assert len(set(sent.values())) > 1
        failing = Consumer(group, namesrv=each_cluster.namesrv, start_from="earliest")
        came: list[MessageExt] = []

        @failing.handler(topic)
        async def handle(message: MessageExt) -> None:
            came.append(message)
            if len(came) <= len(keys):
                raise ValueError("fails at first")

        async with failing:
            await until(lambda: len(came) == len(keys), 30.0)
            await until(lambda: failing.stats().dead_lettered + failing.stats().retried == len(keys), 30.0)
            await readable_dead_letters(admin, group, len(keys))
            assert await admin.resend_dead_letters(group) == len(keys)
            await until(lambda: len(came) == 2 * len(keys), 30.0)
        assert {str(message.sharding_key): message.queue for message in came[len(keys) :]} == sent


async def test_resets_to_early_times_and_copies_over_a_reset(each_cluster: RealCluster) -> None:
    """To brokers a negative time is the end of a queue; from 5.2 on they ignore commits from a reset until a member pulls."""
    topic = source = f"Early_{uuid.uuid4().hex}"
    target = f"{source}_copy"
    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=each_cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        for group in (source, target):
            await admin.create_group(group)
        for number in range(6):
            await producer.send(Message(topic, b"%d" % number))
        for group in (source, target):
            (change,) = await admin.reset_offsets(group, topic, datetime(1960, 1, 1, tzinfo=UTC))
            assert (change.after, change.verified) == (0, True)
            assert (await admin.group_lag(group, topic)).messages == 6
        (change,) = await admin.reset_offsets(source, topic, 4)
        assert (change.after, change.verified) == (4, True)
        (change,) = await admin.clone_offsets(source, target, topic)
        assert (change.after, change.verified) == (4, True)
        assert (await admin.group_lag(target, topic)).messages == 2
        with pytest.raises(SubscriptionGroupNotExistError, match="there is no group"):
            await admin.group_lag(f"{source}_unknown", topic)


async def test_retries_of_pops_are_counted_apart_and_deleted_with_their_group(cluster: RealCluster) -> None:
    topic = group = f"Pops_{uuid.uuid4().hex}"
    async with (
        Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        await admin.create_group(group)
        await producer.send(Message(topic, b"bad"))
        consumer = Consumer(group, namesrv=cluster.namesrv, mode="pop", start_from="earliest")

        @consumer.handler(topic)
        async def handle(message: MessageExt) -> None:
            raise RetryLater(1.0)

        async with consumer:
            await consumer.wait_settled(1)
        for _ in range(100):
            if (await admin.group_lag(group, topic)).retries:
                break
            await asyncio.sleep(0.3)
        lag = await admin.group_lag(group, topic)
        assert (lag.messages, lag.retries) == (0, 1)
        await admin.delete_group(group)
        with pytest.raises(SubscriptionGroupNotExistError, match="there is no group"):
            await admin.delete_group(group)
        await admin.create_group(group)
        assert (await admin.group_lag(group, topic)).retries == 0
