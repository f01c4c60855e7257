"""Consumer groups: their settings on all brokers, their members, and the status that one member reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypedDict

import msgspec

from rmq_protocol import bodies, headers
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, RequestCode, ResponseCode
from rmq_protocol.json_body import decode_body, encode_body
from rmq_protocol.message import MessageExt
from rmq_protocol.pop import pop_retry_topic, pop_retry_topic_v1

from .. import errors, machine
from .._text import printable
from ..client import ClientInstance
from . import dead_letters
from . import topics as topic_settings
from .clients import consumers
from .requests import ask, cluster_info, everywhere, masters_of
from .results import GroupMember


class GroupSettings(TypedDict, total=False):
    """Settings of a consumer group; SubscriptionGroupConfig describes their meanings and defaults."""

    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: int
    retry_max_times: int
    group_retry_policy: bodies.GroupRetryPolicy
    broker_id: int
    which_broker_when_consume_slowly: int
    notify_consumer_ids_changed_enable: bool
    group_sys_flag: int
    consume_timeout_minute: int
    attributes: dict[str, str]


async def list_groups(instance: ClientInstance, deadline: float) -> tuple[str, ...]:
    """Implement ``Admin.groups``."""
    names = instance.names
    found = await _known(instance, masters_of(await cluster_info(instance, deadline)), deadline)
    return tuple(sorted(names.shown(each) for each in found if names.owns(each)))


async def _known(instance: ClientInstance, brokers: Mapping[str, str], deadline: float) -> set[str]:
    """Return the groups for which the brokers have settings, by their names on the wire."""
    found: set[str] = set()
    command = RemotingCommand(code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    for response in (await everywhere(instance, brokers, command, deadline)).values():
        found.update(decode_body(bodies.SubscriptionGroupWrapper, response.body).subscription_group_table)
    return found


async def check_exists(instance: ClientInstance, group: str, deadline: float) -> None:
    """Raise SubscriptionGroupNotExistError if no broker has settings for the group.

    Do nothing if the user may not list groups, because the request that follows needs different permissions.
    """
    brokers = masters_of(await cluster_info(instance, deadline))
    try:
        known = await _known(instance, brokers, deadline)
    except errors.NoPermissionError:
        return
    if group not in known:
        raise _not_there(instance, group, brokers)


def _not_there(instance: ClientInstance, group: str, brokers: Iterable[str]) -> errors.SubscriptionGroupNotExistError:
    name, where = instance.names.display_name(group), printable(", ".join(brokers))
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    return errors.SubscriptionGroupNotExistError(f"there is no group {name} on {where}; check the name", request=code.name)


def group_config(group: str, settings: GroupSettings) -> bodies.SubscriptionGroupConfig:
    """Return the settings of a group.

    Raises:
        TypeError: For an unknown setting, and for a value that has the wrong type or is out of range.
        ConfigError: For attributes that ``attribute_changes`` refuses.
    """
    unknown = sorted(settings.keys() - GroupSettings.__annotations__.keys())
    if unknown:
        raise TypeError(f"a group has no setting {', '.join(unknown)}; there are {', '.join(GroupSettings.__annotations__)}")
    config = bodies.SubscriptionGroupConfig(group, **settings)
    try:
        checked = msgspec.convert(msgspec.to_builtins(config), bodies.SubscriptionGroupConfig)
    except (msgspec.ValidationError, TypeError) as error:
        raise TypeError(f"a setting of group {group} has an invalid value: {error}; see SubscriptionGroupConfig") from None
    for name, least in _LEAST.items():
        if (value := getattr(checked, name)) < least:
            raise TypeError(f"a setting of group {group} has an invalid value: {name} must be at least {least}, not {value}")
    topic_settings.attribute_changes(checked.attributes)
    return msgspec.structs.replace(checked, attributes={f"+{name}": value for name, value in checked.attributes.items()})


_LEAST: Final = {"retry_queue_nums": 1, "retry_max_times": 0, "broker_id": 0, "which_broker_when_consume_slowly": 0}
"""The lowest values of settings. Brokers accept lower values, but without a retry queue, a broker drops failed messages and
responds that it has stored them.
"""


async def create(
    instance: ClientInstance, config: bodies.SubscriptionGroupConfig, cluster: str | None, broker: str | None, deadline: float
) -> None:
    """Implement ``Admin.create_group``."""
    brokers = masters_of(await cluster_info(instance, deadline), cluster, broker, any_cluster=False)
    command = RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config))
    await _grow_retry_topic(instance, config, brokers, deadline)
    await everywhere(instance, brokers, command, deadline)
    await _grow_retry_topic(instance, config, brokers, deadline)  # a member may have created the topic in the meantime


async def _grow_retry_topic(
    instance: ClientInstance, config: bodies.SubscriptionGroupConfig, brokers: Mapping[str, str], deadline: float
) -> None:
    """Give the group's retry topic at least as many queues as the group's new settings require, on each broker that has the
    topic.

    A broker stores each failed message in one of ``retry_queue_nums`` queues, even if the existing topic has fewer queues.
    Members could not read the messages in the additional queues.
    """
    wanted = config.retry_queue_nums
    if wanted <= 1:
        return
    topic = RETRY_TOPIC_PREFIX + config.group_name
    for name, address in brokers.items():
        found = (await topic_settings.settings_of(instance, name, address, deadline)).topic_config_table.get(topic)
        if found is not None and min(found.read_queue_nums, found.write_queue_nums) < wanted:
            await topic_settings.grow(instance, found, wanted, {name: address}, deadline)


async def delete(instance: ClientInstance, group: str, deadline: float) -> None:
    """Implement ``Admin.delete_group``."""
    await check_offline(instance, group, "they would create it again: stop them first", deadline)
    brokers = masters_of(await cluster_info(instance, deadline))
    known = await _known(instance, brokers, deadline)
    of_pops = await _pop_retries(instance, group, known - {group}, brokers, deadline)
    for topic in of_pops:  # before the offsets, because a second call finds these topics by their offsets
        await topic_settings.delete_at(instance, topic, brokers, deadline)
    header = headers.DeleteSubscriptionGroupRequestHeader(groupName=group, cleanOffset=True)
    fields: dict[str, str | None] = {**headers.to_ext(header), "removeOffset": "true"}  # 4.9 uses this name for cleanOffset
    command = RemotingCommand(code=RequestCode.DELETE_SUBSCRIPTIONGROUP, ext_fields=fields)
    await everywhere(instance, brokers, command, deadline)
    there = group in known or bool(of_pops)
    await dead_letters.forget(instance, group, brokers, deadline)
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        try:
            await topic_settings.delete(instance, prefix + group, None, deadline)
        except errors.TopicNotFoundError:
            continue  # the topic does not exist, because no message of the group has failed
        there = True
    if not there:
        raise _not_there(instance, group, brokers)


async def _pop_retries(
    instance: ClientInstance, group: str, others: Collection[str], brokers: Mapping[str, str], deadline: float
) -> list[str]:
    """Return the group's retry topics for popped messages, as far as the brokers can list the group's topics.

    They must be deleted too, because a new group with the same name would first receive their messages.

    Such a name is ambiguous: if it ends in "a_b_c", it may stand for group "a" and topic "b_c", or for group "a_b" and topic
    "c". Leave out names that may belong to another group.
    """
    # sent to brokers, because name servers may not list these topics
    command = RemotingCommand(code=RequestCode.QUERY_TOPICS_BY_CONSUMER, ext_fields={"group": group})
    unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ""
    names: set[str] = set()
    for response in (await everywhere(instance, brokers, command, deadline, absent=unknown)).values():
        for topic in decode_body(bodies.TopicList, response.body).topic_list:
            names |= {pop_retry_topic_v1(topic, group), pop_retry_topic(topic, group)}
    if not names:
        return []
    tables = [await topic_settings.settings_of(instance, *broker, deadline) for broker in brokers.items()]
    there = {name for table in tables for name in table.topic_config_table}

    def may_be_of(other: str, name: str) -> bool:
        own = RETRY_TOPIC_PREFIX + other
        return name == own or (name.startswith(own + "_") and name.removeprefix(own + "_") in there)

    return sorted(name for name in names & there if not any(may_be_of(other, name) for other in others))


async def members(instance: ClientInstance, group: str, deadline: float) -> tuple[GroupMember, ...]:
    """Implement ``Admin.group_members``."""
    found = await consumers(instance, group, deadline)
    merged: dict[str, GroupMember] = {}
    for each in found.connections:
        known = merged.get(each.client_id)
        brokers = (each.broker,) if known is None else (*known.brokers, each.broker)
        address = each.address if known is None else known.address
        merged[each.client_id] = GroupMember(each.client_id, address, each.language, each.version, tuple(sorted(set(brokers))))
    return tuple(merged[client_id] for client_id in sorted(merged))


async def check_offline(instance: ClientInstance, group: str, why: str, deadline: float) -> None:
    """Raise ClientStateError if the group has members.

    Args:
        why: The end of the error message: why the group must have no members, and what to do.
    """
    try:
        found = await members(instance, group, deadline)
    except errors.GroupNotOnlineError:
        return
    some = printable(", ".join(each.client_id for each in found[:3]))
    number = f"{len(found)} member{'' if len(found) == 1 else 's'}"
    raise errors.ClientStateError(f"group {instance.names.display_name(group)} has {number} ({some}), and {why}")


async def is_online(instance: ClientInstance, group: str) -> bool:
    """Return whether a member of the group is connected to a broker."""
    try:
        await members(instance, group, machine.monotonic() + instance.config.request_timeout)
    except errors.GroupNotOnlineError:
        return False
    return True


async def running_info(instance: ClientInstance, group: str, client_id: str, deadline: float) -> bodies.ConsumerRunningInfo:
    """Implement ``Admin.consumer_status``."""
    broker, address = await _broker_of_member(instance, group, client_id, deadline)
    command = headers.request_of(headers.GetConsumerRunningInfoRequestHeader(consumerGroup=group, clientId=client_id))
    response = await ask(instance, broker, address, command, deadline)
    return decode_body(bodies.ConsumerRunningInfo, response.body)


async def consume_directly(
    instance: ClientInstance, group: str, client_id: str, message: MessageExt, deadline: float
) -> bodies.ConsumeMessageDirectlyResult:
    """Implement ``Admin.consume_directly``."""
    masters = masters_of(await cluster_info(instance, deadline))
    queue = instance.names.wire_queue(message.queue)
    stored_at = [name for name, address in masters.items() if address == message.store_host]
    broker = stored_at[0] if stored_at else queue.broker_name
    address = masters.get(broker)
    if address is None:
        raise errors.BrokerNotFoundError(
            f"no name server knows a master of broker {printable(broker)}; check the name, or start the broker", broker=broker
        )
    header = headers.ConsumeMessageDirectlyResultRequestHeader(
        consumerGroup=group, clientId=client_id, msgId=message.offset_msg_id, brokerName=broker, topic=queue.topic
    )
    response = await ask(instance, broker, address, headers.request_of(header), deadline)
    return decode_body(bodies.ConsumeMessageDirectlyResult, response.body)


async def _broker_of_member(instance: ClientInstance, group: str, client_id: str, deadline: float) -> tuple[str, str]:
    """Return name and address of a broker that the member is connected to.

    Raises:
        GroupNotOnlineError: If the member is connected to no broker.
    """
    masters = masters_of(await cluster_info(instance, deadline))
    for each in await members(instance, group, deadline):
        if each.client_id == client_id:
            for broker in each.brokers:
                if broker in masters:
                    return broker, masters[broker]
    shown = instance.names.display_name(group)
    raise errors.GroupNotOnlineError(
        f"group {shown} has no member {printable(client_id)}; group_members() lists them",
        request=RequestCode.GET_CONSUMER_RUNNING_INFO.name,
    )
