"""What all ways of sending share: lanes, credits, encoder, the submission of one attempt, and the calls that are retrying."""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from collections.abc import Collection, Iterable
from functools import partial
from inspect import isawaitable
from time import monotonic
from typing import Any, Final, TypeVar, cast

import msgspec

from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.send_codec import SendReply
from rmq_protocol.trace import MessageType

from ..client.instance import ClientInstance
from ..client.waits import Waits
from ..errors import ClientStateError, RequestTimeoutError, RocketMQError, own_copy, without_frames
from ..transport import Connection, Pending
from .batching.batcher import Batcher
from .batching.settings import Batching
from .call import ReadReply, Result, SendCall, stopped
from .config import ProducerConfig
from .credits import Credits, Epoch
from .failure import explained
from .hooks import request_hooks
from .lane_table import LaneTable
from .lanes import Lane, LaneSettings, Target
from .oneway import Tally
from .order import Place
from .ordered import Ordered, OrderedCall
from .outgoing import COMPRESS_OFF_LOOP, Encoder, Outgoing, Watched
from .policy import attempt_cap
from .recovery import Recovery
from .replies import SEND_OK, stored_batch
from .selection import Selection, selection_of
from .selectors import Selector, Wish, ask, awaited, checked_wish, one_of, select_by_hash
from .trace import Tracer
from .watching import Sending, Watch, Watchers, message_type, tell_failed
from .wire import Wire

__all__ = ["Sender"]

logger = logging.getLogger("rmq_async.producer")

LAST_STEPS: Final = 1.0
"""Seconds for calls that were ended to give back what they hold."""

T = TypeVar("T")


class Begun(msgspec.Struct):
    """A first attempt under way. ``at``: when it began, 0 where nothing needed the time."""

    connection: Connection
    future: asyncio.Future[SendReply]
    pending: Pending
    at: float = 0.0


