"""The methods ``send``, ``send_async`` and ``send_oneway``. The plain ``send`` is optimized for speed.

While nothing fails, a plain send takes a credit, picks the next queue of a cached route, fills a header template, enters one future
into the connection's table and reads the response from it. It needs no task and no timer. Functions of other modules are inlined in
``send``, because each call costs 50 to 100 ns. All other calls use ``begin``.
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
        """Send one message and return when a broker has stored it. Retry within the timeout, first on other brokers.

        If the call has a ``queue``, a ``selector`` or a key, the queue is chosen once and only one attempt is made, not counting
        attempts that reached no broker (``retry_same_queue`` allows more). Such messages to one queue are stored in the order of
        the calls, unless one of their calls ends with ``maybe_stored``.

        Args:
            queue: The queue to send to.
            selector: A function that chooses the queue if there is no ``queue``. It is called as ``selector(queues, message,
                key)``.
            key: The argument of the selector. Without a ``queue`` and a ``selector``, the producer's ``queue_selector`` or the hash
                of the key chooses the queue. The default is the message's sharding key.
            timeout: Seconds for the whole call. The default is the timeout of the producer.

        Raises:
            TypeError: If ``message`` is not a Message.
            InvalidMessageError: If the message is invalid.
            ConfigError: If ``queue`` is invalid.
            SelectorError: If the queue belongs to another topic, the key is invalid, or the selector fails. A RocketMQError of the
                selector is raised unchanged.
            BackpressureError: If ``async_limit``, ``pending_bytes_limit`` or ``max_pending_bytes`` leaves no room within the
                timeout, or if earlier sends to the topic that choose a queue are still waiting.
            ForbiddenError: If a hook refuses the message.
            TopicNotFoundError, NameServerError, BrokerNotFoundError: If no route has a queue to send to.
            RequestTimeoutError: If the timeout ends before the first attempt.
            RocketMQError: The error of the only attempt, such as BrokerError, RequestTimeoutError, ConnectError or
                ConnectionLostError. ``maybe_stored`` is True if the message may be stored despite the error. It may also be stored
                after a cancellation.
            SendError: If several attempts failed.
            ClientStateError: If the producer stops.
        """
        # This is ``begin`` and ``deliver`` in one function, for messages without delay, compression, hooks and choice of a queue.
        # The frame has few variables, so that it fits the allocator for small objects (512 bytes). A function that is an attribute
        # is assigned to a variable before it is called, because CPython 3.11 would otherwise use a slower call.
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
                    del future  # an error in the future refers to this frame
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
            # The frame is not stored in a variable: a traceback that shows variables would show its signature and token.
            pending = requests.enter_single(
                opaque,
                template.plain_frame
                % (LENGTHS[template.plain_base + size], sender.ids.born_ms, unique_id.encode(), opaque, message.body)
                if plain and size < template.plain_below  # nearly always: ``parts`` would do the same
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
                ):  # fmt: skip  # nearly always: ``stored`` would do the same
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
        """Accept one message and return a future for its result.

        Wait only until the message can be sent: for room within ``async_limit``, ``pending_bytes_limit`` and ``max_pending_bytes``,
        for the route and the connection and, if necessary, for a selector, the compression of the body and earlier sends that
        choose their queue.

        Either ``on_success(result)`` or ``on_error(error)`` is called once on the event loop, before any task that awaits the
        future resumes, even if the producer stops. Both must be plain functions; an error that they raise is reported to the loop's
        exception handler. Cancelling the future ends the send and calls ``on_error(CancelledError())``, but the message may be
        stored nevertheless.

        Args:
            on_success: Called with the result.
            on_error: Called with the error.
            queue: See ``send``.
            selector: See ``send``.
            key: See ``send``.
            timeout: See ``send``.

        Raises:
            TypeError: If a callback is not a plain function, or ``message`` is not a Message.
            RocketMQError: Errors of ``send`` that occur before the message is accepted. Later errors, including errors of hooks,
                are set on the future.
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
        """Send one message that no broker confirms, and return when its frame is queued.

        Only one attempt is made. The message counts towards ``oneway_limit`` until the last byte of its frame is in the kernel. On
        each connection, at least one in ``oneway_window`` messages is sent as an ordinary request. Such a message counts until its
        request has ended, and an error of the request is at most logged. While two of these requests are unanswered, a call that
        would send a third one waits at most ``timeout`` seconds.

        Args:
            queue: See ``send``.
            selector: See ``send``.
            key: See ``send``.
            timeout: See ``send``.

        Raises:
            BackpressureError: If ``send`` would raise it, or if two ordinary requests are still unanswered after the wait.
            ConnectError: If there is no connection to the broker.
            ConnectionLostError: If the connection closes.
            RequestTimeoutError: If there is no connection in time, or if earlier sends to a chosen queue are not answered in time.
            ClientStateError: If the producer stops.
            RocketMQError: Other errors of ``send`` that occur before anything is sent.
        """
        if not self._loop_runs() or get_ident() != self._thread:
            self._refuse()
        sender = self._sender
        call = begin(sender, "oneway", message, queue, selector, key, timeout)
        if not call.target or not sender.oneway.queue_now(call):
            await sender.oneway.send(call)


def cancelled(sender: ProducerCore, target: Target, started: float) -> None:
    """Report to the fault table that a call was cancelled during its first attempt."""
    if sender.faults is not None:
        now = machine.monotonic()
        sender.faults.failed(target.broker, asyncio.CancelledError(), now - started, now)


def succeeded(sender: ProducerCore, target: Target, reply: SendReply, started: float) -> None:
    """Report to the fault table that a first attempt stored its message. Call this if the table has entries or its ``measures`` is
    true.
    """
    faults, now = sender.faults, machine.monotonic()
    if faults is not None and not reply.code and (target.broker in faults.items or now - started >= faults.patience):
        faults.succeeded(target.broker, now - started, now)


async def gather_encoded(sender: ProducerCore, message: Message, size: int, deadline: float) -> SendResult:
    """Send a message that has more than a topic and a body: in a batch, or alone if it is too large for any batch.

    The caller holds the credits of the message. A message without a unique id gets one when its batch is encoded.

    Args:
        size: Bytes of the body.

    Raises:
        InvalidMessageError: If the properties have more than 32767 bytes.
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
        del future  # an error in the future refers to this frame
