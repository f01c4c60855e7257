"""The hot path of the library: ``send``, ``send_async`` and ``send_oneway`` for messages that need nothing special.

While nothing fails, a send without batching takes a credit, picks the next queue of a cached route, fills a header template,
enters one future into the connection's table and reads the response from it: no Task and no timer. Functions of other modules
are inlined here, because each call costs 50 to 100 ns. Calls with options, without a connection or with a failed first attempt
leave this path for the general one; so do calls of ``send_async`` and ``send_oneway`` that have to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import Any

from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import NO_KEYS, Keys, Message, MessageQueue, ShardedKeys
from rmq_protocol.properties import message_properties
from rmq_protocol.send_codec import LENGTHS, SendReply

from .. import machine
from ..results import SendResult
from .async_path import batch_item, try_fast_send_async
from .core import ProducerCore
from .encoding import SEND_OK, BatchItem, stored
from .general_path import (
    SendArguments,
    general_send,
    general_send_async,
    general_send_oneway,
    retry_loop,
    send_unconnected,
)
from .life import ProducerLife
from .oneway import OnewayPacing, Tally
from .routing import Selector, Target
from .send_async import check_callback
from .sharded_path import place_sharded
from .watched_path import send_watched

__all__ = ["SendMethods"]


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
        """Sends one message and returns when a broker has stored it; retries within ``timeout`` seconds, first on other brokers.

        ``timeout`` (default: the producer's) is the budget of the whole call. ``queue`` is the queue to send to; without it,
        ``selector(queues, message, key)`` chooses one; without both, the producer's ``queue_selector`` or the hash of ``key``
        (default: the message's sharding key) does. With ``queue``, ``selector`` or a key, the queue is chosen once, and there
        is one attempt, not counting those whose request no broker took (``retry_same_queue`` allows more). Such messages for
        one queue are stored in call order, unless one of their calls ends with ``maybe_stored``.

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
        # What ``general_send`` does, in one piece, for messages without delay, compression, hooks and choice of a queue; those
        # with a sharding key go to ``place_sharded``.
        # The whole frame fits the allocator for small objects (512 bytes), so it has few variables. A function that is an
        # attribute is named before it is called: CPython 3.11 calls it through a slow general way otherwise.
        _: Callable[..., Any]
        item: tuple[BatchItem, int] | None
        if not (_ := self._loop_runs)() or get_ident() != self._thread:
            self._refuse()
        sender = self._sender
        if (
            message.__class__ is not Message
            or ((keys := message.keys) is not NO_KEYS and keys.__class__ is not tuple and keys.__class__ is not Keys)
            or queue is not None
            or selector is not None
            or key is not None
            or timeout is not None
            or message.body.__class__ is not bytes
            or not (size := len(message.body))
            or size >= sender.plain_below
        ):
            if message.__class__ is not Message or message.keys.__class__ is not ShardedKeys:
                if sender.watched_below:
                    return await send_watched(sender, SendArguments(message, queue, selector, key, timeout))
                return await general_send(sender, SendArguments(message, queue, selector, key, timeout))
            placed = None
            if (
                queue is None
                and selector is None
                and key is None
                and timeout is None
                and message.body.__class__ is bytes
                and 0 < len(message.body) < sender.plain_below
            ):
                placed = place_sharded(sender, message)
            if placed is None:
                return await general_send(sender, SendArguments(message, queue, selector, key, timeout))
            credit, epoch, size = sender.credits, sender.credits.epoch, len(message.body)
            try:
                return await placed[1]
            except BaseException:
                placed[0].left()
                raise
            finally:
                del placed  # an error that the future holds has this frame in its traceback
                credit.free += 1
                credit.free_bytes += size
                if credit.watched:
                    credit.came_back(epoch, 1)
        started = machine.monotonic()
        deadline = started + sender.timeout
        try:
            topic_queues = sender.queues_by_topic[message.topic]
        except (KeyError, TypeError):
            topic_queues = None
        if topic_queues is None:
            sender.encoder.check(message)
            message_properties(message, message.unique_id or sender.ids.next_at(started))  # raises for those that are too large
        credit = sender.credits
        if credit.free > 0 and credit.free_bytes >= size and not credit.contended:
            credit.free -= 1
            credit.free_bytes -= size
            epoch = credit.epoch
        else:
            epoch = await credit.take(1, size, deadline)
            started = machine.monotonic()
            if sender.gathers:
                sender.batcher.waited(deadline)
        try:
            if topic_queues is None:
                topic_queues = await sender.topics.find(message.topic, deadline)
                started = machine.monotonic()
                if sender.gathers:
                    sender.batcher.waited(deadline)
            if (gathering := topic_queues.gathering) is not None:
                gathered: asyncio.Future[SendResult] = sender.create_future()
                if keys is NO_KEYS and message.wait_store:
                    gathering.add_plain(gathered, message, size + sender.plain_size, deadline)
                elif (item := batch_item(sender, message, size)) is None:
                    gathering = None  # no batch has room for it
                else:
                    if not message.wait_store:
                        gathering = sender.batcher.in_turn(message.topic, wait_store=False)
                    gathering.add_plain(gathered, item[0], item[1], deadline, plain=False)
                if gathering is not None:
                    try:
                        return await gathered
                    except BaseException:
                        gathering.left()
                        raise
                    finally:
                        del gathered  # an error that it holds has this frame in its traceback
            target = (_ := topic_queues.next)()
            try:
                connection = sender.connections[target.address]
            except KeyError:
                connection = None
            if connection is None:
                result = await send_unconnected(sender, message, topic_queues, target, deadline)
                if result is not None:
                    return result
                connection, started = sender.connections[target.address], machine.monotonic()
            requests = connection.requests
            if not requests.is_open:
                requests.require_open()
            template = target.single
            unique_id = sender.ids.next_at(started) if message.unique_id is None else sender.ids.given(message.unique_id)
            future: asyncio.Future[SendReply] = (_ := sender.create_future)()
            opaque = next(requests.opaques, 0) or requests.next_opaque()
            # The frame is no variable: tracebacks that show variables would show its signature and token.
            pending = requests.enter_single(
                opaque,
                template.plain_frame
                % (LENGTHS[template.plain_base + size], sender.ids.born_ms, unique_id.encode(), opaque, message.body)
                if keys is NO_KEYS and message.wait_store and size < template.plain_below  # what ``parts`` does, nearly always
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
                reply = await future
            except RocketMQError as error:
                again = retry_loop(sender, message, unique_id, topic_queues, deadline)
                again.adopt(target, connection, pending, started, error)
            except BaseException:
                requests.forget(opaque)
                if sender.faults is not None:
                    sender.faults.failed(
                        target.broker, asyncio.CancelledError(), machine.monotonic() - started, machine.monotonic()
                    )
                raise
            else:
                fields = reply.extFields  # what ``stored`` does, nearly always
                if (
                    sender.faults is not None
                    and (sender.faults.items or sender.faults.measures)
                    and not reply.code
                    and (target.broker in sender.faults.items or machine.monotonic() - started >= sender.faults.patience)
                ):
                    sender.faults.succeeded(target.broker, machine.monotonic() - started, machine.monotonic())
                if (
                    not reply.code
                    and fields is not None
                    and fields.queueId == target.queue_id
                    and fields.msgId is not None
                    and fields.queueOffset is not None
                ):
                    return SendResult(
                        SEND_OK, unique_id, fields.msgId, target.queue, fields.queueOffset, fields.transactionId,
                        fields.MSG_REGION, fields.TRACE_ON is not False, fields.recallHandle,
                    )  # fmt: skip
                result = stored(reply, unique_id, target, 1)
                if result is not None:
                    return result
                again = retry_loop(sender, message, unique_id, topic_queues, deadline)
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
        """Accepts one message and returns a future of its result.

        Waits only until the message can be sent: for room within ``async_limit``, ``pending_bytes_limit`` and
        ``max_pending_bytes``, for the route, the connection, and, if needed, for a selector, the compression of the body and
        earlier sends that choose their queue.
        Exactly one of ``on_success(result)`` and ``on_error(error)`` is called, once, on the loop, before anything that awaits
        the future resumes, also when the producer stops. They are plain functions; one that raises is reported to the loop's
        exception handler. Cancelling the future ends the send and calls ``on_error(CancelledError())``; the message may be
        stored all the same.

        The other arguments are those of ``send``. The call itself raises TypeError for a callback that is not a plain function,
        and those errors of ``send`` that occur before the message is accepted. The future gets later errors, those of hooks
        included.
        """
        sender = self._usable()
        if on_success is not None or on_error is not None:
            check_callback("on_success", on_success)
            check_callback("on_error", on_error)
        turn: Target | None = None
        if (
            message.__class__ is Message
            and ((keys := message.keys).__class__ is tuple or keys.__class__ is Keys)
            and queue is None
            and selector is None
            and key is None
            and timeout is None
            and message.body.__class__ is bytes
            and 0 < (size := len(message.body)) < sender.plain_below
            and (message.wait_store or not sender.gathers)
            and message.topic.__class__ is str
        ):
            future, turn = try_fast_send_async(sender, message, size, on_success, on_error)
            if future is not None:
                return future
        arguments = SendArguments(message, queue, selector, key, timeout)
        return await general_send_async(sender, arguments, on_success, on_error, turn)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Sends one message that no broker confirms; returns when its frame is queued.

        The arguments are those of ``send``. There is one attempt. The message counts towards ``oneway_limit`` until the last
        byte of its frame is in the kernel. On each connection, at least one of ``oneway_window`` messages is sent as an
        ordinary request, which counts until it has ended, and whose error is at most logged. While two of these are unanswered,
        a call that would send a third one waits up to ``timeout`` seconds.

        Raises the errors that ``send`` raises before anything is sent; BackpressureError also after that wait; ConnectError or
        RequestTimeoutError if no connection is made, ConnectionLostError if it closes; RequestTimeoutError also if earlier
        sends to a chosen queue are not answered in time; ClientStateError when the producer stops.
        """
        if not self._loop_runs() or get_ident() != self._thread:
            self._refuse()
        sender = self._sender
        turn: Target | None = None
        if (
            message.__class__ is Message
            and ((keys := message.keys).__class__ is tuple or keys.__class__ is Keys)
            and queue is None
            and selector is None
            and key is None
            and timeout is None
            and (body := message.body).__class__ is bytes
            and 0 < (size := len(body)) < sender.plain_below
            and message.topic.__class__ is str
        ):
            sent, turn = try_fast_oneway(sender, message, size)
            if sent:
                return
        await general_send_oneway(sender, SendArguments(message, queue, selector, key, timeout), turn)


def try_fast_oneway(sender: ProducerCore, message: Message, size: int) -> tuple[bool, Target | None]:
    """Queues the frame of a message and returns (True, None); returns (False, ``turn``) if the message needs the general path.

    ``turn``: the queue that the round robin has already returned, else None; an argument of ``general_send_oneway``.
    """
    credit, topic_queues = sender.oneway_credits, sender.queues_by_topic.get(message.topic)
    if topic_queues is None or credit.contended or credit.free <= 0 or credit.free_bytes < size:
        return False, None
    target, faults = topic_queues.next(), sender.faults
    connection = sender.connections.get(target.address)
    if connection is None or not connection.requests.takes_oneways() or (faults is not None and target.broker in faults.items):
        return False, target
    unique_id = sender.ids.next() if message.unique_id is None else sender.ids.given(message.unique_id)
    properties = None
    if message.keys is not NO_KEYS or not message.wait_store:
        properties = message_properties(message, unique_id)
    tally = sender.tallies.get(connection)
    if tally is not None and tally.epoch is credit.epoch:
        pacing = tally.pacing
    else:
        tally, pacing = None, connection.attributes.get(OnewayPacing) if sender.oneway_window else None
        if pacing is None and sender.oneway_window:
            return False, target
    if pacing is not None:
        sent = pacing.sent + 1
        if sent >= pacing.size or sent >= sender.oneway_window:
            return False, target
        pacing.sent = sent
    if tally is None:
        tally = sender.tallies[connection] = Tally(sender.tallies, credit, connection, pacing)
        connection.requests.when_written(tally.written)
    credit.free -= 1
    credit.free_bytes -= size
    tally.number += 1
    tally.size += size
    connection.requests.submit_single_oneway(target.oneway, sender.ids.born_ms, unique_id, message, properties)
    return True, None
