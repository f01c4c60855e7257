"""Requests for the settings of a group at brokers, such as ``retryMaxTimes``, the number of retries after which brokers
dead-letter a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Final

from rmq_protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper, decode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import GetSubscriptionGroupConfigRequestHeader, request_of

from ... import machine
from ..._text import printable, without_faq
from ...broker_answers import broker_error
from ...client import ClientInstance
from ...errors import RocketMQError, SubscriptionGroupNotExistError

logger = logging.getLogger(__name__)

KEPT: Final = 60.0
"""Seconds for which a response, or the lack of a response, is kept before the broker is asked again."""
LONGEST: Final = 1.0
"""Maximum seconds for the response, because a message that failed waits for it."""


async def settings_at(
    instance: ClientInstance, group: str, broker: str, topic: str, timeout: float
) -> SubscriptionGroupConfig | None:
    """Return the settings of a group at a broker. Return None if the broker does not return them."""
    settings, _ = await _ask(instance, group, broker, topic, timeout)
    return settings


async def joined_settings(
    instance: ClientInstance, group: str, broker: str, topic: str, timeout: float
) -> SubscriptionGroupConfig | None:
    """Return the settings as ``settings_at`` does, for a member that has sent its first heartbeat.

    Raises:
        SubscriptionGroupNotExistError: If the broker does not have the group, and is not configured to create it.
    """
    settings, missing = await _ask(instance, group, broker, topic, timeout)
    if missing is not None:  # the broker may not have handled the heartbeat yet
        await instance.heartbeats.wait_answer(missing.address or "", timeout)
        settings, missing = await _ask(instance, group, broker, topic, timeout)
        if missing is not None:
            raise missing_group(instance, group, missing)
    return settings


def missing_group(
    instance: ClientInstance, group: str, error: SubscriptionGroupNotExistError
) -> SubscriptionGroupNotExistError:
    """Return the error that ``start()`` raises if a broker does not have the group.

    Args:
        error: The error of the request to the broker.
    """
    name, remark = instance.names.display_name(group), without_faq(error.remark).rstrip(".! ")
    text = (
        f"{remark}; group {name} does not exist, and the broker does not create it; create it (Admin.create_group, rmq group "
        "create), or set autoCreateSubscriptionGroup=true at the broker"
    )
    return SubscriptionGroupNotExistError(text, request=error.request, broker=error.broker, address=error.address)


async def _ask(
    instance: ClientInstance, group: str, broker: str, topic: str, timeout: float
) -> tuple[SubscriptionGroupConfig | None, SubscriptionGroupNotExistError | None]:
    """Return the settings, or the error with which the broker reports that it does not have the group. Both are None after any
    other response or error.
    """
    header, code = GetSubscriptionGroupConfigRequestHeader(group=group), RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    command = request_of(header)
    try:
        response, address = await instance.ask_broker(broker, topic, command, timeout)
        if response.code == ResponseCode.SUCCESS:
            return decode_body(SubscriptionGroupConfig, response.body), None
        raise broker_error(response.code, response.remark, request=code.name, broker=broker, address=address)
    except RocketMQError as error:
        logger.debug("settings of group %s at %s: %s", group, broker, printable(error))
        return None, error if isinstance(error, SubscriptionGroupNotExistError) else None


async def settings_in_table(
    instance: ClientInstance, group: str, broker: str, topic: str, timeout: float
) -> SubscriptionGroupConfig | None:
    """Return the settings as ``settings_at`` does, from the table of all groups. Brokers before version 5.0 have no request for a
    single group.
    """
    command = RemotingCommand(code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    try:
        response, _ = await instance.ask_broker(broker, topic, command, timeout)
        if response.code == ResponseCode.SUCCESS:
            return decode_body(SubscriptionGroupWrapper, response.body).subscription_group_table.get(group)
        logger.debug("settings of all groups at %s: %d %s", broker, response.code, printable(response.remark))
    except RocketMQError as error:
        logger.debug("settings of all groups at %s: %s", broker, printable(error))
    return None


class GroupLimits:
    """The settings of a group at its brokers, requested when they are needed and kept for KEPT seconds.

    Args:
        group: Name of the group on the wire.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._known: dict[str, tuple[float, SubscriptionGroupConfig | None]] = {}
        """By broker: the monotonic time of the last request, and the last known settings."""
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, broker: str, topic: str) -> int | None:
        """Return the maximum number of retries at a broker. If the broker does not respond, return the last known number, or None.

        Args:
            topic: A topic that the broker has, by its name on the wire.
        """
        settings = await self.settings(broker, topic)
        return None if settings is None else max(settings.retry_max_times, 0)

    async def settings(self, broker: str, topic: str) -> SubscriptionGroupConfig | None:
        """Return the settings at a broker. If the broker does not respond, return the last known settings, or None."""
        async with self._asking[broker]:  # messages that fail together share one request
            known, now = self._known.get(broker), machine.monotonic()
            if known is not None and now - known[0] < KEPT:
                return known[1]
            timeout = min(self._instance.config.request_timeout, LONGEST)
            settings = await settings_at(self._instance, self._group, broker, topic, timeout)
            if settings is None and known is not None:
                settings = known[1]
            self._known[broker] = now, settings
            return settings
