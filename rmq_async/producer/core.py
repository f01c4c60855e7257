"""Makes the objects of one run of a producer (routing, admission, dispatch and batching), and closes them in order."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Iterable
from typing import Final

from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.message import Message, MessageQueue

from .. import machine
from .._asyncio import StopScope
from .._text import type_name
from ..client import ClientInstance, TopicRoute
from ..errors import ClientStateError
from ..hooks import request_hooks
from ..results import BatchSendResult
from .admission import Admission, Credits, Lines
from .batching import Batcher, OrderedSends, UnorderedSends
from .calls import Call, Dispatch, Recovery, stopped
from .config import Batching, ProducerConfig
from .encoding import Compressor, Encoder, Frames, Outgoing, Watched, stored_batch
from .fault_avoidance import queue_selection_of
from .oneway import Oneway
from .routing import HeaderSettings, Router, TopicQueues, TopicTable, checked_choice
from .watching import Sending, Tracer, Watchers

LAST_STEPS: Final = 1.0
"""Maximum seconds for calls that were ended at the stop to give back their credits and connections."""


class ProducerCore:
    """One run of a producer, made by ``Producer.start``. This object also identifies the producer's entries in the request
    tables.
    """

    # Slots, because instances share the layout of their dictionaries only up to 30 attributes, and a send reads a dozen of them.
    __slots__ = (
        "_lines",
        "_request_hooks",
        "_settings",
        "_waits",
        "admission",
        "batcher",
        "compressor",
        "config",
        "connections",
        "create_future",
        "credits",
        "dispatch",
        "encoder",
        "faults",
        "first_deadline",
        "gathers",
        "group",
        "ids",
        "instance",
        "oneway",
        "oneway_credits",
        "oneway_window",
        "ordered",
        "plain_below",
        "plain_size",
        "pool",
        "prefix",
        "queues_by_topic",
        "recovery",
        "retries",
        "router",
        "selection",
        "timeout",
        "topics",
        "tracer",
        "unless_stopped",
        "unordered",
        "usual_below",
        "watched",
        "watchers",
        "window",
    )  # fmt: skip

    def __init__(self, group: str, config: ProducerConfig, instance: ClientInstance) -> None:
        self.group = group
        self.config = config
        self.instance = instance
        self.pool = instance.pool
        self.connections = instance.pool.open
        self.ids = instance.unique_ids
        self.timeout, self.retries, self.window = config.timeout, config.retries, config.broker_window
        self.oneway_window = config.oneway_window
        self.create_future = asyncio.get_running_loop().create_future
        self._waits = StopScope(_stopping)
        # Awaits its argument, and raises ClientStateError if the producer stops first.
        self.unless_stopped = self._waits.run
        self._settings = HeaderSettings(
            group,
            instance.config,
            instance.unique_ids.length,
            create_topic_key=config.create_topic_key,
            default_topic_queues=config.default_topic_queues,
            smart=config.send_smart_msg,
        )
        self.prefix = self._settings.namespace  # the prefix of topics on the wire; users may write or omit it
        self.encoder = Encoder(config, instance.unique_ids, self.prefix)
        self._make_router()
        self._make_dispatch()
        self._make_admission()
        self._request_hooks = request_hooks(config.hooks)
        instance.pool.hooks.on_change.append(self._look_again)
        for hook in self._request_hooks:
            instance.pool.hooks.add(hook)
        self._look_again()

    def _make_router(self) -> None:
        config, instance = self.config, self.instance
        self.topics = TopicTable(self._settings, instance, self._waits, config.topics)
        self.topics.adopt, self.topics.on_change = self._adopt, self._route_changed
        self.queues_by_topic = self.topics.queues_by_topic
        # None for plain round robin.
        self.selection = queue_selection_of(config, instance, ChainMap(self.queues_by_topic, self.topics.resting), self)
        self.router = Router(self.topics, self.selection, self.unless_stopped)
        self.faults = self.router.faults

    def _make_dispatch(self) -> None:
        config, instance = self.config, self.instance
        client = instance.config
        sending = Sending(
            self.group,
            namespace=client.namespace or client.namespace_v2 or "",
            born_host=instance.client_ip,
            name_servers=tuple(instance.name_servers.addresses),
            unit_mode=client.unit_mode,
            max_size=config.max_message_size,
        )
        # Calls that wait for unreachable brokers are registered in this object.
        self.recovery = Recovery(instance.pool, instance.routes.refresh_soon)
        wire = Frames(self._settings, self.encoder.born_ms, self, self.window)
        self.dispatch = Dispatch(
            config,
            instance,
            self.router,
            self.recovery,
            wire,
            self._waits.wait,
        )
        self.first_deadline = self.dispatch.first_deadline
        self.watchers = Watchers(config.hooks, sending)
        self.tracer = Tracer(self.dispatch, self.encoder, self.group, config.trace) if config.trace else None
        if self.tracer is not None:
            self.watchers.add(self.tracer)
        self.watched = self.watchers.active  # whether calls carry a Watch

    def _make_admission(self) -> None:
        config, gathers = self.config, self.config.gathers
        most_bytes = (
            config.pending_bytes_limit if gathers is None else min(config.pending_bytes_limit, gathers.max_pending_bytes)
        )
        options = "async_limit or pending_bytes_limit"
        if gathers is not None:
            options = "async_limit, pending_bytes_limit or max_pending_bytes"
        self.credits = Credits("sends", config.async_limit, most_bytes, options)
        self.oneway_credits = Credits(
            "one-way sends", config.oneway_limit, config.pending_bytes_limit, "oneway_limit or pending_bytes_limit"
        )
        self._lines = Lines()
        self.compressor = Compressor(self.encoder, self.instance.threads, self.unless_stopped)
        self.admission = Admission(self.credits, self._lines, self.router, self.compressor)
        self.gathers = gathers is not None  # whether unordered messages are gathered (``batching``)
        self.batcher = Batcher(self.dispatch, self.encoder, self.watchers, gathers or Batching())
        self.plain_size = self.batcher.plain_size
        self.ordered = OrderedSends(self.admission, self.batcher)
        self.unordered = UnorderedSends(self.credits, self.router, self.batcher)
        oneway_admission = Admission(self.oneway_credits, self._lines, self.router, self.compressor)
        self.oneway = Oneway(self.dispatch, oneway_admission, self.ordered, self.ids, self.instance.config.request_timeout)
        # Smaller bodies need no compression and are not too large. 0 if every call needs all checks.
        self.usual_below = 0
        self.plain_below = 0  # the same for the plain ``send``

    @property
    def asks(self) -> bool:
        """Whether the ``queue_selector`` is a function other than ``select_best``."""
        return self.router.asks

    @property
    def closed(self) -> bool:
        """Whether the producer has begun to end its unfinished calls, so that no further attempts are made."""
        return self.dispatch.closed

    def _adopt(self, topic: str, topic_queues: TopicQueues) -> None:
        if self.selection is not None:
            self.selection.adopt(topic_queues)
        if self.gathers and not topic.startswith(RETRY_TOPIC_PREFIX):
            topic_queues.gathering = self.batcher.in_turn(topic, wait_store=True)

    def _route_changed(self, route: TopicRoute) -> None:
        if self.selection is not None:
            self.selection.route_changed(route.addresses.keys())
        self.recovery.route_changed(route.topic)

    @property
    def producer_group(self) -> str:
        """The producer group with its namespace prefix, as servers know it."""
        return self._settings.group

    def outside_namespaces(self, topic: str) -> None:
        """Register ``topic`` as a system topic of the brokers, which is outside all namespaces regardless of its name."""
        self._settings.outside.add(topic)

    def _look_again(self) -> None:
        """Compute which messages may take the fast path. This is called at the start, and when request hooks are added or
        removed.
        """
        config, settings = self.config, self._settings
        general = not self.pool.hooks.only_sign or not config.send_smart_msg
        self.watched = self.watchers.active
        self.encoder.outgoing = Watched if self.watched else Outgoing
        special = general or self.dispatch.retry_not_ok or settings.namespace or self.asks
        self.usual_below = 0 if special else min(config.compress_over, config.max_message_size + 1)
        self.plain_below = 0 if self.watched else self.usual_below
        if self.gathers:
            self.plain_below = min(self.plain_below, max(0, self.batcher.max_bytes - self.batcher.plain_size + 1))
        if general != settings.general:
            settings.general = general
            self.topics.clear()

    def batch_call(
        self, messages: Iterable[Message], queue: MessageQueue | None, mode: str, started: float, deadline: float
    ) -> Call[BatchSendResult]:
        """Return the call that sends a batch.

        Args:
            mode: The ``mode`` of ``SendContext``.
            queue: The queue that the caller chose, or None.
        """
        try:
            batch = messages if isinstance(messages, tuple) else tuple(messages)
        except TypeError:
            given: object = messages
            if isinstance(given, Iterable):
                raise
            text = f"messages must be an iterable of Messages, such as a list, not {type_name(messages)}"
            raise TypeError(text) from None
        outgoing, size = self.encoder.encode_batch(batch)
        if self.watched:
            self.watchers.watch(outgoing, batch, mode, stored_batch)
        outgoing.message = batch[0]
        choice = checked_choice(outgoing.topic, queue, None, None, self.prefix) if queue is not None else None
        return Call(outgoing, stored_batch, started, deadline, self.retries, None, choice, size)

    # -- the end

    async def close(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for unfinished calls, then end the remaining ones, so that every call has a result or an
        error.
        """
        deadline = machine.monotonic() + timeout
        self.credits.refuse(_stopping)
        self.oneway_credits.refuse(_stopping)
        if self.tracer is not None:
            self.tracer.hurry()
        self.batcher.hurry(for_good=True)
        try:
            await self.credits.wait_idle(deadline)
            await self.oneway_credits.wait_idle(deadline)
            if self.tracer is not None:
                await self.tracer.flush(deadline)
        finally:
            self.topics.close()
            if self.selection is not None:
                self.selection.close()
            if self.tracer is not None:
                self.tracer.end()
            self._end_all()
            self.pool.hooks.on_change.remove(self._look_again)
            for hook in self._request_hooks:
                self.pool.hooks.remove(hook)
        await self.credits.wait_idle(machine.monotonic() + LAST_STEPS)
        self._end_all()
        await self.recovery.close()
        if self.tracer is not None:
            await self.tracer.ended()
        if self.selection is not None:
            await self.selection.closed()
        await self.topics.closed()

    def _end_all(self) -> None:
        """Fail every unfinished call, wherever it waits."""
        self.dispatch.closed = True
        self.batcher.end(_stopping)
        self._lines.fail(_stopping)
        self._waits.stop()
        for abort in tuple(self.dispatch.calls):
            abort()
        for connection in self.pool.connections:
            connection.requests.abandon(self, lambda written: stopped(maybe_stored=written))


def _stopping() -> ClientStateError:
    return ClientStateError("the call ended because the producer is stopping; start the producer again for further calls")
