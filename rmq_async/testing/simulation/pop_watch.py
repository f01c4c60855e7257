"""The requests to brokers about popped messages: acknowledgements, and changes of the invisible time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from rmq_protocol.bodies import BatchAckMessageRequestBody, decode_body, unpack_bits
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader, from_ext
from rmq_protocol.pop import parse_extra_info, real_topic

from ...embedded import Broker, Connection

__all__ = ["PopRequest", "watch_pops"]


class PopRequest(NamedTuple):
    """One message of a request that a broker has served with success. ``topic``: that of its queue, a retry topic included.
    ``start``, ``pop_time``: first offset and time of the pop, as in the handle. ``suspended``: whether the redelivery after a
    change is not counted as an attempt."""

    time: float
    broker: str
    what: Literal["ack", "change"]
    group: str
    topic: str
    queue_id: int
    start: int
    pop_time: int
    offset: int
    suspended: bool = False

    @property
    def handle(self) -> tuple[str, str, str, int, int, int, int]:
        """The fields that identify a handle."""
        return (self.broker, self.group, self.topic, self.queue_id, self.start, self.pop_time, self.offset)


def watch_pops(broker: Broker, now: Callable[[], float], requests: list[PopRequest]) -> None:
    """Wraps the broker's handlers so that each message that a successful request acknowledges, or whose invisible time it changes,
    adds an entry to ``requests``."""

    def watch(code: int, read: Callable[[RemotingCommand], list[PopRequest]]) -> None:
        serve = broker.handlers[code]

        def watched(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            response = serve(connection, command)
            if response is not None and response.code == ResponseCode.SUCCESS:
                requests.extend(read(command))
            return response

        broker.handlers[code] = watched

    def ack(command: RemotingCommand) -> list[PopRequest]:
        header = from_ext(AckMessageRequestHeader, command.ext_fields)
        info = parse_extra_info(header.extraInfo)
        at = (header.consumerGroup, header.topic, header.queueId, info.ck_queue_offset, info.pop_time)
        return [PopRequest(now(), broker.name, "ack", *at, header.offset)]

    def acks(command: RemotingCommand) -> list[PopRequest]:
        return [
            PopRequest(
                now(),
                broker.name,
                "ack",
                each.consumer_group,
                real_topic(each.retry, each.topic, each.consumer_group),
                each.queue_id,
                each.start_offset,
                each.pop_time,
                each.start_offset + bit,
            )
            for each in decode_body(BatchAckMessageRequestBody, command.body).acks
            for bit in unpack_bits(each.bit_set)
        ]

    def change(command: RemotingCommand) -> list[PopRequest]:
        header = from_ext(ChangeInvisibleTimeRequestHeader, command.ext_fields)
        info = parse_extra_info(header.extraInfo)
        at = (header.consumerGroup, header.topic, header.queueId, info.ck_queue_offset, info.pop_time)
        return [PopRequest(now(), broker.name, "change", *at, header.offset, header.suspend)]

    watch(RequestCode.ACK_MESSAGE, ack)
    watch(RequestCode.BATCH_ACK_MESSAGE, acks)
    watch(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
