"""The public class ``Producer``. It inherits ``send``, ``send_async`` and ``send_oneway`` from ``fast_path``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from typing import Any, Unpack

from rmq_protocol.message import Message, MessageExt, MessageQueue
from rmq_protocol.validation import check_topic

from .. import machine
from ..config import ClientConfig
from ..errors import RequestTimeoutError
from ..options import lists_options
from ..results import BatchSendResult, SendResult
from ..timeouts import FOR_EVER, checked_timeout
from .admission import finished
from .begin import accept, deliver
from .config import ProducerConfig, ProducerOptions
from .fast_path import SendMethods
from .recall import recall
from .request_reply import reply, request
from .routing import Selector
from .send_async import check_callback


@lists_options(ProducerConfig, ClientConfig)
class Producer(SendMethods):
    """Sends messages to the topics of one cluster, as one producer group.

    The constructor does no I/O. ``start()`` needs a running loop, and the producer belongs to that loop until ``stop()``.

    All methods except ``start``, ``stop``, ``aclose`` and ``health`` raise ClientStateError while the producer is not running,
    WrongLoopError on another loop, ForkedError in a forked child process, and TypeError or ValueError if a ``timeout`` is not a
    number of seconds above 0.

    Producers, consumers and admins with equal client settings on one event loop share connections, routes and heartbeats.

    Args:
        namesrv: "host:port;host:port" or a sequence of "host:port". The default is the environment variable NAMESRV_ADDR.
        client: Settings of the client. Fields of ClientConfig may also be passed as keyword arguments.
        config: Settings of the producer. Fields of ProducerConfig may also be passed as keyword arguments.

    Raises:
        TypeError: If a keyword is unknown or a config has another type.
        ConfigError: If a value is invalid. For an invalid group, it is an InvalidGroupError.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        client: ClientConfig | None = None,
        config: ProducerConfig | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        # Defined here so that the TypeError of a call without a group names this class, and not a base class that users do not
        # know.
        super().__init__(group, namesrv=namesrv, client=client, config=config, **options)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> BatchSendResult:
        """Send several messages of one topic as one request, which a broker stores as a whole or not at all.

        The messages must have equal ``wait_store``, no delay and no retry topic. Their encoded size is limited to
        ``max_message_size`` bytes. Bodies are not compressed.

        Args:
            queue: The queue for the batch. Without it, a ``queue_selector`` of the user is called with the first message. Sharding
                keys of the messages have no effect.
            timeout: Seconds for the whole call, as in ``send``.

        Raises:
            InvalidMessageError: If the batch is empty, or breaks one of the rules above.
            RocketMQError: Other errors of ``send``.
        """
        if not self._loop_runs() or get_ident() != self._thread:
            self._refuse()
        sender = self._sender
        started = machine.monotonic()
        deadline = started + (self.config.timeout if timeout is None else checked_timeout(timeout))
        call = sender.batch_call(messages, queue, "sync", started, deadline)
        return await deliver(sender, call)

    async def send_batch_async(
        self,
        messages: Iterable[Message],
        *,
        on_success: Callable[[BatchSendResult], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[BatchSendResult]:
        """Accept a batch and return a future for its result.

        The rules for batches are those of ``send_batch``, and the rules for callbacks are those of ``send_async``.

        Args:
            on_success: Called with the result.
            on_error: Called with the error.
            queue: The queue for the batch, as in ``send_batch``.
            timeout: Seconds for the whole send. The default is the timeout of the producer.

        Raises:
            InvalidMessageError: If the batch is empty, or breaks a rule of ``send_batch``.
            RocketMQError: Other errors of ``send_async``.
        """
        sender = self._usable()
        if on_success is not None or on_error is not None:
            check_callback("on_success", on_success)
            check_callback("on_error", on_error)
        started = machine.monotonic()
        deadline = started + (self.config.timeout if timeout is None else checked_timeout(timeout))
        call = sender.batch_call(messages, queue, "async", started, deadline)
        return await accept(sender, call, on_success, on_error)

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout: float | None = None,
    ) -> MessageExt:
        """Send a request message, and return the reply that its consumer sends (``reply``).

        The message is sent as in ``send``. It counts towards ``async_limit`` until the call ends.

        Args:
            queue: See ``send``.
            selector: See ``send``.
            key: See ``send``.
            timeout: Seconds for the request and the reply. The default is the timeout of the producer.

        Raises:
            ReplyTimeoutError: If the request was stored but no reply arrived in time. ``maybe_stored`` is True.
            ClientStateError: If the producer stops. ``maybe_stored`` is True if the call was waiting for the reply.
            CorruptMessageError: If the compressed body of the reply is damaged or exceeds ``max_decompressed_size``.
                ``maybe_stored`` is True.
            RocketMQError: Other errors of ``send``.
        """
        sender = self._usable()
        budget = self.config.timeout if timeout is None else checked_timeout(timeout)
        return await request(sender, message, queue, selector, key, budget)

    async def reply(
        self, request: MessageExt, body: bytes, *, properties: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> SendResult:
        """Reply to a message that another client sent with ``request``. Return when that client has received the reply.

        Args:
            request: The received message.
            body: The body of the reply.
            properties: Properties of the reply. The properties that identify the request are added to them.
            timeout: Seconds for all attempts. The default is the timeout of the producer.

        Raises:
            TypeError: If ``request`` is not a MessageExt.
            LocalProtocolError: If the message was not sent with ``request`` (code 10007).
            BrokerError, SendError: If the requesting client is no longer connected (code 1; Java's ``ReplyMessageProcessor``).
            RocketMQError: Other errors of ``send``.
        """
        sender = self._usable()
        budget = self.config.timeout if timeout is None else checked_timeout(timeout)
        return await reply(sender, request, body, properties, budget)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel the delivery of a message that was sent with ``delay`` or ``deliver_at``, and return the message's unique id.

        This requires brokers since 5.3.2 with ``recallMessageEnable=true``. They confirm a recall even if the message no longer
        exists. The call takes at most the producer's ``timeout``.

        Args:
            topic: The topic of the message.
            recall_handle: The ``recall_handle`` in the message's SendResult.

        Raises:
            InvalidMessageError: If the topic is a retry or dead letter topic, or if the handle is invalid or belongs to another
                topic.
            BrokerError: If the broker refuses the recall (16: not enabled, 3: broker too old, 604: too late; Java's
                ``RecallMessageProcessor``).
            RemoteProtocolError: If the confirmation contains no id.
            RocketMQError: Other errors of ``send``.
        """
        return await recall(self._usable(), topic, recall_handle)

    async def fetch_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of ``topic`` among which keys and selectors choose, in the order of the round robin.

        These are the queues to which messages can be sent. For a topic with an order conf and for a static topic, they are all
        queues of the route, including those of brokers that are down. The call takes at most the producer's ``timeout``.

        Raises:
            InvalidMessageError: If the topic name is invalid.
            TopicNotFoundError, NameServerError, BrokerNotFoundError, RequestTimeoutError: See ``send``.
        """
        sender = self._usable()
        check_topic(topic)
        topic_queues = await sender.topics.find(topic, machine.monotonic() + self.config.timeout)
        return topic_queues.keyed

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages that were accepted before this call have a result or an error.

        For one-way messages, wait until they are written, or until they are answered if they are sent as ordinary requests
        (``oneway_window``). Do not wait for messages that are accepted during the wait.

        Args:
            timeout: Maximum seconds. None sets no limit, because each send ends by its own deadline.

        Raises:
            RequestTimeoutError: If messages are unfinished after ``timeout`` seconds. It is also a TimeoutError.
        """
        sender = self._usable()
        deadline = machine.monotonic() + (checked_timeout(timeout) if timeout is not None else FOR_EVER)
        sender.batcher.hurry()
        accepted = [*sender.credits.so_far(), *sender.oneway_credits.so_far()]
        if not await finished(accepted, deadline):
            unfinished = sender.credits.taken + sender.oneway_credits.taken
            raise RequestTimeoutError(
                f"flush: {unfinished} messages are unfinished after {timeout} s; call flush() again, or use a longer timeout"
            )
