"""Locks of queues: one client at a time, renewed, given back, expired, bounded."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.locks import LOCK_LIFE, SEARCH_INTERVAL, QueueLocks
from rmq_async.embedded.service import Refused
from rmq_protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody, decode_body, encode_body
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageQueue

from ..support.fakes import RawClient
from .inside import broker_of


class Time:
    """What the locks see instead of ``machine``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("rmq_async.embedded.locks.machine", time)
    return time


def queues(*ids: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("T", "broker-a", queue_id) for queue_id in ids)


async def lock(broker: RawClient, client_id: str, *ids: int, group: str = "CG") -> set[int]:
    body = encode_body(LockBatchRequestBody(group, client_id, queues(*ids)))
    response = await broker.ask(RequestCode.LOCK_BATCH_MQ, None, body)
    assert response.code == 0, response.remark
    return {queue.queue_id for queue in decode_body(LockBatchResponseBody, response.body).lock_ok_mq_set}


async def unlock(broker: RawClient, client_id: str, *ids: int) -> None:
    body = encode_body(UnlockBatchRequestBody("CG", client_id, queues(*ids)))
    assert (await broker.ask(RequestCode.UNLOCK_BATCH_MQ, None, body)).code == 0


async def test_one_client_of_a_group_has_a_queue(broker: RawClient) -> None:
    assert await lock(broker, "c1", 0, 1) == {0, 1}
    assert await lock(broker, "c2", 0, 1, 2) == {2}
    assert await lock(broker, "c1", 0, 1, 2) == {0, 1}
    assert await lock(broker, "c2", 0, group="other") == {0}
    await unlock(broker, "c2", 0)
    await unlock(broker, "", 5)  # not held, by a client without a name
    assert await lock(broker, "c2", 0) == set()
    await unlock(broker, "c1", 0, 7)
    assert await lock(broker, "c2", 0) == {0}
    assert await lock(broker, "c1") == set()


async def test_locks_end_unless_renewed(server: EmbeddedRocketMQ, broker: RawClient, time: Time) -> None:
    await lock(broker, "c1", 0, 1)
    time.now += LOCK_LIFE - 1
    await lock(broker, "c1", 0)
    assert await lock(broker, "c2", 0, 1) == set()
    time.now += 1
    assert await lock(broker, "c2", 0, 1) == {1}
    time.now += LOCK_LIFE
    assert len(broker_of(server).state.locks) == 2
    broker_of(server).tick()
    assert len(broker_of(server).state.locks) == 0


async def test_locks_are_bounded(broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.locks.MAX_LOCKS", 2)
    monkeypatch.setattr("rmq_async.embedded.locks.MAX_LOCKS_AT_ONCE", 3)

    async def refused(body: LockBatchRequestBody) -> str | None:
        response = await broker.ask(RequestCode.LOCK_BATCH_MQ, None, encode_body(body))
        assert response.code == 1
        return response.remark

    await lock(broker, "c1", 0, 1)
    assert (
        await refused(LockBatchRequestBody("CG", "c1", queues(2)))
        == "this broker has 2 queue locks, the maximum; unlock some first"
    )
    assert await lock(broker, "c1", 0, 1) == {0, 1}
    assert (
        await refused(LockBatchRequestBody("CG", "c1", queues(0, 1, 2, 3)))
        == "the request has 4 queues, the limit is 3; send several requests"
    )
    assert await refused(LockBatchRequestBody("C" * 600, "c1")) == (
        f"the name '{'C' * 80}' has 600 characters, the limit is 512; shorten it"
    )


@pytest.fixture
def searches(time: Time, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the locks were searched for those that have ended."""
    found: list[float] = []
    expire = QueueLocks._expire  # noqa: SLF001

    def counted(locks: QueueLocks, now: float) -> bool:
        found.append(now)
        return expire(locks, now)

    monkeypatch.setattr(QueueLocks, "_expire", counted)
    return found


def take(locks: QueueLocks, queue_id: int) -> bool:
    try:
        return locks.lock("CG", queues(queue_id), "c1") == [*queues(queue_id)]
    except Refused:
        return False


def test_a_full_table_is_not_searched_for_each_refusal_and_has_room_when_locks_end(
    time: Time, searches: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.locks.MAX_LOCKS", 3)
    locks = QueueLocks()
    for queue_id in range(3):
        assert take(locks, queue_id)
        time.now += 10
    assert not any(take(locks, 7) for _ in range(100))
    assert len(searches) <= 1
    time.now += LOCK_LIFE - 30
    assert take(locks, 7)
    assert not take(locks, 8)
    assert take(locks, 1)  # renewed
    time.now += 10
    assert not take(locks, 8)
    time.now += 10
    assert take(locks, 8)
    assert len(locks) == 3
    assert len(searches) <= 6


def test_locks_that_end_one_after_the_other_are_not_searched_for_each(
    time: Time, searches: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.locks.MAX_LOCKS", 200)
    locks = QueueLocks()
    for queue_id in range(200):
        assert take(locks, queue_id)
        time.now += 0.01
    time.now += LOCK_LIFE - 2
    began, taken = time.now, 0
    for queue_id in range(200, 400):
        taken += take(locks, queue_id)
        time.now += 0.01
    assert taken > 50
    assert len(searches) <= 2 + (time.now - began) / SEARCH_INTERVAL


@pytest.mark.parametrize("code", [41, 42])
@pytest.mark.parametrize(
    "body",
    [b"", b"{nope", b"[1]", b'{"consumerGroup":"CG"}', b'{"mqSet":[1],"clientId":"c","consumerGroup":"CG"}'],
)
async def test_bodies_that_are_no_lock_are_1(broker: RawClient, code: int, body: bytes) -> None:
    assert (await broker.ask(code, None, body)).code == 1
