"""Asks the other members which queues they hold (GET_CONSUMER_RUNNING_INFO, 307, which a broker relays)."""

# A member may not know yet that a queue belongs to another one: the broker's notice was lost, or notices are switched off for
# the group, and the member reads the list of members only after its ``rebalance_interval``. Until then it renews its locks, and
# the lock of a crashed member stays for a minute too, so the two look the same. So the members are asked before a lock is
# seized or a queue is read without its lock, and when a lock was granted late. They are not asked at other times, because the
# relay blocks a thread of the broker.

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from rmq_protocol.bodies import ConsumerRunningInfo, decode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import ProtocolError
from rmq_protocol.headers import GetConsumerRunningInfoRequestHeader, to_ext
from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import for_each
from ...client import ClientInstance
from ...errors import RocketMQError

__all__ = ["ANSWER_TIME", "Holders", "find_holders"]

ANSWER_TIME: Final = 3.0
"""Seconds for all answers together: the takeover of other queues waits meanwhile."""
AT_ONCE: Final = 8


class Holders(NamedTuple):
    """The queues that other members report.

    ``held``: queues that another member holds or drains. ``silent``: members that did not answer.
    """

    held: frozenset[MessageQueue]
    silent: frozenset[str]


async def find_holders(
    instance: ClientInstance, group: str, queues: Iterable[MessageQueue], members: Iterable[str], within: float = ANSWER_TIME
) -> Holders:
    """Asks each member which of ``queues`` it holds, through one broker of the queues after another until the member answers.
    Raises no error.

    ``members``: client ids. ``within``: seconds for all answers; a member that has not answered by then, or cannot be
    asked, is silent.
    """
    wanted = frozenset(queues)
    deadline = machine.monotonic() + within
    brokers = {instance.routes.broker_of(each): each.topic for each in sorted(wanted)}

    async def ask(client_id: str) -> frozenset[MessageQueue] | None:
        header = GetConsumerRunningInfoRequestHeader(consumerGroup=group, clientId=client_id)
        for broker_name, topic in brokers.items():
            timeout = min(instance.config.request_timeout, deadline - machine.monotonic())
            if timeout <= 0:
                break
            command = RemotingCommand(code=RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields={**to_ext(header)})
            try:
                response, _ = await instance.ask_broker(broker_name, topic, command, timeout)
                if response.code == ResponseCode.SUCCESS:
                    return wanted.intersection(decode_body(ConsumerRunningInfo, response.body).mq_table)
            except (RocketMQError, ProtocolError):
                continue
        return None

    answers = await for_each(members, ask, at_once=AT_ONCE)
    held = frozenset(queue for found in answers.values() if found is not None for queue in found)
    return Holders(held, frozenset(client_id for client_id, found in answers.items() if found is None))