class Sender:
    """Made by ``Producer.start`` for one run of it. ``owner`` marks its entries in the connections' tables."""

    # More attributes than instances of a class share a layout for (30), and sends ask for a dozen of them.
    __slots__ = (
        "_request_hooks", "_settings", "_told", "_waits", "asks", "batcher", "calls", "closed", "config", "connections",
        "create_future", "credits", "encoder", "faults", "gathers", "group", "ids", "instance", "landed", "lanes",
        "oneway_credits", "ordered", "plain_below", "plain_size", "pool", "prefix", "recovery", "retries", "retries_in_order",
        "retry_not_ok", "selection", "submit", "tallies", "timeout", "topics", "tracer", "unless_stopped", "watched",
        "watchers", "window", "wire",
    )  # fmt: skip

    def __init__(self, group: str, config: ProducerConfig, instance: ClientInstance) -> None:
        self.group = group
        self.config = config
        self.instance = instance
        self.pool = instance.pool
        self.connections = instance.pool.open
        self._settings = LaneSettings(group, config, instance.config, instance.unique_ids.length)
        self.prefix = self._settings.namespace
        """The namespace that topics carry on the wire; users may give it or leave it out."""
        self.encoder = Encoder(config, instance.unique_ids, self.prefix)
        gathers = config.gathers
        most_bytes = (
            config.pending_bytes_limit if gathers is None else min(config.pending_bytes_limit, gathers.max_pending_bytes)
        )
        self.credits = Credits("sends", config.async_limit, most_bytes)
        self.oneway_credits = Credits("one-way sends", config.oneway_limit, config.pending_bytes_limit)
        self.tallies: dict[Connection, Tally] = {}
        """One-way messages on their way into the kernel."""
        self.ids = instance.unique_ids
        self.recovery = Recovery(instance.pool, instance.routes.refresh_soon, config.broker_window)
        """Where calls wait for brokers that cannot be reached."""
        self.topics = LaneTable(self, self._settings)
        self.lanes = self.topics.lanes
        self.gathers = gathers is not None
        """Whether messages gather also where they carry no order."""
        self.batcher = Batcher(self, gathers or Batching())
        self.ordered = Ordered(self)
        self.plain_size = self.batcher.plain_size
        self.calls: set[SendCall[Any]] = set()
        self.window = config.broker_window
        self.timeout, self.retries = config.timeout, config.retries
        self.plain_below = 0
        """Bytes below which a body needs neither to be compressed nor refused; 0 where no message takes the shortest way."""
        self.retries_in_order = config.retries if config.retry_same_queue else 0
        """Attempts after the first of a call that may go to one queue only."""
        self.retry_not_ok = config.retry_another_broker_when_not_store_ok
        self.watchers = Watchers(config.hooks)
        self.watched = self.watchers.active
        """Whether calls carry a Watch."""
        client = instance.config
        self._told = Sending(
            group,
            namespace=client.namespace or client.namespace_v2 or "",
            born_host=instance.client_ip,
            name_servers=tuple(instance.name_servers.addresses),
            unit_mode=client.unit_mode,
            max_size=config.max_message_size,
        )
        self._waits = Waits(_stopping)
        self.landed = self._waits.landed
        """``Flight.wait``, which a stop of the producer ends."""
        self.unless_stopped = self._waits.unless_stopped
        """What a call waits for before it has sent anything; ClientStateError when the producer stops meanwhile."""
        self.closed = False
        self.wire = Wire(self._settings, self.encoder.born_ms, self, self.window)
        self.submit = self.wire.submit
        """Puts one attempt on its way."""
        self.create_future = asyncio.get_running_loop().create_future
        self.selection = selection_of(config, instance, ChainMap(self.lanes, self.topics.resting), self)
        """None where queues simply take turns."""
        self.faults = self.selection.faults if self.selection is not None else None
        self.asks = self.selection is not None and self.selection.custom
        """Whether a selector of the user's is asked for each attempt."""
        self.tracer = Tracer(self, config.trace) if config.trace else None
        if self.tracer is not None:
            self.watchers.add(self.tracer)
        self._request_hooks = request_hooks(config.hooks)
        instance.pool.hooks.on_change.append(self._look_again)
        for hook in self._request_hooks:
            instance.pool.hooks.add(hook)
        self._look_again()

    @property
    def producer_group(self) -> str:
        """The group as servers know it."""
        return self._settings.group

    def outside_namespaces(self, topic: str) -> None:
        """Says that the topic belongs to the brokers and is in no namespace, regardless of its name."""
        self._settings.outside.add(topic)

    def _look_again(self) -> None:
        """Which way messages may take, after what they must pass has changed."""
        config, settings = self.config, self._settings
        general = self.pool.hooks.active or not config.send_smart_msg
        self.watched = self.watchers.active
        self.encoder.outgoing = Watched if self.watched else Outgoing
        special = general or self.watched or self.retry_not_ok or settings.namespace or self.asks
        self.plain_below = 0 if special else min(config.compress_over, config.max_message_size + 1)
        if self.gathers:
            self.plain_below = min(self.plain_below, max(0, self.batcher.max_bytes - self.batcher.plain_size + 1))
        if general != settings.general:
            settings.general = general
            self.topics.clear()

    def watch(self, outgoing: Outgoing, message: Message | tuple[Message, ...], mode: str, read: ReadReply[Any]) -> None:
        """Lets the hooks see the attempts of this call; for senders that are ``watched``."""
        kind = MessageType.NORMAL if isinstance(message, tuple) else message_type(message, outgoing.sys_flag)
        outgoing.watch = Watch(self.watchers, message, kind, mode, read, self._told)

    def batch(self, messages: Iterable[Message], queue: MessageQueue | None, mode: str) -> tuple[Outgoing, int, Wish | None]:
        """A batch as its attempts send it, the bytes of its bodies, and the queue that the caller wants."""
        batch = messages if isinstance(messages, tuple) else tuple(messages)
        outgoing, size = self.encoder.encode_batch(batch)
        if self.watched:
            self.watch(outgoing, batch, mode, stored_batch)
        outgoing.message = batch[0]
        return outgoing, size, checked_wish(outgoing.topic, queue, None, None, self.prefix) if queue is not None else None

    async def deliver(
        self,
        outgoing: Outgoing,
        message: Message | None,
        wish: Wish | None,
        number: int,
        size: int,
        read: ReadReply[Result],
        started: float,
        deadline: float,
        *,
        held: bool = False,
        place: Place | None = None,
    ) -> Result:
        """A whole awaited call. ``message``: None for a batch, which stays as it is; ``number`` and ``size``: of credits.

        ``held``: the caller has taken the credits and gives them back. ``place``: the caller's in the topic's line.
        """
        if wish is not None:
            return await self.ordered.send(
                OrderedCall(outgoing, message, wish, number, size, read, deadline), held=held, place=place
            )
        credit, retries = self.credits, self.retries
        epoch: Epoch | None = None
        if not held:
            epoch = credit.try_take(number, size) or await credit.take(number, size, deadline)
        try:
            if message is not None and size >= self.encoder.compress_over:
                outgoing = await self.compressed(outgoing, deadline)
            lane = self.lanes.get(outgoing.topic) or await self.topics.lane(outgoing.topic, deadline)
            target = await self.choose(outgoing, message, lane, lane.brokers, deadline) if self.asks else lane.next()
            begun, failed = self.begin(outgoing, lane, target, started, deadline, retries), None
            if begun is None:
                failed = await self.connect_first(lane, target, deadline, retries)
                if failed is None:
                    begun = self.begin(outgoing, lane, target, started, deadline, retries)
            return await self.finish(begun, outgoing, lane, target, read, started, deadline, retries, failed)
        finally:
            if epoch is not None:
                credit.give_back(epoch, number, size)

    async def choose(
        self, outgoing: Outgoing, message: Message | None, lane: Lane, brokers: Collection[str], deadline: float
    ) -> Target:
        """The queue that the producer's selector has for an attempt, of those of ``brokers``. ``message``: None for a batch."""
        selection = cast(Selection, self.selection)
        if message is not None:
            outgoing.message = message
        chosen = selection.ask(None, lane, brokers, cast(Message, outgoing.message), None, deadline)
        return lane.target(chosen if isinstance(chosen, MessageQueue) else await self.unless_stopped(chosen))

    def begin(
        self,
        outgoing: Outgoing,
        lane: Lane,
        target: Target,
        started: float,
        deadline: float,
        retries: int,
    ) -> Begun | None:
        """Puts a first attempt on its way, now; None when there is no connection to the target."""
        connection = self.connections.get(target.address)
        if connection is None:
            return None
        first_deadline, at = deadline, 0.0
        if lane.several:
            at = monotonic()
            first_deadline = self.first_deadline(at, deadline, retries)
        elif self.faults is not None and (self.faults.measures or self.faults.items):
            at = monotonic()
        future: asyncio.Future[SendReply] = self.create_future()
        pending = self.submit(connection, target, outgoing, future, first_deadline, deadline)
        return Begun(connection, future, pending, at)

    async def finish(
        self,
        begun: Begun | None,
        outgoing: Outgoing,
        lane: Lane,
        target: Target,
        read: ReadReply[Result],
        started: float,
        deadline: float,
        retries: int,
        failed: RocketMQError | None = None,
    ) -> Result:
        """The result of the call: of the attempt that was begun or, if that failed and policy allows, of further ones.

        ``failed``: why there was no connection to begin on.
        """
        error: RocketMQError | None = None
        reply: SendReply | None = None
        if begun is not None:
            try:
                reply = await begun.future
            except RocketMQError as failure:
                error = failure
            except BaseException as failure:
                begun.connection.forget(begun.pending.opaque)
                if outgoing.watch is not None:
                    outgoing.watch.give_up(failure)
                if self.faults is not None:
                    self.faults.failed(target.broker, failure, monotonic() - (begun.at or started), monotonic())
                raise
            else:
                result = read(reply, outgoing, target, 1)
                faults = self.faults
                if result is not None and faults is not None and (faults.measures or target.broker in faults.items):
                    faults.succeeded(target.broker, monotonic() - (begun.at or started), monotonic())
                if result is not None and not (self.retry_not_ok and self.unconfirmed(result)):
                    return result
        elif failed is not None:
            tell_failed(outgoing, target, failed)
            self.end_if_late(failed, outgoing.topic, target, started, deadline)
        call = SendCall(self, outgoing, lane, read, deadline=deadline, started=started, retries=retries)
        if begun is not None:
            call.adopt(target, begun.connection, begun.pending, begun.at or started, error, reply)
        elif failed is not None:
            call.adopt_failed(target, failed, started)
        else:
            call.begin_with(target)
        return await call.run()

    def end_if_late(self, error: RocketMQError, topic: str, target: Target, started: float, deadline: float) -> None:
        """Raises what a ``SendCall`` without time or connection would, at half the cost, since thousands end at once."""
        now = monotonic()
        if now < deadline or self.closed:
            return
        error.broker, error.address = error.broker or target.broker, error.address or target.address
        if self.faults is not None:
            self.faults.failed(target.broker, error, now - started, now)
        self.topics.doubt(topic, error)
        # A copy: callers have the other one in their frames, as this one must not.
        raise explained(own_copy(without_frames(error)), topic, target.broker, now - started)

    async def connect(self, target: Target, deadline: float) -> RocketMQError | None:
        """Waits for a connection to the target; returns the failure, which is that of an attempt."""
        if target.address in self.connections:
            return None
        try:
            await self.pool.connect(target.address, max(0.0, deadline - monotonic()), self.landed)
        except ClientStateError:
            raise
        except RocketMQError as error:
            return error
        return None

    async def connect_first(self, lane: Lane, target: Target, deadline: float, retries: int) -> RocketMQError | None:
        """``connect`` for a first attempt that is free to go to another broker: within its cap, and at once where it backs off."""
        if target.address in self.connections:
            return None
        if lane.several and retries:
            refusal = self.pool.refusal(target.address)
            if refusal is not None:
                return refusal
            deadline = self.first_deadline(monotonic(), deadline, retries)
        return await self.connect(target, deadline)

    def first_deadline(self, now: float, deadline: float, retries: int) -> float:
        """When a first attempt that begins ``now`` is over, while another broker is left to try."""
        if not retries:
            return deadline
        return now + attempt_cap(deadline - now, retries + 1, self.config.attempt_timeout)

    def unconfirmed(self, result: Any) -> bool:
        """Whether the broker stored the message without confirming what it was asked to confirm."""
        return result.status is not SEND_OK

    async def compressed(self, outgoing: Outgoing, deadline: float) -> Outgoing:
        """The message compressed; large bodies in a thread. RequestTimeoutError at ``deadline``, after which nothing is sent."""
        if len(outgoing.body) < COMPRESS_OFF_LOOP:
            return self.encoder.compressed(outgoing)
        try:
            smaller = await self.unless_stopped(self.instance.threads.run(partial(self.encoder.compressed, outgoing), deadline))
        except TimeoutError:
            smaller = None
        if smaller is None or monotonic() >= deadline:
            text = f"send to topic {outgoing.topic}: its time was over before {len(outgoing.body)} bytes were compressed"
            raise RequestTimeoutError(text, maybe_stored=False)
        return smaller

    # -- queues that the caller, or a key, decides

    async def aim(
        self, outgoing: Outgoing, message: Message | None, wish: Wish | None, deadline: float, turn: Target | None = None
    ) -> tuple[Outgoing, Lane, Target]:
        """Compresses if need be, and finds the queue: the one wished for or the next.

        ``message``: None for a batch. ``turn``: the next queue, where its turn has been taken already.
        """
        if message is not None and len(outgoing.body) >= self.encoder.compress_over:
            outgoing = await self.compressed(outgoing, deadline)
        lane = self.lanes.get(outgoing.topic) or await self.topics.lane(outgoing.topic, deadline)
        if wish is None:
            if self.asks:
                return outgoing, lane, await self.choose(outgoing, message, lane, lane.brokers, deadline)
            return outgoing, lane, turn or lane.next()
        if wish.queue is not None or message is None:
            queue = cast(MessageQueue, wish.queue)
            target = lane.by_queue.get(queue)
            if target is not None:
                return outgoing, lane, target
            if not lane.knows(queue):
                lane = await self.topics.with_queue(outgoing.topic, queue, deadline)
            return outgoing, lane, lane.target(queue)
        return outgoing, lane, await self.selected(lane, message, wish.selector, wish.key, deadline)

    async def selected(self, lane: Lane, message: Message, selector: Selector | None, key: object, deadline: float) -> Target:
        """The queue a selector picks for the message; where none is given the producer's own does, or else the hash of the key."""
        if self.selection is not None and (selector is not None or self.selection.custom):
            told = self.selection.ask(selector, lane, lane.brokers, message, key, deadline)
            return lane.target(told if isinstance(told, MessageQueue) else await self.unless_stopped(told))
        selector = selector or select_by_hash
        chosen = ask(selector, lane.queues, message, key)
        if not isinstance(chosen, MessageQueue) and isawaitable(chosen):
            chosen = await self.unless_stopped(awaited(selector, chosen, deadline))
        return lane.target(one_of(chosen, lane.queues, selector, deadline))

    # -- the end

    async def close(self, timeout: float) -> None:
        """Waits for what is under way, then ends the rest; every call has its result or its error afterwards."""
        deadline = monotonic() + timeout
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
        await self.credits.wait_idle(monotonic() + LAST_STEPS)
        self._end_all()
        await self.recovery.close()
        if self.tracer is not None:
            await self.tracer.ended()
        if self.selection is not None:
            await self.selection.closed()
        await self.topics.closed()

    def _end_all(self) -> None:
        """Ends every call that is under way, wherever it waits."""
        self.closed = True
        self.batcher.end(_stopping)
        self.ordered.fail(_stopping)
        self._waits.stop()
        for call in tuple(self.calls):
            call.abort()
        for connection in self.pool.connections:
            connection.abandon(self, lambda written: stopped(maybe_stored=written))


def _stopping() -> ClientStateError:
    return ClientStateError("the producer is stopping")
