"""The class ``PullConsumer``, which pulls messages by queue and offset, one response at a time or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final, Literal, TypeVar, Unpack, cast

from rmq_protocol.constants import Perm
from rmq_protocol.errors import shown
from rmq_protocol.heartbeat import ConsumerData
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.validation import check_topic

from .. import machine
from .._asyncio import for_each
from .._ordered import OrderedSet
from .._text import printable
from ..client import (
    ClientInstance,
    ClientUser,
    Names,
    check_queue,
    commit_offset,
    committed_offset,
    epoch_ms,
    has_master,
    known_master,
    known_queue,
    max_offset,
    min_offset,
    search_offset,
    until_readable,
)
from ..config import LONGEST, ClientConfig, ClientOptions, check_group, checked_tags, client_options
from ..errors import BrokerNotFoundError, ConfigError, OffsetRangeError, RequestTimeoutError
from ..options import lists_options
from ..results import PullResult
from .cursor import Cursor
from .pull import PullRequest, pull_once
from .reader import Reader, ReadScope
from .watch import AboveEnd, Watch

Start = Literal["earliest", "latest", "committed"] | datetime | Mapping[MessageQueue, int]
End = Literal["latest"] | datetime | Mapping[MessageQueue, int] | None
Bound = TypeVar("Bound", Start, End)

MAX_PULL: Final = 1024
"""Maximum number of messages that one pull may request. A broker with the default configuration returns at most 32, or 256 KiB."""


@lists_options(ClientConfig)
class PullConsumer(ClientUser):
    """A client that reads queues at offsets that the caller chooses.

    Brokers list it as a member of ``group``, and store a position only when ``commit`` is called. Do not give it the group of a
    running ``Consumer``, because the members of that group would leave queues to it.

    The methods that send requests also raise ConfigError for an invalid argument, InvalidMessageError for an invalid topic name,
    ClientStateError before ``start`` and after ``stop``, ForkedError in a forked child, WrongLoopError on another event loop, and
    the errors of a request (``RocketMQError``).

    Args:
        group: Name of the group.
        namesrv: Addresses of the name servers, "host:port;host:port" or a sequence of "host:port". The default is the
            environment variable NAMESRV_ADDR.
        client: Settings that all kinds of clients have.
        **options: Any field of ClientConfig.

    Raises:
        InvalidGroupError: For an invalid group name.
        ConfigError: For an invalid value of ``namesrv`` or an option.
        TypeError: For an unknown option and for a ``client`` of another type.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        client: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        check_group(group)
        config = client_options("PullConsumer", namesrv, client, options)
        super().__init__(config)
        self._names = names = Names(config.namespace)
        self._name = str.__str__(group)  # a plain str, because the encoders do not accept subclasses
        self._group = names.wire(self._name)
        check_group(self._group)
        self._readers: OrderedSet[Reader] = OrderedSet()

    @property
    def group(self) -> str:
        return self._name

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of ``topic``, sorted by broker name and id, as a name server reports them now.

        If there is no usable response, return the queues of the route that this client knows.

        Raises:
            TopicNotFoundError: If the name servers do not know the topic, and this client knows no route of it.
            NameServerError: If no name server responds, and this client knows no route of the topic.
        """
        return self._names.shown_queues(await self._queues(self._wire(topic)))

    async def pull(
        self, queue: MessageQueue, offset: int, *, max_messages: int = 32, tags: str = "*", wait: float = 0.0
    ) -> PullResult:
        """Return one response of the broker, with the messages at ``offset`` and after it.

        For an offset outside the queue, the result has the status OFFSET_ILLEGAL; this is not an error. Damaged records are left
        out and listed in ``corrupt``. Without tags, deleted messages are listed in ``lost``.

        Args:
            offset: The offset of the first message (0 to 2^63 - 1).
            max_messages: Maximum number of messages (1 to 1024). Brokers may return fewer.
            tags: "*" or "a || b".
            wait: Seconds for which the broker may hold the pull while it has no message. With 0, the broker responds at once.

        Raises:
            BrokerNotFoundError: If no route has an address of the broker.
            TopicNotFoundError: If the topic has no route either.
            ConnectError: If no connection to the broker can be made.
            ConnectionLostError: If the connection closes before the response.
            RequestTimeoutError: If there is no response within ``wait`` + ``request_timeout`` seconds.
            RemoteProtocolError: For a response without a usable next offset.
            BrokerError: If the broker refuses the request.
        """
        instance = self._client()
        queue = check_queue(queue)
        offset = _checked_offset(queue, offset)
        queue = self._names.wire_queue(queue)
        tags = checked_tags(tags)
        if isinstance(max_messages, bool) or not isinstance(max_messages, int) or not 0 < max_messages <= MAX_PULL:
            raise ConfigError(f"max_messages must be a whole number from 1 to {MAX_PULL}, not {shown(max_messages)}")
        max_messages = int(max_messages)
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < LONGEST:
            raise ConfigError(f"wait must be at least 0 and below {LONGEST:,.0f} seconds, not {shown(wait)}")
        budget = instance.config.request_timeout
        if wait > 0:
            # A broker checks held pulls only every 5 s. To return in time, the call abandons the held pull after ``wait`` seconds
            # and makes a pull that is not held. That pull also distinguishes a broker that does not respond from an empty queue.
            deadline = machine.monotonic() + wait
            held = PullRequest(self._group, queue, offset, max_messages, tags, wait, wait)
            with suppress(RequestTimeoutError):
                return await pull_once(instance, held, self._calls)
            budget += deadline - machine.monotonic()
        request = PullRequest(self._group, queue, offset, max_messages, tags, 0.0, budget)
        return await pull_once(instance, request, self._calls)

    def read(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        end: End = "latest",
        tags: str = "*",
        queues: Iterable[MessageQueue] | None = None,
        above_end: AboveEnd = "end",
    ) -> AsyncGenerator[MessageExt, None]:
        """Iterate over the messages of ``topic`` from ``start`` to ``end``.

        Messages of one queue come in the order of their offsets; queues are interleaved as responses arrive. If a loop is left
        early, its requests end when the iterator is garbage-collected; with ``contextlib.aclosing``, they end at once.

        Offsets are requested from masters.

        Args:
            start: "earliest", "latest", "committed" (this group's offsets; the first message of a queue without one), an aware
                datetime, or offsets by queue.
            end: The exclusive end: "latest", an aware datetime, offsets by queue, or None. "latest" includes every message that was
                acknowledged before the first step of the iteration. That step asks each broker how far its queues are, which takes
                about 60 ms. For an offset beyond the last message, the iteration waits for the missing messages. With None, the
                iteration never ends; unless ``queues`` is given, it includes queues that are added later.
            tags: "*" or "a || b".
            queues: The queues to read. The default is the queues for which ``start`` or ``end`` has offsets, or all readable
                queues.
            above_end: Where "committed" begins in a queue that ends below the group's offset, because the queue has lost messages.
                "end" is the lowest of three ends that are checked within 10 s, and "earliest" is the first message; both log an
                ERROR. "stop" raises OffsetRangeError.

        Raises:
            OffsetRangeError: If a queue does not have the offset to read, if it has lost messages that were read and may give their
                offsets to other messages, or if messages were deleted before they were read. In the last case, "earliest"
                continues with the first message instead.
            CorruptMessageError: For a damaged record, after the intact messages of the same response.
            TopicNotFoundError: If the name servers do not know the topic.
            BrokerNotFoundError: If a broker has no master, the topic has no readable queue, or one of ``queues`` is not readable.
            ClientStateError: When the consumer is stopped.
            RocketMQError: If a request for offsets fails, or a pull still fails after retries.
        """
        topic, names = self._wire(topic), self._names
        checked_tags(tags)
        _check_start(start)
        _check_end(end)
        if above_end not in ("end", "earliest", "stop"):
            raise ConfigError(f'above_end must be "end", "earliest" or "stop", not {shown(above_end)}')
        chosen = _chosen_queues(names, topic, start, end, queues)
        start, end = _on_the_wire(names, start), _on_the_wire(names, end)
        instance = self._client()
        watch = Watch(instance, self._group, above_end)

        async def opening() -> list[Cursor]:
            async with self._call():
                if chosen is not None:
                    if end is None and queues is None:  # so that existing queues of the topic do not count as new
                        await instance.routes.get(topic, instance.config.request_timeout)
                    await for_each(chosen, lambda queue: known_queue(instance, queue))
                    await _check_readable(instance, topic, chosen)
                found = await self._readable_queues(topic) if chosen is None else chosen
                return await self._cursors(instance, watch, found, start, end, tags != "*")

        scope = ReadScope(tags, end is None, topic if queues is None and end is None else None, chosen is not None, start)
        return Reader(instance, self._group, scope, opening, self._calls, self._readers, watch).messages()

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the broker has stored for this group. Return None if there is none.

        Raises:
            TopicNotFoundError: If the name servers do not know the topic.
            BrokerNotFoundError: If the topic is not on the queue's broker.
            ConfigError: If the topic has no queue of that id on the broker.
        """
        async with self._call() as instance:
            return await committed_offset(instance, self._group, await known_queue(instance, queue))

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store an offset for this group at the broker. Return when the broker has responded.

        Args:
            offset: The offset of the next message to read (0 to 2^63 - 1).

        Raises:
            ConfigError: For an invalid offset. The errors of ``committed`` are also raised.
        """
        async with self._call() as instance:
            offset = _checked_offset(check_queue(queue), offset)
            await commit_offset(instance, self._group, await known_queue(instance, queue), offset)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is not deleted. Return the end of the queue if there is no message.

        It raises the errors of ``committed``.
        """
        async with self._call() as instance:
            return await min_offset(instance, await known_queue(instance, queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message that can be read. It raises the errors of ``committed``."""
        async with self._call() as instance:
            return await max_offset(instance, await known_queue(instance, queue))

    async def search_offset(self, queue: MessageQueue, when: float | datetime) -> int:
        """Return the offset of the first message stored at a time or later.

        If there is none, return the offset that the next message will have.

        Args:
            when: Seconds since the epoch, or an aware datetime.

        Raises:
            ConfigError: For a datetime without a time zone. The errors of ``committed`` are also raised.
        """
        async with self._call() as instance:
            return await search_offset(instance, await known_queue(instance, queue), when)

    # -- inside

    def _wire(self, topic: str) -> str:
        """Return the topic's name on the wire.

        Raises:
            InvalidMessageError: For an invalid name.
        """
        check_topic(topic)
        topic = self._names.wire(topic)
        check_topic(topic)
        return topic

    async def _queues(self, topic: str) -> tuple[MessageQueue, ...]:
        async with self._call() as instance:
            route = await instance.routes.refresh(topic, provisional=False)
        return route.subscribe_queues

    async def _readable_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic (its name on the wire).

        Raises:
            BrokerNotFoundError: If there is none. An iteration that ended at once would look as if the topic were empty.
        """
        queues = await self._queues(topic)
        if not queues:
            raise BrokerNotFoundError(
                f"topic {self._names.shown(topic)} has no readable queue: its brokers do not permit reading, or it has no read "
                "queues there; give it the permission 4 (read) or 6 (read and write), and read queues"
            )
        return queues

    def _join(self, instance: ClientInstance) -> None:
        instance.register_consumer(ConsumerData(group_name=self._group, unit_mode=self.config.unit_mode))

    async def _leave(self, instance: ClientInstance, timeout: float) -> None:
        tasks = [task for reader in self._readers for task in reader.stop()]
        self._readers.clear()
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            await instance.unregister_consumer(self._group, timeout)

    async def _cursors(
        self,
        instance: ClientInstance,
        watch: Watch,
        queues: tuple[MessageQueue, ...],
        start: Start,
        end: End,
        is_filtered: bool,
    ) -> list[Cursor]:
        if not isinstance(start, Mapping) or not (end is None or isinstance(end, Mapping)):
            brokers = {instance.routes.broker_of(queue): queue for queue in queues}
            if unsure := [queue for queue in brokers.values() if not known_master(instance, queue)]:
                await for_each(unsure, partial(_check_master, instance))
            if "latest" in (start, end):
                await for_each(brokers, lambda name: _all_readable(instance, name, brokers[name].topic))
        starts = await for_each(queues, _start_of(instance, start, watch))
        ends = {} if end is None else await for_each(queues, _end_of(instance, end))
        cursors = []
        for queue in queues:
            first, last = starts[queue], ends.get(queue)
            if end == "latest" and last is not None and first > last:
                raise OffsetRangeError(
                    f"the start offset {first} of {self._names.shown_queue(queue)} is above its end {last}; give a lower start",
                    max_offset=last,
                    broker=queue.broker_name,
                )
            given = isinstance(end, Mapping)
            cursor = Cursor(queue, first, last, at_first=start == "earliest", wait_for_end=given, is_filtered=is_filtered)
            cursor.watched = queue in watch.marks
            cursors.append(cursor)
        return cursors


Offsets = Callable[[MessageQueue], Awaitable[int]]


def _start_of(instance: ClientInstance, start: Start, watch: Watch) -> Offsets:
    if isinstance(start, Mapping):
        return _given(start)
    if isinstance(start, datetime):
        return lambda queue: search_offset(instance, queue, start, any_replica=False)
    if start == "committed":
        return partial(_committed_or_first, instance, watch)
    find = min_offset if start == "earliest" else max_offset
    return lambda queue: find(instance, queue, any_replica=False)


async def _committed_or_first(instance: ClientInstance, watch: Watch, queue: MessageQueue) -> int:
    committed = await watch.committed(queue)
    return await min_offset(instance, queue, any_replica=False) if committed is None else committed


def _end_of(instance: ClientInstance, end: End) -> Offsets:
    if isinstance(end, Mapping):
        return _given(end)
    if isinstance(end, datetime):
        return lambda queue: search_offset(instance, queue, end, any_replica=False)
    return lambda queue: max_offset(instance, queue, any_replica=False)


async def _check_readable(instance: ClientInstance, topic: str, queues: Iterable[MessageQueue]) -> None:
    """Raise BrokerNotFoundError for a queue that may not be read. Its iteration would look as if the queue were empty."""
    route = instance.routes.cached(topic)
    if route is None or not set(route.subscribe_queues).issuperset(queues):
        route = await instance.routes.refresh(topic)
    for queue in sorted(set(queues).difference(route.subscribe_queues)):
        data = next((each for each in route.data.queue_datas if each.broker_name == queue.broker_name), None)
        if data is None:
            why = "the broker does not have the topic; name a queue that the topic has"
        elif data.perm & Perm.READ:
            why = f"the topic has {data.read_queue_nums} read queues there; give it more"
        else:
            why = f"the topic has the permission {data.perm} there; give it 4 (read) or 6 (read and write)"
        place = f"queue {queue.queue_id} of topic {instance.names.display_name(topic)} on broker {printable(queue.broker_name)}"
        raise BrokerNotFoundError(f"{place} may not be read: {why}", broker=queue.broker_name)


async def _check_master(instance: ClientInstance, queue: MessageQueue) -> None:
    """Raise BrokerNotFoundError if the name servers know only replicas of the queue's broker."""
    if await has_master(instance, queue):
        return
    await instance.routes.refresh(queue.topic)
    if not await has_master(instance, queue):
        broker_name = instance.routes.broker_of(queue)
        raise BrokerNotFoundError(
            f"broker {printable(broker_name)} has no master now, and its replicas may lack messages; try again when it has one",
            broker=broker_name,
        )


async def _all_readable(instance: ClientInstance, broker_name: str, topic: str) -> None:
    """Wait until all acknowledged messages of a broker can be read.

    Raises:
        RequestTimeoutError: If this takes longer than ``request_timeout``.
    """
    if not await until_readable(instance, broker_name, topic, any_replica=False):
        raise RequestTimeoutError(
            f"broker {printable(broker_name)} has acknowledged messages that cannot be read yet: its queues have lagged behind its "
            f"commit log for more than {instance.config.request_timeout:g} s; try again later",
            broker=broker_name,
        )


def _given(offsets: Mapping[MessageQueue, int]) -> Offsets:
    async def look_up(queue: MessageQueue) -> int:
        return offsets[queue]

    return look_up


def _on_the_wire(names: Names, bound: Bound) -> Bound:
    """Return the start or end of a read, with its queues' names on the wire."""
    return cast(Bound, _wired(names, bound)) if isinstance(bound, Mapping) else bound


def _wired(names: Names, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return offsets by queue, with the queues' names on the wire.

    Raises:
        ConfigError: For an invalid queue or offset.
    """
    checked = {check_queue(queue): offset for queue, offset in offsets.items()}
    return {names.wire_queue(queue): _checked_offset(queue, offset) for queue, offset in checked.items()}


def _chosen_queues(
    names: Names, topic: str, start: Start, end: End, queues: Iterable[MessageQueue] | None
) -> tuple[MessageQueue, ...] | None:
    """Return the queues that the arguments name, with their names on the wire. Return None for all queues.

    Args:
        topic: Name of the topic on the wire.

    Raises:
        ConfigError: If the arguments contradict each other, and for an invalid offset.
    """
    named: Iterable[MessageQueue] | None = queues
    for offsets in (start, end):
        if named is None and isinstance(offsets, Mapping):
            named = offsets
    if named is None:
        return None
    chosen = tuple(dict.fromkeys(names.wire_queue(check_queue(queue)) for queue in _several(named)))
    for queue in chosen:
        if queue.topic != topic:
            raise ConfigError(f"{names.shown_queue(queue)} is not a queue of topic {names.display_name(topic)}; leave it out")
    for name, bound in (("start", start), ("end", end)):
        if isinstance(bound, Mapping):
            wired = _wired(names, bound)
            for queue in chosen:
                if queue not in wired:
                    raise ConfigError(f"{name} has no offset for {names.shown_queue(queue)}; give one, or leave out the queue")
            for queue in wired:
                if queue not in chosen:
                    raise ConfigError(
                        f"{name} has an offset for {names.shown_queue(queue)}, which is not read; leave it out, or add the queue"
                    )
    return chosen


def _several(queues: Iterable[MessageQueue]) -> Iterable[MessageQueue]:
    if isinstance(queues, MessageQueue) or not isinstance(queues, Iterable):
        raise ConfigError(f"queues must be an iterable of MessageQueues, such as a list, or None for all, not {shown(queues)}")
    return queues


def _check_start(start: Start) -> None:
    if isinstance(start, datetime):
        epoch_ms(start)
    elif not isinstance(start, Mapping) and start not in ("earliest", "latest", "committed"):
        raise ConfigError(
            f'start must be "earliest", "latest", "committed", an aware datetime or offsets by queue, not {shown(start)}'
        )


def _check_end(end: End) -> None:
    if isinstance(end, datetime):
        epoch_ms(end)
    elif end is not None and not isinstance(end, Mapping) and end != "latest":
        raise ConfigError(f'end must be "latest", None, an aware datetime or offsets by queue, not {shown(end)}')


def _checked_offset(queue: MessageQueue, offset: int) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
        raise ConfigError(f"the offset of {queue} must be a whole number from 0 to 2**63 - 1, not {shown(offset)}")
    return int(offset)
