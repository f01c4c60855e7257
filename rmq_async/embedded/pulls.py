"""Serves PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), which read a queue from an offset and are held while there are no
messages (``PullMessageProcessor``).

A held pull waits in the list of its queue. Messages that arrive wake the pulls of their queue once per loop iteration, after
all sends of one read are stored. A pull whose filter accepts none of the messages keeps waiting and remembers the next offset.
At the deadline of a held pull, the response reports the state of the queue at that time. ``look_again`` responds in the same
form to pulls that have skipped messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from rmq_protocol.bodies import SubscriptionGroupConfig
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import PullSysFlag, RequestCode, ResponseCode
from rmq_protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmq_protocol.lite import lmq_name
from rmq_protocol.message import is_blank
from rmq_protocol.subscription import TAG

from .clock import PendingCall
from .filters import Filter, filter_of
from .server import Connection
from .service import Processor, Refused, Reply, fields_of, handles, header_of, without_content
from .state import BrokerState
from .store import Queue
from .tables import drop
from .topics import FAQ

MAX_RECORDS: Final = 32
"""Maximum number of messages that one pull returns (``maxTransferCountOnMessageInMemory``)."""
MAX_BYTES: Final = 256 * 1024
"""Maximum number of bytes that one pull returns (``maxTransferBytesOnMessageInMemory``). A single message may be larger."""
MAX_HELD: Final = 65_536
MAX_HELD_PER_CONNECTION: Final = 1024
MAX_HELD_TAGS: Final = 1024
"""Maximum number of tags of one held pull."""
MAX_SUSPEND_MS: Final = 3_600_000
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)
_COMMIT_OFFSET: Final = int(PullSysFlag.COMMIT_OFFSET)


class _Pull:
    """One pull that is being served or held.

    Attributes:
        start: The requested offset.
        at: Offset of the next record to examine. It equals ``start`` until the first record has been examined.
    """

    __slots__ = (
        "at", "command", "connection", "count", "filter", "group", "queue", "start", "sub_version", "sys_flags", "timer", "topic",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, command: RemotingCommand, header: PullMessageRequestHeader, queue: Queue, wanted: Filter
    ) -> None:
        self.connection = connection
        self.command = without_content(command)
        self.queue = queue
        self.start = self.at = header.queueOffset
        self.count = max(1, min(header.maxMsgNums, MAX_RECORDS))
        self.filter = wanted
        self.group = header.consumerGroup
        self.topic = header.topic
        self.sub_version = None if header.sysFlag & _SUBSCRIPTION else header.subVersion
        """The version of the group's subscription that the client has. None if the pull contains its subscription."""
        self.sys_flags = (0, 0)
        self.timer: asyncio.TimerHandle | None = None

    def answer(self) -> RemotingCommand:
        """Return the response for the current state of the queue. Move ``at`` past the messages that were examined."""
        queue, at = self.queue, self.at
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            code = ResponseCode.PULL_NOT_FOUND if self.start == 0 else ResponseCode.PULL_OFFSET_MOVED
            return self._response(code, "NO_MESSAGE_IN_QUEUE", 0)
        if at < low:
            return self._response(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", low)
        if at > high:
            return self._response(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", high)
        if at == high and at == self.start:
            return self._response(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", at)
        wanted = self.filter
        accepts = None if wanted.condition is None else wanted.accepts
        found, self.at = queue.read(at, self.count, MAX_BYTES, wanted.scan, wanted.codes, accepts)
        if found:
            return self._response(ResponseCode.SUCCESS, "FOUND", self.at, b"".join(found))
        remark = "MESSAGE_WAS_REMOVING" if at < queue.oldest else "NO_MATCHED_MESSAGE"
        return self._response(ResponseCode.PULL_RETRY_IMMEDIATELY, remark, self.at)

    def reset(self, offset: int) -> RemotingCommand:
        """Return the response that makes the client continue from ``offset``."""
        return self._response(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", offset)

    def _response(self, code: ResponseCode, remark: str, next_offset: int, body: bytes = b"") -> RemotingCommand:
        header = PullMessageResponseHeader(
            suggestWhichBrokerId=0,
            nextBeginOffset=next_offset,
            minOffset=self.queue.min_offset,
            maxOffset=self.queue.max_offset,
            topicSysFlag=self.sys_flags[0],
            groupSysFlag=self.sys_flags[1],
        )
        return make_response(self.command, code, remark, fields_of(header), body)


class HeldPulls:
    """Pulls that wait for messages.

    ``reply`` writes a response to a connection. ``judge`` returns a response that replaces the result of ``_Pull.answer`` for a
    held pull, or None.
    """

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.judge: Callable[[_Pull], RemotingCommand | None] = lambda pull: None
        self._count = 0
        self._by_queue: dict[Queue, dict[_Pull, None]] = {}
        """The held pulls by queue, in the order of arrival."""
        self._by_connection: dict[Connection, dict[_Pull, None]] = {}
        self._arrived: dict[Queue, None] = {}
        self._waking = PendingCall(self._wake)

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: _Pull, timeout_ms: int) -> None:
        """Hold a pull for ``timeout_ms``, but for at most one hour. Drop the pull if its connection is closed.

        Raises:
            Refused: With code 2 if the connection or the broker has the maximum number of held pulls, or if the pull has too
                many tags.
        """
        own = self._by_connection.get(pull.connection, {})
        if len(own) >= MAX_HELD_PER_CONNECTION or self._count >= MAX_HELD:
            whose, limit = (
                ("this connection has", MAX_HELD_PER_CONNECTION) if self._count < MAX_HELD else ("this broker holds", MAX_HELD)
            )
            remark = f"{whose} {limit} pulls that wait for messages, the maximum; pull without waiting"
            raise Refused(ResponseCode.SYSTEM_BUSY, remark, {})
        codes = pull.filter.codes
        if codes is not None and len(codes) > MAX_HELD_TAGS:
            remark = f"a pull of {len(codes)} tags cannot wait for messages, the limit is {MAX_HELD_TAGS}; name fewer tags"
            raise Refused(ResponseCode.SYSTEM_BUSY, remark, {})
        if pull.connection.closed:
            return
        own[pull] = None
        self._by_connection[pull.connection] = own
        self._count += 1
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        pull.queue.waiting += 1
        delay = min(timeout_ms, MAX_SUSPEND_MS) / 1000
        pull.timer = asyncio.get_running_loop().call_later(delay, self._expired, pull)

    def arrived(self, queue: Queue) -> None:
        self._arrived[queue] = None
        self._waking.soon()

    def resumed(self, connection: Connection) -> None:
        """Wake the pulls of a connection that accepts responses again, if messages have arrived in the meantime."""
        for pull in self._by_connection.get(connection, ()):
            if pull.queue.max_offset > pull.at:
                self.arrived(pull.queue)

    def disconnected(self, connection: Connection) -> None:
        for pull in self._by_connection.pop(connection, ()):
            self._forget(pull)

    def dropped(self, queues: Iterable[Queue]) -> None:
        """Respond to the held pulls of these queues with TOPIC_NOT_EXIST (17). Call this method when the topic of the queues
        was deleted.
        """
        for queue in queues:
            for pull in list(self._by_queue.get(queue, ())):
                remark = f"topic[{queue.topic}] not exist, apply first please! \n{FAQ}"
                self._end(pull, make_response(pull.command, ResponseCode.TOPIC_NOT_EXIST, remark, {}))

    def close(self) -> None:
        """Drop all held pulls without sending responses."""
        for connection in list(self._by_connection):
            self.disconnected(connection)
        self._waking.cancel()
        self._arrived.clear()

    def _wake(self) -> None:
        queues, self._arrived = self._arrived, {}
        for queue in queues:
            for pull in list(self._by_queue.get(queue, ())):
                if pull.connection.congested:
                    continue
                response = pull.answer()
                if response.code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
                    self._end(pull, self.judge(pull) or response)

    def look_again(self) -> None:
        """Respond to the held pulls whose queues have messages from the requested offset on (``PullRequestHoldService``)."""
        for queue, pulls in list(self._by_queue.items()):
            for pull in [each for each in pulls if each.start < queue.max_offset]:
                if not pull.connection.congested:
                    self._expired(pull)

    def _expired(self, pull: _Pull) -> None:
        response = pull.answer()
        self._end(pull, self.judge(pull) or response)

    def _end(self, pull: _Pull, response: RemotingCommand) -> None:
        drop(self._by_connection, pull.connection, pull)
        self._forget(pull)
        if not pull.connection.congested:
            self._reply(pull.connection, pull.command, response)

    def _forget(self, pull: _Pull) -> None:
        if pull.timer is not None:
            pull.timer.cancel()
            pull.timer = None
        self._count -= 1
        pull.queue.waiting -= 1
        drop(self._by_queue, pull.queue, pull)


class PullMessageProcessor(Processor):
    """Serves pulls.

    Args:
        property_filter: Whether messages are filtered by SQL92 conditions (``enablePropertyFilter``).
    """

    def __init__(self, state: BrokerState, held: HeldPulls, *, property_filter: bool) -> None:
        self._state = state
        self._property_filter = property_filter
        self._held = held
        held.judge = self._judge

    @handles(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = header_of(PullMessageRequestHeader, command)
        state, group, queue_id = self._state, header.consumerGroup, header.queueId
        config = self._consuming(group)
        queue, topic_flags = self._queue(connection, header)
        pull = _Pull(connection, command, header, queue, self._filter(header, config))
        pull.sys_flags = (topic_flags, config.group_sys_flag)
        reset = state.offsets.take_reset(group, header.topic, queue_id)
        response = pull.answer() if reset is None else pull.reset(reset)
        if header.sysFlag & _COMMIT_OFFSET:
            state.offsets.commit(group, header.topic, queue_id, header.commitOffset)
        state.offsets.note_pull(group, header.topic, queue_id, header.queueOffset)
        if (
            response.code == ResponseCode.PULL_NOT_FOUND
            and header.sysFlag & _SUSPEND
            and header.suspendTimeoutMillis > 0
            and not command.is_oneway
        ):
            self._held.hold(pull, header.suspendTimeoutMillis)
            return None
        return response

    def _queue(self, connection: Connection, header: PullMessageRequestHeader) -> tuple[Queue, int]:
        """Return the queue to read, and the topicSysFlag of its topic. A light queue is a topic with one queue.

        Raises:
            Refused: As ``TopicTable.for_read`` does; with code 29 for another queue of a light queue.
        """
        topics, light = self._state.topics, self._state.topics.light
        if light.knows(header.topic):
            if header.queueId != 0:
                remark = f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:[1] "
                raise Refused(ResponseCode.INVALID_PARAMETER, f"{remark}consumer:[/{connection.remote}]", {})
            return light.find_or_empty(header.topic), 0
        topic = topics.for_read(header.topic, header.queueId, connection.remote)
        if is_blank(header.liteTopic or ""):
            return topic.queue(header.queueId), topic.config.topic_sys_flag
        name = lmq_name(header.topic, header.liteTopic or "")
        return light.find_or_empty(name, header.queueId), topic.config.topic_sys_flag

    def _judge(self, pull: _Pull) -> RemotingCommand | None:
        """Return the response to a held pull that is now refused, or whose offset was reset. Return None for other pulls."""
        queue = pull.queue
        try:
            config = self._consuming(pull.group)
            if pull.sub_version is not None:
                self._group_subscription(pull.group, pull.topic, pull.sub_version, config)
        except Refused as refusal:
            return make_response(pull.command, refusal.code, refusal.remark, refusal.ext_fields)
        reset = self._state.offsets.take_reset(pull.group, pull.topic, queue.queue_id)
        return None if reset is None else pull.reset(reset)

    def _consuming(self, group: str) -> SubscriptionGroupConfig:
        """Return the settings of a group that may consume.

        Raises:
            Refused: With code 16 for a group that may not consume; with code 26 for a group that does not exist and is not
                created.
        """
        config = self._state.groups.use(group)
        if not config.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}", {"forbiddenType": "2"})
        return config

    def _filter(self, header: PullMessageRequestHeader, config: SubscriptionGroupConfig) -> Filter:
        """Return the filter of a pull. Raise Refused as ``_group_subscription`` and ``filter_of`` do."""
        brought = bool(header.sysFlag & _SUBSCRIPTION)
        if brought:
            expression, kind = header.subscription or "", header.expressionType or TAG
        else:
            expression, kind = self._group_subscription(header.consumerGroup, header.topic, header.subVersion, config)
        return filter_of(expression, kind, property_filter=self._property_filter, brought=brought)

    def _group_subscription(self, name: str, topic: str, sub_version: int, config: SubscriptionGroupConfig) -> tuple[str, str]:
        """Return the expression of the group's subscription, and its type.

        Raises:
            Refused: With code 24 for a group without members or without this subscription; with code 16 if the group may not
                consume by broadcast; with code 25 for a subscription older than ``sub_version``.
        """
        group = self._state.clients.consumers.get(name)
        if group is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist\n{FAQ}", {})
        if group.is_broadcast and not config.consume_broadcast_enable:
            remark = f"the consumer group[{name}] can not consume by broadcast way"
            raise Refused(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": "4"})
        subscription = group.subscriptions.get(topic)
        if subscription is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist\n{FAQ}", {})
        if subscription.sub_version < sub_version:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest", {})
        return subscription.sub_string, subscription.expression_type or TAG
