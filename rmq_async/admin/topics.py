"""Creates, copies and deletes topics.

Brokers hold the settings of a topic. For an ordered topic, the name servers hold the number of its queues on each broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec

from rmq_protocol import headers
from rmq_protocol.bodies import TopicConfigSerializeWrapper
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, ORDER_TOPIC_CONFIG, RequestCode, ResponseCode
from rmq_protocol.errors import InvalidMessageError, shown
from rmq_protocol.json_body import MAX_JSON_BODY_SIZE, decode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.topics import TopicConfig
from rmq_protocol.validation import check_topic, is_system_topic

from .. import machine
from .._asyncio import for_each
from .._text import printable
from ..client import ClientInstance, max_offset, min_offset
from ..errors import ConfigError, NameServerError, RequestTimeoutError, RocketMQError, TopicNotFoundError
from .requests import ask, ask_every_name_server, check, cluster_info, everywhere, masters_of, outcomes
from .results import SyncedTopic

logger = logging.getLogger(__name__)

SHOWN_EVERY: Final = 0.05
"""Seconds between two requests for the route of a new topic; a broker registers the topic within milliseconds."""
SENT_AGAIN: Final = 5.0
"""Seconds after which the brokers are asked again to create a topic whose settings no name server shows."""

AT_ONCE: Final = 8
_OWN_PREFIXES: Final = ("%RETRY%", "%DLQ%", "rmq_sys_")
"""Prefixes of topics that brokers create when they need them."""
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"


def attribute_changes(attributes: Mapping[str, str] | None) -> str:
    """Return ``+key=value,...``, the form that AttributeParser reads.

    Raises:
        ConfigError: Unless ``attributes`` is None or a mapping of non-empty strings that contain none of these separators.
    """
    if attributes is not None and not isinstance(attributes, Mapping):
        raise ConfigError(f'attributes must be a mapping such as {{"message.type": "FIFO"}}, not {shown(attributes)}')
    texts = []
    for name, value in (attributes or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"attribute {shown(name)} = {shown(value)}: both must be strings")
        if not name or not value or any(c in name + value for c in ",=+"):
            raise ConfigError(f"attribute {shown(name)} = {shown(value)}: neither may be empty or hold one of , = +")
        texts.append("+" + name + "=" + value)
    return ",".join(texts)


def creation_header(config: TopicConfig, attributes: str) -> headers.CreateTopicRequestHeader:
    return headers.CreateTopicRequestHeader(
        topic=config.topic_name,
        defaultTopic=AUTO_CREATE_TOPIC_KEY,
        readQueueNums=config.read_queue_nums,
        writeQueueNums=config.write_queue_nums,
        perm=config.perm,
        topicFilterType=config.topic_filter_type,
        topicSysFlag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes,
    )


def check_new_topic(topic: str) -> None:
    check_topic(topic)
    if is_system_topic(topic):
        error = InvalidMessageError(f"topic {topic} is reserved for the system; choose another name")
        error.code = -1
        raise error


# -- one topic


async def create(
    instance: ClientInstance, header: headers.CreateTopicRequestHeader, cluster: str | None, broker: str | None, deadline: float
) -> None:
    """Implement ``Admin.create_topic``."""
    masters = masters_of(await cluster_info(instance, deadline), cluster, broker, any_cluster=False)
    before: dict[str, int] = {}
    with suppress(RocketMQError):
        route = await instance.routes.fetch(header.topic, max(deadline - machine.monotonic(), 0.0) / 4)
        before = {data.broker_name: data.read_queue_nums for data in route.data.queue_datas if data.broker_name in masters}
    await _Creation(instance, header, masters, deadline).carry_out(merge=broker is not None)
    for name, queues in before.items():
        await _name_left(instance, header.topic, name, range(header.readQueueNums, queues))


async def _name_left(instance: ClientInstance, topic: str, broker: str, numbers: range) -> None:
    """Log the number of messages in queues that a topic no longer has, because no member reads these messages."""
    left = 0
    try:
        for number in numbers:
            queue = MessageQueue(topic, broker, number)
            high = await max_offset(instance, queue, any_replica=False)
            left += max(high - await min_offset(instance, queue, any_replica=False), 0) if high else 0
    except RocketMQError as error:
        logger.debug("messages in %d former queues of %s at %s: %s", len(numbers), topic, broker, printable(error, 300))
        return
    if left:
        logger.warning(
            "topic %s now has %d read queues on broker %s; members no longer read %d messages in its former queues, up to queue "
            "%d: set read_queues=%d until all groups have read them",
            instance.names.display_name(topic), numbers.start, broker, left, numbers[-1], numbers.stop,
        )  # fmt: skip


async def grow(instance: ClientInstance, config: TopicConfig, queues: int, brokers: Mapping[str, str], deadline: float) -> None:
    """Give an existing topic at least ``queues`` queues to read from and to write to, and wait until a name server
    shows them.
    """
    read, write = max(config.read_queue_nums, queues), max(config.write_queue_nums, queues)
    header = creation_header(msgspec.structs.replace(config, read_queue_nums=read, write_queue_nums=write), "")
    creation = _Creation(instance, header, brokers, deadline)
    await creation.create()
    await creation.until_shown()


async def delete(instance: ClientInstance, topic: str, cluster: str | None, deadline: float) -> None:
    """Implement ``Admin.delete_topic``."""
    await instance.routes.fetch(topic, max(deadline - machine.monotonic(), 0.0))
    masters = masters_of(await cluster_info(instance, deadline), cluster)
    await delete_at(instance, topic, masters, deadline, cluster)
    if cluster is None:
        command = headers.request_of(headers.DeleteKVConfigRequestHeader(namespace=ORDER_TOPIC_CONFIG, key=topic))
        await ask_every_name_server(instance, command, deadline)


async def delete_at(
    instance: ClientInstance, topic: str, masters: Mapping[str, str], deadline: float, cluster: str | None = None
) -> None:
    """Delete a topic on ``masters``, and its route in ``cluster`` (None: in every cluster) on the name servers."""
    command = RemotingCommand(code=RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": topic})
    await everywhere(instance, masters, command, deadline)
    fields: dict[str, str | None] = {"topic": topic}
    if cluster is not None:
        fields["clusterName"] = cluster
    command = RemotingCommand(code=RequestCode.DELETE_TOPIC_IN_NAMESRV, ext_fields=fields)
    await ask_every_name_server(instance, command, deadline)


@dataclass(frozen=True)
class _Creation:
    """The creation or change of a topic on brokers.

    Attributes:
        masters: The address of the master, by broker name.
    """

    instance: ClientInstance
    header: headers.CreateTopicRequestHeader
    masters: Mapping[str, str]
    deadline: float

    async def carry_out(self, *, merge: bool = True) -> None:
        """Create or change the topic, and wait until a name server shows it.

        Args:
            merge: True keeps the numbers of queues that the name servers hold for an ordered topic on other brokers.
        """
        await self.create()
        if self.header.order:
            await self._set_order(merge=merge)
        await self.until_shown()

    async def create(self) -> None:
        """Create the topic on these brokers.

        Raise RequestTimeoutError, which names the brokers that have not responded by ``deadline``. If a broker has another
        error, raise that error instead.
        """
        command = headers.request_of(self.header)
        silent = []
        for name, outcome in (await outcomes(self.instance, self.masters, command, self.deadline)).items():
            if isinstance(outcome, RequestTimeoutError):
                silent.append(name)
            elif isinstance(outcome, BaseException):
                try:
                    raise outcome
                finally:
                    del outcome  # its traceback has this frame
            else:
                check(outcome, command, name, self.masters[name])
        if silent:
            topic, sure = self.instance.names.display_name(self.header.topic), sorted(self.masters.keys() - {*silent})
            done = f"; it was created or changed on {printable(', '.join(sure))}" if sure else ""
            raise RequestTimeoutError(
                f"no answer to UPDATE_AND_CREATE_TOPIC came in time from {printable(', '.join(silent))}: whether topic "
                f"{topic} was created or changed there is not known{done}; repeat the call",
                broker=silent[0],
                address=self.masters[silent[0]],
            )

    async def _register_again(self) -> None:
        """Make the brokers register the topic at the name servers again. The errors of ``create`` propagate."""
        # A broker registers all its topics every 30 s. If a topic changes in the meantime, the broker registers the old settings
        # with the version of the new ones. A name server then ignores the registration of the change, because it has this version
        # (``RouteInfoManager.isTopicConfigChanged``), and shows the old settings until the next change of any topic. A broker of
        # 5.5.0 ignores a request that changes nothing. So another filter type, which brokers do not use, is set first.
        other = "SINGLE_TAG" if self.header.topicFilterType == "MULTI_TAG" else "MULTI_TAG"
        await replace(self, header=msgspec.structs.replace(self.header, topicFilterType=other)).create()
        await self.create()

    async def _set_order(self, *, merge: bool) -> None:
        """Write the number of queues of each broker to the name servers, as ``updateTopic -o true`` of the official tool does.

        Args:
            merge: True keeps the numbers of queues on other brokers.

        Raises:
            NameServerError, RequestTimeoutError: At ``deadline``. The message says that the topic was created.
        """
        try:
            await self._put_order(merge=merge)
        except NameServerError as error:
            kind = RequestTimeoutError if self.deadline - machine.monotonic() < SHOWN_EVERY else NameServerError
            topic, where = self.instance.names.display_name(self.header.topic), printable(", ".join(sorted(self.masters)))
            text = f"topic {topic} was created or changed on {where}, but some name servers may lack the order of its queues"
            raise kind(f"{text}; repeat the call: {error}") from error

    async def _put_order(self, *, merge: bool) -> None:
        counts: dict[str, str] = {}
        if merge:
            counts = dict(item.partition(":")[::2] for item in (await self._order()).split(";") if item)
        counts |= {name: str(self.header.writeQueueNums) for name in self.masters}
        put = headers.PutKVConfigRequestHeader(
            namespace=ORDER_TOPIC_CONFIG,
            key=self.header.topic,
            value=";".join(f"{name}:{count}" for name, count in sorted(counts.items())),
        )
        await ask_every_name_server(self.instance, headers.request_of(put), self.deadline)

    async def _order(self) -> str:
        get = headers.GetKVConfigRequestHeader(namespace=ORDER_TOPIC_CONFIG, key=self.header.topic)
        command = headers.request_of(get)

        def read(response: RemotingCommand, address: str) -> str:
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                return ""
            check(response, command, None, address)
            return headers.from_ext(headers.GetKVConfigResponseHeader, response.ext_fields).value or ""

        return await self.instance.name_servers.fullest(command, max(self.deadline - machine.monotonic(), 0.0), read, len)

    async def until_shown(self) -> None:
        """Wait until a name server's route has the numbers of queues and the permission on every broker.

        Raises:
            RequestTimeoutError: At ``deadline``.
        """
        topic, wanted, why = self.header.topic, set(self.masters), ""
        again = machine.monotonic() + SENT_AGAIN
        while (left := self.deadline - machine.monotonic()) > 0:
            if machine.monotonic() >= again:
                again += SENT_AGAIN
                with suppress(RocketMQError):  # the brokers have already accepted the topic once
                    await self._register_again()
            try:
                route = await self.instance.routes.fetch(topic, left)
            except TopicNotFoundError:
                why = ""
            except NameServerError as error:  # the topic exists nevertheless, and the name servers may come back
                why = f" ({printable(error, 1000)})"
                if machine.monotonic() >= self.deadline:
                    break
            else:
                why = ""
                shown = {
                    data.broker_name
                    for data in route.data.queue_datas
                    if (data.write_queue_nums, data.read_queue_nums, data.perm)
                    == (self.header.writeQueueNums, self.header.readQueueNums, self.header.perm)
                }
                if shown >= wanted:
                    return
            await asyncio.sleep(SHOWN_EVERY)
        where = printable(", ".join(sorted(wanted)))
        raise RequestTimeoutError(
            f"topic {self.instance.names.display_name(topic)} was created or changed on {where}, but no name server shows its "
            f"settings there yet{why}; call topic_route() later to check"
        )


# -- from one broker to another


class _Settings(TopicConfigSerializeWrapper, frozen=True, rename="camel"):
    """The settings of a broker's topics, and its static topics by name. The queues of static topics are mapped to brokers and
    cannot be copied.
    """

    topic_queue_mapping_detail_map: dict[str, Any] = msgspec.field(default_factory=dict)


async def sync(
    instance: ClientInstance, from_broker: str, to_broker: str, patterns: Collection[str], *, dry_run: bool, timeout: float
) -> tuple[SyncedTopic, ...]:
    """Implement ``Admin.sync_topics``."""
    info = await cluster_info(instance, machine.monotonic() + timeout)
    brokers = {name: masters_of(info, broker=name)[name] for name in (from_broker, to_broker)}
    if from_broker == to_broker:
        raise ConfigError(f"topics cannot be copied from broker {printable(from_broker)} to itself; give two brokers")
    settings = await for_each(brokers, lambda name: settings_of(instance, name, brokers[name], machine.monotonic() + timeout))
    source, target = settings[from_broker], settings[to_broker].topic_config_table
    own, names = {*info.broker_addr_table, *info.cluster_addr_table}, instance.names
    synced = []
    for topic, config in sorted(source.topic_config_table.items()):
        if (
            names.owns(topic)
            and is_wanted(topic, names.shown(topic), patterns, own)
            and topic not in source.topic_queue_mapping_detail_map
        ):
            old = target.get(topic)
            plain = _plain(config)
            action: Literal["create", "update", "same"] = "update"
            if old is None:
                action = "create"
            elif plain == _plain(old):
                action = "same"
            synced.append(SyncedTopic(topic, action, plain))
    if not synced:
        raise TopicNotFoundError(
            f"broker {printable(from_broker)} has no topic to copy that matches {printable(' or '.join(patterns))}; check the "
            "patterns: system, retry, dead-letter and static topics are not copied",
            broker=from_broker,
        )
    if not dry_run:
        changed = {each.topic: each.config for each in synced if each.action != "same"}
        await for_each(
            changed,
            lambda topic: _copy(instance, changed[topic], target.get(topic), to_broker, brokers[to_broker], timeout),
            at_once=AT_ONCE,
        )
    return tuple(
        msgspec.structs.replace(
            each, topic=names.shown(each.topic), config=msgspec.structs.replace(each.config, topic_name=names.shown(each.topic))
        )
        for each in synced
    )


async def settings_of(instance: ClientInstance, broker: str, address: str, deadline: float) -> _Settings:
    command = RemotingCommand(code=RequestCode.GET_ALL_TOPIC_CONFIG)
    response = await ask(instance, broker, address, command, deadline)
    # reached with more than 20,000 topics; standard JSON is parsed quickly at any size
    if len(response.body) > MAX_JSON_BODY_SIZE:
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            return msgspec.json.decode(response.body, type=_Settings)
    return decode_body(_Settings, response.body)


async def _copy(
    instance: ClientInstance, config: TopicConfig, old: TopicConfig | None, broker: str, address: str, timeout: float
) -> None:
    had = _plain(old).attributes if old is not None else {}
    new = sorted(config.attributes.items() - had.items())  # some attributes cannot be set again, not even to the same value
    changes = [f"+{name}={value}" for name, value in new] + [
        f"-{name}" for name in sorted(had.keys() - config.attributes.keys())
    ]
    header = creation_header(config, ",".join(changes))
    await _Creation(instance, header, {broker: address}, machine.monotonic() + timeout).carry_out()
    if old is not None:
        await _name_left(instance, config.topic_name, broker, range(config.read_queue_nums, old.read_queue_nums))


def is_wanted(topic: str, shown: str, patterns: Collection[str], own: Collection[str]) -> bool:
    """Return whether a topic belongs to users and matches a pattern.

    Return False for system topics and for topics that brokers create.

    Args:
        shown: The topic's name without the namespace, to which the patterns apply.
        own: Names of brokers and clusters. Brokers create topics with these names.
    """
    if is_system_topic(topic) or topic in own or (topic.endswith(_REPLY_SUFFIX) and topic.removesuffix(_REPLY_SUFFIX) in own):
        return False
    return not topic.startswith(_OWN_PREFIXES) and any(fnmatchcase(shown, pattern) for pattern in patterns)


def _plain(config: TopicConfig) -> TopicConfig:
    """Return the settings without the "+" with which a broker may store the names of attributes."""
    attributes = {name.removeprefix("+"): value for name, value in config.attributes.items()}
    return msgspec.structs.replace(config, attributes=attributes)
