"""Locks of queues: granted, refused, renewed, lost, given back; brokers that do not answer; nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from rmq_async.admin import Admin
from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig
from rmq_async.consumer.group.member_locks import MemberLocks
from rmq_async.consumer.group.queue_locks import QueueLocks, handover_group
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import BrokerError, RequestTimeoutError
from rmq_protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, decode_body, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.message import MessageQueue

from ...client.support import client, until
from ...support.fakes import Broker, Link, NameServer, route

pytestmark = pytest.mark.virtual_time

TOPIC = "t"
A0, A1, B0 = MessageQueue(TOPIC, "broker-a", 0), MessageQueue(TOPIC, "broker-a", 1), MessageQueue(TOPIC, "broker-b", 0)


class Time:
    """What locks and the embedded broker see instead of ``machine``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("rmq_async.consumer.group.queue_locks.machine", time)
    monkeypatch.setattr("rmq_async.embedded.locks.machine", time)
    return time


@asynccontextmanager
async def member(server: EmbeddedRocketMQ, name: str) -> AsyncIterator[ClientInstance]:
    instance = await ClientInstance.acquire(ClientConfig(namesrv=server.namesrv, instance_name=name, request_timeout=1.0))
    await instance.routes.get(TOPIC, 1.0)
    yield instance
    await instance.release()


@asynccontextmanager
async def members(server: EmbeddedRocketMQ, count: int = 2) -> AsyncIterator[list[QueueLocks]]:
    """Locks of several clients."""
    async with AsyncExitStack() as stack:
        yield [QueueLocks(await stack.enter_async_context(member(server, str(n))), handover_group("g")) for n in range(count)]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(brokers=2) as server:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)
        yield server


async def test_one_client_has_a_queue_until_it_gives_it_back(server: EmbeddedRocketMQ) -> None:
    async with members(server) as (first, second):
        assert await first.lock([A0, A1, B0]) == {A0, A1, B0} == set(first.held)
        assert await second.lock([A0, B0]) == set()
        assert not second.held
        await second.unlock([A0, B0])
        assert await second.lock([A0]) == set()
        await first.unlock([A0])
        assert set(first.held) == {A1, B0}
        assert await second.lock([A0, A1]) == {A0}
        assert first.owns(A1)
        assert not first.owns(A0)
        await first.unlock_all()
        assert await second.lock([A0, A1, B0]) == {A0, A1, B0}
        assert not first.held


async def test_each_broker_is_asked_once(server: EmbeddedRocketMQ) -> None:
    async with members(server, 1) as (locks,):
        await locks.lock([A0, A1, B0, A0])
        assert server.requests[RequestCode.LOCK_BATCH_MQ] == 2
        assert await locks.renew() == set()
        assert server.requests[RequestCode.LOCK_BATCH_MQ] == 4
        await locks.unlock([B0, MessageQueue(TOPIC, "broker-b", 3)])
        assert server.requests[RequestCode.UNLOCK_BATCH_MQ] == 1
        await locks.unlock([B0])
        await locks.lock([])
        assert server.requests[RequestCode.UNLOCK_BATCH_MQ] == 1
        assert server.requests[RequestCode.LOCK_BATCH_MQ] == 4


async def test_the_lock_of_a_group_and_that_of_its_handovers_are_two(server: EmbeddedRocketMQ) -> None:
    async with members(server) as (first, second), member(server, "orderly") as instance:
        assert await QueueLocks(instance, "g").lock([A0]) == {A0}
        assert await first.lock([A0]) == {A0}
        assert await second.lock([A0]) == set()


async def test_a_renewal_keeps_the_lock_beyond_its_life(server: EmbeddedRocketMQ, time: Time) -> None:
    async with members(server) as (first, second):
        await first.lock([A0])
        for _ in range(5):
            time.now += 20.0
            assert await first.renew() == set()
            assert first.held[A0] == time.now
            assert await second.lock([A0]) == set()


