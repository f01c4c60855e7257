"""Locks of queues: one client at a time, renewed, given back, expired, bounded."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody, decode_body, encode_body
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageQueue

from .raw import RawClient


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
    await unlock(broker, "", 5)  # nobody's, by nobody
    assert await lock(broker, "c2", 0) == set()
    await unlock(broker, "c1", 0, 7)
    assert await lock(broker, "c2", 0) == {0}
    assert await lock(broker, "c1") == set()


async def test_locks_end_unless_renewed(server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.locks.LOCK_LIFE", 0.2)
    await lock(broker, "c1", 0, 1)
    await asyncio.sleep(0.12)
    await lock(broker, "c1", 0)
    await asyncio.sleep(0.12)
    assert await lock(broker, "c2", 0, 1) == {1}
    await asyncio.sleep(0.25)
    assert len(server._brokers[0].state.locks) == 2
    server._brokers[0].tick()
    assert len(server._brokers[0].state.locks) == 0


async def test_locks_are_bounded(broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.locks.MAX_LOCKS", 2)
    monkeypatch.setattr("rmq_async.embedded.locks.MAX_LOCKS_AT_ONCE", 3)

    async def refused(body: LockBatchRequestBody) -> str | None:
        response = await broker.ask(RequestCode.LOCK_BATCH_MQ, None, encode_body(body))
        assert response.code == 1
        return response.remark

    await lock(broker, "c1", 0, 1)
    assert await refused(LockBatchRequestBody("CG", "c1", queues(2))) == "this broker keeps 2 locks of queues, it takes no more"
    assert await lock(broker, "c1", 0, 1) == {0, 1}
    assert await refused(LockBatchRequestBody("CG", "c1", queues(0, 1, 2, 3))) == "4 queues in one request, the limit is 3"
    assert await refused(LockBatchRequestBody("C" * 600, "c1")) == "a name of 600 characters, the limit is 512"


@pytest.mark.parametrize("code", [41, 42])
@pytest.mark.parametrize(
    "body",
    [b"", b"{nope", b"[1]", b'{"consumerGroup":"CG"}', b'{"mqSet":[1],"clientId":"c","consumerGroup":"CG"}'],
)
async def test_bodies_that_are_no_lock_are_1(broker: RawClient, code: int, body: bytes) -> None:
    assert (await broker.ask(code, None, body)).code == 1
