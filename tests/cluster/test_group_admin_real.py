"""Groups from the outside on real brokers: the figures of mqadmin, and changes with and without members."""

from __future__ import annotations

import asyncio
import re
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rmq_async import Admin, Consumer, DeadLetter, Message, MessageExt, Producer, PullConsumer, Retry
from rmq_async.errors import ClientStateError, CorruptMessageError, SubscriptionGroupNotExistError, TopicNotFoundError
from rmq_async.testing.cluster import OLD_VERSION, RealCluster
from rmq_protocol.constants import SysFlag

from ..consumer.group.support import until
from ..support.fakes import RawClient
from ..support.java.program import require_javac
from .conftest import OLD_IS_DEEP
from .dead_letters import readable_dead_letters
from .test_group_tools_real import mqadmin


async def test_group_lag_equals_what_mqadmin_shows(cluster: RealCluster, tmp_path: Path) -> None:
    require_javac()
    topic = group = f"Lag_{uuid.uuid4().hex}"
    consumer = Consumer(group, namesrv=cluster.namesrv, start_from="earliest", retry=Retry(delays=(3600.0,)))

    @consumer.handler(topic)
    async def handle(message: MessageExt) -> None:
        if message.body == b"3":
            raise ValueError(message.body)

    async with (
        Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=cluster.namesrv) as producer,
        mqadmin(cluster.namesrv, tmp_path) as tools,
    ):
        await admin.create_topic(topic, queues=2)
        for number in range(6):
            await producer.send(Message(topic, b"%d" % number))
        async with consumer:
            await consumer.wait_settled(6)
            with pytest.raises(SubscriptionGroupNotExistError, match=f"to {topic}: name a topic from their subscriptions"):
                await admin.group_lag(group, f"{topic}s")  # misspelled; the group's retry topic has queues
        for number in range(5):
            await producer.send(Message(topic, b"later %d" % number))
        with pytest.raises(SubscriptionGroupNotExistError, match=f"has no offsets for topic {topic}s on "):
            await admin.group_lag(group, f"{topic}s")
        lag = await admin.group_lag(group)
        shown = await tools.run("consumerProgress", "-g", group)
        rows = {
            (words[0], words[1], int(words[2])): tuple(map(int, words[3:5]))
            for line in shown.splitlines()
            if len(words := line.split()) > 6 and words[0].endswith(group)
        }
        ours = {tuple(queue): (each.end, each.committed) for queue, each in {**lag.queues, **lag.retry_queues}.items()}
        assert ours == rows
        total = re.search(r"Consume Diff Total: (\d+)", shown)
        assert total is not None
        assert (lag.messages, lag.messages + lag.retries) == (5, int(total[1]))


@OLD_IS_DEEP
async def test_first_offsets_of_new_groups_are_all_kept(each_cluster: RealCluster) -> None:
    """Brokers lose some of those that are committed at once, in 1 of 100 to 300 groups (``client.first_commits``)."""
    topic = f"First_{uuid.uuid4().hex}"
    async with Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=8)
        for _ in range(100):
            group = f"{topic}_{uuid.uuid4().hex[:8]}"
            await admin.create_group(group)
            async with PullConsumer(group, namesrv=each_cluster.namesrv) as consumer:
                queues = sorted(await consumer.queues(topic))
                await asyncio.gather(*(consumer.commit(queue, 1) for queue in queues))
                assert [await consumer.committed(queue) for queue in queues] == [1] * 8


async def test_group_settings_members_and_copies_of_offsets(each_cluster: RealCluster) -> None:
    topic = group = f"Groups_{uuid.uuid4().hex}"
    other = f"{group}_copy"
    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=each_cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=2)
        await admin.create_group(group, retry_max_times=3)
        await admin.create_group(other)
        assert {group, other} <= set(await admin.groups())
        for number in range(6):
            await producer.send(Message(topic, b"%d" % number))
        async with asyncio.timeout(10.0):  # 4.9 shows the end of a queue a moment after a send
            while sum(each.max_offset for each in (await admin.topic_stats(topic)).queues.values()) < 6:
                await asyncio.sleep(0.01)
        changes = await admin.reset_offsets(group, topic, 1)
        assert {(each.before, each.after, each.verified) for each in changes} == {(None, 1, True)}
        copies = await admin.clone_offsets(group, other, topic)
        assert {(each.after, each.verified) for each in copies} == {(1, True)}
        lags = [await admin.group_lag(name, topic) for name in (group, other)]
        assert lags[0].messages == lags[1].messages == 6 - len(changes)

        consumer = Consumer(group, namesrv=each_cluster.namesrv, instance_name="one")
        consumer.subscribe(topic, lambda message: None)
        async with consumer:
            (member,) = await admin.group_members(group)
            assert member.client_id.endswith("@one")
            status = await admin.consumer_status(group, member.client_id)
            assert {queue.topic for queue in status.mq_table} >= {topic}
            message = await admin.view_message(topic, (await producer.send(Message(topic, b"now"))).offset_msg_id)
            assert (await admin.consume_directly(group, member.client_id, message)).consume_result == "CR_SUCCESS"
            with pytest.raises(ClientStateError, match="has 1 member "):
                await admin.delete_group(group)
            with pytest.raises(ClientStateError, match="has 1 member "):
                await admin.clone_offsets(other, group, topic)
        await admin.delete_group(group)
        assert group not in await admin.groups()
        with pytest.raises(SubscriptionGroupNotExistError):
            await admin.group_lag(group)


