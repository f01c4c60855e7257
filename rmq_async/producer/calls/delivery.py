"""Sends calls for which there is no connection at their first attempt."""

from __future__ import annotations

from rmq_protocol.errors import RocketMQError

from ... import machine
from ...tracebacks import own_copy, without_frames
from ..admission import Call, Result
from ..encoding import notify_failed
from .call_errors import explained
from .dispatch import Dispatch
from .retry_loop import RetryLoop


async def deliver_unconnected(dispatch: Dispatch, call: Call[Result], failed: RocketMQError | None) -> Result:
    """Send a call for whose first attempt there was no connection, and return its result.

    Args:
        failed: The error of the connection attempt, which counts as the first attempt. None if no attempt has been made yet.
    """
    target = call.target
    loop = RetryLoop(dispatch, call, call.topic_queues)
    if failed is not None:
        notify_failed(call.outgoing, target, failed)
        _end_if_late(dispatch, call, failed)
        loop.adopt_failed(target, failed, call.started)
    else:
        loop.begin_with(target)
    return await loop.run()


def _end_if_late(dispatch: Dispatch, call: Call[Result], error: RocketMQError) -> None:
    """If the deadline has passed and the producer has not stopped, report ``error`` as a RetryLoop does, and raise a copy of it."""
    # This costs half as much as a RetryLoop, and when a broker is down, thousands of calls end at the same time.
    now, target, topic = machine.monotonic(), call.target, call.outgoing.topic
    if now < call.deadline or dispatch.closed:
        return
    error.broker, error.address = error.broker or target.broker, error.address or target.address
    if dispatch.faults is not None:
        dispatch.faults.failed(target.broker, error, now - call.started, now)
    dispatch.router.topics.doubt(topic, error)
    # Raise a copy, because other callers may hold ``error`` with their frames, which this call must not keep alive.
    raise explained(own_copy(without_frames(error)), topic, target.broker, now - call.started)
