"""Starts a send. ``send``, ``send_async`` and ``send_oneway`` share these functions.

``begin`` makes the record of a call. It checks and encodes the message, and takes credits and a queue at once if the message needs
nothing special and need not wait. It has branches for sharding keys, hooks and message traces. Then there are three ways:
``deliver`` awaits the result, ``accept`` returns a future for it (``AsyncSend``), and a one-way message is added to the messages
that are not yet written (``Oneway.queue_now``, or ``Oneway.send`` if the call must wait). Only the plain ``send`` has all of this
in one function (``fast_path``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final

from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import NO_KEYS, Keys, LiteKeys, Message, MessageQueue, PriorityKeys, ShardedKeys
from rmq_protocol.properties import AFTER_ID, BEFORE_ID, message_properties
from rmq_protocol.send_codec import SendReply
from rmq_protocol.trace import MessageType
from rmq_protocol.validation import check_message

from .. import machine
from ..results import SendResult
from ..timeouts import checked_timeout
from ..transport import Connection, Pending
from .admission import Call, Result
from .batching import AskingFuture, abandon, may_share
from .calls import Dispatch, RetryLoop, deliver_unconnected
from .core import ProducerCore
from .encoding import stored_message
from .routing import QueueChoice, Selector, Target, TopicQueues, choice_of, hash_of
from .send_async import AsyncAttempt, AsyncSend
from .watching import Watch

MILLISECOND: Final = 0.001
_USUAL_KEYS: Final = (tuple, Keys, ShardedKeys, LiteKeys, PriorityKeys)
_CHOSEN: Final = QueueChoice(None, None, None)
"""The ``choice`` of a call whose queue was already determined by its sharding key."""
_SHORT_KINDS: Final = (MessageType.NORMAL, MessageType.ORDER)
"""The kinds of messages for which ``Watch.first`` may be called, instead of ``Watch.begin``."""


def begin(
    sender: ProducerCore,
    mode: str,
    message: Message,
    queue: MessageQueue | None,
    selector: Selector | None,
    key: Any,
    timeout: float | None,
) -> Call[SendResult]:
    """Return the ``Call`` of a send. Its ``target`` is None if it must wait for admission.

    Args:
        sender: The running producer.
        mode: The ``mode`` of ``SendContext``.
        message: The caller's message. Neither it nor the other arguments have been checked yet.
        queue: The queue that the caller chose.
        selector: The selector that the caller passed.
        key: The argument of the selector.
        timeout: Seconds for the call. None uses the producer's ``timeout``.

    Raises:
        RocketMQError: If the arguments are invalid; see ``send``.
    """
    credits, choice = sender.credits if mode != "oneway" else sender.oneway_credits, None
    topic_queues: TopicQueues | None
    if (
        timeout is not None
        or queue is not None
        or selector is not None
        or key is not None
        or message.__class__ is not Message
        or ((keys := message.keys) is not NO_KEYS and keys.__class__ not in _USUAL_KEYS)
        or message.body.__class__ is not bytes
        or message.topic.__class__ is not str
        or not 0 < (size := len(message.body)) < sender.usual_below
        or (topic_queues := sender.queues_by_topic.get(message.topic)) is None
    ):
        return _checked(sender, mode, message, queue, selector, key, timeout)
    target: Target | None = None
    lite_topic: str | None = None
    if keys.__class__ is ShardedKeys:
        sharding_key: Any = message.sharding_key
        line, queues = sender.admission.lines.by_topic.get(message.topic), topic_queues.keyed
        place = queues[abs(hash_of(sharding_key)) % len(queues)]  # what ``select_by_hash`` does
        target = topic_queues.by_queue.get(place) or topic_queues.reachable(place)
        if target is None or (line is not None and line.busy) or message.topic.startswith(RETRY_TOPIC_PREFIX):
            return _checked(sender, mode, message, queue, selector, key, timeout)
        choice = _CHOSEN
    elif (lite_topic := message.lite_topic) is not None:
        topic_queues = topic_queues.shard(lite_topic)
    epoch = credits.try_take(1, size)
    if epoch is None:
        return _checked(sender, mode, message, queue, selector, key, timeout)
    try:
        if target is None:
            target = topic_queues.next()
        started = machine.monotonic()
        unique_id = sender.ids.next_at(started) if message.unique_id is None else sender.ids.given(message.unique_id)
        if plain := keys is NO_KEYS and message.wait_store:
            properties = f"{BEFORE_ID}{unique_id}{AFTER_ID}"  # as ``message_properties`` for only a topic and a body
        else:
            properties = message_properties(message, unique_id)
        outgoing = sender.encoder.outgoing(message.topic, unique_id, properties, message.body, 0, message.flag)
        if sender.watched:
            kind = MessageType.NORMAL if choice is None else MessageType.ORDER
            outgoing.watch = watch = Watch(sender.watchers, message, kind, mode, stored_message)
            watch.plain = plain
    except BaseException:
        credits.give_back(epoch, 1, size)
        raise
    return Call(
        outgoing, stored_message, started, started + sender.timeout, sender.retries,
        None if choice is None else message, choice, size, True, False,
        epoch, None, topic_queues, target, lite_topic,
    )  # fmt: skip


def _checked(
    sender: ProducerCore,
    mode: str,
    message: Message,
    queue: MessageQueue | None,
    selector: Selector | None,
    key: Any,
    timeout: float | None,
) -> Call[SendResult]:
    """Return the ``Call`` of a send that has options, needs another form of request, or may have to wait."""
    started = machine.monotonic()
    deadline = started + (sender.timeout if timeout is None else checked_timeout(timeout))
    if message.__class__ is Message:  # the same check as in ``Encoder.check``
        check_message(message.topic, message.body, sender.encoder.max_size)
    else:
        sender.encoder.check(message)
    choice = choice_of(message, queue, selector, key, sender.prefix)
    outgoing = sender.encoder.encode(message)
    if sender.watched:
        sender.watchers.watch(outgoing, message, mode, stored_message)
    batchable = may_share(message, sender.encoder.compress_over)
    return Call(
        outgoing, stored_message, started, deadline, sender.retries, message, choice, len(message.body), batchable,
        sender.gathers and sender.asks and message.lite_topic is None, lite_topic=message.lite_topic,
    )  # fmt: skip


def record(
    sender: ProducerCore,
    message: Message,
    unique_id: str | None,
    topic_queues: TopicQueues,
    deadline: float,
    target: Target | None = None,
) -> Call[SendResult]:
    """Return the ``Call`` of a plain send that leaves the fast path. The call holds no credits, because its caller keeps them."""
    outgoing = sender.encoder.encode(message, unique_id=unique_id)
    call = Call(outgoing, stored_message, deadline - sender.timeout, deadline, sender.retries)
    call.topic_queues = topic_queues
    if target is not None:
        call.target = target
    return call


async def gather_or_deliver(
    sender: ProducerCore,
    message: Message,
    queue: MessageQueue | None,
    selector: Selector | None,
    key: Any,
    timeout: float | None,
) -> SendResult:
    """Send a message of a producer with batching, and return its result."""
    size, deadline = gathered(sender, message, queue, selector, key, timeout)
    if size:
        return await sender.unordered.send(message, size, deadline)
    return await deliver(sender, begin(sender, "sync", message, queue, selector, key, timeout))


def gathered(
    sender: ProducerCore,
    message: Message,
    queue: MessageQueue | None,
    selector: Selector | None,
    key: Any,
    timeout: float | None,
) -> tuple[int, float]:
    """Return the bytes that a message takes in a batch of its topic, and its deadline. Return 0 bytes if it is not gathered.

    Raises:
        RocketMQError: The errors of ``begin``.
    """
    deadline = machine.monotonic() + (sender.timeout if timeout is None else checked_timeout(timeout))
    sender.encoder.check(message)
    choice = choice_of(message, queue, selector, key, sender.prefix)
    return (0 if choice is not None or sender.asks else sender.unordered.size(message)), deadline


async def deliver(sender: ProducerCore, call: Call[Result]) -> Result:
    """Send a call and return its result.

    Admit the call first if necessary. At the end, give back its credits and its place in the line of its topic.

    Raises:
        RocketMQError: The errors of ``Admission.enter`` and ``RetryLoop.run``.
    """
    dispatch = sender.dispatch
    future: Any  # the future of the result for a gathering, else of the response
    try:
        if not call.target and not sender.admission.enter_now(call):
            await sender.admission.enter(call)
        if call.choice is not None or call.ordered:
            future = dispatch.create_future()
            if call.choice is None:
                future = AskingFuture()
            gathering = sender.ordered.add(call, future)
            try:
                return await future  # type: ignore[no-any-return]
            except BaseException as error:
                abandon(gathering, call.outgoing, error)
                raise
        target, faults = call.target, dispatch.faults
        if (connection := dispatch.connections.get(target.address)) is None:
            return await _connect_and_deliver(sender, call)
        if call.lite_topic is not None and not dispatch.serves(connection, call):
            return await deliver_unconnected(dispatch, call, None)
        future = dispatch.create_future()
        pending, began = _first_attempt(sender, call, connection, future)
        failure: RocketMQError | None = None
        reply: SendReply | None = None
        try:
            reply = await future
        except RocketMQError as error:
            failure = error
        except BaseException as error:
            connection.requests.forget(pending.opaque)
            _abandoned(dispatch, call, began, error)
            raise
        else:
            answer: Any = reply  # a result if hooks have already read the response
            result: Any = answer if answer.__class__ is SendResult else call.read(answer, call.outgoing, target, 1)
            if result is not None:
                if faults is not None and (faults.measures or target.broker in faults.items):
                    faults.succeeded(target.broker, machine.monotonic() - began, machine.monotonic())
                if not (dispatch.retry_not_ok and dispatch.is_unconfirmed(result)):
                    return result  # type: ignore[no-any-return]
        loop = RetryLoop(dispatch, call, call.topic_queues)
        loop.adopt(target, connection, pending, began, failure, reply)
        return await loop.run()
    finally:
        future = None  # breaks the cycle frame -> future -> error -> traceback -> frame
        if call.place is not None:
            call.place.leave()
        if (epoch := call.epoch) is not None:
            ids, call.epoch = call.outgoing.batch_ids, None
            sender.credits.give_back(epoch, 1 if ids is None else len(ids), call.size)


async def _connect_and_deliver(sender: ProducerCore, call: Call[Result]) -> Result:
    dispatch, target = sender.dispatch, call.target
    failed = await dispatch.connect_first(call.topic_queues, target, call.deadline, call.retries)
    if failed is not None or target.address not in dispatch.connections:
        return await deliver_unconnected(dispatch, call, failed)
    return await deliver(sender, call)


def _first_attempt(
    sender: ProducerCore, call: Call[Any], connection: Connection, future: asyncio.Future[Any]
) -> tuple[Pending, float]:
    """Queue the first attempt of an awaited call. Return its entry in the request table, and the time at which it began."""
    dispatch, outgoing, target, faults = sender.dispatch, call.outgoing, call.target, sender.faults
    began, first_deadline = call.started, call.deadline
    if call.topic_queues.several:
        began = machine.monotonic()
        first_deadline = dispatch.first_deadline(began, call.deadline, call.retries)
    elif faults is not None and (faults.measures or faults.items):
        began = machine.monotonic()
    watch: Any = outgoing.watch
    if (
        watch is None or watch.kind not in _SHORT_KINDS or outgoing.code or target.general
        or call.read is not stored_message or dispatch.retry_not_ok
    ):  # fmt: skip
        return dispatch.submit(connection, target, outgoing, future, first_deadline, call.deadline), began
    text = watch.first(outgoing, target, future)
    requests, ids = connection.requests, sender.ids
    try:
        if not requests.is_open:
            requests.require_open()
        if watch.started - call.started > MILLISECOND:
            ids.now()  # the frame needs the current time, not the time of the id
        opaque = next(requests.opaques, 0) or requests.next_opaque()
        if text is None:
            parts = target.single.plain(opaque, ids.born_ms, outgoing.unique_id, outgoing.body)
        else:
            parts = target.single.parts(opaque, ids.born_ms, text, outgoing.body, outgoing.sys_flag, outgoing.flag)
        entered = requests.enter_single(opaque, parts, watch, first_deadline, call.deadline, sender, sender.window)
    except Exception as error:
        watch.give_up(error)
        raise
    return entered, began


def _abandoned(dispatch: Dispatch, call: Call[Any], began: float, error: BaseException) -> None:
    """Report to hooks and the fault table that a call was cancelled during its first attempt."""
    if call.outgoing.watch is not None:
        call.outgoing.watch.give_up(error)
    if dispatch.faults is not None:
        dispatch.faults.failed(call.target.broker, error, machine.monotonic() - began, machine.monotonic())


async def accept(
    sender: ProducerCore,
    call: Call[Result],
    on_success: Callable[[Result], object] | None,
    on_error: Callable[[BaseException], object] | None,
) -> asyncio.Future[Result]:
    """Wait until a call is admitted and connected (or its connection attempt has failed), start its attempts, and return a future
    for the result.
    """
    admission, dispatch, usual = sender.admission, sender.dispatch, bool(call.target)
    if call.choice is not None or call.ordered:
        return await sender.ordered.accept(call, on_success, on_error)
    call.retries = sender.config.async_retries
    failed = None
    try:
        if not usual and not admission.enter_now(call):
            await admission.enter(call)
        if call.target.address not in dispatch.connections:
            failed = await dispatch.connect_first(call.topic_queues, call.target, call.deadline, call.retries)
        epoch: Any = call.epoch
        ids = call.outgoing.batch_ids
        accepted = AsyncSend(admission.credits, epoch, 1 if ids is None else len(ids), call.size, on_success, on_error)
        call.epoch = None
    finally:
        if call.epoch is not None:
            admission.leave(call)
    if accepted.context is None and (not usual or call.outgoing.watch is not None):
        accepted.context = copy_context()
    send = AsyncAttempt(dispatch, call, call.topic_queues, call.target, accepted)
    try:
        send.start(failed)
    except BaseException:
        send.drop()
        raise
    return accepted.future
