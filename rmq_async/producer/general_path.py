"""The general path of ``send``, ``send_async`` and ``send_oneway``, for calls that ``fast_path`` hands over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec

from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.properties import message_properties
from rmq_protocol.validation import check_message

from .. import machine
from ..results import SendResult
from ..timeouts import checked_timeout
from .calls import Call, RetryLoop, deliver, deliver_unconnected, end_if_late
from .core import ProducerCore
from .encoding import Outgoing, stored_message
from .routing import Selector, Target, TopicQueues, checked_choice, choice_of
from .send_async import accept_call

__all__ = [
    "SendArguments",
    "general_send",
    "general_send_async",
    "general_send_oneway",
    "retry_loop",
    "send_unconnected",
]


class SendArguments(msgspec.Struct):
    """The arguments of a call of ``send``, ``send_async`` or ``send_oneway``."""

    message: Message
    queue: MessageQueue | None
    selector: Selector | None
    key: Any
    timeout: float | None


async def general_send(sender: ProducerCore, arguments: SendArguments) -> SendResult:
    """Sends one message and returns its result."""
    message = arguments.message
    queue, selector, key, timeout = arguments.queue, arguments.selector, arguments.key, arguments.timeout
    started = machine.monotonic()
    deadline = started + (sender.timeout if timeout is None else checked_timeout(timeout))
    if message.__class__ is Message:  # what ``check`` does
        check_message(message.topic, message.body, sender.encoder.max_size)
    else:
        sender.encoder.check(message)
    choice = None
    if queue is not None or selector is not None or key is not None or message.sharding_key is not None:
        key = message.sharding_key if key is None else key
        choice = checked_choice(message.topic, queue, selector, key, sender.prefix)
    if choice is None and sender.gathers and not sender.asks and (size := sender.unordered.size(message)):
        return await sender.unordered.send(message, size, deadline)
    call = sender.single_call(message, choice, "sync", started, deadline)
    try:
        if not sender.admission.enter_now(call):
            await sender.admission.enter(call)
        if choice is None and not (sender.gathers and sender.asks):
            return await deliver(sender.dispatch, call, call.topic_queues, call.target)
        return await sender.ordered.send(call)
    finally:
        sender.admission.leave(call)


async def general_send_async(
    sender: ProducerCore,
    arguments: SendArguments,
    on_success: Callable[[SendResult], object] | None,
    on_error: Callable[[BaseException], object] | None,
    turn: Target | None,
) -> asyncio.Future[SendResult]:
    """Accepts one message and returns the future of its result. ``turn``: see ``try_fast_send_async``."""
    message, timeout = arguments.message, arguments.timeout
    started = machine.monotonic()
    deadline = started + (sender.timeout if timeout is None else checked_timeout(timeout))
    sender.encoder.check(message)
    choice = choice_of(message, arguments.queue, arguments.selector, arguments.key, sender.prefix)
    if choice is None and sender.gathers and not sender.asks and (size := sender.unordered.size(message)):
        return await sender.unordered.accept(message, size, deadline, on_success, on_error)
    call = sender.single_call(message, choice, "async", started, deadline)
    if choice is not None or (sender.gathers and sender.asks):
        return await sender.ordered.accept(call, on_success, on_error)
    call.retries = sender.config.async_retries
    call.target = cast(Target, turn)
    return await accept_call(sender.dispatch, sender.admission, call, on_success, on_error)


async def general_send_oneway(sender: ProducerCore, arguments: SendArguments, turn: Target | None) -> None:
    """Sends one message that the broker does not confirm. ``turn``: see ``try_fast_oneway``."""
    message, timeout = arguments.message, arguments.timeout
    started = machine.monotonic()
    deadline = started + (sender.timeout if timeout is None else checked_timeout(timeout))
    sender.encoder.check(message)
    choice = choice_of(message, arguments.queue, arguments.selector, arguments.key, sender.prefix)
    call = sender.single_call(message, choice, "oneway", started, deadline)
    call.target = cast(Target, turn)
    await sender.oneway.send(call)


async def send_unconnected(
    sender: ProducerCore, message: Message, topic_queues: TopicQueues, target: Target, deadline: float
) -> SendResult | None:
    """Connects to the broker of a first attempt of ``send``; returns None once connected, else the result of a retry loop."""
    outgoing = sender.encoder.encode(message)  # before anything is sent: it raises for properties that are too large
    failed = await sender.dispatch.connect_first(topic_queues, target, deadline, sender.retries)
    if target.address in sender.connections:
        return None
    began = deadline - sender.timeout
    if failed is not None:
        end_if_late(sender.dispatch, message.topic, target, failed, began, deadline)
    call = Call(outgoing, stored_message, began, deadline, sender.retries)
    return await deliver_unconnected(sender.dispatch, call, topic_queues, target, failed)


def retry_loop(
    sender: ProducerCore, message: Message, unique_id: str, topic_queues: TopicQueues, deadline: float
) -> RetryLoop[SendResult]:
    """Makes the loop that takes over a ``send`` whose first attempt was not a success."""
    text = message_properties(message, unique_id)
    outgoing = Outgoing(message.topic, unique_id, text, message.body, 0, message.flag)
    call = Call(outgoing, stored_message, deadline - sender.timeout, deadline, sender.retries)
    return RetryLoop(sender.dispatch, call, topic_queues)
