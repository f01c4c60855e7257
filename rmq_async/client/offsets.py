"""Requests to the broker of a queue for offsets and store times of messages."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, TypeVar

from rmq_protocol import headers
from rmq_protocol.bodies import GroupList, KVTable
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import PullSysFlag, RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError, shown
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import decode_messages
from rmq_protocol.validation import check_topic, plain

from .. import machine
from .._backoff import Backoff
from .._text import printable
from ..broker_answers import broker_error
from ..errors import BrokerError, BrokerNotFoundError, ConfigError, QueryNotFoundError, SubscriptionGroupNotExistError
from .instance import ClientInstance
from .topic_route import TopicRoute

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=headers.Header)

_DISTINGUISHES_NONE_FROM: Final = 413
"""``MQVersion.V5_0_0``: the first version that can report that there is no offset, instead of returning 0."""
_NO_QUEUE_ID: Final = 1 << 31
"""One above the highest queue id, which is a signed 32-bit number."""
_FIRST_PAUSE: Final = 0.001
_MAX_PAUSE: Final = 0.1
_FIRST_BUSY_PAUSE: Final = 0.05
_MAX_BUSY_PAUSE: Final = 0.5
_FAR: Final = 1 << 53
"""Times less than this many seconds from the epoch fit into a header's 64 bits as milliseconds."""
_NO_STATISTICS: Final = "java.util.NoSuchElementException"


async def max_offset(
    instance: ClientInstance, queue: MessageQueue, *, any_replica: bool = True, timeout: float | None = None
) -> int:
    """Return the offset after the last readable message of a queue. A message that was stored a moment ago may not be readable yet.

    The arguments have the same meaning in the functions below.

    Args:
        any_replica: Whether to ask a replica, which may lack acknowledged messages, if no master is known. If False,
            BrokerNotFoundError is raised instead.
        timeout: Maximum seconds. The default is ``request_timeout``.
    """
    header = headers.GetMaxOffsetRequestHeader(topic=queue.topic, queueId=queue.queue_id, bname=queue.broker_name)
    return (await _ask(instance, queue, header, headers.GetMaxOffsetResponseHeader, any_replica, timeout)).offset


async def until_readable(
    instance: ClientInstance, broker_name: str, topic: str, *, any_replica: bool = True, timeout: float | None = None
) -> bool:
    """Wait until all messages that the broker acknowledged before this call can be read, and return True.

    Return False if this takes longer than ``timeout`` seconds (the default is ``request_timeout``).

    A broker acknowledges a message when it is in the commit log, and adds it to its queue a moment later (measured on 5.5.0: half
    of the ``max_offset`` requests right after an acknowledged send do not count its message, with and without their ``committed``
    field). Only the runtime information shows how far behind the queues are. A request for it costs the broker 60 ms, so use this
    function only before the first read of a queue. In its first second, a broker has no runtime information and returns an error
    (5.5.0 and 4.9.7). The request is then repeated, as for a busy broker. If any other response lacks this information, the
    messages are considered readable.
    """
    longest = instance.config.request_timeout
    patience = longest if timeout is None else timeout
    deadline = machine.monotonic() + patience
    backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
    wanted = latest = None
    behind: int | str = "an unknown number of"
    while (left := deadline - machine.monotonic()) > 0:
        command = RemotingCommand(code=RequestCode.GET_BROKER_RUNTIME_INFO)
        response, address = await instance.ask_broker(broker_name, topic, command, min(left, longest), any_replica=any_replica)
        starting = response.code == ResponseCode.SYSTEM_ERROR and _NO_STATISTICS in (response.remark or "")
        if starting or response.code == ResponseCode.SYSTEM_BUSY:
            await asyncio.sleep(_MAX_PAUSE)
            continue
        try:
            table = decode_body(KVTable, response.body).table if response.code == ResponseCode.SUCCESS else {}
            end, gap = int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"])
        except (KeyError, ValueError, RemoteProtocolError):
            logger.debug("broker %s does not report how far behind its queues are: code %d", address, response.code)
            return True
        if gap <= 0 or (wanted is not None and latest is not None and latest - gap >= wanted):
            return True
        wanted = end if wanted is None else wanted
        latest, behind = end, gap
        await asyncio.sleep(backoff.next())
    logger.warning(
        "the newest messages of broker %s cannot be read yet: after %.3g s its queues are %s bytes behind its commit log; read "
        "again later, or check the broker's load",
        broker_name,
        patience,
        behind,
    )
    return False


