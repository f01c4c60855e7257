"""Checks, before a member pops, whether the brokers can be popped, and which mode operators have set for the group."""

# A broker before 5.3.2 loses and repeats popped messages in some cases, and a broker before 5.0 does not support pops. The
# member does not pull them instead: the positions of a group that pulls and of one that pops mean different things.

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rmq_protocol.bodies import KVTable, MessageRequestModeSerializeWrapper, decode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError

from ..._text import printable
from ...client import ClientInstance
from ...errors import ConfigError, RocketMQError

__all__ = ["Looked", "check_broker", "version_name"]

logger = logging.getLogger(__name__)

OLDEST: Final = 477
"""``MQVersion.V5_3_2``."""
_V4_0_0: Final = 213
_PER_NUMBER: Final = 2
"""Each version has two numbers in ``MQVersion``: that of its snapshots and that of its release."""


class Looked(NamedTuple):
    """The findings of the check of one broker.

    ``version``: number of the broker's ``MQVersion``. ``pulled``: topics for which an operator has set that the group pulls.
    """

    version: int
    pulled: tuple[str, ...]


def version_name(version: int) -> str:
    """Returns the release of a number of ``MQVersion``, such as "5.3.2"; "before 4.0.0" for a lower one."""
    if version < _V4_0_0:
        return "before 4.0.0"
    major, rest = divmod((version - _V4_0_0) // _PER_NUMBER, 100)
    return f"{4 + major}.{rest // 10}.{rest % 10}"


async def check_broker(instance: ClientInstance, group: str, broker: str, topics: Iterable[str], timeout: float) -> Looked:
    """Asks a broker for the modes that operators have set (GET_ALL_MESSAGE_REQUEST_MODE, 402); the answer has its version too.

    QUERY_ASSIGNMENT (400) does not show them: it answers PULL for every group without a mode. ``group``, ``topics``: names on
    the wire. Raises ConfigError for a broker that cannot be popped, and the errors of the request.
    """
    names = [*topics]
    command = RemotingCommand(code=RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    response, address = await instance.ask_broker(broker, names[0], command, timeout)
    if response.version < OLDEST or response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        name = version_name(response.version)
        fault = f"is RocketMQ {name}"
        if response.version >= OLDEST:
            said = await _said_version(instance, broker, names[0], timeout)
            fault = f"is RocketMQ {said}" if said else f"refuses GET_ALL_MESSAGE_REQUEST_MODE, although it answers as {name}"
        raise ConfigError(
            f"broker {printable(broker)} at {address} {fault}; mode='pop' needs 5.3.2 or later: use mode='pull', which all "
            "versions serve",
            code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            broker=broker,
            address=address,
        )
    if response.code != ResponseCode.SUCCESS:  # this request may need a right that pops do not need
        logger.debug("broker %s does not say what operators have set: %d %s", broker, response.code, printable(response.remark))
        return Looked(response.version, ())
    try:
        modes = decode_body(MessageRequestModeSerializeWrapper, response.body).message_request_mode_map
    except RemoteProtocolError as error:
        logger.debug("modes of broker %s: %s", broker, printable(error))
        return Looked(response.version, ())
    return Looked(response.version, tuple(topic for topic in names if _is_pulled(modes.get(topic, {}), group)))


async def _said_version(instance: ClientInstance, broker: str, topic: str, timeout: float) -> str | None:
    """Returns the version in a broker's runtime information, None without it: behind a proxy the answers may have the client's
    version."""
    command = RemotingCommand(code=RequestCode.GET_BROKER_RUNTIME_INFO)
    try:
        response, _ = await instance.ask_broker(broker, topic, command, timeout)
        said = decode_body(KVTable, response.body).table.get("brokerVersionDesc")
    except RocketMQError:
        return None
    return said.removeprefix("V").replace("_", ".") if said else None


def _is_pulled(modes: Mapping[str, object], group: str) -> bool:
    return getattr(modes.get(group), "mode", None) == "PULL"
