"""The producer's public face: the ways to send.

``send`` holds the hot path of the library. While nothing fails it takes a credit, picks the next queue of a cached route, fills a
header template, enters one future into the connection's table and reads the reply from it: no Task and no timer.
Everything else (no route yet, no connection, a failed attempt) leaves that path for ``SendCall``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from time import monotonic
from typing import Any

from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import NO_KEYS, Message, MessageExt, MessageQueue
from rmq_protocol.properties import message_properties
from rmq_protocol.send_codec import SendReply
from rmq_protocol.validation import check_topic

from ..config import ClientConfig
from ..errors import RequestTimeoutError
from ..options import lists_options
from ..results import BatchSendResult, SendResult
from ..timeouts import FOR_EVER, checked_timeout
from .batching.joining import accept_gathered, send_gathered, size_in_batch
from .call import SendCall
from .config import ProducerConfig
from .credits import finished
from .deferred import begun_plainly, check_callback, deferred
from .lanes import Target
from .life import ProducerLife
from .oneway import accept_oneway, sent_plainly
from .ordered import OrderedCall
from .outgoing import Outgoing
from .recalls import recall
from .replies import SEND_OK, stored, stored_batch, stored_message
from .requests import reply, request
from .selectors import Selector, checked_wish, wish_of
from .sender import Sender

__all__ = ["Producer"]


@lists_options(ProducerConfig, ClientConfig)
class Producer(ProducerLife):
    """Sends messages to the topics of one cluster, as one producer group.

    ``namesrv``: "host:port;host:port" or a sequence; default: the environment's NAMESRV_ADDR. ``client`` and ``config`` hold
    settings; any field of ClientConfig or ProducerConfig may be given as a keyword instead (an unknown one is a TypeError).
    Nothing is done before ``start()``, which needs a running loop; the producer then belongs to that loop.

    Producers, consumers and admins with equal client settings share connections, routes and heartbeats.
    """

    # -- sending

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Sends one message and returns when a broker has stored it; retries on other brokers within ``timeout`` seconds.

        ``timeout`` (default: the producer's) is the budget of the whole call. With ``queue``, ``selector`` or ``key`` (or a
        sharding key in the message) the queue is chosen once, there is one attempt, and messages for one queue are stored in call
        order as long as no such call ends with ``maybe_stored``. Where ``queue`` is given nothing else is asked, no ``selector``
        either.

        Raises InvalidMessageError before anything is sent; BackpressureError when no credit becomes free; TopicNotFoundError,
        NameServerError, BrokerNotFoundError when there is nowhere to send to; one attempt's own error (BrokerError,
        RequestTimeoutError, ConnectError, ConnectionLostError) or, after several, SendError with all of them. Their
        ``maybe_stored`` says whether the message may be stored all the same. The same holds for a call that is cancelled.
        """
        # The hot path, for messages that say nothing but topic and body: what ``_send`` does, in one piece.
        if not self._loop_runs() or get_ident() != self._thread:
            self._refuse()
        sender = self._sender
        if (
            message.__class__ is not Message
            or message.keys is not NO_KEYS
            or queue is not None
            or selector is not None
            or key is not None
            or timeout is not None
            or (body := message.body).__class__ is not bytes
            or not 0 < (size := len(body)) < sender.plain_below
            or not message.wait_store
        ):
            return await self._send(sender, message, queue, selector, key, timeout)
        started = monotonic()
        deadline = started + sender.timeout
        try:
            lane = sender.lanes[message.topic]
        except (KeyError, TypeError):
            lane = None
        if lane is None:
            sender.encoder.check(message)
        credit = sender.credits
        if credit.free > 0 and credit.free_bytes >= size and not credit.contended:
            credit.free -= 1
            credit.free_bytes -= size
            epoch = credit.epoch
        else:
            epoch = await credit.take(1, size, deadline)
            started = monotonic()
            if sender.gathers:
                sender.batcher.waited(deadline)
        try:
            if lane is None:
                lane = await sender.topics.lane(message.topic, deadline)
                started = monotonic()
                if sender.gathers:
                    sender.batcher.waited(deadline)
            if (gathering := lane.gathering) is not None:
                gathered: asyncio.Future[SendResult] = sender.create_future()
                gathering.add_plain(gathered, message, size + sender.plain_size, deadline)
                try:
                    return await gathered
                except BaseException:
                    gathering.left()
                    raise
                finally:
                    del gathered  # an error that it holds has this frame in its traceback
            target = lane.next()
            try:
                connection = sender.connections[target.address]
            except KeyError:
                connection = None
            if connection is None:
                failed = await sender.connect_first(lane, target, deadline, sender.retries)
                connection = sender.connections.get(target.address)
                if connection is None:
                    began, retries = deadline - sender.timeout, sender.retries
                    if failed is not None:
                        sender.end_if_late(failed, message.topic, target, began, deadline)
                    outgoing = sender.encoder.encode(message)
                    return await sender.finish(
                        None, outgoing, lane, target, stored_message, began, deadline, retries, failed=failed
                    )  # fmt: skip
                started = monotonic()
            ids = sender.ids
            unique_id = ids.next_at(started)
            future: asyncio.Future[SendReply] = sender.create_future()
            first_deadline = sender.first_deadline(started, deadline, sender.retries) if lane.several else deadline
            pending = connection.start_plain(
                target.single, ids.born_ms, unique_id, body, future, first_deadline, deadline, sender, sender.window
            )
            error: RocketMQError | None = None
            reply: SendReply | None = None
            try:
                reply = await future
            except RocketMQError as failure:
                error = failure
            except BaseException:
                connection.forget(pending.opaque)
                if sender.faults is not None:
                    sender.faults.failed(target.broker, asyncio.CancelledError(), monotonic() - started, monotonic())
                raise
            else:
                fields = reply.extFields  # what ``stored`` does, nearly always
                faults = sender.faults
                if (
                    faults is not None
                    and (target.broker in faults.items or (faults.measures and monotonic() - started >= faults.patience))
                    and not reply.code
                ):
                    faults.succeeded(target.broker, monotonic() - started, monotonic())
                if (
                    not reply.code
                    and fields is not None
                    and fields.queueId == target.queue_id
                    and (offset_id := fields.msgId) is not None
                    and (offset := fields.queueOffset) is not None
                ):
                    return SendResult(
                        SEND_OK,
                        unique_id,
                        offset_id,
                        target.queue,
                        offset,
                        fields.transactionId,
                        fields.MSG_REGION,
                        fields.TRACE_ON is not False,
                        fields.recallHandle,
                    )
                result = stored(reply, unique_id, target, 1)
                if result is not None:
                    return result
            outgoing = Outgoing(message.topic, unique_id, message_properties(message, unique_id), body)
            call = SendCall(
                sender,
                outgoing,
                lane,
                stored_message,
                deadline=deadline,
                started=deadline - sender.timeout,
                retries=sender.retries,
            )
            call.adopt(target, connection, pending, started, error, reply)
            return await call.run()
        finally:
            credit.free += 1
            credit.free_bytes += size
            if credit.watched:
                credit.came_back(epoch, 1)

    async def _send(
        self,
        sender: Sender,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        key: Any,
        timeout: float | None,
    ) -> SendResult:
        started = monotonic()
        deadline = started + (sender.timeout if timeout is None else checked_timeout(timeout))
        encoder = sender.encoder
        encoder.check(message)
        wish = None
        if queue is not None or selector is not None or key is not None or message.sharding_key is not None:
            key = message.sharding_key if key is None else key
            wish = checked_wish(message.topic, queue, selector, key, sender.prefix)
        if wish is None and sender.gathers and not sender.asks and (taken := size_in_batch(sender, message)):
            return await send_gathered(sender, message, taken, deadline)
        outgoing, size = encoder.encode(message), len(message.body)
        if sender.watched:
            sender.watch(outgoing, message, "sync", stored_message)
        if wish is None and not (sender.gathers and sender.asks):
            return await sender.deliver(outgoing, message, None, 1, size, stored_message, started, deadline)
        return await sender.ordered.send(sender.ordered.call(outgoing, message, wish, deadline))

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

        Waits for a credit, the route and the connection, nothing else. Exactly one of ``on_success(result)`` and
        ``on_error(error)`` is called, once, on the loop, before anything that awaits the future resumes, also when the producer
        stops. They are plain functions; one that raises is reported to the loop's exception handler. Cancelling the future
        frees its place and calls ``on_error(CancelledError())``; the message may be stored all the same.

        What this call itself raises (InvalidMessageError, BackpressureError, no route) is raised here and goes to no callback.
        """
        sender = self._usable()
        if on_success is not None or on_error is not None:
            check_callback("on_success", on_success)
            check_callback("on_error", on_error)
        turn: Target | None = None
        if (
            message.__class__ is Message
            and message.keys is NO_KEYS
            and queue is None
            and selector is None
            and key is None
            and timeout is None
            and message.body.__class__ is bytes
            and 0 < (size := len(message.body)) < sender.plain_below
            and message.wait_store
            and message.topic.__class__ is str
        ):
            begun, turn = begun_plainly(sender, message, size, on_success, on_error)
            if begun is not None:
                return begun
        started = monotonic()
        deadline = started + (self.config.timeout if timeout is None else checked_timeout(timeout))
        sender.encoder.check(message)
        wish = wish_of(message, queue, selector, key, sender.prefix)
        if wish is None and sender.gathers and not sender.asks and (taken := size_in_batch(sender, message)):
            return await accept_gathered(sender, message, taken, deadline, on_success, on_error)
        outgoing, size = sender.encoder.encode(message), len(message.body)
        if sender.watched:
            sender.watch(outgoing, message, "async", stored_message)
        if wish is None and not (sender.gathers and sender.asks):
            return await deferred(
                sender, outgoing, message, stored_message, started=started, deadline=deadline, number=1, size=size,
                on_success=on_success, on_error=on_error, turn=turn,
            )  # fmt: skip
        return await sender.ordered.accept(sender.ordered.call(outgoing, message, wish, deadline), on_success, on_error)

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

        One attempt; connecting to the broker may fail and is then raised. A credit is held until the frame's last byte is in the
        kernel. Every ``oneway_window`` messages one goes as an ordinary request and at most two of those are unanswered: the call
        that would be the third waits within ``timeout`` seconds, then raises BackpressureError.
        """
        if not self._loop_runs() or get_ident() != self._thread:
            self._refuse()
        sender = self._sender
        turn: Target | None = None
        if (
            message.__class__ is Message
            and message.keys is NO_KEYS
            and queue is None
            and selector is None
            and key is None
            and timeout is None
            and (body := message.body).__class__ is bytes
            and 0 < (size := len(body)) < sender.plain_below
            and message.wait_store
            and message.topic.__class__ is str
        ):
            sent, turn = sent_plainly(sender, message.topic, body, size)
            if sent:
                return
        deadline = monotonic() + (self.config.timeout if timeout is None else checked_timeout(timeout))
        sender.encoder.check(message)
        outgoing = sender.encoder.encode(message)
        if sender.watched:
            sender.watch(outgoing, message, "oneway", stored_message)
        wish = wish_of(message, queue, selector, key, sender.prefix)
        await accept_oneway(sender, outgoing, message, wish, deadline, turn)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> BatchSendResult:
        """Sends several messages of one topic as one request, which a broker stores as a whole or not at all.

        The messages must agree on ``wait_store`` and have no delay; together they may take ``max_message_size`` bytes encoded.
        Bodies are not compressed. Only ``queue`` says where a batch goes: sharding keys of its messages do not. ``timeout``:
        seconds, as in ``send``. Raises as ``send`` does.
        """
        if not self._loop_runs() or get_ident() != self._thread:
            self._refuse()
        sender = self._sender
        started = monotonic()
        deadline = started + (self.config.timeout if timeout is None else checked_timeout(timeout))
        outgoing, size, wish = sender.batch(messages, queue, "sync")
        number = len(outgoing.batch_ids or ())
        return await sender.deliver(outgoing, None, wish, number, size, stored_batch, started, deadline)

    async def send_batch_async(
        self,
        messages: Iterable[Message],
        *,
        on_success: Callable[[BatchSendResult], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[BatchSendResult]:
        """Accepts a batch, as ``send_batch`` takes it, and returns a future of its result; callbacks as in ``send_async``.

        Only ``queue`` says where it goes, not sharding keys. ``timeout``: seconds for all of it, by default the producer's.
        """
        sender = self._usable()
        if on_success is not None or on_error is not None:
            check_callback("on_success", on_success)
            check_callback("on_error", on_error)
        started = monotonic()
        deadline = started + (self.config.timeout if timeout is None else checked_timeout(timeout))
        outgoing, size, wish = sender.batch(messages, queue, "async")
        number = len(outgoing.batch_ids or ())
        if wish is not None:
            call = OrderedCall(outgoing, None, wish, number, size, stored_batch, deadline)
            return await sender.ordered.accept(call, on_success, on_error)
        return await deferred(
            sender, outgoing, None, stored_batch, started=started, deadline=deadline, number=number, size=size,
            on_success=on_success, on_error=on_error,
        )  # fmt: skip

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout: float | None = None,
    ) -> MessageExt:
        """Sends a message that asks, and returns the reply that its consumer sends (``reply``).

        ``timeout``: seconds for both ways, by default the producer's. The request is sent as by ``send``, raises what that raises,
        and keeps its credit until the reply is there. Raises ReplyTimeoutError when it is stored and no reply came in time,
        ClientStateError (``maybe_stored``) when the producer stops meanwhile, and CorruptMessageError for a reply whose compressed
        body is damaged or too large.
        """
        sender = self._usable()
        budget = self.config.timeout if timeout is None else checked_timeout(timeout)
        return await request(sender, message, queue, selector, key, budget)

    async def reply(
        self, request: MessageExt, body: bytes, *, properties: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> SendResult:
        """Replies to a message that another client sent by ``request``; returns when that client has taken the reply.

        ``timeout``: seconds for all attempts, by default the producer's. Raises LocalProtocolError (10007) for a message that
        asks for no reply, BrokerError or SendError (code 1) when the client that asked is not there any more, and as ``send`` does.
        """
        sender = self._usable()
        budget = self.config.timeout if timeout is None else checked_timeout(timeout)
        return await reply(sender, request, body, properties, budget)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Takes back a message that was sent with ``delay`` or ``deliver_at`` and is not delivered yet; returns its unique id.

        ``recall_handle``: of its SendResult. Brokers from 5.3.2 on with ``recallMessageEnable`` do this. They confirm it also
        where the message is not there any more. The call takes the producer's ``timeout`` at most. Raises InvalidMessageError for
        a retry or dead letter topic and for a handle of another topic or none at all, BrokerError where the broker refuses (16:
        not enabled, 3: too old, 604: too late), and as ``send`` does.
        """
        return await recall(self._usable(), topic, recall_handle)

    async def fetch_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of ``topic`` that can be written to, in the order they are used in. Raises as ``send`` does."""
        sender = self._usable()
        check_topic(topic)
        lane = await sender.topics.lane(topic, monotonic() + self.config.timeout)
        return lane.queues

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until everything accepted so far is answered or failed; what is accepted meanwhile is not waited for.

        Raises TimeoutError (RequestTimeoutError) after ``timeout`` seconds; None waits as long as the sends' own deadlines allow.
        """
        sender = self._usable()
        deadline = monotonic() + (checked_timeout(timeout) if timeout is not None else FOR_EVER)
        sender.batcher.hurry()
        accepted = [*sender.credits.so_far(), *sender.oneway_credits.so_far()]
        if not await finished(accepted, deadline):
            unfinished = sender.credits.taken + sender.oneway_credits.taken
            raise RequestTimeoutError(f"flush: {unfinished} messages are unfinished after {timeout} s")
