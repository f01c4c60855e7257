"""Topics and offsets, from the outside: what an operator or a test sets up and looks at.

Requests about a topic go to the master of each broker that shall have it; requests about a queue to its broker. An admin joins no
group, so it makes no heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, Final

import msgspec

from rmq_protocol.cluster import ClusterInfo, decode_cluster_info
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, MASTER_ID, RequestCode, ResponseCode
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.headers import CreateTopicRequestHeader, to_ext
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import TopicRouteData
from rmq_protocol.validation import check_topic, is_system_topic

from ..client import ClientInstance
from ..client import offsets as queue_offsets
from ..client.offsets import check_queue
from ..client.text import printable
from ..client.user import ClientUser
from ..config import ClientConfig, split_options
from ..errors import BrokerNotFoundError, ConfigError, RequestTimeoutError, RocketMQError, TopicNotFoundError, broker_error

__all__ = ["Admin"]

SHOWN_EVERY: Final = 0.05
"""Seconds between two looks whether a name server shows a new topic; a broker registers it within milliseconds."""

_MAX_QUEUES: Final = 65535


class _TopicList(msgspec.Struct, frozen=True, rename="camel"):
    topic_list: tuple[str, ...] = ()


class Admin(ClientUser):
    """``options``: any field of ClientConfig; an unknown one is a TypeError. Every call ends within ``request_timeout`` seconds."""

    def __init__(
        self, *, namesrv: str | Sequence[str] | None = None, client: ClientConfig | None = None, **options: Any
    ) -> None:
        config, _ = split_options("Admin", namesrv, client, options)
        super().__init__(config)

    # -- topics

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        perm: int = 6,
        order: bool = False,
        topic_sys_flag: int = 0,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Creates ``topic``, or changes its settings, and waits until the name servers show it, so that it can be used at once.

        ``queues``: to write to, on each broker; ``read_queues``: to read from, default the same. ``perm``: 2 write, 4 read, 6 both.
        ``attributes``: such as {"message.type": "FIFO"}. ``cluster`` or ``broker`` (a broker's name): where; by default on every
        broker there is, provided they form one cluster.

        Raises InvalidMessageError for a bad or a system's name, ConfigError for settings that cannot be, BrokerNotFoundError when
        there is no such broker or cluster, BrokerError when a broker refuses, RequestTimeoutError when the topic was created but
        is not shown in time.
        """
        instance = self._client()
        deadline = monotonic() + instance.config.request_timeout
        check_topic(topic)
        if is_system_topic(topic):
            error = InvalidMessageError(f"topic {topic} is reserved for the system")
            error.code = -1
            raise error
        reading = queues if read_queues is None else read_queues
        for name, number in (("queues", queues), ("read_queues", reading)):
            if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= _MAX_QUEUES:
                raise ConfigError(f"{name} must be from 1 to {_MAX_QUEUES}, not {number!r}")
        header = CreateTopicRequestHeader(
            topic=topic,
            defaultTopic=AUTO_CREATE_TOPIC_KEY,
            readQueueNums=reading,
            writeQueueNums=queues,
            perm=perm,
            topicFilterType="SINGLE_TAG",
            topicSysFlag=topic_sys_flag,
            order=order,
            attributes=_attributes(attributes),
        )
        masters = await self._masters(instance, cluster, broker)
        command = RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields={**to_ext(header)})
        await _everywhere(instance, masters, command, deadline)
        await _until_shown(instance, header, masters, deadline)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Deletes ``topic``, its messages and its route: on the brokers of ``cluster`` (default: all) and the name servers.

        A topic that does not exist is no error, as far as the servers are concerned.
        """
        instance = self._client()
        deadline = monotonic() + instance.config.request_timeout
        check_topic(topic)
        masters = await self._masters(instance, cluster, None, any_cluster=True)
        command = RemotingCommand(code=RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": topic})
        await _everywhere(instance, masters, command, deadline)
        command = RemotingCommand(code=RequestCode.DELETE_TOPIC_IN_NAMESRV, ext_fields={"topic": topic})
        answers = await instance.name_servers.each(command, max(deadline - monotonic(), 0.0))
        for address, response in answers.items():
            _check(response, RequestCode.DELETE_TOPIC_IN_NAMESRV, None, address)

    async def topics(self) -> tuple[str, ...]:
        """Names of all topics a name server knows, those of the system included, sorted."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        instance = self._client()

        def read(response: RemotingCommand, address: str) -> tuple[str, ...]:
            _check(response, code, None, address)
            return tuple(sorted(decode_body(_TopicList, response.body).topic_list))

        found, _ = await instance.name_servers.ask(RemotingCommand(code=code), instance.config.request_timeout, read)
        return found

    async def topic_route(self, topic: str) -> TopicRouteData:
        """The route of ``topic`` as a name server gives it now. Raises TopicNotFoundError, NameServerError."""
        check_topic(topic)
        instance = self._client()
        return (await instance.routes.look(topic, instance.config.request_timeout)).data

    async def cluster_info(self) -> ClusterInfo:
        """The clusters and brokers a name server knows."""
        return await _cluster_info(self._client())

    # -- queues

    async def max_offset(self, queue: MessageQueue) -> int:
        """Offset after the last message that can be read."""
        return await queue_offsets.max_offset(self._client(), check_queue(queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the first message there is."""
        return await queue_offsets.min_offset(self._client(), check_queue(queue))

    async def search_offset(self, queue: MessageQueue, when: float | datetime, *, upper: bool = False) -> int:
        """Offset of the first message stored at ``when`` (epoch seconds or an aware datetime) or later; with ``upper`` of the
        last one stored then or before."""
        return await queue_offsets.search_offset(self._client(), check_queue(queue), when, upper=upper)

    async def earliest_store_time_ms(self, queue: MessageQueue) -> int:
        """When the first message there is was stored; -1 for an empty queue."""
        return await queue_offsets.earliest_store_time_ms(self._client(), check_queue(queue))

    # -- inside

    async def _masters(
        self, instance: ClientInstance, cluster: str | None, broker: str | None, *, any_cluster: bool = False
    ) -> dict[str, str]:
        """Broker name -> master address of the brokers meant."""
        info = await _cluster_info(instance)
        names: set[str]
        if broker is not None:
            if cluster is not None and broker not in info.cluster_addr_table.get(cluster, ()):
                raise BrokerNotFoundError(f"cluster {cluster} has no broker {broker}", broker=broker)
            names = {broker}
        elif cluster is not None:
            names = set(info.cluster_addr_table.get(cluster, ()))
            if not names:
                known = printable(", ".join(sorted(info.cluster_addr_table)) or "none")
                raise BrokerNotFoundError(f"no cluster is called {cluster}; there are: {known}")
        else:
            if len(info.cluster_addr_table) > 1 and not any_cluster:
                known = printable(", ".join(sorted(info.cluster_addr_table)))
                raise ConfigError(f"give cluster= or broker=, there are several clusters: {known}")
            names = set(info.broker_addr_table)
        masters = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in info.broker_addr_table.items()
            if name in names and MASTER_ID in data.broker_addrs
        }
        if not masters:
            raise BrokerNotFoundError(f"no name server knows a master of {broker or cluster or 'any broker'}", broker=broker)
        return masters


async def _cluster_info(instance: ClientInstance) -> ClusterInfo:
    code = RequestCode.GET_BROKER_CLUSTER_INFO

    def read(response: RemotingCommand, address: str) -> ClusterInfo:
        _check(response, code, None, address)
        return decode_cluster_info(response.body)

    info, _ = await instance.name_servers.ask(RemotingCommand(code=code), instance.config.request_timeout, read)
    return info


async def _everywhere(instance: ClientInstance, masters: Mapping[str, str], command: RemotingCommand, deadline: float) -> None:
    """One request to each master at the same time; all are waited for, then the first failure is raised."""

    async def one(name: str, address: str) -> None:
        connection = await instance.pool.connect(address, max(deadline - monotonic(), 0.0))
        response = await connection.request(command, max(deadline - monotonic(), 0.0))
        _check(response, RequestCode(command.code), name, address)

    outcomes = await asyncio.gather(*[one(name, address) for name, address in masters.items()], return_exceptions=True)
    for name, outcome in zip(masters, outcomes, strict=True):
        if isinstance(outcome, RocketMQError) and outcome.broker is None:
            outcome.broker = name
        if outcome is not None:
            raise outcome


async def _until_shown(
    instance: ClientInstance, header: CreateTopicRequestHeader, masters: Mapping[str, str], deadline: float
) -> None:
    """Waits until the route has the settings on every broker; the route table then has that route."""
    topic = header.topic
    while (left := deadline - monotonic()) > 0:
        try:
            route = await instance.routes.look(topic, left)
        except TopicNotFoundError:
            pass
        else:
            shown = {
                data.broker_name
                for data in route.data.queue_datas
                if (data.write_queue_nums, data.read_queue_nums, data.perm)
                == (header.writeQueueNums, header.readQueueNums, header.perm)
            }
            if shown >= masters.keys():
                return
        await asyncio.sleep(SHOWN_EVERY)
    where = printable(", ".join(sorted(masters)))
    raise RequestTimeoutError(f"topic {topic} was created on {where}, but the name servers do not show it there yet")


def _check(response: RemotingCommand, code: RequestCode, broker: str | None, address: str) -> None:
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark, request=code.name, broker=broker, address=address)


def _attributes(attributes: Mapping[str, str] | None) -> str:
    """``+key=value,...``: what AttributeParser reads; it cannot carry these separators in a name or value."""
    texts = []
    for name, value in (attributes or {}).items():
        if not name or not value or any(c in name + value for c in ",=+"):
            raise ConfigError(f"attribute {name!r} = {value!r}: neither may be empty or hold one of , = +")
        texts.append(f"+{name}={value}")
    return ",".join(texts)
