"""Two real clusters, 5.5.0 and 4.9.7, at once in one process: the same group, the same topic, brokers of the same name."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from rmq_async import Admin, Message, Producer, PullConsumer, run
from rmq_async.errors import GroupNotOnlineError
from rmq_async.testing.cluster import RealCluster

from .accounting import judge


def test_one_group_sends_to_two_clusters_and_each_message_is_where_it_belongs(
    cluster: RealCluster, old_cluster: RealCluster
) -> None:
    async def main() -> None:
        topic, group = f"worlds-{uuid.uuid4().hex[:12]}", f"worlds-{uuid.uuid4().hex[:12]}"
        async with (
            Admin(namesrv=cluster.namesrv, request_timeout=30.0) as new_admin,
            Admin(namesrv=old_cluster.namesrv, request_timeout=30.0) as old_admin,
            PullConsumer("reader", namesrv=cluster.namesrv) as new_reader,
            PullConsumer("reader", namesrv=old_cluster.namesrv) as old_reader,
        ):
            await asyncio.gather(new_admin.create_topic(topic, queues=2), old_admin.create_topic(topic, queues=3))
            names = {f"{world} {number}": world for number in range(300) for world in ("new", "old")}
            async with Producer(group, namesrv=cluster.namesrv) as new:
                async with Producer(group, namesrv=old_cluster.namesrv) as old:
                    producers = {"new": new, "old": old}
                    await asyncio.gather(
                        *[producers[world].send(Message(topic, name.encode())) for name, world in names.items()]
                    )
                    for admin in (new_admin, old_admin):
                        assert len(await admin.producer_connections(group)) == 1
                with pytest.raises(GroupNotOnlineError):
                    await old_admin.producer_connections(group)
                assert len(await new_admin.producer_connections(group)) == 1
                await new.send(Message(topic, b"new, when the old one was left"))
                names["new, when the old one was left"] = "new"
            for world, reader, queues in (("new", new_reader, 2), ("old", old_reader, 3)):
                sent = [name for name, where in names.items() if where == world]
                messages = [message async for message in reader.read(topic)]
                verdict = judge(sent, sent, [message.body.decode() for message in messages])
                print(f"{world} cluster: {verdict}")
                assert (verdict.lost, verdict.strange, verdict.duplicated) == ((), (), 0)
                assert {message.queue.queue_id for message in messages} == set(range(queues))

    run(main())
