"""Groups of the embedded broker beside those of a real one: the same requests, the same answers."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from time import monotonic

import pytest

from rmq_async import Admin, Consumer, PullConsumer, SubscriptionConflictError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import GroupNotOnlineError
from rmq_async.testing.cluster import ExternalCluster, RealCluster
from rmq_protocol.bodies import (
    GetConsumerListByGroupResponseBody,
    GetConsumerStatusBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    decode_body,
    encode_body,
)
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat
from rmq_protocol.message import MessageQueue

from ..support.fakes import RawClient, pull_fields

OWN, HOLD, COMMIT = 4, 6, 5
"""Flags of a pull with its own subscription; one that waits; one that commits."""


class Group:
    """A group of two members, each with a connection, and an administrator's."""

    def __init__(self, first: RawClient, second: RawClient, admin: RawClient, broker_name: str) -> None:
        self.first, self.second, self.admin = first, second, admin
        mark = uuid.uuid4().hex
        self.group, self.topic = f"Group_{mark}", f"Group_{mark}"
        self.queue = MessageQueue(self.topic, broker_name, 0)
        self._fields = {"consumerGroup": self.group, "topic": self.topic, "queueId": "0"}

    async def beat(self, client: RawClient, client_id: str, topic: str, *, sub_version: int = 1) -> None:
        data = ConsumerData(self.group, subscription_data_set=(SubscriptionData(topic, sub_version=sub_version),))
        answer = await client.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(HeartbeatData(client_id, (), (data,))))
        assert answer.code == 0, answer.remark

    async def leave(self, client: RawClient) -> None:
        await client.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": self.group})

    async def members(self) -> list[str]:
        answer = await self.admin.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group})
        return sorted(decode_body(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list)

    async def pull(self, client: RawClient, **over: str) -> tuple[int, str]:
        fields = pull_fields(self.topic, consumerGroup=self.group, sysFlag="0", subVersion="1")
        answer = await client.ask(RequestCode.PULL_MESSAGE, {**fields, **over})
        return answer.code, (answer.ext_fields or {}).get("nextBeginOffset") or ""

    def hold(self, client: RawClient, offset: int) -> None:
        fields = pull_fields(self.topic, 0, offset, consumerGroup=self.group, sysFlag=str(HOLD), subscription="A")
        client.write(RequestCode.PULL_MESSAGE, {**fields, "suspendTimeoutMillis": "15000"})

    async def held(self, client: RawClient) -> tuple[int, str]:
        while not (answer := await client.read(20.0)).is_response:
            pass
        return answer.code, (answer.ext_fields or {}).get("nextBeginOffset") or ""

    async def send(self, tag: str) -> None:
        properties = {"UNIQ_KEY": uuid.uuid4().hex.upper(), "TAGS": tag, "WAIT": "true"}
        assert (await self.admin.send(self.topic, properties=properties, n=self.queue.broker_name)).code == 0

    async def lock(self, client_id: str, *, code: int = RequestCode.LOCK_BATCH_MQ) -> int:
        body = encode_body(LockBatchRequestBody(self.group, client_id, mq_set=(self.queue,)))
        answer = await self.admin.ask(code, None, body)
        assert answer.code == 0
        return len(decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set) if answer.body else 0

    async def commit(self, offset: int) -> tuple[int, str | None]:
        answer = await self.admin.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**self._fields, "commitOffset": str(offset)})
        return answer.code, answer.remark

    async def committed(self) -> int:
        return await self.admin.offset(RequestCode.QUERY_CONSUMER_OFFSET, self.topic, consumerGroup=self.group)

    async def reset(self, offset: int) -> int:
        fields = {"topic": self.topic, "group": self.group, "queueId": "0", "offset": str(offset), "timestamp": "-1"}
        return (await self.admin.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**fields, "isForce": "true"})).code

    async def notices(self) -> int:
        """How many came to the first member since the last call."""
        await self.first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group})
        pushed = [each for each in self.first.pushed if each.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
        self.first.pushed.clear()
        return len(pushed)

    async def request(self, client: RawClient) -> RemotingCommand:
        while (asked := await client.request(10.0)).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            pass
        return asked


async def membership(group: Group) -> list[object]:
    first, second = group.first, group.second
    seen: list[object] = []
    await group.beat(first, "c1", group.topic)
    seen += ["one notice", await group.notices() > 0, await group.members()]
    await group.beat(second, "c1", group.topic)
    seen += ["a second connection", await group.notices() > 0, await group.members()]
    await group.beat(second, "c1", group.topic, sub_version=2)
    seen += ["a new version alone", await group.notices(), await group.pull(first, subVersion="2")]
    await group.leave(group.admin)
    seen += ["gone elsewhere", await group.members()]
    await group.leave(second)
    seen += ["gone", await group.notices() > 0, await group.members()]
    return seen


async def subscriptions(group: Group) -> list[object]:
    first, second = group.first, group.second
    seen: list[object] = ["alone", await group.pull(first)]
    await group.beat(first, "c1", group.topic)
    seen += ["joined", await group.pull(first), await group.pull(first, subVersion="2")]
    await group.beat(second, "c2", group.topic + "_other")
    seen += ["another's topics", await group.notices() > 0, await group.pull(first)]
    await group.beat(first, "c1", group.topic)
    seen += ["again", await group.pull(first), await group.pull(first, sysFlag=str(OWN), subVersion="9")]
    return seen


async def locks(group: Group) -> list[object]:
    unlock = RequestCode.UNLOCK_BATCH_MQ
    return [
        [await group.lock("c1"), await group.lock("c2"), await group.lock("c1")],
        [await group.lock("c2", code=unlock), await group.lock("c2")],
        [await group.lock("c1", code=unlock), await group.lock("c2")],
    ]


async def resets(group: Group) -> list[object]:
    await group.beat(group.first, "c1", group.topic)
    seen: list[object] = [await group.pull(group.first), await group.commit(2), await group.committed()]
    seen += ["reset", await group.reset(0), await group.committed(), await group.commit(1), await group.committed()]
    seen += ["pulled", await group.pull(group.first, sysFlag=str(COMMIT), commitOffset="1", queueOffset="2")]
    seen += [await group.committed(), await group.commit(2), await group.committed()]
    group.hold(group.first, 2)
    await group.second.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group.group})
    seen += ["reset under a held pull", await group.reset(1)]
    await group.send("A")
    seen += [await group.held(group.first), await group.committed(), await group.commit(3), await group.committed()]
    return seen


