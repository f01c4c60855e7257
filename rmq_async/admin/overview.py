"""Builds an overview of brokers, topics and groups at one moment, from the brokers that respond.

All brokers are queried at the same time for their state, topics, offsets of topics, groups, and the progress and members of
these groups. For a broker that fails, the overview contains the reason and what a name server knows about the broker. If a
broker refuses one topic's offsets or one group's progress, the overview lacks this broker's figures for the topic or group. If
a broker refuses a group's members, they count as unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Final, TypeVar

import msgspec

from rmq_protocol import bodies
from rmq_protocol.cluster import ClusterInfo
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import DLQ_TOPIC_PREFIX, MASTER_ID, RETRY_TOPIC_PREFIX, RequestCode, ResponseCode
from rmq_protocol.headers import GetConsumerListByGroupRequestHeader, GetConsumeStatsRequestHeader, to_ext
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.validation import is_system_group

from .. import machine
from .._asyncio import for_each
from ..client import ClientInstance, broker_time_in, has_no_members, store_time_ms
from ..errors import BrokerError, RocketMQError
from .clients import lags_in
from .requests import ask, cluster_info
from .results import BrokerOverview, GroupLag, GroupOverview, Overview, QueueLag, QueueStats
from .topics import is_wanted, settings_of

T = TypeVar("T")

AT_ONCE: Final = 8
"""Maximum number of concurrent requests to one broker."""
MOST_LOOKS: Final = 2
"""Maximum number of messages that are read to find the oldest one that a group has not committed."""
NO_MASTER: Final = "no name server knows its master"


class Wanted(msgspec.Struct, frozen=True):
    """The scope of an overview: patterns (``*``, ``?``) for the names to include, and whether to include system topics and
    groups.
    """

    topics: tuple[str, ...]
    groups: tuple[str, ...]
    system: bool


class _Found(msgspec.Struct):
    """The responses of one broker."""

    broker: BrokerOverview
    topics: dict[str, dict[MessageQueue, QueueStats] | None] = {}
    lags: dict[str, dict[MessageQueue, QueueLag] | None] = {}
    members: dict[str, tuple[str, ...] | None] = {}
    """The keys of ``topics`` are topics, those of ``lags`` and ``members`` are groups. A value is None if the broker refused the
    request for it."""


async def overview(instance: ClientInstance, wanted: Wanted, timeout: float) -> Overview:
    """Implement ``Admin.overview``.

    Args:
        timeout: Seconds for each request.
    """
    info = await cluster_info(instance, machine.monotonic() + timeout)
    clusters = {broker: cluster for cluster, names in info.cluster_addr_table.items() for broker in names}
    asked = [_Asked(instance, name, clusters.get(name, ""), wanted, timeout) for name in sorted(info.broker_addr_table)]
    found = await for_each(asked, lambda each: each.ask(info), at_once=max(len(asked), 1))
    brokers = {each.broker.name: each.broker for each in found.values()}
    topics, unknown = _together([(each.broker.name, each.topics) for each in found.values()])
    groups = await _groups(instance, found.values(), timeout)
    return Overview(brokers, topics, groups, unknown)


def _together(
    said: Iterable[tuple[str, dict[str, dict[MessageQueue, T] | None]]],
) -> tuple[dict[str, dict[MessageQueue, T]], dict[str, tuple[str, ...]]]:
    """Return the queues of all brokers by topic or group, and the brokers that refused the request."""
    found: dict[str, dict[MessageQueue, T]] = {}
    unknown: dict[str, tuple[str, ...]] = {}
    for broker, names in said:
        for name, queues in names.items():
            found.setdefault(name, {}).update(queues or {})
            if queues is None:
                unknown[name] = (*unknown.get(name, ()), broker)
    return found, unknown


async def _groups(instance: ClientInstance, found: Collection[_Found], timeout: float) -> dict[str, GroupOverview]:
    lags, lag_unknown = _together([(each.broker.name, each.lags) for each in found])
    members: dict[str, set[str]] = {}
    unknown: set[str] = set()
    for each in found:
        for name, ids in each.members.items():
            members.setdefault(name, set()).update(ids or ())
            if ids is None:
                unknown.add(name)
    oldest = await for_each(lags, lambda name: _oldest(instance, lags[name], timeout), at_once=AT_ONCE)
    names = instance.names
    groups = {}
    for name in sorted(lags.keys() | members.keys()):
        queues = {names.shown_queue(queue): each for queue, each in lags.get(name, {}).items()}
        retries = {queue: each for queue, each in queues.items() if queue.topic.startswith(RETRY_TOPIC_PREFIX)}
        lag = GroupLag({queue: each for queue, each in queues.items() if queue not in retries}, retries)
        ids = None if name in unknown else tuple(sorted(members.get(name, ())))
        stored, age = oldest.get(name, (None, None))
        groups[names.shown(name)] = GroupOverview(lag, ids, stored, lag_unknown.get(name, ()), age)
    return groups


async def _oldest(
    instance: ClientInstance, queues: dict[MessageQueue, QueueLag], timeout: float
) -> tuple[int | None, float | None]:
    """Return the store time, in epoch ms, and the age of the oldest uncommitted message that was found. Return None if no
    message was found.

    Read at most MOST_LOOKS queues: those whose last committed messages are the oldest. Read no retry topics.
    """
    behind = [queue for queue, each in queues.items() if each.messages and not queue.topic.startswith(RETRY_TOPIC_PREFIX)]
    ages = {queue: instance.clocks.age(queue.broker_name, queues[queue].last_store_time_ms) for queue in behind}
    behind.sort(key=lambda queue: -ages[queue])
    oldest, oldest_age = None, None
    for queue in behind[:MOST_LOOKS]:
        if oldest_age is not None and oldest_age >= ages[queue]:
            break
        try:
            found = await store_time_ms(instance, queue, queues[queue].committed, timeout)
        except RocketMQError:
            continue
        age = instance.clocks.age(queue.broker_name, found)
        if found > 0 and (oldest_age is None or age > oldest_age):
            oldest, oldest_age = found, age
    return oldest, oldest_age


class _Asked:
    """The requests to the master of one broker."""

    def __init__(self, instance: ClientInstance, name: str, cluster: str, wanted: Wanted, timeout: float) -> None:
        self._instance = instance
        self._name = name
        self._cluster = cluster
        self._wanted = wanted
        self._timeout = timeout
        self._address = ""

    async def ask(self, info: ClusterInfo) -> _Found:
        """Return the responses of the broker. If it has no known master or an error ended the requests, return only its
        ``problem``.
        """
        addresses = info.broker_addr_table[self._name].broker_addrs
        replicas = len(addresses) - (MASTER_ID in addresses)
        self._address = addresses.get(MASTER_ID, "")
        if not self._address:
            return _Found(BrokerOverview(self._name, self._cluster, "", replicas, problem=NO_MASTER))
        try:
            facts = await self._facts()
            topics = await for_each(await self._topics(), self._stats, at_once=AT_ONCE)
            groups = await self._group_names()
            lags = await for_each(groups, self._lag, at_once=AT_ONCE)
            members = await for_each(groups, self._members, at_once=AT_ONCE)
        except RocketMQError as error:
            return _Found(BrokerOverview(self._name, self._cluster, self._address, replicas, problem=str(error)))
        shown = self._instance.names.shown
        return _Found(
            BrokerOverview(
                self._name,
                self._cluster,
                self._address,
                replicas,
                version=facts.get("brokerVersionDesc", ""),
                disk_used=_ratio(facts.get("commitLogDiskRatio", "")),
            ),
            {shown(name): queues for name, queues in topics.items() if queues is None or queues},
            {name: queues for name, queues in lags.items() if queues is None or queues},
            {name: ids for name, ids in members.items() if ids is None or ids},
        )

    async def _facts(self) -> dict[str, str]:
        """Return the broker's runtime information, and record the broker's clock time from it."""
        sent = machine.monotonic()
        response = await self._get(RequestCode.GET_BROKER_RUNTIME_INFO)
        arrived, facts = machine.monotonic(), decode_body(bodies.KVTable, response.body).table
        if (broker_ms := broker_time_in(facts)) is not None:
            self._instance.clocks.of(self._name).note(broker_ms, sent, arrived)
        return facts

    async def _topics(self) -> list[str]:
        """Return the names of the broker's topics that match, without retry and dead-letter topics."""
        deadline = machine.monotonic() + self._timeout
        table = (await settings_of(self._instance, self._name, self._address, deadline)).topic_config_table
        if self._wanted.system:
            return self._chosen(
                [name for name in table if not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))], self._wanted.topics
            )
        own = {self._name, self._cluster}  # every broker has topics with these names
        names = self._instance.names
        return sorted(
            name for name in table if names.owns(name) and is_wanted(name, names.shown(name), self._wanted.topics, own)
        )

    async def _group_names(self) -> list[str]:
        body = (await self._get(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
        found = decode_body(bodies.SubscriptionGroupWrapper, body).subscription_group_table
        names = [name for name in found if self._wanted.system or not is_system_group(name)]
        return self._chosen(names, self._wanted.groups)

    def _chosen(self, names: Iterable[str], patterns: Collection[str]) -> list[str]:
        shown, owns = self._instance.names.shown, self._instance.names.owns
        return sorted(name for name in names if owns(name) and any(fnmatchcase(shown(name), each) for each in patterns))

    async def _stats(self, topic: str) -> dict[MessageQueue, QueueStats] | None:
        """Return the offsets of a topic's queues. Return an empty dict if the topic was deleted in the meantime, and None if
        the broker refuses the request.
        """
        try:
            body = (await self._get(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})).body
        except BrokerError as error:
            return {} if error.code == ResponseCode.TOPIC_NOT_EXIST else None
        shown = self._instance.names.shown_queue
        return {
            shown(queue): QueueStats(each.min_offset, each.max_offset, each.last_update_timestamp)
            for queue, each in decode_body(bodies.TopicStatsTable, body).offset_table.items()
        }

    async def _lag(self, group: str) -> dict[MessageQueue, QueueLag] | None:
        """Return the offsets of a group by queue. Return an empty dict if the group was deleted, and None if the broker refuses
        the request.
        """
        header = GetConsumeStatsRequestHeader(consumerGroup=group)
        try:
            body = (await self._get(RequestCode.GET_CONSUME_STATS, to_ext(header))).body
        except BrokerError as error:
            return {} if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST else None
        return lags_in(body)

    async def _members(self, group: str) -> tuple[str, ...] | None:
        """Return the client ids of a group's members. Return None if the broker refuses the request."""
        header = GetConsumerListByGroupRequestHeader(consumerGroup=group)
        try:
            body = (await self._get(RequestCode.GET_CONSUMER_LIST_BY_GROUP, to_ext(header))).body
        except BrokerError as error:
            return () if has_no_members(error.code, error.remark) else None
        return decode_body(bodies.GetConsumerListByGroupResponseBody, body).consumer_id_list

    async def _get(self, code: RequestCode, fields: dict[str, str] | None = None) -> RemotingCommand:
        command = RemotingCommand(code=code, ext_fields={**(fields or {})})
        return await ask(self._instance, self._name, self._address, command, machine.monotonic() + self._timeout)


def _ratio(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found <= 1 else None
