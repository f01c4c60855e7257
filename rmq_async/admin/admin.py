"""The public methods of the admin: they check the arguments and call the other modules of this package.

An admin joins no group, so it sends no heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Unpack

from rmq_protocol.bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo, TopicList
from rmq_protocol.cluster import ClusterInfo
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import Perm, RequestCode
from rmq_protocol.errors import shown
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.route import TopicRouteData
from rmq_protocol.topics import TopicConfig
from rmq_protocol.validation import check_topic, plain

from .. import machine
from ..client import ClientUser, Names, earliest_store_time_ms, epoch_ms, known_queue, max_offset, min_offset, search_offset
from ..config import ClientConfig, ClientOptions, check_flag, check_group, check_int, check_text, client_options
from ..errors import ConfigError
from ..options import lists_options
from . import clients, dead_letters, group_offsets, messages
from . import groups as group_settings
from . import topics as topic_settings
from .overview import Wanted, overview
from .requests import check, cluster_info
from .results import (
    ClientConnection,
    ConsumerConnections,
    GroupLag,
    GroupMember,
    OffsetChange,
    Overview,
    SyncedTopic,
    TopicStats,
)

_MAX_QUEUES: Final = 65535
_PERMISSIONS: Final = (Perm.WRITE, Perm.READ, Perm.READ | Perm.WRITE)
_MAX_FOUND: Final = 65535
_MAX_ID_LENGTH: Final = 1024
_MEMBER_TIME: Final = 11.0
"""Minimum timeout, in seconds, of a request that a group member answers: brokers wait up to 10 s for the member."""


@lists_options(ClientConfig)
class Admin(ClientUser):
    """A client that manages topics, groups and messages of a cluster.

    No request takes longer than ``request_timeout`` seconds, unless the method's docstring says otherwise. One call may make
    several requests. Calls before ``start()`` and after ``stop()`` raise ClientStateError, calls on another loop raise
    WrongLoopError, and calls in a forked child raise ForkedError. ``stop()`` ends each running call at once with
    ClientStateError.

    In addition to the errors that its docstring names, each method may raise InvalidMessageError for an invalid topic name,
    InvalidGroupError for an invalid group name, and ConfigError for another invalid argument. It may raise TopicNotFoundError,
    BrokerNotFoundError or ConfigError for a ``queue`` that the topic does not have, and BrokerNotFoundError if no name server
    lists a master. It may also raise NameServerError, the errors of a request to a broker (ConnectError, ConnectionLostError,
    RequestTimeoutError, BrokerError), and RemoteProtocolError for a response that cannot be read.

    Args:
        client: The settings of the client. The default is ``ClientConfig()``.
        namesrv: Name servers that replace the name servers of ``client``.
        **options: Fields of ClientConfig, which replace the values in ``client``. An unknown option raises TypeError, and an
            invalid value raises ConfigError.
    """

    def __init__(
        self,
        *,
        namesrv: str | Sequence[str] | None = None,
        client: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        config = client_options("Admin", namesrv, client, options)
        super().__init__(config)
        self._names = Names(config.namespace)

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
        """Create ``topic``, or change its settings. Wait until a name server shows the topic, so that it can be used at once.

        Args:
            queues: Number of queues to write to, on each broker.
            read_queues: Number of queues to read from. The default is ``queues``. Both numbers can be from 1 to 65535. If the
                number decreases and messages are left in queues that are no longer read, the admin logs a WARNING.
            perm: 2 to allow writing, 4 to allow reading, 6 to allow both.
            order: True keeps the queues unchanged while brokers join and leave: the name servers record the queues, and use the
                record if they run with ``orderMessageEnable``.
            topic_sys_flag: Flags of unit mode: 1 for a topic that belongs to a unit, 2 for a topic that units subscribe to
                (Java's ``TopicSysFlag``).
            attributes: Attributes of the topic, such as {"message.type": "FIFO"}.
            cluster: Name of the cluster whose brokers get the topic. By default, all brokers get it, if they form one cluster.
            broker: Name of the only broker that gets the topic.

        Raises:
            InvalidMessageError: For an invalid name and for the name of a system topic.
            ConfigError: For invalid settings. Also if there are several clusters and neither ``cluster`` nor ``broker`` is
                given.
            BrokerNotFoundError: When there is no such broker or cluster.
            BrokerError: When a broker refuses the request.
            RequestTimeoutError: When the topic was created but no name server shows it in time, or when brokers do not respond
                in time. The error names the brokers on which the topic was created, and the brokers on which it may have been
                created.
        """
        async with self._call() as instance:
            topic_settings.check_new_topic(topic)
            topic = self._wire(topic)
            reading = queues if read_queues is None else read_queues
            check_int("queues", queues, 1, _MAX_QUEUES)
            check_int("read_queues", reading, 1, _MAX_QUEUES)
            check_flag("order", order)
            check_int("topic_sys_flag", topic_sys_flag, 0, 2**31 - 1)
            if isinstance(perm, bool) or perm not in _PERMISSIONS:
                raise ConfigError(f"perm must be 2 (write), 4 (read) or 6 (both), not {shown(perm)}")
            config = TopicConfig(topic, reading, queues, int(perm), topic_sys_flag=topic_sys_flag, order=order)
            header = topic_settings.creation_header(config, topic_settings.attribute_changes(attributes))
            await topic_settings.create(instance, header, cluster, broker, self._deadline())

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete ``topic`` and its messages on the brokers of ``cluster`` (default: on all brokers), and its route to these
        brokers on the name servers.

        Raises:
            TopicNotFoundError: For an unknown topic.
            BrokerNotFoundError: For an unknown cluster.
        """
        async with self._call() as instance:
            await topic_settings.delete(instance, self._wire(topic), cluster, self._deadline())

    async def sync_topics(
        self, from_broker: str, to_broker: str, *, topics: str | Sequence[str] = "*", dry_run: bool = False
    ) -> tuple[SyncedTopic, ...]:
        """Create the topics of ``from_broker`` (a name) on ``to_broker`` with the same settings. Messages stay where they are.

        Use it for a broker that was added to a cluster. Running producers and consumers use the new broker after they have
        refreshed their routes, which they do within ``route_poll_interval`` (default 30 s).

        Args:
            topics: One case-sensitive pattern or several, such as "orders*". System, retry and dead-letter topics are left out,
                because brokers create them themselves. Static topics are left out, because their queues are mapped to brokers.
                A topic that exists with other settings gets the settings of ``from_broker``.
            dry_run: True changes nothing.

        Returns:
            The result for each topic. Each topic may take ``request_timeout``.

        Raises:
            BrokerNotFoundError: For an unknown broker.
            ConfigError: If ``from_broker`` and ``to_broker`` are the same.
            TopicNotFoundError: When ``from_broker`` has no such topic.
            BrokerError: When ``to_broker`` refuses a topic.
            RequestTimeoutError: When a topic was created or changed but no name server shows it in time.
        """
        patterns = _patterns_of("topics", topics)
        check_flag("dry_run", dry_run)
        source, target = check_text("from_broker", from_broker), check_text("to_broker", to_broker)
        async with self._call() as instance:
            timeout = instance.config.request_timeout
            return await topic_settings.sync(instance, source, target, patterns, dry_run=dry_run, timeout=timeout)

    async def topics(self) -> tuple[str, ...]:
        """Return the names of all topics that the name servers know, sorted.

        With ``namespace``, return the topics in the namespace and the system topics.
        """
        command = RemotingCommand(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

        def read(response: RemotingCommand, address: str) -> tuple[str, ...]:
            check(response, command, None, address)
            names = self._names
            return tuple(
                sorted(names.shown(each) for each in decode_body(TopicList, response.body).topic_list if names.owns(each))
            )

        async with self._call() as instance:
            timeout = instance.config.request_timeout
            return await instance.name_servers.fullest(command, timeout, read, len, lambda found: not found)

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return the current route of ``topic``. If the name servers have different routes, return the most complete one.

        Raises:
            TopicNotFoundError: For an unknown topic.
            NameServerError: If no name server responds.
        """
        async with self._call() as instance:
            return (await instance.routes.fetch(self._wire(topic), instance.config.request_timeout)).data

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the offsets of every queue of ``topic``, and the rate at which brokers store its messages.

        Raises:
            TopicNotFoundError: For an unknown topic.
        """
        async with self._call() as instance:
            return await clients.stats(instance, self._wire(topic), self._deadline())

    async def cluster_info(self) -> ClusterInfo:
        """Return the clusters and brokers that the name servers know."""
        async with self._call() as instance:
            return await cluster_info(instance, self._deadline())

    async def overview(
        self, *, topics: str | Sequence[str] = "*", groups: str | Sequence[str] = "*", system: bool = False
    ) -> Overview:
        """Return the brokers, topics and groups, with their current offsets and members, as reported by the brokers that
        respond.

        A broker that does not respond causes no error. The result gives the reason (``BrokerOverview.problem``).

        Each broker gets one request for each topic and two requests for each group, 8 at a time. For each group with a lag, up
        to two messages are read.

        Args:
            topics: One case-sensitive pattern or several, such as "orders*".
            groups: One case-sensitive pattern or several.
            system: True includes system topics and groups, except retry and dead-letter topics.

        Raises:
            NameServerError: When no name server responds.
        """
        check_flag("system", system)
        wanted = Wanted(_patterns_of("topics", topics), _patterns_of("groups", groups), system)
        async with self._call() as instance:
            return await overview(instance, wanted, instance.config.request_timeout)

    # -- queues

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message that can be read."""
        async with self._call() as instance:
            return await max_offset(instance, await known_queue(instance, queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is not deleted. Return the end of the queue if there is no such
        message.
        """
        async with self._call() as instance:
            return await min_offset(instance, await known_queue(instance, queue))

    async def search_offset(self, queue: MessageQueue, when: float | datetime, *, upper: bool = False) -> int:
        """Return the offset of the first message stored at ``when`` (epoch seconds or an aware datetime) or later. Return the
        end of the queue if there is no such message.

        With ``upper``, return the offset of the last message stored at ``when`` or before. Return the offset of the first
        message if there is no such message.
        """
        check_flag("upper", upper)
        async with self._call() as instance:
            return await search_offset(instance, await known_queue(instance, queue), when, upper=upper)

    async def earliest_store_time_ms(self, queue: MessageQueue) -> int:
        """Return the store time of the queue's first message in epoch ms. Return -1 for an empty queue."""
        async with self._call() as instance:
            return await earliest_store_time_ms(instance, await known_queue(instance, queue))

    # -- messages

    async def view_message(self, topic: str, msg_id: str) -> MessageExt:
        """Return one message of ``topic`` by its offset id, which a broker assigned, or by its unique id, which the sender
        assigned. If several messages have that unique id, return the message that was stored first.

        A damaged message raises CorruptMessageError if ``msg_id`` is its offset id. Otherwise, the damaged message is logged
        and left out.

        Raises:
            QueryNotFoundError: When there is no such message.
            TopicNotFoundError: For an unknown topic.
        """
        async with self._call() as instance:
            topic = self._wire(topic)
            msg_id = check_text("msg_id", msg_id, longest=_MAX_ID_LENGTH)
            found = await messages.view(instance, topic, msg_id, self._deadline())
            return self._names.shown_messages((found,))[0]

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = 32,
        begin: float | datetime | None = None,
        end: float | datetime | None = None,
    ) -> tuple[MessageExt, ...]:
        """Return the messages of ``topic`` that have ``key`` among their keys and were stored from ``begin`` to ``end``
        (inclusive; epoch seconds or aware datetimes; None: no limit), sorted by store time. If there are more than ``max_num``
        (1 to 65535), return the newest. A broker with default settings returns at most 64 (``maxMsgsNumBatch``).

        Wait up to ``request_timeout`` until each broker has indexed the messages that it acknowledged before the call. Return
        an empty tuple if there is no message. Log damaged messages and leave them out.

        Raises:
            TopicNotFoundError: For an unknown topic.
        """
        async with self._call() as instance:
            topic = self._wire(topic)
            key = check_text("key", key, longest=_MAX_ID_LENGTH)
            if " " in key:
                raise ConfigError(
                    f"key must be a string without spaces, which separate the keys of a message, not {shown(key)}"
                )
            check_int("max_num", max_num, 1, _MAX_FOUND)
            begin_ms = None if begin is None else epoch_ms(begin)
            end_ms = None if end is None else epoch_ms(end)
            if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
                raise ConfigError(f"begin={shown(begin)} is after end={shown(end)}; exchange them")
            found = await messages.by_key(instance, topic, key, max_num, begin_ms, end_ms, self._deadline())
            return self._names.shown_messages(found)

    # -- groups

    async def producer_connections(self, group: str) -> tuple[ClientConnection, ...]:
        """Return the clients that produce as ``group``, once for each broker they are connected to.

        A broker knows a producer from the producer's first heartbeat on. The producer sends that heartbeat after it has
        connected to the broker, at the latest when it sends its first message there.

        Raises:
            GroupNotOnlineError: When no broker knows a producer of the group.
        """
        async with self._call() as instance:
            return await clients.producers(instance, self._wire_group(group), self._deadline())

    async def consumer_connections(self, group: str) -> ConsumerConnections:
        """Return the clients that consume as ``group``, once for each broker they are connected to, and their subscriptions.

        Raises:
            GroupNotOnlineError: When no broker knows a member of the group.
        """
        async with self._call() as instance:
            return await clients.consumers(instance, self._wire_group(group), self._deadline())

    async def groups(self) -> tuple[str, ...]:
        """Return the sorted names of all consumer groups for which the brokers have settings, including system groups.

        With ``namespace``, return only the groups in the namespace. If ``autoCreateSubscriptionGroup`` is on, a broker creates
        a group at the group's first heartbeat or pull.
        """
        async with self._call() as instance:
            return await group_settings.list_groups(instance, self._deadline())

    async def create_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        **settings: Unpack[group_settings.GroupSettings],
    ) -> None:
        """Create a consumer group, or replace its settings. Settings that are not given get their defaults.

        Brokers keep the attributes of an existing group and apply only the changes in ``attributes`` (Java's
        SubscriptionGroupManager).

        Args:
            cluster: Name of the cluster whose brokers get the group. It may be omitted if there is only one cluster.
            broker: Name of the only broker that gets the group.
            **settings: Settings such as ``retry_max_times`` (16), the attempts after the first before a message is
                dead-lettered, ``consume_enable`` (True) and ``attributes``, such as {"lite.bind.topic": "ChatTopic"};
                ``rmq_protocol.bodies.SubscriptionGroupConfig`` has all settings.
                If the group's retry topic exists and has fewer queues than ``retry_queue_nums`` (1), it first gets that many
                queues.

        Raises:
            TypeError: For an unknown setting, and for a value that has the wrong type or is out of range.
            ConfigError: If there are several clusters and neither ``cluster`` nor ``broker`` is given, and for attributes with
                empty names or values, or with one of , = + in them.
            BrokerNotFoundError: When there is no such broker or cluster.
            BrokerError: When a broker refuses the request.
        """
        async with self._call() as instance:
            if "lite.bind.topic" in (attributes := settings.get("attributes") or {}):
                bound = self._wire(attributes["lite.bind.topic"])
                settings = {**settings, "attributes": {**attributes, "lite.bind.topic": bound}}
            config = group_settings.group_config(self._wire_group(group), settings)
            await group_settings.create(instance, config, cluster, broker, self._deadline())

    async def delete_group(self, group: str) -> None:
        """Delete a consumer group on all brokers: its settings, its offsets, its retry topics and **its dead letters**.

        A retry topic for popped messages is kept if its name can also be the name of another group's retry topic.

        Raises:
            ClientStateError: While the group has members, because their next heartbeats would create the group again.
            SubscriptionGroupNotExistError: When neither the group nor any of its retry and dead-letter topics exists.
        """
        async with self._call() as instance:
            await group_settings.delete(instance, self._wire_group(group), self._deadline())

    async def group_members(self, group: str) -> tuple[GroupMember, ...]:
        """Return the clients that consume as ``group``, sorted by client id.

        Raises:
            GroupNotOnlineError: When no broker knows a member of the group.
        """
        async with self._call() as instance:
            return await group_settings.members(instance, self._wire_group(group), self._deadline())

    async def group_lag(self, group: str, topic: str | None = None) -> GroupLag:
        """Return the offsets and the lag of ``group`` in each queue of ``topic`` and of the group's retry topics.

        Without ``topic``, return them for all topics in which the group has offsets, but, while members are connected, only for
        those to which they subscribe. In addition to the queues that ``mqadmin consumerProgress`` shows, the result has the
        queues of topics that members may not read, and retry queues that hold messages but are missing from the retry topic.

        Raises:
            SubscriptionGroupNotExistError: For a group that does not exist. Without ``topic``, also for a group without any
                offset. With ``topic``, also for a topic that does not exist or to which the connected members do not subscribe.
        """
        async with self._call() as instance:
            wire = None if topic is None else self._wire(topic)
            return await group_offsets.lag(instance, self._wire_group(group), wire, self._deadline())

    async def reset_offsets(
        self, group: str, topic: str, to: group_offsets.Target, *, dry_run: bool = False
    ) -> tuple[OffsetChange, ...]:
        """Move the offsets of ``group`` in ``topic``, whether the group has members or not. Return the changes, sorted by
        queue.

        Members continue at the new offsets within about 20 s. Until then they may overwrite the new offsets, by commits for
        messages that they already have. Therefore the admin reads the offsets again, for up to 15 s while there are members; see
        ``OffsetChange.verified``.

        Args:
            to: "earliest", "latest", an aware datetime (the first message stored then or later), an offset for all queues, or a
                mapping from queue to offset. An offset outside of a queue is replaced by the queue's first or next offset.
            dry_run: True changes nothing and only returns the changes that a reset would make.

        Raises:
            ConfigError: If ``to`` is invalid, for example a negative offset.
            TopicNotFoundError: For an unknown topic.
            SubscriptionGroupNotExistError: When the group does not exist.
            ClientStateError: If ``to`` gives offsets, the group has members, and a broker resets by time only (before 5.2.0, or
                without ``useServerSideResetOffset``).
        """
        check_flag("dry_run", dry_run)
        async with self._call() as instance:
            wire = self._wire_group(group), self._wire(topic)
            return await group_offsets.reset(instance, *wire, to, self.config.request_timeout, dry_run=dry_run)

    async def clone_offsets(self, source: str, target: str, topic: str) -> tuple[OffsetChange, ...]:
        """Give ``target`` the offsets that ``source`` has in ``topic``. Return the changes, sorted by queue.

        Raises:
            ClientStateError: While ``target`` has members.
            SubscriptionGroupNotExistError: When ``target`` does not exist or ``source`` has no offset in the topic.
            TopicNotFoundError: For an unknown topic.
        """
        async with self._call() as instance:
            names = self._wire_group(source), self._wire_group(target), self._wire(topic)
            return await group_offsets.clone(instance, *names, self.config.request_timeout)

    async def dead_letters(self, group: str, *, limit: int = 1000) -> tuple[MessageExt, ...]:
        """Return the dead letters of ``group`` that ``resend_dead_letters`` has neither sent nor skipped, sorted by queue and
        offset. Return at most ``limit`` (1 to 65535) letters. Return an empty tuple if the group has no dead letters.

        Raises:
            CorruptMessageError: For a damaged letter.
        """
        async with self._call() as instance:
            check_int("limit", limit, 1, _MAX_FOUND)
            found = await dead_letters.read(instance, self._wire_group(group), limit, self.config.request_timeout)
            return self._names.shown_messages(found)

    async def resend_dead_letters(
        self, group: str, *, limit: int | None = None, skip_topics: str | Sequence[str] = (), skip_damaged: bool = False
    ) -> int:
        """Send the dead letters of ``group`` to the topics that they were first sent to, with their ids, tags, keys and
        properties. Send at most ``limit`` letters (1 to 2^31 - 1; None: all) and return the number of letters sent. Letters
        that were stored in the last second may be missing; call the method again for them.

        All groups that consume these topics get the letters, not only ``group``. The brokers record the position up to which
        letters were sent, and the next call continues there. A letter that was sent just before a call failed may be sent
        twice.

        Raise the error of the first failed request; if a send failed or a letter is damaged, a note of the error
        (``__notes__``) says how many letters were sent before it, and which letter is next.

        Args:
            skip_topics: Topics, such as deleted topics, whose letters are skipped permanently. These letters stay in
                ``%DLQ%<group>``, but no later call sends them.
            skip_damaged: True skips damaged letters in the same way, and logs the queue and offset of each.

        Raises:
            TopicNotFoundError: For a letter whose topic does not exist any more or cannot be written to.
            CorruptMessageError: For a damaged letter.
        """
        async with self._call() as instance:
            if limit is not None:
                check_int("limit", limit, 1, 2**31 - 1)
            check_flag("skip_damaged", skip_damaged)
            names = _texts_of(skip_topics, "skip_topics must be the name of a topic, or a sequence of names")
            skipped = dead_letters.Skipped([self._wire(topic) for topic in names], skip_damaged)
            return await dead_letters.resend(instance, self._wire_group(group), limit, skipped, self.config.request_timeout)

    async def consume_directly(self, group: str, client_id: str, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Let a member of ``group`` handle a message now, independently of its other messages. The outcome changes neither
        offsets nor retries.

        Args:
            message: A message that a method of this class has returned. Brokers wait 10 s for the member
                (``Broker2Client.callClient``), so the timeout of the call is at least 11 s.

        Raises:
            BrokerError: If there is no such member.
            BrokerNotFoundError: If the message's broker has no master now.
        """
        client_id = check_text("client_id", client_id)
        if not isinstance(message, MessageExt):
            raise ConfigError(f"message must be a MessageExt that was read from a topic, not {shown(message)}")
        async with self._call() as instance:
            deadline = machine.monotonic() + max(self.config.request_timeout, _MEMBER_TIME)
            return await group_settings.consume_directly(instance, self._wire_group(group), client_id, message, deadline)

    async def consumer_status(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Return the status that a member of ``group`` reports: its queues with their offsets and buffers, subscriptions and
        rates.

        The timeout of the call is at least 11 s, as for ``consume_directly``.

        Raises:
            GroupNotOnlineError: If there is no such member.
        """
        client_id = check_text("client_id", client_id)
        async with self._call() as instance:
            deadline = machine.monotonic() + max(self.config.request_timeout, _MEMBER_TIME)
            return await group_settings.running_info(instance, self._wire_group(group), client_id, deadline)

    # -- helpers

    def _wire_group(self, group: str) -> str:
        """Return the group's name on the wire.

        Raises:
            InvalidGroupError: For an invalid name.
        """
        check_group(group)
        return self._names.wire(group)

    def _deadline(self) -> float:
        return machine.monotonic() + self.config.request_timeout

    def _wire(self, topic: str) -> str:
        """Return the topic's name on the wire.

        Raises:
            InvalidMessageError: For an invalid name.
        """
        check_topic(topic)
        topic = self._names.wire(topic)
        check_topic(topic)
        return topic


def _patterns_of(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    return _texts_of(given, f'{name} must be a pattern such as "orders*", or a sequence of them', least=1)


def _texts_of(given: object, rule: str, *, least: int = 0) -> tuple[str, ...]:
    """Return a string, or several strings, as a tuple.

    Raises:
        ConfigError: For fewer than ``least`` strings, and for values that are not strings. The message contains ``rule``.
    """
    texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ("",)
    if len(texts) < least or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"{rule}, not {shown(given)}")
    return tuple(map(plain, texts))
