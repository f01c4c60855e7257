"""Checks whether all members of a group have the same subscriptions, as RocketMQ requires, and whether brokers can apply SQL
conditions.
"""

# CHECK_CLIENT_CONFIG is the only request that checks a condition before the first pull. A broker accepts a heartbeat with a
# condition that it cannot parse, and delivers every message to a pull with such a condition (observed on 5.5.0). A broker that
# does not filter refuses each pull.

# A broker keeps one table of subscriptions for each group. The latest version of a topic's subscription filters for all members,
# and each heartbeat removes topics that it does not contain. So different subscriptions of another member appear in the table
# that GET_CONSUMER_CONNECTION_LIST (203) returns. If only one of two members subscribes to a topic, the topic is in the table, or
# missing from it, only until the next heartbeat of the other member, so the check is repeated.

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from rmq_protocol.bodies import CheckClientRequestBody, ConsumerConnection, decode_body, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import ProtocolError, shown
from rmq_protocol.heartbeat import ConsumerData, ConsumeType, SubscriptionData
from rmq_protocol.subscription import SUB_ALL, TAG

from ..._asyncio import for_each
from ..._text import printable
from ...broker_answers import broker_error
from ...client import ClientInstance
from ...errors import ConfigError, RocketMQError, TopicNotFoundError
from .positions import UNANSWERED

logger = logging.getLogger(__name__)

AT_ONCE: Final = 16
_OFF: Final = "does not support consumer to filter message"
MODEL: Final = ""
"""``topic`` of a conflict between broadcasting and clustering members, which affects the whole group."""
MODE: Final = "\x00mode"
"""``topic`` of a conflict between members that pull and members that pop."""
BY_OFFSET: Final = "\x00offset"
"""``topic`` of a conflict with a client that is listed as a member but reads queues by offset."""
TAKEN: Final = "members miss messages"


async def check_filter(instance: ClientInstance, group: str, subscription: SubscriptionData) -> None:
    """Check at each broker of the subscription's topic whether it can filter by the condition. Do nothing if the topic does not
    exist yet.

    Args:
        group: Name of the group on the wire.
        subscription: A subscription with a condition.

    Raises:
        ConfigError: For a condition that a broker cannot parse, and for a broker that does not filter by properties.
        RocketMQError: If a broker returns another error, or no broker responds.
    """
    topic, timeout = subscription.topic, instance.config.request_timeout
    try:
        route = await instance.routes.get(topic, timeout)
    except TopicNotFoundError:
        return
    silent: dict[str, RocketMQError] = {}
    body = encode_body(CheckClientRequestBody(instance.client_id, group, subscription))

    async def check(broker_name: str) -> None:
        command = RemotingCommand(code=RequestCode.CHECK_CLIENT_CONFIG, body=body)
        try:
            response, address = await instance.ask_broker(broker_name, topic, command, timeout, any_replica=True)
        except UNANSWERED as unanswered:
            silent[broker_name] = unanswered.with_traceback(None)
            return
        if response.code == ResponseCode.SUCCESS:
            return
        error = broker_error(response.code, response.remark, request="CHECK_CLIENT_CONFIG", broker=broker_name, address=address)
        condition = f"the sql filter {shown(subscription.sub_string)} of topic {instance.names.shown(topic)}"
        if response.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
            text = f"broker {broker_name} cannot parse {condition}; correct it: {printable(response.remark, 500)}"
        elif _OFF in (response.remark or ""):
            text = (
                f"broker {broker_name} does not filter by properties, so {condition} cannot work: set enablePropertyFilter=true in "
                "the broker's configuration and restart it, or filter by tags"
            )
        elif isinstance(error, UNANSWERED):
            silent[broker_name] = error
            return
        else:
            raise error
        raise ConfigError(text, code=response.code, broker=broker_name, address=address) from error

    names = dict.fromkeys(instance.routes.broker_of(queue) for queue in route.subscribe_queues)
    await for_each(names, check, at_once=AT_ONCE)
    if silent and len(silent) == len(names):
        raise silent.popitem()[1]
    if silent:
        logger.warning(
            "the sql filter of topic %s could not be checked at brokers that do not respond: %s",
            printable(instance.names.display_name(topic)), printable("; ".join(map(str, silent.values())), 500),
        )  # fmt: skip


