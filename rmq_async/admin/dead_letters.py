"""Reads the dead letters of a group from its ``%DLQ%`` topic, and sends them to their original topics again.

The offset of the group TOOLS_CONSUMER in the ``%DLQ%`` topic records which dead letters were sent again or skipped. Every
broker has this group, for use by tools.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, DLQ_TOPIC_PREFIX, ResponseCode
from rmq_protocol.forwarding import original_topic
from rmq_protocol.headers import PullMessageResponseHeader, SendMessageRequestHeaderV2, from_ext, request_of
from rmq_protocol.java_types import string_hash
from rmq_protocol.lite import consistent_hash
from rmq_protocol.message import Message, MessageExt, MessageQueue
from rmq_protocol.properties import message_properties
from rmq_protocol.pull_codec import pull_header
from rmq_protocol.stored import decode_pull

from .. import client, machine
from .._text import printable
from ..broker_answers import broker_error
from ..errors import CorruptMessageError, RocketMQError, TopicNotFoundError

logger = logging.getLogger(__name__)

PULL_SIZE: Final = 32
_ANY_QUEUE: Final = -1
"""The queue id that lets the broker choose a queue."""
_PULLED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


async def read(instance: client.ClientInstance, group: str, limit: int, timeout: float) -> tuple[MessageExt, ...]:
    """Implement ``Admin.dead_letters``.

    Args:
        timeout: Seconds for each request.
    """
    found: list[MessageExt] = []
    for queue in await _queues(instance, group, machine.monotonic() + timeout):
        offset: int | None = await _begin(instance, queue)
        while offset is not None and len(found) < limit:
            pulled = await _pull(instance, queue, offset, limit - len(found), machine.monotonic() + timeout)
            if pulled.damaged is not None:
                raise pulled.damaged
            found += pulled.messages
            offset = pulled.after
    return tuple(found)


class Skipped(NamedTuple):
    """The letters to skip: letters of ``topics`` (names on the wire) and, if ``damaged`` is True, letters that cannot
    be read.
    """

    topics: Collection[str]
    damaged: bool


async def resend(instance: client.ClientInstance, group: str, limit: int | None, skipped: Skipped, timeout: float) -> int:
    """Implement ``Admin.resend_dead_letters``.

    Args:
        timeout: Seconds for each pull and each send.
    """
    run = _Resend(instance, group, limit, skipped, timeout)
    for queue in await _queues(instance, group, machine.monotonic() + timeout):
        await run.queue(queue)
    run.report()
    return run.sent


async def forget(instance: client.ClientInstance, group: str, brokers: Collection[str], deadline: float) -> None:
    """Reset the position up to which letters were sent to 0 on ``brokers``, before the dead-letter topic is deleted.

    Brokers before 5.0 keep the offsets of a deleted topic. Without the reset, the first letters of a new group with the same
    name would count as sent.
    """
    for queue in await _queues(instance, group, deadline):
        if queue.broker_name in brokers and await client.committed_offset(instance, client.TOOLS_GROUP, queue):
            await client.commit_offset(instance, client.TOOLS_GROUP, queue, 0)


class _Resend:
    """One call of ``resend``.

    Attributes:
        sent: Number of letters that were sent.
    """

    def __init__(
        self, instance: client.ClientInstance, group: str, limit: int | None, skipped: Skipped, timeout: float
    ) -> None:
        self._instance = instance
        self._group = group
        self._shown = printable(instance.names.display_name(group))
        self._limit = limit
        self._skipped = skipped
        self._timeout = timeout
        self._passed: Counter[str] = Counter()
        """Number of letters that were skipped, by the option that caused it."""
        self.sent = 0

    async def queue(self, queue: MessageQueue) -> None:
        offset: int | None = await _begin(self._instance, queue)
        # messages that fail again during this call are left to the next call
        end = await client.max_offset(self._instance, queue)
        alone = 0  # below this offset, letters are pulled one by one, because a damaged letter may hide the letters around it
        while offset is not None and offset < end and (self._limit is None or self.sent < self._limit):
            size = min(end - offset, PULL_SIZE if self._limit is None else min(self._limit - self.sent, PULL_SIZE))
            if offset < alone:
                size = 1
            pulled = await _pull(self._instance, queue, offset, size, machine.monotonic() + self._timeout)
            if pulled.damaged is not None and size > 1:
                alone = offset + size
                continue
            for message in pulled.messages:
                await self._letter(queue, message)
            if pulled.damaged is None:
                offset = pulled.after
            else:
                offset = await self._damaged(queue, offset, pulled.after or offset + 1, pulled.damaged)

    async def _letter(self, queue: MessageQueue, message: MessageExt) -> None:
        passed = original_topic(message.topic, message.properties) in self._skipped.topics
        if not passed:
            try:
                await _send(self._instance, self._group, message, machine.monotonic() + self._timeout)
            except RocketMQError as error:
                error.add_note(self._stuck(message, error))
                raise
        await client.commit_offset(self._instance, client.TOOLS_GROUP, queue, message.queue_offset + 1)
        if passed:
            self._passed["skip_topics"] += 1
        else:
            self.sent += 1

    async def _damaged(self, queue: MessageQueue, offset: int, after: int, error: CorruptMessageError) -> int:
        """Skip the damaged letter at ``offset`` and return ``after``. Raise ``error`` if ``skip_damaged`` is not set."""
        place = f"offset {offset} of queue {queue.queue_id} on broker {printable(queue.broker_name)}"
        if not self._skipped.damaged:
            error.add_note(
                f"{self.sent} dead letters were sent before the damaged one at {place}, which the next call begins with; to skip "
                "damaged letters, give skip_damaged=True (rmq group resend --skip-damaged)"
            )
            raise error
        await client.commit_offset(self._instance, client.TOOLS_GROUP, queue, after)
        self._passed["skip_damaged"] += 1
        text = "group %s: the dead letter at %s is damaged; it was skipped: %s"
        logger.warning(text, self._shown, place, printable(error, 300))
        return after

    def report(self) -> None:
        text = "group %s: %d dead letters were skipped because of %s; they stay in the dead-letter topic"
        for option, count in self._passed.items():
            logger.warning(text, self._shown, count, option)

    def _stuck(self, message: MessageExt, error: RocketMQError) -> str:
        """Return the note for an error that has ended a call."""
        text = f"{self.sent} dead letters were sent before {printable(message.msg_id)}, which the next call begins with"
        if not isinstance(error, TopicNotFoundError):
            return text
        topic = printable(self._instance.names.display_name(original_topic(message.topic, message.properties)))
        return f"{text}; to skip the letters of topic {topic}, give skip_topics (rmq group resend --skip-topic)"


async def _queues(instance: client.ClientInstance, group: str, deadline: float) -> list[MessageQueue]:
    """Return the queues of the dead-letter topic. Return an empty list if the group has no dead letters yet."""
    try:
        route = await instance.routes.fetch(DLQ_TOPIC_PREFIX + group, max(deadline - machine.monotonic(), 0.0))
    except TopicNotFoundError:
        return []
    counts = {data.broker_name: max(data.read_queue_nums, data.write_queue_nums) for data in route.data.queue_datas}
    return [MessageQueue(route.topic, name, number) for name, count in sorted(counts.items()) for number in range(count)]


async def _begin(instance: client.ClientInstance, queue: MessageQueue) -> int:
    """Return the offset after the dead letters that were sent again or skipped, or the first offset of the queue if that is
    higher.

    If the queue ends below that offset, the topic was created again and its letters have new offsets, so return the first
    offset. Do not trust the end while the broker starts, because its queues appear late. Do not trust the end from a replica,
    because replicas may lag.
    """
    first = await client.min_offset(instance, queue)
    sent = await client.committed_offset(instance, client.TOOLS_GROUP, queue) or 0
    if sent <= first or sent <= await client.max_offset(instance, queue) or not await client.has_master(instance, queue):
        return max(sent, first)
    readable = await client.until_readable(instance, queue.broker_name, queue.topic, any_replica=False)
    end = await client.max_offset(instance, queue, any_replica=False)
    if sent <= end or not readable:
        return sent
    logger.error(
        "%s ends at offset %d, and dead letters were sent again up to %d: its broker's store was replaced by an older one, or a "
        "replica that was behind has become the master; all letters from offset %d on count as unsent, although some were sent",
        printable(str(queue), 300), end, sent, first,
    )  # fmt: skip
    return first


class _Pulled(NamedTuple):
    """The outcome of one pull.

    Attributes:
        damaged: The error of a letter that cannot be read.
        after: The offset to continue at. It is None at the end of the queue, or if the broker does not return an offset above
            the requested one.
    """

    messages: tuple[MessageExt, ...]
    damaged: CorruptMessageError | None
    after: int | None


async def _pull(instance: client.ClientInstance, queue: MessageQueue, offset: int, size: int, deadline: float) -> _Pulled:
    if offset >= await client.max_offset(instance, queue):
        return _Pulled((), None, None)
    response, address = await _answer(instance, queue, offset, min(size, PULL_SIZE), deadline)
    if response.code not in _PULLED:
        raise broker_error(response.code, response.remark, request="PULL_MESSAGE", broker=queue.broker_name, address=address)
    after = max(from_ext(PullMessageResponseHeader, response.ext_fields).nextBeginOffset, offset)
    messages: tuple[MessageExt, ...] = ()
    damaged = None
    if response.code == ResponseCode.SUCCESS:
        size_limit = instance.config.max_decompressed_size
        decoded = decode_pull(response.body, queue, max_decompressed_size=size_limit, allow_partial=True)
        messages = tuple(each for each in decoded.messages if each.queue_offset >= offset)
        damaged = decoded.corrupt[0] if decoded.corrupt else None
        if decoded.resume_at is not None:
            after = decoded.resume_at
    return _Pulled(messages, damaged, after if after > offset else None)


async def _answer(
    instance: client.ClientInstance, queue: MessageQueue, offset: int, size: int, deadline: float
) -> tuple[RemotingCommand, str]:
    """Pull up to ``size`` letters. Halve the number while the response exceeds ``max_frame_size``.

    Return the response and the broker's address.
    """
    sizes = instance.pull_sizes
    while True:
        asked = sizes.limit(queue, size)
        header = pull_header(client.TOOLS_GROUP, queue.topic, queue.queue_id, queue.broker_name, "*", 0, offset, asked)
        command = request_of(header)
        timeout = max(deadline - machine.monotonic(), 0.0)
        try:
            response, address = await instance.ask_broker(queue.broker_name, queue.topic, command, timeout, any_replica=True)
        except RocketMQError as error:
            if client.too_large_frame(error) is None or not sizes.lower(queue, asked):
                error.add_note(f"this was a pull of {asked} dead letters at offset {offset} of {queue}")
                raise
        else:
            sizes.answered(queue, asked, len(response.body))
            return response, address


async def _send(instance: client.ClientInstance, group: str, received: MessageExt, deadline: float) -> None:
    """Send a copy to the topic that the message was first sent to, with its id.

    The sharding key or the lite topic determines the queue, as in producers. Without them, the broker chooses the queue.
    """
    message = Message.from_received(received)
    route = await instance.routes.fetch(message.topic, max(deadline - machine.monotonic(), 0.0))
    if not (usable := route.reachable_queues):
        raise TopicNotFoundError(
            f"topic {instance.names.display_name(message.topic)} has no queue to write to; give it queues with "
            "write permission on a broker whose master runs"
        )
    if message.sharding_key is not None:
        queues = route.publish_queues
        queue = queues[abs(string_hash(message.sharding_key)) % len(queues)]  # the queue that has the other messages of the key
        queue_id = queue.queue_id
    elif message.lite_topic is not None:
        queue = usable[consistent_hash(string_hash(message.lite_topic), len(usable))]  # as producers and subscribers choose it
        queue_id = queue.queue_id
        await _check_lite(instance, queue, deadline)
    else:
        queue = next((each for each in usable if route.broker_of(each) == received.queue.broker_name), usable[0])
        queue_id = queue.queue_id if route.holders else _ANY_QUEUE  # brokers of a static topic require an explicit queue id
    holder, broker = route.broker_of(queue), queue.broker_name
    properties = message_properties(message, received.unique_id or received.offset_msg_id)
    body, sys_flag = await client.body_as_stored(instance, received, deadline)
    header = SendMessageRequestHeaderV2(
        a=group, b=message.topic, c=AUTO_CREATE_TOPIC_KEY, d=4, e=queue_id, f=sys_flag, g=round(machine.time() * 1000),
        h=message.flag, i=properties, j=0, k=False, l=None, m=False, n=broker,
    )  # fmt: skip
    command = request_of(header, body=body)
    response, address = await instance.ask_broker(holder, message.topic, command, max(deadline - machine.monotonic(), 0.0))
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark, request="SEND_MESSAGE_V2", broker=broker, address=address)


async def _check_lite(instance: client.ClientInstance, queue: MessageQueue, deadline: float) -> None:
    """Check that the queue's broker serves lite topics, which a broker that does not would confirm all the same."""
    left = max(deadline - machine.monotonic(), 0.0)
    address = await instance.broker_address(queue.broker_name, queue.topic, left)
    await instance.pool.connect(address, left)
    if (connection := instance.pool.get(address)) is not None:
        await instance.lite_support.check(connection, queue.topic, deadline)
