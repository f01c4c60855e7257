"""Serves pops of lite topics, POP_LITE_MESSAGE (200070) (``PopLiteMessageProcessor``).

A pop takes the events of its client one by one and reads the light queue of each. A queue is blocked for its group from a pop
until all messages of the pop are acknowledged or visible again. Messages stay in the queue, and acks move the group's offset.
"""

from __future__ import annotations

from typing import Final

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import Perm, RequestCode, ResponseCode
from rmq_protocol.headers import PopLiteMessageRequestHeader, PopLiteMessageResponseHeader
from rmq_protocol.pop_handles import MAX_POP_SIZE

from .clock import Clock
from .faults import PopFaults
from .filters import Filter
from .held_pops import HeldPops, Pop
from .lite_events import LiteEvents, key_of
from .lite_topics import lite_bind_topic
from .ordered_pops import OrderedQueue, OrderedQueues
from .pops import LATE_MS, MAX_BYTES, ORDERED_REVIVE_QUEUE
from .server import Connection
from .service import Processor, Refused, fields_of, handles, header_of, without_content
from .state import BrokerState
from .store import Queue
from .topics import FAQ

_SCAN: Final = Filter().scan
_READ: Final = int(Perm.READ)


class LitePop(Pop):
    """A POP_LITE_MESSAGE request."""

    __slots__ = ("client_id", "group", "topic")

    def __init__(self, connection: Connection, command: RemotingCommand, header: PopLiteMessageRequestHeader, now: int) -> None:
        super().__init__(connection, without_content(command), key_of(header.clientId))
        self.client_id = header.clientId
        self.group = header.consumerGroup
        self.topic = header.topic
        self.count = header.maxMsgNum
        self.invisible_time = header.invisibleTime
        self.poll_time = header.pollTime
        self.deadline = (header.bornTime or now) + header.pollTime if header.pollTime > 0 else 0
        self.attempt = header.attemptId


class LitePopProcessor(Processor):
    """Serves pops of lite topics.

    Args:
        held: The pops of lite topics that wait.
    """

    def __init__(
        self,
        state: BrokerState,
        events: LiteEvents,
        ordered: OrderedQueues,
        held: HeldPops,
        clock: Clock,
        faults: PopFaults,
    ) -> None:
        self._state = state
        self._events = events
        self._ordered = ordered
        self._held = held
        self._clock = clock
        self._faults = faults
        held.serve = self._serve

    @handles(RequestCode.POP_LITE_MESSAGE)
    def pop(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = header_of(PopLiteMessageRequestHeader, command)
        now = self._clock.now_ms()
        pop = LitePop(connection, command, header, now)
        if header.bornTime and now - header.bornTime - header.pollTime > LATE_MS:
            remark = f"the broker[{self._state.ip}] pop message is timeout too much"
            return self._refuse(pop, Refused(ResponseCode.POLLING_TIMEOUT, remark))
        response = self._serve(pop, command.is_oneway)
        if response is None:
            self._held.hold(pop)
        return response

    def _serve(self, pop: Pop, last: bool) -> RemotingCommand | None:
        """Return the response. Return None for a pop that is to be held."""
        assert isinstance(pop, LitePop)
        try:
            self._check(pop)
        except Refused as refusal:
            return self._refuse(pop, refusal)
        now, records, infos = self._clock.now_ms(), list[bytes](), list[str]()
        empty = self._faults.take_empty()
        if not empty:
            self._take(pop, now, records, infos)
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if not records:
            unheld = ResponseCode.POLLING_TIMEOUT if empty else self._unheld(pop, last)
            if unheld is None:
                return None
            code, remark = unheld, "NO_MESSAGE_IN_QUEUE"
        header = PopLiteMessageResponseHeader(
            popTime=now, invisibleTime=pop.invisible_time, reviveQid=ORDERED_REVIVE_QUEUE, orderCountInfo=";".join(infos)
        )
        return make_response(pop.command, code, remark, fields_of(header), b"".join(records))

    def _check(self, pop: LitePop) -> None:
        """Check a pop.

        Raises:
            Refused: With code 29 for too many messages, for a topic of another type, and for a group that is bound to another
                topic; with code 17 for an unknown topic; with code 16 for a topic without permission to read, and for a group that
                may not consume; with code 26 for a group that does not exist and is not created.
        """
        if pop.count > MAX_POP_SIZE:
            remark = f"the broker[{self._state.ip}] pop message's num is greater than {MAX_POP_SIZE}"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        topic, group = self._state.topics.get(pop.topic), pop.group
        if topic is None:
            remark = f"topic [{pop.topic[:160]}] not exist, apply first please! \n{FAQ}"
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.config.perm & _READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic [{pop.topic}] peeking message is forbidden")
        if not topic.is_lite:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the topic [{pop.topic}] message type not match")
        config = self._state.groups.find(group)
        if config is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group[:160]}] not exist, \n{FAQ}")
        if not config.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        if lite_bind_topic(config) != pop.topic:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {group}")

    def _take(self, pop: LitePop, now: int, records: list[bytes], infos: list[str]) -> None:
        """Take messages of the client's events, up to ``pop.count``."""
        seen: dict[str, None] = {}
        if pop.count <= 0:
            return
        for name in self._events.take(pop.client_id):
            if name not in seen:
                seen[name] = None
                self._take_queue(pop, name, now, records, infos)
            if len(records) >= pop.count:
                return

    def _take_queue(self, pop: LitePop, name: str, now: int, records: list[bytes], infos: list[str]) -> None:
        ordered = OrderedQueue(pop.group, name, 0)
        queue = self._state.topics.light.find(name)
        if queue is None or self._ordered.blocked(ordered, pop.attempt):
            return
        found, end = queue.read(self._start(pop.group, queue), pop.count - len(records), MAX_BYTES, _SCAN, None)
        if not found:
            return
        offsets = range(end - len(found), end)
        counts = self._ordered.popped(ordered, pop.attempt, now, pop.invisible_time, offsets)
        records += found
        infos += [f"0 qo0%{offset} {number}" for offset, number in counts.items()] or ["0"] * len(found)

    def _start(self, group: str, queue: Queue) -> int:
        """Return the offset to read from: the offset of a reset, the group's offset, or the first offset of a new group. If it is
        outside the queue, commit the nearest offset.
        """
        offsets, name = self._state.offsets, queue.topic
        reset = offsets.take_reset(group, name, 0)
        start = offsets.find(group, name, 0) if reset is None else reset
        if reset is not None:
            self._ordered.clear(OrderedQueue(group, name, 0))
        elif start < 0:
            start = 0 if queue.min_offset == 0 else queue.max_offset - 1
            offsets.commit(group, name, 0, start)
        inside = min(max(start, queue.min_offset), queue.max_offset)
        if inside != offsets.find(group, name, 0) and queue.max_offset:
            offsets.commit(group, name, 0, inside)
        return inside

    def _unheld(self, pop: LitePop, last: bool) -> ResponseCode | None:
        """Return the response code for a pop that finds no messages. Return None if the pop is to be held."""
        if last or not pop.deadline or pop.deadline <= self._clock.now_ms():
            return ResponseCode.POLLING_TIMEOUT
        return None if self._held.has_room(pop.key) else ResponseCode.POLLING_FULL

    @staticmethod
    def _refuse(pop: LitePop, refusal: Refused) -> RemotingCommand:
        return make_response(pop.command, refusal.code, refusal.remark, fields_of(PopLiteMessageResponseHeader()))
