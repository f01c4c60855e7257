"""Serves POP_MESSAGE (200050), and the two requests that take no messages: NOTIFICATION (200054) and POLLING_INFO (200055)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import Perm, RequestCode, ResponseCode
from rmq_protocol.headers import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmq_protocol.pop_handles import MAX_POP_SIZE
from rmq_protocol.subscription import TAG

from .check_points import MAX_IN_FLIGHT
from .clock import Clock
from .filters import Filter, check_condition, filter_of
from .held_pops import HeldPops, Pop, PopKey
from .pop_reading import PopReader, Taken
from .pop_settings import PopFaults
from .server import Connection
from .service import Handler, Refused, fields_of, header_of, without_content
from .state import BrokerState
from .topics import FAQ, Topic

__all__ = ["PopProcessor"]

LATE_MS: Final = 500
"""Milliseconds after bornTime + pollTime above which a pop is refused."""
_FROM_OLDEST: Final = 0
_READ: Final = int(Perm.READ)


class PopProcessor:
    """The answers to pops.

    Attributes:
        popped: Called when messages were taken.
    """

    def __init__(
        self,
        state: BrokerState,
        reader: PopReader,
        held: HeldPops,
        clock: Clock,
        faults: PopFaults,
        *,
        property_filter: bool,
    ) -> None:
        self._state = state
        self._reader = reader
        self._held = held
        self._clock = clock
        self._faults = faults
        self._property_filter = property_filter
        self.popped: Callable[[], object] = lambda: None
        held.serve = self._serve

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.POP_MESSAGE: self.pop,
            RequestCode.NOTIFICATION: self.notification,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    def pop(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = header_of(PopMessageRequestHeader, command)
        key = PopKey(header.topic, header.consumerGroup, max(header.queueId, -1))
        pop = Pop(connection, without_content(command), key)
        now = self._clock.now_ms()
        if header.bornTime and now - header.bornTime - header.pollTime > LATE_MS:
            remark = f"the broker[{self._state.ip}] pop message is timeout too much"
            return make_response(command, ResponseCode.POLLING_TIMEOUT, remark, fields_of(PopMessageResponseHeader()))
        if header.maxMsgNums > MAX_POP_SIZE:
            remark = f"the broker[{self._state.ip}] pop message's num is greater than {MAX_POP_SIZE}"
            return make_response(command, ResponseCode.INVALID_PARAMETER, remark, fields_of(PopMessageResponseHeader()))
        pop.count, pop.invisible_time, pop.poll_time = header.maxMsgNums, header.invisibleTime, header.pollTime
        pop.deadline = (header.bornTime or now) + header.pollTime if header.pollTime > 0 else 0
        pop.from_oldest, pop.ordered = header.initMode == _FROM_OLDEST, bool(header.order)
        pop.attempt = header.attemptId
        return self._begin(pop, command, header.exp or "", header.expType or TAG)

    def notification(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = header_of(NotificationRequestHeader, command)
        key = PopKey(header.topic, header.consumerGroup, max(header.queueId, -1))
        pop = Pop(connection, without_content(command), key)
        pop.notified = True
        pop.poll_time, pop.ordered, pop.attempt = header.pollTime, bool(header.order), header.attemptId
        pop.deadline = (header.bornTime or self._clock.now_ms()) + header.pollTime if header.pollTime > 0 else 0
        return self._begin(pop, command, header.exp or "", header.expType or TAG)

    def polling_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(PollingInfoRequestHeader, command)
        number = self._held.number_of(PopKey(header.topic, header.consumerGroup, header.queueId))
        return make_response(command, ResponseCode.SUCCESS, None, fields_of(PollingInfoResponseHeader(pollingNum=number)))

    def _begin(self, pop: Pop, command: RemotingCommand, expression: str, kind: str) -> RemotingCommand | None:
        """Answer the pop, or hold it."""
        try:
            self._topic(pop)
            pop.filter = self._filter(expression, kind)
        except Refused as refusal:
            return self._refuse(pop, refusal)
        response = self._serve(pop, command.is_oneway)
        if response is None:
            self._held.hold(pop)
        return response

    def _topic(self, pop: Pop) -> Topic:
        """Return the topic of a valid pop.

        Raises:
            Refused: 17 for an unknown topic; 16 for a topic without permission to read, and for a group that may not consume;
                29 for a queue id that the topic does not have; 26 as ``SubscriptionGroups.use`` does.
        """
        name, group, queue_id = pop.key
        topic = self._state.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:160]}] not exist, apply first please! \n{FAQ}")
        if not topic.config.perm & _READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        if queue_id >= topic.config.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.config.read_queue_nums}] "
                f"consumer:[/{pop.connection.remote}]",
            )
        if not self._state.groups.use(group).consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        return topic

    def _filter(self, expression: str, kind: str) -> Filter:
        """Return the filter of a pop.

        Raises:
            Refused: 23 for invalid tags and conditions; 1 for any condition if the broker does not filter by conditions.
        """
        if not expression:
            return Filter()
        if kind != TAG:
            try:
                check_condition(expression, kind, property_filter=self._property_filter)
            except Refused as refusal:
                if refusal.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                    raise
                raise Refused(refusal.code, "parse the consumer's subscription failed") from None
        return filter_of(expression, kind, property_filter=self._property_filter, brought=True)

    def _serve(self, pop: Pop, last: bool) -> RemotingCommand | None:
        try:
            topic = self._topic(pop)
            if pop.notified:
                return self._notify(pop, topic, last)
            return self._pop(pop, topic, last)
        except Refused as refusal:
            return self._refuse(pop, refusal)

    def _pop(self, pop: Pop, topic: Topic, last: bool) -> RemotingCommand | None:
        """Return the answer; None for a pop that is to be held.

        Raises:
            Refused: 2 if the broker has too many messages without an ack; 1 as ``PopReader.take`` does.
        """
        now = self._clock.now_ms()
        if self._faults.take_empty():
            return self._answer(pop, ResponseCode.POLLING_TIMEOUT, self._reader.nothing(pop, now))
        if (number := self._state.check_points.messages) > MAX_IN_FLIGHT - MAX_POP_SIZE:
            remark = (
                f"this broker has {number} popped messages without an ack, and serves pops up to {MAX_IN_FLIGHT - MAX_POP_SIZE}; "
                "acknowledge some first"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        taken = self._reader.take(pop, topic, now)
        if taken.records:
            self.popped()
            if taken.rest > 0:
                self._held.notify(pop.key)
            return self._answer(pop, ResponseCode.SUCCESS, taken)
        code = self._unheld(pop, last)
        return None if code is None else self._answer(pop, code, taken)

    def _notify(self, pop: Pop, topic: Topic, last: bool) -> RemotingCommand | None:
        found = self._reader.has_messages(pop, topic)
        code = None if found else self._unheld(pop, last)
        if not found and code is None:
            return None
        header = NotificationResponseHeader(hasMsg=found, pollingFull=code == ResponseCode.POLLING_FULL)
        return make_response(pop.command, ResponseCode.SUCCESS, None, fields_of(header))

    def _unheld(self, pop: Pop, last: bool) -> ResponseCode | None:
        """Return the code of a pop that finds no messages and is not to be held; None for one that is to be held."""
        if last or not pop.deadline or pop.deadline <= self._clock.now_ms():
            return ResponseCode.POLLING_TIMEOUT
        return None if self._held.has_room(pop.key) else ResponseCode.POLLING_FULL

    def _answer(self, pop: Pop, code: ResponseCode, taken: Taken) -> RemotingCommand:
        in_store = self._state.check_points.single
        header = PopMessageResponseHeader(
            popTime=taken.pop_time,
            invisibleTime=pop.invisible_time,
            reviveQid=taken.revive_queue,
            restNum=taken.rest,
            startOffsetInfo=taken.start_offset_info,
            msgOffsetInfo=taken.msg_offset_info,
            orderCountInfo=taken.order_count_info if pop.ordered and (taken.records or not in_store) else None,
        )
        remark = "FOUND" if code == ResponseCode.SUCCESS else "NO_MESSAGE_IN_QUEUE"
        return make_response(pop.command, code, remark, fields_of(header), b"".join(taken.records))

    @staticmethod
    def _refuse(pop: Pop, refusal: Refused) -> RemotingCommand:
        header = NotificationResponseHeader() if pop.notified else PopMessageResponseHeader()
        return make_response(pop.command, refusal.code, refusal.remark, fields_of(header))