async def min_offset(
    instance: ClientInstance, queue: MessageQueue, *, any_replica: bool = True, timeout: float | None = None
) -> int:
    """Return the offset of the first message of a queue that is not deleted. Return the end of the queue if there is none."""
    header = headers.GetMinOffsetRequestHeader(topic=queue.topic, queueId=queue.queue_id, bname=queue.broker_name)
    return (await _ask(instance, queue, header, headers.GetMinOffsetResponseHeader, any_replica, timeout)).offset


async def search_offset(
    instance: ClientInstance, queue: MessageQueue, when: float | datetime, *, upper: bool = False, any_replica: bool = True
) -> int:
    """Return the offset of the first message that was stored at ``when`` or later. Return the end of the queue if there is none.

    The result does not depend on the broker's version (see ``first_at_or_after``).

    Args:
        when: Epoch seconds or an aware datetime.
        upper: If True, return the offset of the last message that was stored at ``when`` or earlier instead. If there is none,
            return the offset of the first message.
    """
    time_ms = epoch_ms(when)
    header = headers.SearchOffsetRequestHeader(
        topic=queue.topic,
        queueId=queue.queue_id,
        timestamp=time_ms,
        boundaryType=headers.BoundaryType.UPPER if upper else headers.BoundaryType.LOWER,
        bname=queue.broker_name,
    )
    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    response, address = await _request(instance, queue, code, {**headers.to_ext(header)}, any_replica)
    found = _read(headers.SearchOffsetResponseHeader, response, queue, address).offset
    low = await min_offset(instance, queue, any_replica=any_replica)
    if response.version >= EXACT_FROM:
        return max(found, low)
    high = await max_offset(instance, queue, any_replica=any_replica)
    wanted = time_ms + 1 if upper else time_ms
    times: dict[int, int] = {}

    async def late(offset: int) -> bool:
        if offset not in times:
            timeout = instance.config.request_timeout
            times[offset] = await store_time_ms(instance, queue, offset, timeout, any_replica=any_replica)
        return times[offset] >= wanted

    first = await first_at_or_after(low, high, found, late)
    return max(first - 1, low) if upper else first


async def earliest_store_time_ms(instance: ClientInstance, queue: MessageQueue) -> int:
    """Return the store time of the first message in epoch ms. Return -1 for an empty queue."""
    fields: dict[str, str | None] = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}
    response, address = await _request(instance, queue, RequestCode.GET_EARLIEST_MSG_STORETIME, fields)
    text = (response.ext_fields or {}).get("timestamp") or ""
    if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII):
        problem = f"GET_EARLIEST_MSG_STORETIME: the timestamp in the response must be milliseconds, not {text[:40]!r}"
        raise RemoteProtocolError(problem, broker=queue.broker_name, address=address)
    return int(text)


