"""Offsets of consumer groups: their values, and resets by time, by offset, or to the offsets of another group.

A broker resets offsets in one of two ways. A broker of 5.2.0 or later, unless ``useServerSideResetOffset`` is off, stores the new
offsets and returns them to the members' next pulls. An older broker resets by time only, and sends the new offsets to the connected
members. If no member is connected, it responds with code 206, and the admin commits the new offsets, as mqadmin does.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal

from rmq_protocol import headers
from rmq_protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RETRY_TOPIC_PREFIX, Perm, RequestCode, ResponseCode
from rmq_protocol.errors import shown
from rmq_protocol.heartbeat import MessageModel
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.pop import pop_retry_topic, pop_retry_topic_v1
from rmq_protocol.validation import plain

from .. import client, machine
from .._asyncio import for_each
from .._text import printable
from ..errors import ConfigError, RocketMQError, SubscriptionGroupNotExistError
from .clients import consumers, lags_in
from .groups import check_exists, check_offline, is_online
from .requests import ask, ask_at, brokers_of, check, cluster_info, everywhere, masters_of
from .results import ConsumerConnections, GroupLag, OffsetChange, QueueLag

logger = logging.getLogger(__name__)

Target = int | Literal["earliest", "latest"] | datetime | Mapping[MessageQueue, int]

_BY_SERVER_FROM: Final = 453
"""The lowest version of brokers that can reset offsets themselves (``MQVersion.V5_2_0``)."""
_BY_SERVER: Final = re.compile(r"^\s*useServerSideResetOffset\s*=\s*true\s*$", re.MULTILINE)
_NO_OFFSET: Final = "not exist"
"""Part of the remark with which a broker before 5.2 reports that a group has no offset in a queue."""
_MEMBERS_TIME: Final = 15.0
_FIRST_LOOK: Final = 0.05
_LOOK_EVERY: Final = 1.0
"""Seconds between two reads of the offsets after a reset: the first pause, and the maximum."""
_AT_ONCE: Final = 16


async def lag(instance: client.ClientInstance, group: str, topic: str | None, deadline: float) -> GroupLag:
    """Implement ``Admin.group_lag``."""
    brokers = masters_of(await cluster_info(instance, deadline))
    asked: list[str | None] = [topic, RETRY_TOPIC_PREFIX + group, *_of_pops(topic, group)] if topic is not None else [None]
    members = await _members(instance, group, deadline) if topic is None else None
    if members is not None:
        asked += await _unreadable_topics(instance, members, deadline)
    found = await _consume_stats(instance, group, asked, brokers, deadline)
    if not any(topic in (None, queue.topic) for queue in found):  # if only retry topics were found, the topic may be misspelled
        if topic is not None:
            members = await _members(instance, group, deadline)
        of_topic = "" if topic is None else f" for topic {instance.names.display_name(topic)}"
        what = f"group {instance.names.display_name(group)} has no offsets{of_topic} on {', '.join(brokers)}"
        raise SubscriptionGroupNotExistError(f"{what}{_why_none(members, topic)}", request=RequestCode.GET_CONSUME_STATS.name)
    if not any(each.committed for each in found.values()):  # brokers also return 0 if no group has this name
        await check_exists(instance, group, deadline)
    await _warn_above_end(instance, group, found)
    found |= await _closed_retry_queues(instance, group, found, deadline)
    retries = {queue for queue in found if queue.topic.startswith(RETRY_TOPIC_PREFIX)}
    shown_queue = instance.names.shown_queue
    return GroupLag(
        {shown_queue(queue): found[queue] for queue in sorted(found.keys() - retries)},
        {shown_queue(queue): found[queue] for queue in sorted(retries)},
    )


async def _warn_above_end(instance: client.ClientInstance, group: str, found: Mapping[MessageQueue, QueueLag]) -> None:
    """Log the queues that end below the group's offset. Their lag is 0 even if they have messages that the group did
    not get.
    """
    for queue, each in found.items():
        if each.committed > each.end:  # can also happen if a member commits while the broker reads both values
            end = await client.max_offset(instance, queue, any_replica=False)
            if each.committed > end:
                logger.warning(
                    "%s ends at offset %d, below the offset %d of group %s: its broker's store was replaced by an older one, or a "
                    "replica that was behind has become the master; a member that starts skips the messages that were stored "
                    "after the loss and before its start; to read them, reset the group's offsets to a time before the loss",
                    instance.names.shown_queue(queue), end, each.committed, printable(instance.names.display_name(group)),
                )  # fmt: skip


async def _consume_stats(
    instance: client.ClientInstance, group: str, asked: Sequence[str | None], brokers: Mapping[str, str], deadline: float
) -> dict[MessageQueue, QueueLag]:
    """Return the progress of a group, as the brokers report it.

    Args:
        asked: Names of topics on the wire. None stands for all topics for which the group has offsets.
    """
    found: dict[MessageQueue, QueueLag] = {}
    for each in asked:
        command = headers.request_of(headers.GetConsumeStatsRequestHeader(consumerGroup=group, topic=each))
        for response in (await everywhere(instance, brokers, command, deadline)).values():
            found |= lags_in(response.body)
    return found


async def _members(instance: client.ClientInstance, group: str, deadline: float) -> ConsumerConnections | None:
    """Return the members of a group. Return None if the group has no members, or if the user may see offsets but not
    members.
    """
    try:
        return await consumers(instance, group, deadline)
    except RocketMQError:
        return None


async def _unreadable_topics(instance: client.ClientInstance, members: ConsumerConnections, deadline: float) -> list[str]:
    """Return the topics to which members subscribe, but which they may not read on at least one broker.

    They must be requested by name: a response for all topics lacks those for which the group has no offsets.
    """
    found: list[str] = []
    for shown_topic in members.subscriptions:
        if not shown_topic.startswith(RETRY_TOPIC_PREFIX):
            topic = instance.names.wire(shown_topic)
            with suppress(RocketMQError):
                route = await instance.routes.fetch(topic, max(deadline - machine.monotonic(), 0.0))
                if any(not data.perm & Perm.READ for data in route.data.queue_datas):
                    found.append(topic)
    return found


async def _closed_retry_queues(
    instance: client.ClientInstance, group: str, found: Mapping[MessageQueue, QueueLag], deadline: float
) -> dict[MessageQueue, QueueLag]:
    """Return the retry queues that hold failed messages but are missing from the group's retry topic.

    They exist if the group's settings have more retry queues than the retry topic. No member reads them. Empty queues are left
    out.
    """
    topic = RETRY_TOPIC_PREFIX + group
    numbers: dict[str, int] = {}
    for queue in found:
        if queue.topic == topic:
            numbers[queue.broker_name] = max(numbers.get(queue.broker_name, 0), queue.queue_id + 1)
    closed: dict[MessageQueue, QueueLag] = {}
    for broker, number in numbers.items():
        for queue_id in range(number, await _retry_queues(instance, group, broker, topic, deadline)):
            queue = MessageQueue(topic, broker, queue_id)
            if end := await client.max_offset(instance, queue, any_replica=False):
                closed[queue] = QueueLag(await client.committed_offset(instance, group, queue) or 0, end, 0, 0)
    return closed


async def _retry_queues(instance: client.ClientInstance, group: str, broker: str, topic: str, deadline: float) -> int:
    """Return a group's ``retryQueueNums`` on a broker. Return 0 if the broker does not return it."""
    command = headers.request_of(headers.GetSubscriptionGroupConfigRequestHeader(group=group))
    response, _ = await instance.ask_broker(broker, topic, command, max(deadline - machine.monotonic(), 0.0))
    if response.code == ResponseCode.SUCCESS:
        return decode_body(SubscriptionGroupConfig, response.body).retry_queue_nums
    if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # such as the code for a user without permission
        return 0
    # brokers before 5.0 can only return the settings of all groups
    command = RemotingCommand(code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    response, _ = await instance.ask_broker(broker, topic, command, max(deadline - machine.monotonic(), 0.0))
    if response.code != ResponseCode.SUCCESS:
        return 0
    found = decode_body(SubscriptionGroupWrapper, response.body).subscription_group_table.get(group)
    return 0 if found is None else found.retry_queue_nums


def _why_none(found: ConsumerConnections | None, topic: str | None) -> str:
    """Return the end of an error message: why the group has no offsets, according to its members, and what to do."""
    if found is None:
        return "; check the names, and start a consumer: brokers do not know a member before its topic exists"
    ids = sorted({each.client_id for each in found.connections})
    members = f", though it has members: {printable(', '.join(ids[:3]))}"
    if found.message_model == MessageModel.BROADCASTING:
        return f"{members}; they broadcast and keep their positions themselves: call Consumer.lag() in each of them instead"
    topics = printable(", ".join(each for each in found.subscriptions if not each.startswith(RETRY_TOPIC_PREFIX)))
    if topic is not None and topic not in found.subscriptions:
        return f"{members}; they subscribe to {topics or 'no topic'}: name a topic from their subscriptions"
    return (
        f"{members}, subscribed to {topics or 'no topic'}; they have committed nothing yet, and do so within seconds once their "
        "topics exist: check the topics, and try again"
    )


def _of_pops(topic: str, group: str) -> tuple[str, str]:
    """Return the two possible names of the group's retry topic for messages popped from ``topic``. A broker's
    ``enableRetryTopicV2`` decides which of the two names it uses.
    """
    return pop_retry_topic_v1(topic, group), pop_retry_topic(topic, group)


# -- resets


async def reset(
    instance: client.ClientInstance, group: str, topic: str, to: Target, timeout: float, *, dry_run: bool
) -> tuple[OffsetChange, ...]:
    """Implement ``Admin.reset_offsets``.

    Args:
        timeout: Seconds for each request.
    """
    if isinstance(to, Mapping):
        to = {client.check_queue(queue): offset for queue, offset in to.items()}
    queues = await _queues(instance, topic, to, timeout)
    after = await for_each(queues, lambda queue: _target(instance, queue, to), at_once=_AT_ONCE)
    before = await for_each(queues, lambda queue: client.committed_offset(instance, group, queue), at_once=_AT_ONCE)
    changes = [OffsetChange(queue, before[queue], after[queue]) for queue in queues]
    if not any(each is not None for each in before.values()):  # 4.x brokers accept offsets of unknown groups and topics
        await check_exists(instance, group, machine.monotonic() + timeout)
    if not dry_run:
        changes = await _Reset(instance, group, topic, to, timeout).apply(changes)
    names = instance.names
    return tuple(OffsetChange(names.shown_queue(each.queue), each.before, each.after, each.verified) for each in changes)


async def _queues(instance: client.ClientInstance, topic: str, to: Target, timeout: float) -> list[MessageQueue]:
    route = await instance.routes.fetch(topic, timeout)
    if not isinstance(to, Mapping):
        return sorted(route.subscribe_queues)
    chosen = [await client.known_queue(instance, queue) for queue in to]
    for queue in chosen:
        if queue.topic != topic:
            raise ConfigError(
                f"queue {shown(tuple(instance.names.shown_queue(queue)))} does not belong to topic "
                f"{instance.names.display_name(topic)}, whose offsets are reset; leave it out"
            )
    return sorted(chosen)


async def _target(instance: client.ClientInstance, queue: MessageQueue, to: Target) -> int:
    """Return the new offset of a queue. It is not below the queue's first offset and not above its next offset."""
    if isinstance(to, datetime):
        return await client.search_offset(instance, queue, client.epoch_ms(to) / 1000)
    low, high = await client.min_offset(instance, queue), await client.max_offset(instance, queue)
    if to == "earliest":
        return low
    if to == "latest":
        return high
    given = to[instance.names.shown_queue(queue)] if isinstance(to, Mapping) else to
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        if isinstance(to, Mapping):
            of_queue = shown(tuple(instance.names.shown_queue(queue)))
            raise ConfigError(f"the offset for queue {of_queue} must be a non-negative integer, not {shown(given)}")
        raise ConfigError(
            f'to must be a non-negative offset, "earliest", "latest", an aware datetime or offsets by queue, not {shown(given)}'
        )
    return min(max(int(given), low), high)


class _Reset:
    """A reset of a group's offsets in one topic.

    Args:
        group: Name of the group on the wire.
        topic: Name of the topic on the wire.
    """

    def __init__(self, instance: client.ClientInstance, group: str, topic: str, to: Target, timeout: float) -> None:
        self._instance = instance
        self._group = group
        self._topic = topic
        self._to = to
        self._timeout = timeout

    def _deadline(self) -> float:
        return machine.monotonic() + self._timeout

    async def apply(self, changes: Sequence[OffsetChange]) -> list[OffsetChange]:
        """Reset the offsets, and read them again afterwards."""
        await self._reset(changes)
        verified = await self._look(changes)
        return [OffsetChange(each.queue, each.before, each.after, verified[each.queue]) for each in changes]

    async def _reset(self, changes: Sequence[OffsetChange]) -> None:
        route = await self._instance.routes.fetch(self._topic, self._timeout)
        for broker, address in brokers_of(route.data).items():
            of_broker = [each for each in changes if self._instance.routes.broker_of(each.queue) == broker]
            if not of_broker:
                continue
            timestamp = _timestamp_of(self._to)
            if timestamp is None:
                taken = await self.reset_by_offset(of_broker, broker, address)
            else:
                taken = await self._ask(broker, address, timestamp=timestamp)
            if not taken:  # no member is connected
                await for_each(of_broker, self._commit, at_once=_AT_ONCE)

    async def _commit(self, change: OffsetChange) -> None:
        await client.commit_offset(self._instance, self._group, change.queue, change.after)

    async def reset_by_offset(self, changes: Sequence[OffsetChange], broker: str, address: str) -> bool:
        """Set the new offset of each queue.

        Returns:
            False if the broker resets by time only and the group has no members. No offset is set in that case.

        Raises:
            ClientStateError: If the broker resets by time only and the group has members.
        """
        if not await _resets_by_server(self._instance, broker, address, self._deadline()):
            why = f"broker {broker} can reset the offsets of members by time only: stop them first, or give a time"
            await check_offline(self._instance, self._group, why, self._deadline())
            return False
        for each in changes:
            await self._ask(broker, address, queue_id=each.queue.queue_id, offset=each.after)
        return True

    async def _ask(
        self, broker: str, address: str, *, timestamp: int = 0, queue_id: int = -1, offset: int | None = None
    ) -> bool:
        """Send a reset to a broker.

        Returns:
            False if the broker knows no member to which it can send the offsets, or knows no offset of the group.
        """
        header = headers.ResetOffsetRequestHeader(
            group=self._group, topic=self._topic, queueId=queue_id, offset=offset, timestamp=timestamp, isForce=True
        )
        command = headers.request_of(header)
        response = await ask_at(self._instance, broker, address, command, self._deadline())
        if response.code == ResponseCode.CONSUMER_NOT_ONLINE or _NO_OFFSET in (response.remark or ""):
            return False
        check(response, command, broker, address)
        return True

    async def _look(self, changes: Sequence[OffsetChange]) -> dict[MessageQueue, bool]:
        """Read the group's offsets again, and return, by queue, whether the new offset has taken effect (``_shows``).

        Repeat this while the group has members, for up to 15 s, because members need up to ten seconds to commit the offsets
        that they receive.
        """
        until = machine.monotonic() + _MEMBERS_TIME
        pauses = look_pauses()
        found: dict[MessageQueue, bool] = {}
        while True:
            for each in changes:
                if not found.get(each.queue):
                    found[each.queue] = _shows(each, await client.committed_offset(self._instance, self._group, each.queue))
            if all(found.values()) or machine.monotonic() >= until or not await is_online(self._instance, self._group):
                return found
            await asyncio.sleep(next(pauses))


def look_pauses() -> Iterator[float]:
    """Yield the seconds between two reads: first ``_FIRST_LOOK``, then twice the previous number each time, up to
    ``_LOOK_EVERY``.
    """
    pause = _FIRST_LOOK
    while True:
        yield pause
        pause = min(2 * pause, _LOOK_EVERY)


def _shows(change: OffsetChange, offset: int | None) -> bool:
    """Return whether a group's offset proves that a reset has taken effect.

    After a move back, an offset that is not below the former offset proves nothing, because members may have continued from the
    former offset.
    """
    if offset is None:
        return False
    if change.before is not None and change.after < change.before:
        return change.after <= offset < change.before
    return offset >= change.after


def _timestamp_of(to: Target) -> int | None:
    """Return the time of a reset in the form that brokers accept: ms since the epoch, or -1 for "latest". Return None for a
    reset by offset.
    """
    if isinstance(to, datetime):
        return max(
            client.epoch_ms(to), 0
        )  # brokers treat a negative time as the end of the queue, and no message is older than 1970
    return {"earliest": 0, "latest": -1}.get(plain(to)) if isinstance(to, str) else None


async def _resets_by_server(instance: client.ClientInstance, broker: str, address: str, deadline: float) -> bool:
    """Return whether the broker resets offsets itself (5.2.0 or later, with ``useServerSideResetOffset``). Such a broker keeps
    the new offsets until a member pulls, and accepts an offset for a single queue.
    """
    command = RemotingCommand(code=RequestCode.GET_BROKER_CONFIG)
    response = await ask(instance, broker, address, command, deadline)
    return response.version >= _BY_SERVER_FROM and _BY_SERVER.search(response.body.decode(errors="replace")) is not None


# -- copies


async def clone(
    instance: client.ClientInstance, source: str, target: str, topic: str, timeout: float
) -> tuple[OffsetChange, ...]:
    """Implement ``Admin.clone_offsets``.

    Args:
        timeout: Seconds for each request.
    """
    why = "their commits would overwrite the offsets: stop them first"
    await check_offline(instance, target, why, machine.monotonic() + timeout)
    route = await instance.routes.fetch(topic, timeout)
    changes: list[OffsetChange] = []
    for queue in sorted(route.subscribe_queues):
        offset = await client.committed_offset(instance, source, queue)
        if offset is None:
            continue
        before = await client.committed_offset(instance, target, queue)
        if before is None and not changes:  # 4.x brokers accept offsets of unknown groups and topics
            await check_exists(instance, target, machine.monotonic() + timeout)
        await client.commit_offset(instance, target, queue, offset)
        verified = await client.committed_offset(instance, target, queue) == offset
        if not verified:  # a pending reset makes the broker ignore commits until members pull
            offset = await _target(instance, queue, offset)
            broker = instance.routes.broker_of(queue)
            of_target = _Reset(instance, target, topic, offset, timeout)
            await of_target.reset_by_offset([OffsetChange(queue, before, offset)], broker, brokers_of(route.data)[broker])
            verified = await client.committed_offset(instance, target, queue) == offset
        changes.append(OffsetChange(instance.names.shown_queue(queue), before, offset, verified))
    if not changes:
        name, of_topic = instance.names.display_name(source), instance.names.display_name(topic)
        raise SubscriptionGroupNotExistError(
            f"group {name} has no offsets for topic {of_topic}; check the names of group and topic",
            request="QUERY_CONSUMER_OFFSET",
        )
    return tuple(changes)
