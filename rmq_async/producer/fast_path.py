"""The methods ``send``, ``send_async`` and ``send_oneway``; the hot path of the library is the plain ``send``.

While nothing fails, a plain send takes a credit, picks the next queue of a cached route, fills a header template, enters one
future into the connection's table and reads the response from it: no Task and no timer. Functions of other modules are inlined
in ``send``, because each call costs 50 to 100 ns. All other calls go by ``begin``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import Any

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import NO_KEYS, Keys, Message, MessageQueue
from rmq_protocol.properties import message_properties
from rmq_protocol.send_codec import LENGTHS, SendReply

from .. import machine
from ..results import SendResult
from .begin import accept, begin, deliver, gather_or_deliver, gathered, record
from .calls import RetryLoop
from .core import ProducerCore
from .encoding import SEND_OK, BatchItem, Outgoing, stored
from .life import ProducerLife
from .routing import Selector, Target
from .send_async import check_callback


class SendMethods(ProducerLife):
    """The methods ``send``, ``send_async`` and ``send_oneway`` of a producer."""

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and return when a broker has stored it; retries within ``timeout`` seconds, first on other brokers.

        ``timeout`` (default: the producer's) is the budget of the whole call. ``queue`` is the queue to send to; without it,
        ``selector(queues, message, key)`` chooses one; without both, the producer's ``queue_selector`` or the hash of ``key``
        (default: the message's sharding key) does. With ``queue``, ``selector`` or a key, the queue is chosen once, and there
        is one attempt, not counting attempts that reached no broker (``retry_same_queue`` allows more). Such messages for one
        queue are stored in call order, unless one of their calls ends with ``maybe_stored``.

        Before anything is sent, raises TypeError for an object that is not a Message; InvalidMessageError for an invalid
        message; ConfigError for an invalid ``queue``; SelectorError for a queue of another topic, an invalid key or a selector
        that fails other than by a RocketMQError, which is raised as it is; BackpressureError if ``async_limit``,
        ``pending_bytes_limit`` or ``max_pending_bytes`` leaves no room within ``timeout``, or earlier sends to the topic that
        choose a queue still wait then; ForbiddenError if a hook refuses the message; TopicNotFoundError, NameServerError or
        BrokerNotFoundError if no route has a queue to send to; RequestTimeoutError if the time ends during this. Then raises
        the error of the only attempt (such as BrokerError, RequestTimeoutError, ConnectError, ConnectionLostError), SendError
        after several, ClientStateError when the producer stops. The error's ``maybe_stored`` is True if the message may be
        stored all the same; after a cancellation it may be stored, too.
        """
        # ``begin`` and ``deliver`` in one piece, for messages without delay, compression, hooks and choice of a queue.
        # The whole frame fits the allocator for small objects (512 bytes), so it has few variables. A function that is an
        # attribute is named before it is called: CPython 3.11 calls it through a slow general way otherwise.
        _: Callable[..., Any]
        if not (_ := self._loop_runs)() or get_ident() != self._thread:
            self._refuse()
        sender = self._sender
        credit = sender.credits
        if (
            message.__class__ is not Message or message.body.__class__ is not bytes or message.topic.__class__ is not str
            or queue is not None or selector is not None or key is not None or timeout is not None
            or ((keys := message.keys) is not NO_KEYS and keys.__class__ is not tuple and keys.__class__ is not Keys)
            or not (size := len(message.body)) or size >= sender.plain_below
            or (topic_queues := sender.queues_by_topic.get(message.topic)) is None
            or credit.contended or credit.free <= 0 or credit.free_bytes < size
        ):  # fmt: skip
            if sender.gathers:
                return await gather_or_deliver(sender, message, queue, selector, key, timeout)
            return await deliver(sender, begin(sender, "sync", message, queue, selector, key, timeout))
        deadline = (started := machine.monotonic()) + sender.timeout
        credit.free -= 1
        credit.free_bytes -= size
        epoch = credit.epoch
        try:
            plain = keys is NO_KEYS and message.wait_store
            if (gathering := topic_queues.gathering) is not None:
                if not plain:
                    return await gather_encoded(sender, message, size, deadline)
                future: asyncio.Future[Any] = sender.create_future()
                gathering.add_plain(future, message, size + sender.plain_size, deadline)
                try:
                    return await future  # type: ignore[no-any-return]
                except BaseException:
                    gathering.left()
                    raise
                finally:
                    del future  # an error that it holds has this frame in its traceback
            target = (_ := topic_queues.next)()
            if (connection := sender.connections.get(target.address)) is None:
                return await deliver(sender, record(sender, message, None, topic_queues, deadline, target))
            requests = connection.requests
            if not requests.is_open:
                requests.require_open()
            template = target.single
            unique_id = sender.ids.next_at(started) if message.unique_id is None else sender.ids.given(message.unique_id)
            future = (_ := sender.create_future)()
            opaque = next(requests.opaques, 0) or requests.next_opaque()
            # The frame is no variable: tracebacks that show variables would show its signature and token.
            pending = requests.enter_single(
                opaque,
                template.plain_frame
                % (LENGTHS[template.plain_base + size], sender.ids.born_ms, unique_id.encode(), opaque, message.body)
                if plain and size < template.plain_below  # what ``parts`` does, nearly always
                else template.parts(
                    opaque, sender.ids.born_ms, message_properties(message, unique_id), message.body, 0, message.flag
                ),
                future,
                sender.first_deadline(started, deadline, sender.retries) if topic_queues.several else deadline,
                deadline,
                sender,
                sender.window,
            )
            try:
                reply: SendReply = await future
            except RocketMQError as error:
                again = RetryLoop(sender.dispatch, record(sender, message, unique_id, topic_queues, deadline), topic_queues)
                again.adopt(target, connection, pending, started, error)
            except BaseException:
                requests.forget(opaque)
                cancelled(sender, target, started)
                raise
            else:
                fields = reply.extFields
                if sender.faults is not None and (sender.faults.items or sender.faults.measures):
                    succeeded(sender, target, reply, started)
                if (
                    not reply.code and fields is not None and fields.queueId == target.queue_id
                    and fields.msgId is not None and fields.queueOffset is not None
                ):  # fmt: skip  # what ``stored`` does, nearly always
                    return SendResult(
                        SEND_OK, unique_id, fields.msgId, target.queue, fields.queueOffset, fields.transactionId,
                        fields.MSG_REGION, fields.TRACE_ON is not False, fields.recallHandle,
                    )  # fmt: skip
                if (result := stored(reply, unique_id, target, 1)) is not None:
                    return result
                again = RetryLoop(sender.dispatch, record(sender, message, unique_id, topic_queues, deadline), topic_queues)
                again.adopt(target, connection, pending, started, None, reply)
            return await again.run()
        finally:
            credit.free += 1
            credit.free_bytes += size
            if credit.watched:
                credit.came_back(epoch, 1)

    async def send_async(
        self,
        message: Message,
        *,
        on_success: Callable[[SendResult], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Accept one message and return a future of its result.

        Wait only until the message can be sent: for room within ``async_limit``, ``pending_bytes_limit`` and
        ``max_pending_bytes``, for the route, the connection, and, if needed, for a selector, the compression of the body and
        earlier sends that choose their queue. Exactly one of ``on_success(result)`` and ``on_error(error)`` is called, once, on
        the loop, before anything that awaits the future resumes, also when the producer stops. They are plain functions; one
        that raises is reported to the loop's exception handler. Cancelling the future ends the send and calls
        ``on_error(CancelledError())``; the message may be stored all the same.

        The other arguments are those of ``send``. The call itself raises TypeError for a callback that is not a plain function,
        and the errors of ``send`` that occur before the message is accepted. The future gets later errors, errors of hooks
        included.
        """
        sender = self._usable()
        if on_success is not None or on_error is not None:
            check_callback("on_success", on_success)
            check_callback("on_error", on_error)
        if sender.gathers:
            size, deadline = gathered(sender, message, queue, selector, key, timeout)
            if size:
                return await sender.unordered.accept(message, size, deadline, on_success, on_error)
        return await accept(sender, begin(sender, "async", message, queue, selector, key, timeout), on_success, on_error)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Send one message that no broker confirms; return when its frame is queued.

        The arguments are those of ``send``. There is one attempt. The message counts towards ``oneway_limit`` until the last
        byte of its frame is in the kernel. On each connection, at least one of ``oneway_window`` messages is sent as an
        ordinary request, which counts until it has ended, and whose error is at most logged. While two of these are unanswered,
        a call that would send a third one waits up to ``timeout`` seconds.

        Raise the errors that ``send`` raises before anything is sent; BackpressureError also after that wait; ConnectError or
        RequestTimeoutError if no connection is made, ConnectionLostError if it closes; RequestTimeoutError also if earlier
        sends to a chosen queue are not answered in time; ClientStateError when the producer stops.
        """
        if not self._loop_runs() or get_ident() != self._thread:
            self._refuse()
        sender = self._sender
        call = begin(sender, "oneway", message, queue, selector, key, timeout)
        if not call.target or not sender.oneway.queue_now(call):
            await sender.oneway.send(call)


def cancelled(sender: ProducerCore, target: Target, started: float) -> None:
    """Report to the fault table that the caller of a first attempt was cancelled."""
    if sender.faults is not None:
        now = machine.monotonic()
        sender.faults.failed(target.broker, asyncio.CancelledError(), now - started, now)


def succeeded(sender: ProducerCore, target: Target, reply: SendReply, started: float) -> None:
    """Report a first attempt that stored the message to a fault table that has entries or measures."""
    faults, now = sender.faults, machine.monotonic()
    if faults is not None and not reply.code and (target.broker in faults.items or now - started >= faults.patience):
        faults.succeeded(target.broker, now - started, now)


async def gather_encoded(sender: ProducerCore, message: Message, size: int, deadline: float) -> SendResult:
    """Send a message that has more than a topic and a body with a batch, or alone if no batch has room for it.

    Its credits are the caller's. A message without a unique id gets one when its batch is encoded.

    Args:
        size: Bytes of its body.

    Raises:
        InvalidMessageError: The properties have more than 32767 bytes.
    """
    batcher, unique_id, topic_queues = sender.batcher, message.unique_id, sender.queues_by_topic[message.topic]
    text = message_properties(message, unique_id or batcher.stand_in)
    room = BATCH_OVERHEAD + size + (len(text) if text.isascii() else len(text.encode()))
    if room > batcher.max_bytes:
        return await deliver(sender, record(sender, message, None, topic_queues, deadline, topic_queues.next()))
    item: BatchItem = message, text[batcher.after_id :]
    if unique_id is not None:
        item = Outgoing(message.topic, unique_id, text, message.body, 0, message.flag)
    gathering = batcher.in_turn(message.topic, wait_store=message.wait_store)
    future: asyncio.Future[SendResult] = sender.create_future()
    gathering.add_plain(future, item, room, deadline, plain=False)
    try:
        return await future
    except BaseException:
        gathering.left()
        raise
    finally:
        del future  # an error that it holds has this frame in its traceback