async def committed_offset(
    instance: ClientInstance, group: str, queue: MessageQueue, *, any_replica: bool = True
) -> int | None:
    """Return the offset that the broker keeps for ``group``. Return None if it keeps none.

    Brokers before 5.0 return 0 if they keep no offset and the first message is not deleted. A second request then asks which groups
    have offsets for the topic. Therefore 0 is still returned for a group that has an offset only for another queue.

    Args:
        any_replica: As for ``max_offset``. A replica may have an old offset, or none.
    """
    header = headers.QueryConsumerOffsetRequestHeader(
        consumerGroup=group, topic=queue.topic, queueId=queue.queue_id, setZeroIfNotFound=False, bname=queue.broker_name
    )
    try:
        code = RequestCode.QUERY_CONSUMER_OFFSET
        response, address = await _request(instance, queue, code, {**headers.to_ext(header)}, any_replica)
    except QueryNotFoundError:
        return None
    offset = _read(headers.QueryConsumerOffsetResponseHeader, response, queue, address).offset
    if offset == 0 and response.version < _DISTINGUISHES_NONE_FROM:
        fields: dict[str, str | None] = {"topic": queue.topic}
        response, _ = await _request(instance, queue, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, fields, any_replica)
        if group not in decode_body(GroupList, response.body).group_list:
            return None
    return offset


async def commit_offset(instance: ClientInstance, group: str, queue: MessageQueue, offset: int) -> None:
    """Store ``offset`` for ``group`` on the broker's master. Return after its response, within ``request_timeout``.

    A replica would also accept the offset, but would then lose it, because a replica takes over the offsets of its master.

    Of several concurrent commits for a group and topic, the first one is sent alone (see ``first_commits``). A broker creates a
    group at the first heartbeat that names the group, and handles that heartbeat concurrently with later requests. If the broker
    does not know the group yet, the commit is repeated after the response to the heartbeat.
    """
    deadline = machine.monotonic() + instance.config.request_timeout
    header = headers.UpdateConsumerOffsetRequestHeader(
        consumerGroup=group, topic=queue.topic, queueId=queue.queue_id, commitOffset=offset, bname=queue.broker_name
    )
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    fields: dict[str, str | None] = {**headers.to_ext(header)}

    def left() -> float:
        return max(deadline - machine.monotonic(), 0.0)

    async def send() -> None:
        try:
            await _request(instance, queue, code, fields, any_replica=False, timeout=left(), again=False)
        except SubscriptionGroupNotExistError as error:
            if group not in instance.heartbeats.consumer_groups or error.address is None:
                raise
            await instance.heartbeats.wait_answer(error.address, left())
            await _request(instance, queue, code, fields, any_replica=False, timeout=left(), again=False)

    await instance.first_commits.commit((group, queue.topic, queue.broker_name), send, deadline)


def epoch_ms(when: float | datetime) -> int:
    """Return epoch seconds or an aware datetime as milliseconds since the epoch.

    Raises:
        ConfigError: If ``when`` is anything else, or is 2^53 seconds or more before or after the epoch.
    """
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise ConfigError(
                f"a time must be an aware datetime, but {when.isoformat()} has no time zone; give it a tzinfo such as UTC"
            )
        return round(when.timestamp() * 1000)
    if isinstance(when, bool) or not isinstance(when, int | float) or not -_FAR < when < _FAR:  # NaN is neither
        raise ConfigError(
            f"a time must be epoch seconds between -2**53 and 2**53, exclusive, or an aware datetime, not {shown(when)}"
        )
    return round(when * 1000)


def check_queue(queue: MessageQueue) -> MessageQueue:
    """Return ``queue`` as a MessageQueue.

    Raises:
        ConfigError: If ``queue`` is not a tuple of topic, broker name and an id from 0 to 2^31 - 1.
    """
    if isinstance(queue, tuple) and len(queue) == 3:
        topic, broker_name, queue_id = queue
        if (
            isinstance(topic, str)
            and isinstance(broker_name, str)
            and isinstance(queue_id, int)
            and 0 <= queue_id < _NO_QUEUE_ID
        ):
            if (
                isinstance(queue, MessageQueue)
                and topic.__class__ is broker_name.__class__ is str
                and queue_id.__class__ is int
            ):
                return queue
            return MessageQueue(plain(topic), plain(broker_name), int(queue_id))
    raise ConfigError(
        f"a queue must be a MessageQueue of topic, broker name and an id from 0 to {_NO_QUEUE_ID - 1}, not {shown(queue)}"
    )


