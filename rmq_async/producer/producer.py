"""The public class ``Producer``; it inherits ``send``, ``send_async`` and ``send_oneway`` from ``fast_path``."""

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

    Raises TypeError for an unknown keyword and a config of another type, ConfigError for an invalid value, and
    InvalidGroupError, a ConfigError, for an invalid group. The constructor does no I/O; ``start()`` needs a running loop, and
    the producer belongs to that loop until ``stop()``.

    All calls but ``start``, ``stop``, ``aclose`` and ``health`` raise ClientStateError while the producer is not running,
    WrongLoopError on another loop, ForkedError in a forked child process, and TypeError or ValueError for a ``timeout`` that is
    not a number of seconds above 0.

    Producers, consumers and admins with equal client settings on one event loop share connections, routes and heartbeats.

    Args:
        namesrv: "host:port;host:port" or a sequence of "host:port"; default: the environment variable NAMESRV_ADDR.
        client: Settings of the client; a field of ClientConfig may be given as a keyword instead.
        config: Settings of the producer; a field of ProducerConfig may be given as a keyword instead.
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
        # Here, so that the TypeError of a call without a group names this class, not a base that users do not know.
        super().__init__(group, namesrv=namesrv, client=client, config=config, **options)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> BatchSendResult:
        """Send several messages of one topic as one request, which a broker stores as a whole or not at all.

        The messages must have equal ``wait_store``, no delay and no retry topic; their encoded size is limited to
        ``max_message_size`` bytes. Bodies are not compressed. Raises InvalidMessageError also for a batch that is empty or
        breaks these rules, and as ``send`` does.

        Args:
            queue: The queue of the batch; sharding keys of its messages have no effect. Without it, a ``queue_selector`` of the
                user is called with the first message.
            timeout: Seconds, as in ``send``.
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
        """Accept a batch as ``send_batch`` does, and return a future of its result; callbacks as in ``send_async``.

        Raises as ``send_async`` does, too.

        Args:
            queue: The queue of the batch; sharding keys have no effect.
            timeout: Seconds for the whole send, by default the producer's.

        Raises:
            InvalidMessageError: For a batch as ``send_batch`` does.
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

        Raises as ``send`` does; ReplyTimeoutError when the request is stored and no reply arrived in time; ClientStateError
        when the producer stops during the wait for the reply; CorruptMessageError for a reply whose compressed body is damaged
        or exceeds ``max_decompressed_size``. In these three cases ``maybe_stored`` is True.

        Args:
            timeout: Seconds for request and reply, by default the producer's. Sends as ``send`` does; the request counts
                towards ``async_limit`` until the call ends.
        """
        sender = self._usable()
        budget = self.config.timeout if timeout is None else checked_timeout(timeout)
        return await request(sender, message, queue, selector, key, budget)

    async def reply(
        self, request: MessageExt, body: bytes, *, properties: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> SendResult:
        """Reply to a message that another client sent by ``request``; return when that client has received the reply.

        Raises TypeError if ``request`` is not a MessageExt, LocalProtocolError (10007) for a message that was not sent by
        ``request``, BrokerError or SendError (code 1; Java's ``ReplyMessageProcessor``) when the requesting client is not
        connected any more, and as ``send`` does.

        Args:
            properties: Properties of the reply; the properties that identify its request are added.
            timeout: Seconds for all attempts, by default the producer's.
        """
        sender = self._usable()
        budget = self.config.timeout if timeout is None else checked_timeout(timeout)
        return await reply(sender, request, body, properties, budget)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel the delivery of a message that was sent with ``delay`` or ``deliver_at``; return the message's unique id.

        Raises as ``send`` does, too.

        Args:
            recall_handle: The ``recall_handle`` of its SendResult. Requires brokers from 5.3.2 on with
                ``recallMessageEnable=true``; they confirm a recall even if the message no longer exists. The call takes at most
                the producer's ``timeout``.

        Raises:
            InvalidMessageError: For a retry or dead letter topic, for an invalid handle and for one of another topic.
            BrokerError: When the broker refuses (16: not enabled, 3: broker too old, 604: too late; Java's
                ``RecallMessageProcessor``).
            RemoteProtocolError: For a confirmation without an id.
        """
        return await recall(self._usable(), topic, recall_handle)

    async def fetch_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of ``topic`` among which keys and selectors choose, in the order of the round robin: the queues
        that may be written to, but with an order conf and for a static topic all queues of the route, also of absent brokers.

        Take at most the producer's ``timeout``.

        Raises:
            InvalidMessageError: For an invalid name.
            TopicNotFoundError, NameServerError, BrokerNotFoundError, RequestTimeoutError: As ``send`` does.
        """
        sender = self._usable()
        check_topic(topic)
        topic_queues = await sender.topics.find(topic, machine.monotonic() + self.config.timeout)
        return topic_queues.keyed

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages accepted so far have a result or an error; one-way messages, until they are written.

        For one-way messages that are sent as ordinary requests (``oneway_window``) it waits until they are answered. Do not
        wait for messages that are accepted during the wait. Raises RequestTimeoutError, a TimeoutError, after ``timeout``
        seconds; None sets no limit, since each send ends by its own deadline.
        """
        sender = self._usable()
        deadline = machine.monotonic() + (checked_timeout(timeout) if timeout is not None else FOR_EVER)
        sender.batcher.hurry()
        accepted = [*sender.credits.so_far(), *sender.oneway_credits.so_far()]
        if not await finished(accepted, deadline):
            unfinished = sender.credits.taken + sender.oneway_credits.taken
            raise RequestTimeoutError(
                f"flush: {unfinished} messages are unfinished after {timeout} s; call it again, or allow more time"
            )