async def test_a_lock_that_was_not_renewed_in_time_is_lost_though_the_broker_grants_it_again(
    server: EmbeddedRocketMQ, time: Time
) -> None:
    async with members(server) as (first, second):
        await first.lock([A0, B0])
        time.now += 61.0
        assert not first.owns(A0)
        assert await second.lock([A0]) == {A0}
        await second.unlock([A0])
        assert await first.renew() == {A0, B0}
        assert not first.held
        assert await first.renew() == set()
        assert await first.lock([A0]) == {A0}


async def test_a_lock_that_another_client_has_now_is_lost(server: EmbeddedRocketMQ, time: Time) -> None:
    """The broker forgets its lock, as in a restart."""
    async with members(server) as (first, second), member(server, "0") as same_client:
        await first.lock([A0, A1])
        forgets = QueueLocks(same_client, handover_group("g"))
        await forgets.lock([A0, A1])
        await forgets.unlock([A0, A1])
        assert await second.lock([A0]) == {A0}
        assert await first.renew() == {A0}
        assert set(first.held) == {A1}
        assert not first.owns(A0)


async def test_an_assumed_queue_is_locked_once_its_former_owner_is_forgotten(server: EmbeddedRocketMQ, time: Time) -> None:
    async with members(server) as (dead, locks):
        await dead.lock([A0])
        time.now += 12.0
        assert await locks.lock([A0]) == set()
        locks.assume([A0])
        assert locks.owns(A0)
        time.now += 20.0
        assert await locks.renew() == set()
        assert locks.assumed == {A0}
        time.now += 30.0
        assert await locks.renew() == set()
        assert locks.assumed == set()
        assert locks.held[A0] == time.now


async def test_a_queue_of_a_client_that_has_left_is_seized_and_handed_on(server: EmbeddedRocketMQ, time: Time) -> None:
    async with members(server, 3) as (dead, locks, third), member(server, "0") as instance:
        await dead.lock([A0, B0])
        time.now += 12.0
        assert await locks.seize([A0], ["10.0.0.9@another"]) == set()
        assert await locks.seize([A0, B0], ["10.0.0.9@another", instance.client_id]) == {A0, B0}
        assert await third.lock([A0]) == set()
        assert await dead.renew() == {A0, B0}
        await locks.unlock([A0])
        assert await third.lock([A0]) == {A0}


async def test_an_assumed_queue_is_lost_where_its_owner_lives(server: EmbeddedRocketMQ, time: Time) -> None:
    async with members(server) as (owner, locks):
        await owner.lock([A0])
        locks.assume([A0])
        expected: set[MessageQueue]
        for expected in (set(), set(), {A0}):
            time.now += 20.0
            await owner.renew()
            assert await locks.renew() == expected
        assert not locks.owns(A0)