async def known_queue(instance: ClientInstance, queue: MessageQueue) -> MessageQueue:
    """Return ``queue`` with the name of its topic on the wire, after checking that the topic's route contains the queue.

    Brokers do not check this: they respond to requests for a queue that they do not have as if the queue were empty.

    Raises:
        TopicNotFoundError: If the topic is unknown.
        InvalidMessageError: If the topic name is invalid.
        BrokerNotFoundError: If the topic is not on the queue's broker.
        ConfigError: If the queue id is above the last one, or if ``queue`` is not a queue.
        NameServerError: If no name server gives a usable response.
    """
    queue = instance.names.wire_queue(check_queue(queue))
    check_topic(queue.topic)
    route = instance.routes.cached(queue.topic)
    if route is None or route.provisional or not _has(route, queue):
        route = await instance.routes.fetch(queue.topic, instance.config.request_timeout)
    if _has(route, queue):
        return queue
    counts = {data.broker_name: max(data.read_queue_nums, data.write_queue_nums) for data in route.data.queue_datas}
    if route.holders:  # a static topic: its queues name a logical broker
        counts = {each.broker_name: each.queue_id + 1 for each in sorted(route.holders)}
    topic, broker_name, queue_id = instance.names.display_name(queue.topic), queue.broker_name, queue.queue_id
    if broker_name not in counts:
        where = printable(", ".join(sorted(counts)))
        raise BrokerNotFoundError(
            f"topic {topic} is not on broker {printable(broker_name)}, but on {where}; pass one of its queues there",
            broker=broker_name,
        )
    count = counts[broker_name]
    there = f"only queues 0 to {count - 1}" if count else "nor any other queue; pass a queue of another broker"
    raise ConfigError(f"topic {topic} has no queue {queue_id} on broker {printable(broker_name)}, {there}")


def _has(route: TopicRoute, queue: MessageQueue) -> bool:
    for data in route.data.queue_datas:
        if data.broker_name == queue.broker_name:
            return queue.queue_id < max(data.read_queue_nums, data.write_queue_nums)
    return queue in route.subscribe_queues


async def _ask(
    instance: ClientInstance,
    queue: MessageQueue,
    header: headers.Header,
    answer: type[H],
    any_replica: bool,
    timeout: float | None = None,
) -> H:
    assert header.request_code is not None
    code = RequestCode(header.request_code)
    response, address = await _request(instance, queue, code, {**headers.to_ext(header)}, any_replica, timeout)
    return _read(answer, response, queue, address)


def _read(answer: type[H], response: RemotingCommand, queue: MessageQueue, address: str) -> H:
    try:
        return headers.from_ext(answer, response.ext_fields)
    except RemoteProtocolError as error:
        error.broker, error.address = queue.broker_name, address
        raise


async def _request(
    instance: ClientInstance,
    queue: MessageQueue,
    code: RequestCode,
    fields: dict[str, str | None],
    any_replica: bool = True,
    timeout: float | None = None,
    *,
    again: bool = True,
) -> tuple[RemotingCommand, str]:
    """Return the response of the queue's broker, and the broker's address.

    Args:
        again: Whether to repeat the request within its timeout while the broker is busy, for example because it has just started.
    """
    command = RemotingCommand(code=code, ext_fields=fields)
    deadline = machine.monotonic() + (instance.config.request_timeout if timeout is None else timeout)
    pauses = Backoff(_FIRST_BUSY_PAUSE, _MAX_BUSY_PAUSE)
    while True:
        holder = await instance.holder_of(queue, max(deadline - machine.monotonic(), 0.0))
        left = max(deadline - machine.monotonic(), 0.0)
        response, address = await instance.ask_broker(holder, queue.topic, command, left, any_replica=any_replica)
        if response.code == ResponseCode.SUCCESS:
            return response, address
        try:
            raise broker_error(response.code, response.remark, request=code.name, broker=queue.broker_name, address=address)
        except BrokerError as error:
            pause = pauses.next()
            if not again or not error.backs_off or machine.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)