class SubscriptionConflict(NamedTuple):
    """A difference between two members.

    Attributes:
        topic: Name of a topic, or MODEL, MODE or BY_OFFSET.
        ours: This member's expression, preceded by its type unless the type is TAG; None if this member does not subscribe to the
            topic. For MODEL and MODE, the model or mode of this member; for BY_OFFSET, its kind of client.
        theirs: The corresponding value of the other member.
    """

    topic: str
    ours: str | None
    theirs: str | None

    def __str__(self) -> str:
        if self.topic == MODEL:
            return f"this member is {self.ours}, another one is {self.theirs}; {TAKEN}; give all members the same model"
        if self.topic == MODE:
            return (
                f"this member has {self.ours}, another one has {self.theirs}; they repeat each other's messages; give all members "
                "the same mode"
            )
        if self.topic == BY_OFFSET:
            return (
                f"{self.theirs} has this group's name: brokers list it as a member, so members leave queues to it that it may "
                f"never read; {TAKEN}; give it a separate group"
            )
        ours, theirs = (repr(printable(each)) if each is not None else "nothing" for each in (self.ours, self.theirs))
        subscriptions = f"topic {printable(self.topic)}: this member subscribes to {ours}, another one to {theirs}"
        return f"{subscriptions}; {TAKEN}; give all members the same subscriptions"


class GroupView(NamedTuple):
    """A group as its brokers see it.

    Attributes:
        members: By client id: the addresses "ip:port" from which brokers see the client connected.
        listed_by: Addresses of the brokers that list this client. For a client that has not joined, see ``group_view``.
        conflicts: The conflicts at these brokers. Other brokers may not have received this client's heartbeat.
        unanswered: Addresses of the brokers that did not return a list.
        own: By broker address: the addresses from which the broker sees this client connected. Brokers that did not return a list
            have no entry.
    """

    members: Mapping[str, frozenset[str]]
    listed_by: frozenset[str]
    conflicts: tuple[SubscriptionConflict, ...]
    unanswered: frozenset[str]
    own: Mapping[str, frozenset[str]]

    def hosts(self, client_id: str) -> frozenset[str]:
        """Return the IP addresses from which brokers see a client id connected. One cause of several addresses is that two machines
        use the id.
        """
        return frozenset(address.rpartition(":")[0] for address in self.members.get(client_id, ()))


def compare(ours: ConsumerData, theirs: ConsumerConnection) -> tuple[SubscriptionConflict, ...]:
    """Return the differences between this member's heartbeat and a broker's table of the group, sorted by topic.

    Expressions for the same tags are equal even if they are written differently. Versions are not compared. A table without
    topics is not a difference: brokers list the first member before they store its subscriptions, and have no subscriptions of a
    Java client that reports "unchanged" to a restarted broker. The exception is a table without topics that has the type of a
    client that reads by offset. Such a client subscribes to nothing, and the table is reported as BY_OFFSET (observed on 5.5.0
    and 4.9.7).
    """
    own = {each.topic: each for each in ours.subscription_data_set}
    found = [SubscriptionConflict(MODEL, ours.message_model, theirs.message_model)] * (
        bool(theirs.message_model) and theirs.message_model != ours.message_model
    )
    mine, others = _mode(ours.consume_type), _mode(theirs.consume_type)
    if mine != others:
        found.append(SubscriptionConflict(MODE, mine, others))
    if own and not theirs.subscription_table and theirs.consume_type == ConsumeType.CONSUME_ACTIVELY:
        found.append(SubscriptionConflict(BY_OFFSET, "Consumer", "a PullConsumer, or a pull consumer of Java"))
    topics = own.keys() | theirs.subscription_table.keys() if theirs.subscription_table else ()
    for topic in sorted(topics):
        wanted, other = own.get(topic), theirs.subscription_table.get(topic)
        if wanted is None or other is None or _wanted(wanted) != _wanted(other):
            found.append(SubscriptionConflict(topic, _text(wanted), _text(other)))
    return tuple(found)