async def test_reset_offsets_with_and_without_members(each_cluster: RealCluster) -> None:
    topic = group = f"Reset_{uuid.uuid4().hex}"
    handled: list[bytes] = []
    by_server = each_cluster.version != OLD_VERSION
    consumer = Consumer(group, namesrv=each_cluster.namesrv, start_from="earliest", commit_interval=0.2)

    @consumer.handler(topic)
    async def handle(message: MessageExt) -> None:
        handled.append(message.body)

    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=each_cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=2)
        for number in range(6):
            await producer.send(Message(topic, b"%d" % number))
        async with consumer:
            await consumer.wait_settled(6)
            await consumer.commit()
            changes = await admin.reset_offsets(group, topic, "earliest")
            for _ in range(4):  # else the pulls that the broker holds end after 15 s
                await producer.send(Message(topic, b"wakes a pull"))
            await until(lambda: all(handled.count(b"%d" % number) == 2 for number in range(6)), 30.0)
            await consumer.wait_idle()
        assert all(each.after == 0 for each in changes)
        if by_server:  # members of the others may have handled all again before the first look
            assert all(each.verified for each in changes)
        for to in ("latest", "earliest", 2, datetime.now(UTC)):
            changes = await admin.reset_offsets(group, topic, to)  # type: ignore[arg-type]
            assert all(each.verified for each in changes)
            committed = {queue: each.committed for queue, each in (await admin.group_lag(group, topic)).queues.items()}
            assert committed == {each.queue: each.after for each in changes}


async def test_dead_letters_are_sent_to_their_topic_again(each_cluster: RealCluster) -> None:
    topic = group = f"Dead_{uuid.uuid4().hex}"
    gone = f"{topic}_gone"
    consumer = Consumer(group, namesrv=each_cluster.namesrv, start_from="earliest")

    @consumer.handler(gone)
    @consumer.handler(topic)
    async def handle(message: MessageExt) -> None:
        if consumer.stats().dead_lettered < 3 or message.topic == gone:
            raise DeadLetter("not today")

    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=each_cluster.namesrv) as producer,
    ):
        for name in (topic, gone):
            await admin.create_topic(name, queues=1)
        sent = [await producer.send(Message(topic, b"%d" % number, tags="t", keys=f"k{number}")) for number in range(3)]
        async with consumer:
            await consumer.wait_settled(3, timeout=20.0)
            found = await readable_dead_letters(admin, group, 3)
            assert sorted(each.unique_id or "" for each in found) == sorted(each.msg_id for each in sent)
            assert await admin.resend_dead_letters(group, limit=1) == 1
            assert await admin.resend_dead_letters(group) == 2
            assert await admin.dead_letters(group) == ()
            again = await consumer.wait_settled(3, timeout=20.0)
            await producer.send(Message(gone, b"of a topic that is deleted"))
            await consumer.wait_settled(1, timeout=20.0)
        await readable_dead_letters(admin, group, 1)
        await admin.delete_topic(gone)
        with pytest.raises(TopicNotFoundError, match=gone):
            await admin.resend_dead_letters(group)
        assert await admin.resend_dead_letters(group, skip_topics=gone) == 0
        assert await admin.dead_letters(group) == ()
        assert sorted((each.message.unique_id, each.message.tags, each.message.keys) for each in again) == sorted(
            (each.msg_id, "t", (f"k{number}",)) for number, each in enumerate(sent)
        )


async def test_dead_letters_of_a_group_that_was_deleted_and_made_anew(each_cluster: RealCluster) -> None:
    topic = group = f"Anew_{uuid.uuid4().hex}"

    async def refuse(_: MessageExt) -> None:
        raise DeadLetter

    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=each_cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        for life in ("first", "second"):
            consumer = Consumer(group, namesrv=each_cluster.namesrv, instance_name=life, start_from="latest")
            consumer.subscribe(topic, refuse)
            async with consumer:
                sent = [(await producer.send(Message(topic, b"%d" % number))).msg_id for number in range(2)]
                await consumer.wait_settled(2, timeout=20.0)
            found = await readable_dead_letters(admin, group, 2)
            assert sorted(each.unique_id or "" for each in found) == sorted(sent)
            assert await admin.resend_dead_letters(group) == 2
            await admin.delete_group(group)


async def test_damaged_dead_letters_are_passed_over(each_cluster: RealCluster) -> None:
    topic = group = f"Damaged_{uuid.uuid4().hex}"
    consumer = Consumer(group, namesrv=each_cluster.namesrv, start_from="earliest")

    @consumer.handler(topic)
    async def handle(message: MessageExt) -> None:
        raise DeadLetter

    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("p", namesrv=each_cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=1, broker=each_cluster.brokers[0].name)
        await producer.send(Message(topic, b"sound"))
        async with consumer:
            await consumer.wait_settled(1, timeout=20.0)
        (sound,) = await readable_dead_letters(admin, group, 1)
        broker = next(each for each in each_cluster.brokers if each.name == sound.queue.broker_name)
        async with RawClient(broker.address) as client:
            for body, flags in ((b"no zlib", SysFlag.COMPRESSED), (b"behind it", 0)):
                fields = {"properties": {"RETRY_TOPIC": topic}, "f": str(int(flags)), "n": broker.name}
                assert (await client.send(f"%DLQ%{group}", body, queue=sound.queue.queue_id, **fields)).code == 0
        async with PullConsumer("reader", namesrv=each_cluster.namesrv) as reader:
            async with asyncio.timeout(10.0):
                while await reader.max_offset(sound.queue) < 3:
                    await asyncio.sleep(0.01)
        with pytest.raises(CorruptMessageError):
            await admin.dead_letters(group)
        with pytest.raises(CorruptMessageError) as caught:
            await admin.resend_dead_letters(group)
        assert caught.value.__notes__[0].startswith("1 dead letters were sent before the damaged one at offset 1 of queue 0 ")
        assert await admin.resend_dead_letters(group, skip_damaged=True) == 1
        assert await admin.dead_letters(group) == ()
