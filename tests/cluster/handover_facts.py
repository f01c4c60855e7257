"""What brokers do with the locks of handovers: members of one group on a real cluster, and the sentences about their locks.

Each fact is a coroutine that returns what was seen.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from rmq_async import Admin, ClientConfig, Credentials, Message, MessageQueue, Producer, PullConsumer
from rmq_async.client import ClientInstance
from rmq_async.consumer.group.queue_locks import QueueLocks, handover_group
from rmq_async.testing._config import PROFILES, Profile
from rmq_async.testing._probe import Access, ask
from rmq_async.testing.cluster import DEFAULT_VERSION, OLD_VERSION, RealCluster
from rmq_protocol.bodies import LockBatchRequestBody, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import ConsumerSendMsgBackRequestHeader, Header, SendMessageRequestHeaderV2, to_ext

TOPIC: Final = "HandoverTopic"
GROUP: Final = "HandoverGroup"
BROKER: Final = "broker-a"
QUEUES: Final = 64
MEMBER: Final = Credentials("group-member", "canary-member-key")
ASK_EVERY: Final = 0.1
_OLD_ADMIN: Final = Credentials("adminuser", "adminpass")
_OLD_ACL: Final = f"""\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: {_OLD_ADMIN.access_key}
  secretKey: {_OLD_ADMIN.secret_key}
  admin: true
- accessKey: {MEMBER.access_key}
  secretKey: {MEMBER.secret_key}
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - {TOPIC}=SUB
  groupPerms:
  - {GROUP}=SUB
"""


def queue(number: int) -> MessageQueue:
    return MessageQueue(TOPIC, BROKER, number)


def guarded_cluster(version: str, directory: Path) -> RealCluster:
    """A broker on which ``MEMBER`` has the rights of a consumer of one group on one topic: ACL 2.0 on 5.x, 1.0 on 4.x."""
    if version == DEFAULT_VERSION:
        return RealCluster(profile=PROFILES["authorization"], directory=directory, broker_conf={"timerWheelEnable": "false"})
    home = directory / BROKER / "conf"
    home.mkdir(parents=True)
    (home / "plain_acl.yml").write_text(_OLD_ACL)
    profile = PROFILES["correctness"] | Profile(broker={"aclEnable": "true"}, credentials=_OLD_ADMIN)
    return RealCluster(version=OLD_VERSION, profile=profile, directory=directory)


async def prepare(real: RealCluster, member: Credentials | None = None) -> None:
    """Makes the topic, the group and, on a broker of 5.x, the rights of ``member``."""
    async with Admin(namesrv=real.namesrv, credentials=real.credentials) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
    async with PullConsumer(GROUP, namesrv=real.namesrv, credentials=real.credentials) as consumer:
        await consumer.commit(queue(0), 0)
    if member is None or real.version != DEFAULT_VERSION:
        return
    access = Access(credentials=real.credentials)

    async def change(code: int, ext: dict[str, str | None], body: dict[str, object]) -> None:
        answer = await ask(real.brokers[0].address, code, ext, json.dumps(body).encode(), access=access)
        assert answer is not None
        assert answer.code == 0, answer.remark

    name, subject = member.access_key, f"User:{member.access_key}"
    user: dict[str, object] = {"username": name, "password": member.secret_key, "userType": "Normal", "userStatus": "enable"}
    await change(RequestCode.AUTH_CREATE_USER, {"username": name}, user)
    entries = [{"resource": each, "actions": ["Sub"], "decision": "Allow"} for each in (f"Topic:{TOPIC}", f"Group:{GROUP}")]
    policies = [{"policyType": "Custom", "entries": entries}]
    await change(RequestCode.AUTH_CREATE_ACL, {"subject": subject}, {"subject": subject, "policies": policies})


@asynccontextmanager
async def instance_of(real: RealCluster, credentials: Credentials | None = None) -> AsyncIterator[ClientInstance]:
    config = ClientConfig(
        namesrv=real.namesrv, credentials=credentials or real.credentials, instance_name=uuid.uuid4().hex, request_timeout=3.0
    )
    instance = await ClientInstance.acquire(config)
    try:
        await instance.routes.get(TOPIC, 3.0)
        yield instance
    finally:
        await instance.release()


@dataclass
class Members:
    """Clients of one group. ``credentials``: theirs; None for those of the cluster."""

    real: RealCluster
    credentials: Credentials | None = None
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Members:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()

    async def locks(self, group: str = handover_group(GROUP)) -> QueueLocks:
        return QueueLocks(await self.stack.enter_async_context(instance_of(self.real, self.credentials)), group)


async def one_owner(members: Members) -> dict[str, bool]:
    """A lock of a group that does not exist, another client, its unlock, the holder's unlock."""
    group = handover_group(GROUP if members.credentials else f"unknown-{uuid.uuid4().hex}")
    async with instance_of(members.real, members.credentials) as other:
        first, second = await members.locks(group), QueueLocks(other, group)
        wanted = frozenset(map(queue, range(4)))
        granted = await first.lock(wanted) == wanted
        refused = await second.lock(wanted) == frozenset()
        body = encode_body(LockBatchRequestBody(group, other.client_id, tuple(wanted)))
        answer = await request(other, RequestCode.UNLOCK_BATCH_MQ, body=body)
        ignored = answer.code == 0 and await second.lock(wanted) == frozenset()
        await first.unlock(wanted)
        freed = await second.lock(wanted) == wanted
        await second.unlock_all()
    return {"granted": granted, "refused": refused, "ignored": ignored, "freed": freed}


