"""Locks of queues for orderly consumption."""

from __future__ import annotations

import msgspec

from ..message import MessageQueue

__all__ = ["LockBatchRequestBody", "LockBatchResponseBody", "UnlockBatchRequestBody"]


class LockBatchRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request LOCK_BATCH_MQ. ``only_this_broker``: True where a broker asks its replica, which must not forward
    the request."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool = False


class UnlockBatchRequestBody(LockBatchRequestBody, frozen=True, rename="camel"):
    """Body of the request UNLOCK_BATCH_MQ."""


class LockBatchResponseBody(msgspec.Struct, frozen=True):
    """Response of LOCK_BATCH_MQ: those of the requested queues that the client has locked now."""

    lock_ok_mq_set: tuple[MessageQueue, ...] = msgspec.field(name="lockOKMQSet", default=())
