"""Bodies of requests that lock queues for ordered consumption."""

from __future__ import annotations

import msgspec

from ..message import MessageQueue

__all__ = ["LockBatchRequestBody", "LockBatchResponseBody", "UnlockBatchRequestBody"]


class LockBatchRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request LOCK_BATCH_MQ. ``only_this_broker``: True in a request from a broker to the other replicas of its
    name, which must not forward it."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool = False


class UnlockBatchRequestBody(LockBatchRequestBody, frozen=True, rename="camel"):
    """Body of the request UNLOCK_BATCH_MQ."""


class LockBatchResponseBody(msgspec.Struct, frozen=True):
    """Response of LOCK_BATCH_MQ: the requested queues whose lock the client has now."""

    lock_ok_mq_set: tuple[MessageQueue, ...] = msgspec.field(name="lockOKMQSet", default=())