async def group_view(instance: ClientInstance, ours: ConsumerData, timeout: float, *, joined: bool = True) -> GroupView:
    """Return the group as the masters of all topics in use see it. Brokers that do not respond cause no error.

    Args:
        ours: The subscriptions in the heartbeats of this client.
        timeout: Maximum seconds for each broker.
        joined: Whether this client is a member. If it is not, ``listed_by`` and ``conflicts`` include all brokers that list any
            member: the table of a broker has the latest subscription of each topic, so after the join it would have this client's
            own subscriptions.
    """
    addresses = tuple(instance.routes.master_addresses())
    answers = await for_each(addresses, partial(_ask, instance, ours.group_name, timeout=timeout))
    members: dict[str, set[str]] = {}
    for answer in answers.values():
        for each in () if answer is None else answer.connection_set:
            members.setdefault(each.client_id, set()).add(each.client_addr)
    listed = {
        address: answer
        for address, answer in answers.items()
        if answer is not None and (_own(answer, instance) if joined else answer.connection_set)
    }
    conflicts = dict.fromkeys(conflict for answer in listed.values() for conflict in compare(ours, answer))
    return GroupView(
        {client_id: frozenset(places) for client_id, places in sorted(members.items())},
        frozenset(listed),
        _shown(instance, conflicts),
        frozenset(address for address, answer in answers.items() if answer is None),
        {address: _own(answer, instance) for address, answer in answers.items() if answer is not None},
    )


async def _ask(instance: ClientInstance, group: str, address: str, *, timeout: float) -> ConsumerConnection | None:
    """Return the members and the subscription table of the group at a broker. Return None if the broker does not return them."""
    command = RemotingCommand(code=RequestCode.GET_CONSUMER_CONNECTION_LIST, ext_fields={"consumerGroup": group})
    try:
        response = await instance.pool.request(address, command, timeout)
        if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return ConsumerConnection()
        if response.code == ResponseCode.SUCCESS:
            return decode_body(ConsumerConnection, response.body)
    except (RocketMQError, ProtocolError) as error:
        logger.debug("members of %s at %s: %s", group, address, printable(error))
        return None
    logger.debug("members of %s at %s: %d %s", group, address, response.code, printable(response.remark))
    return None


def _own(answer: ConsumerConnection, instance: ClientInstance) -> frozenset[str]:
    """Return the addresses of the connections that a broker lists with the id of this client."""
    return frozenset(each.client_addr for each in answer.connection_set if each.client_id == instance.client_id)


def _shown(instance: ClientInstance, conflicts: Iterable[SubscriptionConflict]) -> tuple[SubscriptionConflict, ...]:
    names = instance.names
    return tuple(
        each if each.topic in (MODE, BY_OFFSET) else each._replace(topic=names.shown(each.topic)) for each in conflicts
    )


def _wanted(subscription: SubscriptionData) -> tuple[str, frozenset[str] | str]:
    """Return the type of a subscription and its set of tags (empty for all tags). For a type other than TAG, return the type and
    the expression.
    """
    kind = subscription.expression_type or TAG
    if kind != TAG:
        return kind, subscription.sub_string
    if subscription.tags_set or subscription.sub_string in ("", SUB_ALL):
        return TAG, frozenset(subscription.tags_set)
    return TAG, frozenset(tag.strip() for tag in subscription.sub_string.split("||"))


def _mode(consume_type: str) -> str:
    return "mode='pop'" if consume_type == ConsumeType.CONSUME_POP else "mode='pull'"


def _text(subscription: SubscriptionData | None) -> str | None:
    if subscription is None:
        return None
    kind = subscription.expression_type or TAG
    return subscription.sub_string if kind == TAG else f"{kind}: {subscription.sub_string}"
