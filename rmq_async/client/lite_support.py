"""Finds out whether a broker serves lite topics, before the first lite message or subscription goes there.

A broker that does not serve them confirms a lite message like any other, and no subscriber gets it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import GetParentTopicInfoRequestHeader, request_of

from .._asyncio import SingleFlight
from .._text import printable
from ..broker_answers import broker_error
from ..errors import ConfigError, RequestTimeoutError, RocketMQError, TopicNotFoundError
from ..transport import Connection

logger = logging.getLogger(__name__)

SETTINGS: Final = ("enableLmq", "enableMultiDispatch")
"""The settings without which a broker of 5.5.0 stores lite messages only in the parent topic. Both are false by default."""
_SETTING: Final = re.compile(rb"^\s*(enableLmq|enableMultiDispatch)\s*=\s*(\w+)\s*$", re.MULTILINE)


class LiteSupport:
    """Asks brokers whether they serve lite topics, once for each topic and connection, because a broker may restart with other
    settings.

    Args:
        display_name: Returns the name of a topic in errors.
    """

    def __init__(self, request_timeout: float, display_name: Callable[[str], str]) -> None:
        self._timeout = request_timeout
        self._display_name = display_name
        self._asking: SingleFlight[None] = SingleFlight("lite topics at")
        self._warned: dict[str, None] = {}
        """Addresses of brokers that did not permit the question."""

    @staticmethod
    def is_known(connection: Connection, topic: str) -> bool:
        """Return whether the broker is known to serve the lite topics of ``topic`` (on the wire)."""
        known: set[str] | None = connection.attributes.get(LiteSupport)
        return known is not None and topic in known

    async def check(self, connection: Connection, topic: str, deadline: float) -> None:
        """Ask the broker unless it is known, and wait at most until ``deadline`` (monotonic).

        If the broker does not permit the question, log one WARNING and continue as if it served lite topics.

        Args:
            topic: Name of the parent topic on the wire.

        Raises:
            ConfigError: If the broker is too old, one of its settings is off, or the topic has another type.
            TopicNotFoundError: If the broker does not have the topic.
            RocketMQError: If the request fails.
        """
        if self.is_known(connection, topic):
            return
        try:
            await self._asking.join((connection, topic), lambda: self._ask(connection, topic), deadline)
        except TimeoutError as error:
            if isinstance(error, RocketMQError):
                raise
            text = f"broker {connection.address} did not say in time whether it serves lite topics; use a longer timeout"
            raise RequestTimeoutError(text, address=connection.address, maybe_stored=False) from None

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel the requests and return their tasks, which need one more iteration of the loop to end."""
        return self._asking.close()

    async def _ask(self, connection: Connection, topic: str) -> None:
        await self._ask_for_topic(connection, topic)
        await self._ask_for_settings(connection)
        connection.attributes.setdefault(LiteSupport, set()).add(topic)

    async def _ask_for_topic(self, connection: Connection, topic: str) -> None:
        command = request_of(GetParentTopicInfoRequestHeader(topic=topic))
        response = await connection.request(command, self._timeout)
        shown = f"topic {self._display_name(topic)}"
        match response.code:
            case ResponseCode.SUCCESS:
                return
            case ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ConfigError(
                    f"broker {connection.address} has no lite topics, which need RocketMQ 5.5.0 or later; upgrade it, or leave out "
                    "lite_topic"
                )
            case ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFoundError(
                    f"broker {connection.address} does not have {shown}; create it with the attribute message.type=LITE",
                    address=connection.address,
                )
            case ResponseCode.INVALID_PARAMETER:
                raise ConfigError(
                    f"{shown} at broker {connection.address} is not of the type LITE, so it has no lite topics; create a topic "
                    "with the attribute message.type=LITE"
                )
            case ResponseCode.NO_PERMISSION:
                self._warn(connection, response.remark)
            case code:
                raise broker_error(code, response.remark, request="GET_PARENT_TOPIC_INFO", address=connection.address)

    async def _ask_for_settings(self, connection: Connection) -> None:
        response = await connection.request(RemotingCommand(code=RequestCode.GET_BROKER_CONFIG), self._timeout)
        if response.code == ResponseCode.NO_PERMISSION:
            self._warn(connection, response.remark)
            return
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark, request="GET_BROKER_CONFIG", address=connection.address)
        given = {name.decode(): value for name, value in _SETTING.findall(response.body)}
        if off := [name for name in SETTINGS if given.get(name, b"true") != b"true"]:
            found, wanted = (" and ".join(f"{name}={value}" for name in off) for value in ("false", "true"))
            raise ConfigError(
                f"broker {connection.address} has {found}, so it would confirm lite messages and deliver none; set {wanted} in its "
                "configuration and restart it"
            )

    def _warn(self, connection: Connection, remark: str | None) -> None:
        if connection.address in self._warned:
            return
        if len(self._warned) >= _MOST_WARNED:
            self._warned.clear()
        self._warned[connection.address] = None
        logger.warning(
            "broker %s does not permit the question whether it serves lite topics (%s); make sure that it is RocketMQ 5.5.0 or "
            "later with enableLmq=true and enableMultiDispatch=true, because others confirm lite messages and deliver none",
            connection.address,
            printable(remark, 200),
        )


_MOST_WARNED: Final = 1024
