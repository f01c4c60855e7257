"""Sends to a real broker whose replicas are fewer than ``inSyncReplicas``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmq_async import Admin, Message, MessageQueue, Producer, RocketMQError, SendError
from rmq_async.errors import NotEnoughReplicasError, RequestTimeoutError
from rmq_async.testing._probe import ask
from rmq_async.testing.cluster import RealCluster, require
from rmq_protocol.constants import RequestCode

from .accounting import stored_count
from .conftest import NO_TIMERS

COUNTED = {"brokerRole": "SYNC_MASTER", "enableSlaveActingMaster": "true", "inSyncReplicas": "2"}
"""Counts its replicas before it stores, as in controller mode with ``minInSyncReplicas``, and needs no controller for that."""


@pytest.fixture
async def lonely() -> AsyncIterator[RealCluster]:
    """A broker that wants a replica and has none."""
    require()
    cluster = RealCluster(broker_conf=NO_TIMERS | COUNTED)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def test_broker_with_too_few_replicas_stores_nothing_until_it_has_them(lonely: RealCluster) -> None:
    """The answer to a send is the one of DLedger, after which a message may be stored: the client has asked for the difference."""
    async with (
        Admin(namesrv=lonely.namesrv) as admin,
        Producer("senders", namesrv=lonely.namesrv) as producer,
        Producer("once", namesrv=lonely.namesrv, retries=0) as once,
    ):
        await admin.create_topic("T", queues=1)
        queue = MessageQueue("T", lonely.brokers[0].name, 0)
        sends = [
            once.send(Message("T", b"plain"), timeout=6.0),
            once.send(Message("T", b"keyed"), key=1, timeout=6.0),
            once.send_batch([Message("T", b"batch")] * 2, timeout=6.0),
        ]
        for error in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(error, RocketMQError)
            errors = [each.error for each in error.attempts] if isinstance(error, SendError) else [error]
            # On a busy machine, the last attempt may have no response when the time is used up.
            answered = [each for each in errors if each is not None and not isinstance(each, RequestTimeoutError)]
            assert answered
            assert all(isinstance(each, NotEnoughReplicasError) for each in answered)
            assert error.maybe_stored == (len(answered) < len(errors))
        assert await admin.max_offset(queue) == 0
        sending = asyncio.ensure_future(producer.send(Message("T", b"in time"), key=1, timeout=30.0))
        await asyncio.sleep(0.3)
        await ask(lonely.brokers[0].address, RequestCode.UPDATE_BROKER_CONFIG, body=b"inSyncReplicas=1\n")
        sent = await sending
        assert (sent.queue_offset, await stored_count(lonely.namesrv, "T", 1)) == (0, 1)
        print(f"stored with attempt {sent.attempts}")
