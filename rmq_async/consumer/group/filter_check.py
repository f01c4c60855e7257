"""Checks whether the brokers of a topic can filter by an SQL92 condition (CHECK_CLIENT_CONFIG, 46)."""

# No other request shows that before the first pull: a broker accepts a heartbeat with a condition that it cannot read, and
# delivers every message to a pull with such a condition (observed on 5.5.0); a broker that does not filter refuses each pull.

from __future__ import annotations

import logging
from typing import Final

from rmq_protocol.bodies import CheckClientRequestBody, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import shown
from rmq_protocol.heartbeat import SubscriptionData

from ..._asyncio import for_each
from ..._text import printable
from ...broker_answers import broker_error
from ...client import ClientInstance
from ...errors import ConfigError, RocketMQError, TopicNotFoundError
from .start_position import UNANSWERED

__all__ = ["check_filter"]

logger = logging.getLogger(__name__)

AT_ONCE: Final = 16
_OFF: Final = "does not support consumer to filter message"


async def check_filter(instance: ClientInstance, group: str, subscription: SubscriptionData) -> None:
    """Asks each broker of the subscription's topic whether it can filter by the condition; none if the topic does not exist
    yet.

    Raises ConfigError for a condition that a broker cannot read, and for a broker that does not filter by properties, and
    passes on the errors of the requests, those of brokers that do not answer only if none does. ``group``: its name on the wire.
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
            text = f"broker {broker_name} cannot read {condition}, correct it: {printable(response.remark, 500)}"
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
            "whether the sql filter of topic %s works at brokers that do not answer is not known: %s",
            printable(instance.names.display_name(topic)), printable("; ".join(map(str, silent.values())), 500),
        )  # fmt: skip