# Search for an offset by time on brokers before 5.1.1, whose responses are inexact.
#
# Such a broker returns the message that was stored *nearest* to the time, before or after it. Of several messages that were stored
# in the same millisecond, it returns any one. Its response is only a hint: from there, an exponential and then a binary search
# reads the store times of messages. The search mostly takes two or three pulls of one message.

EXACT_FROM: Final = 435
"""``MQVersion.V5_1_1``: the first version that finds the first message at or after a time, and supports ``boundaryType``."""

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group that every broker has for tools (``MixAll.TOOLS_CONSUMER_GROUP``)."""


_DELETED: Final = frozenset({ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED})
"""The response codes for a deleted message. PULL_OFFSET_MOVED is also the code for a message that never existed."""


async def first_at_or_after(low: int, high: int, hint: int, late: Callable[[int], Awaitable[bool]]) -> int:
    """Return the first offset from ``low`` to ``high`` for which ``late(offset)`` is true. Return ``high`` if there is none below
    it.

    If ``late`` is true for an offset, it must be true for all higher offsets. It is not called for ``high``.

    Args:
        hint: The first offset to try.
    """
    step = 1
    probe = min(max(hint, low), high - 1)
    if low >= high:
        return high
    if await late(probe):
        high = probe
        while low < high:
            probe = max(low, high - step)
            if not await late(probe):
                low = probe + 1
                break
            high, step = probe, step * 2
    else:
        low = probe + 1
        while low < high:
            probe = min(high - 1, low + step - 1)
            if await late(probe):
                high = probe
                break
            low, step = probe + 1, step * 2
    while low < high:
        probe = (low + high) // 2
        if await late(probe):
            high = probe
        else:
            low = probe + 1
    return high


async def store_time_ms(
    instance: ClientInstance, queue: MessageQueue, offset: int, timeout: float, *, any_replica: bool = True
) -> int:
    """Return the store time of the message at ``offset`` in epoch ms.

    Return -1 if the message is deleted (even if the broker has not yet updated the queue's minimum offset), or if the response
    contains another message.

    Args:
        timeout: Seconds for the request.

    Raises:
        BrokerError: If the broker returns an error.
        RemoteProtocolError: If the record cannot be read.
        RocketMQError: Other errors of ``ClientInstance.ask_broker``.
    """
    header = headers.PullMessageRequestHeader(
        consumerGroup=TOOLS_GROUP,
        topic=queue.topic,
        queueId=queue.queue_id,
        queueOffset=offset,
        maxMsgNums=1,
        sysFlag=PullSysFlag.SUBSCRIPTION,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription="*",
        subVersion=0,
        expressionType="TAG",
        bname=queue.broker_name,
    )
    command = headers.request_of(header)
    response, address = await instance.ask_broker(
        instance.routes.broker_of(queue), queue.topic, command, timeout, any_replica=any_replica
    )
    if response.code in _DELETED:
        low = headers.from_ext(headers.PullMessageResponseHeader, response.ext_fields).minOffset
        if offset < low or response.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            return -1
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark, request="PULL_MESSAGE", broker=queue.broker_name, address=address)
    delta = headers.from_ext(headers.PullMessageResponseHeader, response.ext_fields).offsetDelta
    messages = decode_messages(response.body, check_crc=False).messages
    if not messages:
        text = f"the record at offset {offset} of {queue} cannot be read, so its store time is unknown"
        raise RemoteProtocolError(text, broker=queue.broker_name, address=address)
    found = messages[0]
    own = found.topic == queue.topic and (delta is not None or found.queue.queue_id == queue.queue_id)
    return found.store_time_ms if own and found.queue_offset + (delta or 0) == offset else -1
