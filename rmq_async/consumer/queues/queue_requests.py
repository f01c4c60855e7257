"""Responds to the requests of tools for a member that holds queues: the state of the queues, their positions, and resets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rmq_protocol.bodies import GetConsumerStatusBody, ProcessQueueInfo
from rmq_protocol.command import RemotingCommand
from rmq_protocol.heartbeat import ConsumerData
from rmq_protocol.message import MessageQueue

from ... import machine
from ...client import ClientInstance
from ..by_hand import ByHand
from ..handling import HandlerCalls
from ..held_queue import HeldQueue
from ..session import MemberRequests
from ..subscription import Subscription
from ..supervisor import Supervisor
from .assignment import Assignment

MEBIBYTE: Final = 1024 * 1024


class QueueRequests(MemberRequests):
    """Responds to the requests of tools for a member that holds queues.

    Args:
        data: Returns the member's part of the heartbeat.
        subscriptions: Subscriptions by topic on the wire.
    """

    def __init__(
        self,
        instance: ClientInstance,
        data: Callable[[], ConsumerData],
        subscriptions: Mapping[str, Subscription],
        assignment: Assignment,
        calls: HandlerCalls | ByHand,
        supervisor: Supervisor,
    ) -> None:
        super().__init__(instance, data, subscriptions, calls)
        self._assignment = assignment
        self._supervisor = supervisor

    def _queues(self) -> dict[MessageQueue, ProcessQueueInfo]:
        return {held.queue: self._queue_info(held) for held in self._assignment.owned()}

    def _queue_info(self, held: HeldQueue) -> ProcessQueueInfo:
        waiting = self._assignment.dispatcher.buffered_of(held)
        messages = [*[item.message for item in held.running], *waiting]
        offsets = [message.queue_offset for message in messages]
        size = sum(len(message.body) for message in messages)
        locked_at = self._assignment.locks.locked_at(held.queue)
        return ProcessQueueInfo(
            commit_offset=held.progress.watermark,
            cached_msg_min_offset=min(offsets, default=0),
            cached_msg_max_offset=max(offsets, default=0),
            cached_msg_count=len(offsets),
            cached_msg_size_in_mib=size // MEBIBYTE,
            locked=locked_at is not None,
            last_lock_timestamp=0 if locked_at is None else _epoch_ms(locked_at),
            droped=held in self._assignment.leaving,
            last_pull_timestamp=_epoch_ms(held.pulled_at),
            last_consume_timestamp=_epoch_ms(held.settled_at),
        )

    def _status(self, command: RemotingCommand) -> GetConsumerStatusBody:
        topic = (command.ext_fields or {}).get("topic")
        table = {held.queue: held.progress.watermark for held in self._assignment.owned() if held.queue.topic == topic}
        return GetConsumerStatusBody(message_queue_table=table)

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin to move the queues that this member holds. Other queues, and offsets below 0, are ignored."""
        for queue, offset in offsets.items():
            held = self._assignment.held.get(queue)
            if held is not None and offset >= 0:
                self._supervisor.once(f"reset of {held.shown}", self._assignment.reset(held, offset))


def _epoch_ms(monotonic: float) -> int:
    return round((machine.time() - machine.monotonic() + monotonic) * 1000)
