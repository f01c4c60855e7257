"""Asks brokers for their time."""

from __future__ import annotations

import logging

from rmq_protocol.bodies import KVTable, decode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.message import MessageQueue

from .. import machine
from .._text import printable
from ..errors import RocketMQError
from .broker_clock import broker_time_in
from .instance import ClientInstance

logger = logging.getLogger(__name__)


async def look_at_clock(instance: ClientInstance, queue: MessageQueue) -> None:
    """Determine the clock of a queue's broker from the broker's runtime information. Do nothing if the broker does not return it.

    Args:
        queue: The queue, with the name of its topic on the wire.
    """
    command = RemotingCommand(code=RequestCode.GET_BROKER_RUNTIME_INFO)
    broker, sent = instance.routes.broker_of(queue), machine.monotonic()
    try:
        response, _ = await instance.ask_broker(broker, queue.topic, command, instance.config.request_timeout)
        arrived = machine.monotonic()
        facts = decode_body(KVTable, response.body).table if response.code == ResponseCode.SUCCESS else {}
    except RocketMQError as error:
        logger.debug("cannot ask broker %s for its time: %s", printable(broker), printable(error, 300))
        return
    if (broker_ms := broker_time_in(facts)) is not None:
        instance.clocks.of(queue.broker_name).note(broker_ms, sent, arrived)
    else:
        logger.debug("broker %s did not return its time: %d %s", printable(broker), response.code, printable(response.remark))
