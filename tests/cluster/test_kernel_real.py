"""The send kernel on real brokers: every form of a request is taken, and the message is stored as it was meant."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from rmq_async import (
    Admin,
    Hook,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    SendContext,
    SendStatus,
    run,
    split_batches,
)
from rmq_async.client.topic_route import vip_address
from rmq_async.testing.cluster import ExternalCluster, RealCluster
from rmq_protocol.constants import RequestCode

from ..embedded.test_second_port import check_second_port, check_unit_flags
from ..support.instances import client_of

AnyCluster = RealCluster | ExternalCluster


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


async def read(namesrv: str, topic: str, **options: Any) -> list[MessageExt]:
    async with PullConsumer(fresh("reader"), namesrv=namesrv, **options) as consumer:
        return [message async for message in consumer.read(topic)]


async def send_in_every_way(sender: Producer, topic: str) -> int:
    """Each body says the way; returns how many there are."""

    def one(way: str) -> Message:
        return Message(topic, way.encode() + b"." * 5000, tags="tag", keys="key", flag=-7, properties={"colour": "grün"})

    queues = await sender.fetch_publish_queues(topic)
    results = [
        await sender.send(one("send")),
        await sender.send(one("queue"), queue=queues[0]),
        await sender.send(one("key"), key="k"),
        await (await sender.send_async(one("async"))),
        *(await sender.send_batch([one("batch 1"), one("batch 2")])).results,
        *(await (await sender.send_batch_async([one("later 1"), one("later 2")]))).results,
    ]
    await sender.send_oneway(one("one-way"))
    await sender.flush()
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert {result.queue.topic for result in results} == {topic}
    assert len({result.msg_id for result in results}) == len(results)
    return len(results) + 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"send_smart_msg": False},
        {"send_smart_msg": False, "serialize_type": "rocketmq"},
        {"unit_mode": True, "unit_name": "east"},
        {"vip_channel": True},
        {"namespace": "MQ_INST_1"},
        {"namespace_v2": "MQ_INST_2"},
        {"hooks": [Hook()], "serialize_type": "rocketmq"},
    ],
    ids=lambda options: "-".join(options) or "usual",
)
def test_every_form_and_way_is_stored_as_it_was_meant(each_cluster: AnyCluster, options: dict[str, Any]) -> None:
    async def main() -> None:
        topic, namesrv = fresh("kernel"), each_cluster.namesrv
        naming = {name: value for name, value in options.items() if name.startswith("namespace")}
        async with Admin(namesrv=namesrv, **naming) as admin:
            await admin.create_topic(topic, queues=2)
        async with Producer(fresh("kernel"), namesrv=namesrv, topics=[topic], **options) as sender:
            count = await send_in_every_way(sender, topic)
            client = await client_of(sender)
            addresses = {connection.address for connection in client.pool.connections}
            masters = client.routes.master_addresses()
        assert {vip_address(address) for address in masters} <= addresses or "vip_channel" not in options
        found = await read(namesrv, topic, **naming)
        assert len(found) == count
        assert {message.body.lstrip(b"abcdefghijklmnopqrstuvwxyz-12 ") for message in found} == {b"." * 5000}
        assert {(each.topic, each.tags, each.keys, each.flag, each.properties["colour"]) for each in found} == {
            (topic, "tag", ("key",), -7, "grün")
        }
        if "namespace" in options:
            wire = await read(namesrv, f"MQ_INST_1%{topic}")
            assert len(wire) == count
            single = [each for each in wire if not each.body.startswith((b"batch", b"later"))]
            assert {each.properties["INSTANCE_ID"] for each in single} == {"MQ_INST_1"}

    run(main())


class Codes(Hook):
    def __init__(self) -> None:
        self.codes: list[int] = []
        self.attempts: list[tuple[str, int]] = []

    def before_request(self, address: str, command: Any) -> None:
        self.codes.append(command.code)

    def before_send(self, context: SendContext) -> None:
        context.properties["seen-by"] = "hook"

    def after_send(self, context: SendContext) -> None:
        assert context.error is None
        self.attempts.append((context.mode, context.attempt))


def test_a_retry_topic_counts_how_often_a_message_was_consumed(each_cluster: AnyCluster) -> None:
    """The counters go into the header, and the broker stores the first as what it is; hooks see the requests of all this."""

    async def main() -> None:
        group, namesrv = fresh("retries"), each_cluster.namesrv
        topic, hook = f"%RETRY%{group}", Codes()
        async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
            await admin.create_topic(topic, queues=1)
        properties = {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "mine": "kept"}
        for smart in (True, False):
            async with Producer(group, namesrv=namesrv, send_smart_msg=smart, hooks=[hook]) as sender:
                await sender.send(Message(topic, b"counted", properties=properties))
                await (await sender.send_async(Message(topic, b"counted", properties=properties)))
                await sender.send(Message(topic, b"plain"))
        found = await read(namesrv, topic)
        assert [(each.body, each.reconsume_times) for each in found] == [(b"counted", 3), (b"counted", 3), (b"plain", 0)] * 2
        assert {each.properties.get("mine", "kept") for each in found} == {"kept"}
        assert {each.properties["seen-by"] for each in found} == {"hook"}
        assert {code for code in hook.codes if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)} == {10, 310}
        assert hook.attempts == [("sync", 1), ("async", 1), ("sync", 1)] * 2

    run(main())


def test_batches_that_were_cut_are_taken_to_the_last_byte(cluster: AnyCluster) -> None:
    async def main() -> None:
        topic, namesrv = fresh("batches"), cluster.namesrv
        async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
            await admin.create_topic(topic, queues=1)
        given = [Message(topic, b"%06d" % number + b"x" * 10_000, keys=f"k{number}") for number in range(900)]
        batches = list(split_batches(given))
        assert [len(batch) for batch in batches][:2] == [415, 415]
        async with Producer(fresh("batches"), namesrv=namesrv) as sender:
            for batch in batches:
                assert (await sender.send_batch(batch)).status is SendStatus.SEND_OK
        assert [message.body for message in await read(namesrv, topic)] == [message.body for message in given]

    run(main())


async def test_second_port_takes_no_pulls(cluster: AnyCluster) -> None:
    await check_second_port(cluster.namesrv, cluster.brokers[0].address)


async def test_unit_mode_marks_created_topics(cluster: AnyCluster) -> None:
    await check_unit_flags(cluster.namesrv)