class LockBroker(Broker):
    """Grants all locks; keeps the requests (code, queues); silent, or with a raw body or a code, as the test sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, set[int]]] = []
        self.code = 0
        self.body: bytes | None = None
        self.kept: list[tuple[Link, RemotingCommand]] = []
        self.answers |= dict.fromkeys((RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ), self.decide)

    def decide(self, link: Link, request: RemotingCommand) -> None:
        body = decode_body(LockBatchRequestBody, request.body)
        self.asked.append((request.code, {queue.queue_id for queue in body.mq_set}))
        if self.silent:
            self.kept.append((link, request))
        else:
            self.grant(link, request)

    def grant(self, link: Link, request: RemotingCommand) -> None:
        queues = decode_body(LockBatchRequestBody, request.body).mq_set
        body = encode_body(LockBatchResponseBody(queues)) if self.body is None else self.body
        link.reply(request, code=self.code, remark="said the script", body=body)


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[LockBroker, QueueLocks]]:
    async with (
        LockBroker() as broker,
        NameServer(t=route(broker.address)) as name_server,
        client(name_server, request_timeout=0.3) as instance,
    ):
        await instance.routes.get(TOPIC, 1.0)
        yield broker, QueueLocks(instance, "g")


async def test_a_silent_broker_grants_nothing_and_others_do(server: EmbeddedRocketMQ) -> None:
    async with members(server, 1) as (locks,):
        server.stall("broker-a")
        assert await locks.lock([A0, B0]) == {B0}
        assert isinstance(locks.errors["broker-a"], RequestTimeoutError)
        server.resume("broker-a")
        assert await locks.lock([A0]) == {A0}
        assert not locks.errors


async def test_an_error_about_locks_of_other_queues_is_not_one_of_ordered_queues(server: EmbeddedRocketMQ) -> None:
    async with member(server, "one") as instance:
        locks, other = MemberLocks(instance, "g", {TOPIC}), MessageQueue("u", "broker-a", 0)
        assert await locks.lock([A0]) == {A0}
        server.stall("broker-a")
        await locks.unlock_for("a client that has left", [other])
        server.resume("broker-a")
        await locks.renew()
        assert isinstance(locks.errors_of([A0, other])["broker-a"], RequestTimeoutError)
        assert locks.errors_of([A0, B0]) == {}


async def test_an_unanswered_renewal_loses_a_lock_after_its_life_only(time: Time) -> None:
    async with scripted() as (broker, locks):
        await locks.lock([A0])
        broker.silent = True
        steps: list[tuple[float, set[MessageQueue]]] = [(20.0, set()), (20.0, set()), (14.0, set()), (1.0, {A0})]
        for seconds, expected in steps:
            time.now += seconds
            assert await locks.renew() == expected
            assert locks.owns(A0) is not bool(expected)


async def test_a_queue_whose_request_was_not_answered_is_unlocked_all_the_same(time: Time) -> None:
    async with scripted() as (broker, locks):
        broker.silent = True
        await locks.lock([A0])
        broker.silent = False
        await locks.unlock([A0, A1])
        assert broker.asked[1:] == [(RequestCode.UNLOCK_BATCH_MQ, {0})]
        await locks.unlock([A0])
        assert len(broker.asked) == 2
        broker.silent = True
        await locks.lock([A0])
        time.now += 61.0
        await locks.unlock([A0])
        assert len(broker.asked) == 3


async def test_a_queue_whose_broker_left_the_routes_is_unlocked_at_its_last_address() -> None:
    async with (
        LockBroker() as broker,
        NameServer(t=route(broker.address)) as name_server,
        client(name_server, request_timeout=0.3) as instance,
    ):
        locks = QueueLocks(instance, "g")
        await instance.routes.get(TOPIC, 1.0)
        await locks.lock([A0])
        name_server.routes[TOPIC] = route(broker.address, name="broker-b")
        await instance.routes.refresh_all()
        assert instance.routes.address_of("broker-a") is None
        assert await locks.lock([A1]) == frozenset()  # locks are granted by brokers that name servers know
        await locks.unlock([A0])
        assert broker.asked[1:] == [(RequestCode.UNLOCK_BATCH_MQ, {0})]


async def test_a_refusal_or_an_answer_that_cannot_be_read_grants_nothing() -> None:
    async with scripted() as (broker, locks):
        broker.code = 16
        assert await locks.lock([A0]) == set()
        assert isinstance(locks.errors["broker-a"], BrokerError)
        broker.code, broker.body = 0, b"{"
        assert await locks.lock([A0]) == set()
        assert isinstance(locks.errors["broker-a"], RemoteProtocolError)
        broker.body = encode_body(LockBatchResponseBody((B0, A1)))
        assert await locks.lock([A0]) == set()
        assert not locks.errors
        assert not locks.held


async def renewal_in_flight(broker: LockBroker, locks: QueueLocks) -> asyncio.Task[frozenset[MessageQueue]]:
    """Locks A0 and A1, and renews them at a broker that does not answer."""
    await locks.lock([A0, A1])
    broker.silent = True
    renewal = asyncio.create_task(locks.renew())
    await until(lambda: len(broker.kept) == 1)
    return renewal


async def test_a_queue_given_back_during_its_renewal_is_unlocked_after_it() -> None:
    async with scripted() as (broker, locks):
        renewal = await renewal_in_flight(broker, locks)
        unlock = asyncio.create_task(locks.unlock([A0]))
        await asyncio.sleep(0)
        assert not locks.owns(A0)
        broker.silent = False
        broker.grant(*broker.kept[0])
        assert await renewal == set()
        await unlock
        assert [code for code, _ in broker.asked] == [41, 41, 42]
        assert set(locks.held) == {A1}


async def test_queues_given_back_during_a_renewal_are_not_locked_by_the_next_one() -> None:
    async with scripted() as (broker, locks):
        renewal = await renewal_in_flight(broker, locks)
        unlocks = [asyncio.create_task(locks.unlock([queue])) for queue in (A0, A1)]
        await asyncio.sleep(0)
        broker.grant(*broker.kept[0])
        await until(lambda: len(broker.kept) == 2)
        again = asyncio.create_task(locks.renew())
        await asyncio.sleep(0)
        broker.silent = False
        broker.grant(*broker.kept[1])
        await asyncio.gather(renewal, *unlocks, again)
        assert broker.asked[1:] == [(41, {0, 1}), (42, {0}), (42, {1})]
        assert not locks.held


@pytest.mark.parametrize("waits", [False, True])
async def test_a_cancelled_unlock_is_repeated(waits: bool) -> None:
    async with scripted() as (broker, locks):
        await locks.lock([A0, A1])
        broker.silent = True
        calls = [asyncio.create_task(locks.unlock([queue])) for queue in ((A1, A0) if waits else (A0,))]
        await until(lambda: len(broker.kept) == 1)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        broker.silent = False
        assert locks.owes
        await locks.unlock_owed()
        assert broker.asked[-1] == (RequestCode.UNLOCK_BATCH_MQ, {0, 1} if waits else {0})
        assert not locks.owes


async def test_a_cancelled_request_leaves_no_task_and_its_queue_is_unlocked_later() -> None:
    async with scripted() as (broker, locks):
        broker.silent = True
        call = asyncio.create_task(locks.lock([A0]))
        await until(lambda: len(broker.kept) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        broker.silent = False
        await locks.unlock_all()
        assert broker.asked[-1] == (RequestCode.UNLOCK_BATCH_MQ, {0})


async def test_a_broker_that_cut_the_connection_is_asked_to_unlock_once_more() -> None:
    async with scripted() as (broker, locks):
        await locks.lock([A0])
        serve = broker.serve

        def cut(link: Link, request: RemotingCommand) -> None:
            broker.serve = serve
            link.reset()

        broker.serve = cut
        await locks.unlock([A0])
        assert broker.asked[-1] == (RequestCode.UNLOCK_BATCH_MQ, {0})
        assert not locks.errors


async def test_an_unanswered_unlock_is_repeated_until_it_is_answered(server: EmbeddedRocketMQ) -> None:
    async with members(server) as (one, two):
        assert await one.lock([A0, A1]) == {A0, A1}
        server.stall("broker-a")
        await one.unlock([A0, A1])
        assert one.owes
        server.resume("broker-a")
        await one.unlock_owed()
        assert not one.owes
        assert await two.lock([A0, A1]) == {A0, A1}


async def test_an_owed_unlock_ends_with_the_life_of_the_lock_or_a_new_one(time: Time) -> None:
    async with scripted() as (broker, locks):
        await locks.lock([A0, A1])
        broker.silent = True
        await locks.unlock([A0, A1])
        assert locks.owes
        broker.silent = False
        assert await locks.lock([A0]) == {A0}
        await locks.unlock_owed()
        assert locks.owns(A0)
        broker.silent = True
        await locks.unlock([A0])
        time.now += 61.0
        await locks.unlock_owed()
        assert not locks.owes


async def test_an_owed_unlock_that_waits_for_a_request_of_its_queue_is_left_out() -> None:
    """Else a queue that was taken over again is read, and never committed: simulated seed 90005."""
    async with scripted() as (broker, locks):
        await locks.lock([A0])
        broker.silent = True
        await locks.unlock([A0])
        broker.kept.clear()
        other = asyncio.create_task(locks.lock([A1]))
        await until(lambda: len(broker.kept) == 1)
        again = asyncio.create_task(locks.lock([A0]))
        unlock = asyncio.create_task(locks.unlock_owed())
        await asyncio.sleep(0)
        broker.silent = False
        broker.grant(*broker.kept[0])
        assert await other == {A1}
        assert await again == {A0}
        await unlock
        assert locks.owns(A0)
        assert [code for code, _ in broker.asked[-2:]] == [41, 41]
