"""The setting ``retryMaxTimes`` of a group: after so many retries, its brokers dead-letter a message that fails."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Final

from rmq_protocol.bodies import SubscriptionGroupConfig, decode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import GetSubscriptionGroupConfigRequestHeader, to_ext

from .. import machine
from .._text import printable
from ..client import ClientInstance
from ..errors import RocketMQError

__all__ = ["GroupLimits", "attempts_of"]

logger = logging.getLogger(__name__)

KEPT: Final = 60.0
"""Seconds for which an answer, or the lack of one, is kept before the broker is asked again."""
LONGEST: Final = 1.0
"""Maximum seconds for the answer: a message that failed waits for it."""


async def attempts_of(instance: ClientInstance, group: str, broker: str, topic: str, timeout: float) -> int | None:
    """Returns ``retryMaxTimes`` of the group, 0 for a negative one; None if the broker does not return it."""
    header = GetSubscriptionGroupConfigRequestHeader(group=group)
    command = RemotingCommand(code=RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext_fields={**to_ext(header)})
    try:
        response, _ = await instance.ask_broker(broker, topic, command, timeout)
        if response.code == ResponseCode.SUCCESS:
            return max(decode_body(SubscriptionGroupConfig, response.body).retry_max_times, 0)
        logger.debug("settings of group %s at %s: %d %s", group, broker, response.code, printable(response.remark))
    except RocketMQError as error:
        logger.debug("settings of group %s at %s: %s", group, broker, printable(error))
    return None


class GroupLimits:
    """The limits of a group by broker, each requested when a message fails. ``group``: on the wire."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._known: dict[str, tuple[float, int | None]] = {}
        """Broker -> monotonic time at which it was asked last, and the last known limit."""
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, broker: str, topic: str) -> int | None:
        """Returns the limit at a broker, the last known one if it does not answer; None without one. ``topic``: name on the
        wire of a topic that the broker has."""
        async with self._asking[broker]:  # messages that fail together share the answer
            known, now = self._known.get(broker), machine.monotonic()
            if known is not None and now - known[0] < KEPT:
                return known[1]
            timeout = min(self._instance.config.request_timeout, LONGEST)
            limit = await attempts_of(self._instance, self._group, broker, topic, timeout)
            if limit is None and known is not None:
                limit = known[1]
            self._known[broker] = now, limit
            return limit
