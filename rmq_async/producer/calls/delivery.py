"""Delivery of awaited calls: the first attempt, and the retry loop if that attempt does not succeed."""

from __future__ import annotations

from typing import Any

from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ... import machine
from ...tracebacks import own_copy, without_frames
from ..admission import Call, Result
from ..encoding import notify_failed
from ..routing import Target, TopicQueues
from .call_errors import explained
from .dispatch import Dispatch
from .retry_loop import RetryLoop

__all__ = ["deliver", "deliver_unconnected", "end_if_late"]


async def deliver(dispatch: Dispatch, call: Call[Result], topic_queues: TopicQueues, target: Target) -> Result:
    """Sends an admitted call and returns its result, after retries if the policy allows them.

    ``target``: the queue of the first attempt, one of ``topic_queues`` or chosen by the caller. Raises as ``RetryLoop.run``.
    """
    connection = dispatch.connections.get(target.address)
    if connection is None:
        return await _connect_and_deliver(dispatch, call, topic_queues, target)
    outgoing, first_deadline, began, faults = call.outgoing, call.deadline, call.started, dispatch.faults
    if topic_queues.several:
        began = machine.monotonic()
        first_deadline = dispatch.first_deadline(began, call.deadline, call.retries)
    elif faults is not None and (faults.measures or faults.items):
        began = machine.monotonic()
    future = dispatch.create_future()
    pending = dispatch.submit(connection, target, outgoing, future, first_deadline, call.deadline)
    error: RocketMQError | None = None
    reply: SendReply | None = None
    try:
        reply = await future
    except RocketMQError as failure:
        error = failure
    except BaseException as failure:
        connection.requests.forget(pending.opaque)
        _abandoned(dispatch, call, target, began, failure)
        raise
    else:
        result = call.read(reply, outgoing, target, 1)
        if result is not None:
            if faults is not None and (faults.measures or target.broker in faults.items):
                faults.succeeded(target.broker, machine.monotonic() - began, machine.monotonic())
            if not (dispatch.retry_not_ok and dispatch.is_unconfirmed(result)):
                return result
    loop = RetryLoop(dispatch, call, topic_queues)
    loop.adopt(target, connection, pending, began, error, reply)
    return await loop.run()


async def _connect_and_deliver(dispatch: Dispatch, call: Call[Result], topic_queues: TopicQueues, target: Target) -> Result:
    failed = await dispatch.connect_first(topic_queues, target, call.deadline, call.retries)
    if failed is None and target.address in dispatch.connections:
        return await deliver(dispatch, call, topic_queues, target)
    return await deliver_unconnected(dispatch, call, topic_queues, target, failed)


async def deliver_unconnected(
    dispatch: Dispatch, call: Call[Result], topic_queues: TopicQueues, target: Target, failed: RocketMQError | None
) -> Result:
    """Sends a call whose first attempt found no connection, and returns its result.

    ``failed``: the error of connecting, which counts as the first attempt; None if the first attempt is yet to be made.
    """
    loop = RetryLoop(dispatch, call, topic_queues)
    if failed is not None:
        notify_failed(call.outgoing, target, failed)
        end_if_late(dispatch, call.outgoing.topic, target, failed, call.started, call.deadline)
        loop.adopt_failed(target, failed, call.started)
    else:
        loop.begin_with(target)
    return await loop.run()


def _abandoned(dispatch: Dispatch, call: Call[Any], target: Target, began: float, error: BaseException) -> None:
    """Reports to hooks and the fault table that the caller of the first attempt was cancelled."""
    if call.outgoing.watch is not None:
        call.outgoing.watch.give_up(error)
    if dispatch.faults is not None:
        dispatch.faults.failed(target.broker, error, machine.monotonic() - began, machine.monotonic())


def end_if_late(dispatch: Dispatch, topic: str, target: Target, error: RocketMQError, started: float, deadline: float) -> None:
    """Raises a copy of ``error`` if the deadline has passed, unless the producer has stopped; reports it as a RetryLoop does."""
    # It costs half as much as a RetryLoop: when a broker is away, thousands of calls end at the same time.
    now = machine.monotonic()
    if now < deadline or dispatch.closed:
        return
    error.broker, error.address = error.broker or target.broker, error.address or target.address
    if dispatch.faults is not None:
        dispatch.faults.failed(target.broker, error, now - started, now)
    dispatch.router.topics.doubt(topic, error)
    # A copy: other callers may hold ``error`` with their frames, which this call must not keep alive.
    raise explained(own_copy(without_frames(error)), topic, target.broker, now - started)