async def passing_over(group: Group) -> list[object]:
    group.hold(group.first, 2)
    await group.second.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group.group})
    await group.send("B")
    began = monotonic()
    seen = await group.held(group.first)
    took = monotonic() - began
    print(f"a held pull of another tag was answered after {took:.1f} s")
    return [seen, took < 9.0]


async def offsets_in_memory(group: Group) -> list[object]:
    for client, client_id in ((group.first, "c1"), (group.second, "c2")):
        await group.beat(client, client_id, group.topic)
    fields = {"topic": group.topic, "group": group.group, "clientAddr": "c2"}
    group.admin.write(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
    asked = await group.request(group.second)
    ext = asked.ext_fields or {}
    group.second.answer(asked, body=encode_body(GetConsumerStatusBody({group.queue: 7})))
    answer = await group.admin.read(10.0)
    table = decode_body(GetConsumerStatusBody, answer.body).consumer_table
    offsets = {client_id: list(offsets.values()) for client_id, offsets in table.items()}
    return [asked.code, ext.get("topic") == group.topic, ext.get("group") == group.group, answer.code, offsets]


EXPECTED = {
    membership: [
        "one notice", True, ["c1"], "a second connection", True, ["c1", "c1"],
        "a new version alone", 0, (0, "2"), "gone elsewhere", ["c1", "c1"], "gone", True, ["c1"],
    ],
    subscriptions: [
        "alone", (24, ""), "joined", (0, "2"), (25, ""), "another's topics", True, (24, ""), "again", (0, "2"), (0, "2"),
    ],
    locks: [[1, 0, 1], [0, 0], [0, 1]],
    resets: [
        (0, "2"), (0, None), 2, "reset", 0, 0, (0, "Offset has been previously reset"), 0, "pulled", (21, "0"), 1, (0, None), 2,
        "reset under a held pull", 0, (21, "1"), 1, (0, None), 3,
    ],
    passing_over: [(20, "3"), True],
    offsets_in_memory: [221, True, True, 0, {"c2": [7]}],
}  # fmt: skip


async def seen_at(address: str, broker_name: str) -> dict[str, object]:
    """What each of the ways meets at a broker, by name."""
    seen: dict[str, object] = {}
    for way in EXPECTED:
        async with RawClient(address) as first, RawClient(address) as second, RawClient(address) as admin:
            group = Group(first, second, admin, broker_name)
            assert (await admin.create_topic(group.topic, 1)).code == 0
            for _ in range(2):
                await group.send("A")
            seen[way.__name__] = await way(group)
    return seen


@pytest.mark.parametrize("kind", ["embedded", "real"])
async def test_groups_behave_alike(kind: str, cluster: RealCluster | ExternalCluster) -> None:
    expected = {way.__name__: outcome for way, outcome in EXPECTED.items()}
    if kind == "embedded":
        async with EmbeddedRocketMQ() as server:
            assert await seen_at(server.brokers["broker-a"], "broker-a") == expected
    else:
        broker = cluster.brokers[0]
        assert await seen_at(broker.address, broker.name) == expected


async def test_pull_consumer_with_the_name_of_a_group_is_a_conflict(each_cluster: RealCluster | ExternalCluster) -> None:
    topic = f"Group_{uuid.uuid4().hex}"
    async with Admin(namesrv=each_cluster.namesrv) as admin, PullConsumer(topic, namesrv=each_cluster.namesrv) as reader:
        await admin.create_topic(topic, queues=1)
        (queue,) = await reader.queues(topic)
        await reader.pull(queue, 0, wait=0)  # sends the first heartbeat to this broker, which handles it beside the pull
        async with asyncio.timeout(60.0):
            while True:
                with suppress(GroupNotOnlineError):
                    await admin.group_members(topic)
                    break
                await asyncio.sleep(0.05)
        consumer = Consumer(topic, namesrv=each_cluster.namesrv, instance_name="member", on_conflict="raise")
        consumer.subscribe(topic, print)
        with pytest.raises(SubscriptionConflictError, match="a PullConsumer, or a pull consumer of Java has this group's name"):
            async with consumer:
                pass