async def error_under(members: Members, group: str) -> str:
    """Why a lock under ``group`` is refused; empty where it is granted."""
    locks = await members.locks(group)
    granted = await locks.lock([queue(9)])
    await locks.unlock_all()
    return "" if granted else str(locks.errors.get(BROKER, "refused without an error"))


async def outlives_its_connection(members: Members) -> bool:
    async with instance_of(members.real, members.credentials) as dead:
        await QueueLocks(dead, handover_group(GROUP)).lock([queue(10)])
    other = await members.locks()
    await asyncio.sleep(0.5)
    return await other.lock([queue(10)]) == frozenset()


async def renewed(members: Members, seconds: float, every: float) -> bool:
    """Whether a lock that is renewed lives for ``seconds``."""
    first, second = await members.locks(), await members.locks()
    await first.lock([queue(12)])
    ends = monotonic() + seconds
    while monotonic() < ends:
        await asyncio.sleep(every)
        if await first.renew() or await second.lock([queue(12)]):
            return False
    return True


async def lost_in_a_restart(members: Members) -> bool:
    """Whether another client is granted a lock after a restart of its broker, and the former owner finds that out."""
    first, second = await members.locks(), await members.locks()
    await first.lock([queue(13)])
    await members.real.brokers[0].kill()
    await members.real.brokers[0].start()
    granted: frozenset[MessageQueue] = frozenset()
    ends = monotonic() + 20.0
    while not granted and monotonic() < ends:
        granted = await second.lock([queue(13)])
    lost = await first.renew()
    return granted == lost == frozenset([queue(13)])


async def handovers(members: Members, count: int) -> list[float]:
    """Seconds from the call of ``unlock`` to the grant to a client that asks each 100 ms."""
    first, second = await members.locks(), await members.locks()
    found = []
    for number in range(count):
        await first.lock([queue(14)])
        asking = asyncio.create_task(_asked(second, [queue(14)]))
        await asyncio.sleep(0.05 + 0.1 * (number / count))
        began = monotonic()
        await first.unlock([queue(14)])
        found.append(await asking - began)
        await second.unlock([queue(14)])
    return found


async def _asked(locks: QueueLocks, queues: list[MessageQueue]) -> float:
    async with asyncio.timeout(60):
        while not await locks.lock(queues):
            await asyncio.sleep(ASK_EVERY)
    return monotonic()


async def request(instance: ClientInstance, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    ext: dict[str, str | None] = {**to_ext(header)} if header is not None else {}
    answer, _ = await instance.ask_broker(BROKER, TOPIC, RemotingCommand(code=code, ext_fields=ext, body=body), 3.0)
    return answer


async def ends(instance: ClientInstance) -> dict[str, int]:
    """Messages in the group's retry topic and in its dead-letter topic."""
    found = {}
    for topic in (f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"):
        command = RemotingCommand(code=RequestCode.GET_MAX_OFFSET, ext_fields={"topic": topic, "queueId": "0"})
        answer, _ = await instance.ask_broker(BROKER, TOPIC, command, 3.0)
        found[topic] = int((answer.ext_fields or {}).get("offset") or 0) if answer.code == 0 else 0
    return found


async def becomes_of_a_retry(real: RealCluster, lock_group: str, how: str) -> str:
    """Where a message goes that is sent to the retry topic (``how="send"``) or given back (``"36"``) while a lock of ``lock_group``
    lives: "retried" or "dead letter"."""
    async with instance_of(real) as instance, instance_of(real) as other:
        locks = QueueLocks(other, lock_group)
        assert await locks.lock([queue(20)])
        before = await ends(instance)
        if how == "send":
            header: Any = SendMessageRequestHeaderV2(
                a=GROUP, b=f"%RETRY%{GROUP}", c="TBW102", d=4, e=0, f=0, g=0, h=0, i="", j=1, k=False, l=16, m=False
            )
            answer = await request(instance, RequestCode.SEND_MESSAGE_V2, header, b"sent")
        else:
            async with Producer("GivingBack", namesrv=real.namesrv, credentials=real.credentials) as producer:
                sent = await producer.send(Message(TOPIC, b"given back"), queue=queue(20))
            assert sent.offset_msg_id
            offset = int(sent.offset_msg_id[-16:], 16)
            header = ConsumerSendMsgBackRequestHeader(offset=offset, group=GROUP, delayLevel=1, originTopic=TOPIC)
            answer = await request(instance, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        assert answer.code == 0, answer.remark
        deadline = monotonic() + 10.0
        after = before
        while after == before and monotonic() < deadline:
            await asyncio.sleep(0.05)
            after = await ends(instance)
        await locks.unlock_all()
    moved = [name for name, count in after.items() if count > before[name]]
    return {(f"%RETRY%{GROUP}",): "retried", (f"%DLQ%{GROUP}",): "dead letter"}.get(tuple(moved), f"in {moved}")
