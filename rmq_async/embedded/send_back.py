"""Messages that a consumer could not handle. They are stored in the group's retry topic after a delay, and finally in its
dead-letter topic.

A consumer sends a message back in one of two ways. CONSUMER_SEND_MSG_BACK (36) names the message by its offset, and the broker
copies the message. If that request fails, the client itself sends the message to the retry topic. ``bury`` is called for each
send to a retry topic.
"""

from __future__ import annotations

from typing import Final

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, Perm, RequestCode, ResponseCode
from rmq_protocol.headers import ConsumerSendMsgBackRequestHeader
from rmq_protocol.ids import pack_offset_id

from .. import machine
from .records import Draft, read_record
from .schedule import Schedule
from .server import Connection
from .service import SENDS, Processor, Refused, handles, header_of
from .state import BrokerState
from .topics import FAQ, UNIT_SUBSCRIBED

_FIRST_LEVEL: Final = 3
"""Delay level of the first retry if the client specifies no level. Each further retry uses the next level."""
_WRITE: Final = int(Perm.WRITE)
_MAX_INT: Final = 0x7FFFFFFF


class SendBackProcessor(Processor):
    def __init__(self, state: BrokerState, schedule: Schedule) -> None:
        self._state = state
        self._schedule = schedule
        self.refusal: int | None = None
        """The code with which all messages that consumers send back are refused. None if they are accepted."""
        self.refused = 0
        self.is_silent = False
        """Whether all messages that consumers send back are stored without a response."""
        self.unanswered = 0

    @handles(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(ConsumerSendMsgBackRequestHeader, command)
        self._refuse()
        state, group = self._state, header.group
        max_times, queues = self._policy(group)
        if queues <= 0:
            return make_response(command, ResponseCode.SUCCESS)
        retry = state.topics.ensure(RETRY_TOPIC_PREFIX + group, queues, UNIT_SUBSCRIBED if header.unitMode else 0).config
        if not retry.perm & _WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{retry.topic_name}] sending message is forbidden")
        found = state.log.view(header.offset)
        if found is None or found[1].broker_name != state.name:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        draft = read_record(found[0])
        properties = draft.properties
        properties.setdefault("RETRY_TOPIC", draft.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", pack_offset_id(state.address, header.offset))
        properties["WAIT"] = "false"
        if header.maxReconsumeTimes is not None:
            max_times = header.maxReconsumeTimes
        if draft.reconsume_times >= max_times or header.delayLevel < 0:
            self._bury(draft, group, "0")
        else:
            properties["DELAY"] = str(header.delayLevel or min(_FIRST_LEVEL + draft.reconsume_times, _MAX_INT))
            draft.topic = retry.topic_name
            draft.queue_id = machine.random.randrange(queues)  # possibly beyond the queues of the topic
        draft.reconsume_times = min(draft.reconsume_times + 1, _MAX_INT)
        draft.prepared_offset = 0
        self._schedule.put(draft)
        return make_response(command, ResponseCode.SUCCESS)

    def bury(self, draft: Draft, max_times: int | None) -> None:
        """Redirect ``draft``, which was sent to a retry topic, to the dead-letter topic if the message was consumed too often
        or if the group holds a lock. A group that consumes in order sends a message to the retry topic only after the last
        attempt.

        Args:
            max_times: The maximum number of retries that the client sent. None means the maximum in the group's settings.

        Raises:
            Refused: With code 26 if the group does not exist and is not created; with the code ``refusal`` if it is set; with
                code 1 if the broker has the maximum number of topics.
        """
        self._refuse()
        group = draft.topic.removeprefix(RETRY_TOPIC_PREFIX)
        allowed, _ = self._policy(group)
        too_often = draft.reconsume_times > (allowed if max_times is None else max_times)
        if too_often or self._state.locks.any_of(group):
            self._bury(draft, group, "-1")

    def _refuse(self) -> None:
        if self.refusal is not None:
            self.refused += 1
            raise Refused(self.refusal, f"the broker[{self._state.ip}] sending message is forbidden")

    def is_unanswered(self, command: RemotingCommand) -> bool:
        """Return whether a served request gets no response, because of ``is_silent``."""
        if not self.is_silent or not _gives_back(command):
            return False
        self.unanswered += 1
        return True

    def _bury(self, draft: Draft, group: str, level: str) -> None:
        draft.properties["DELAY"] = level
        draft.topic, draft.queue_id = self._state.topics.ensure(DLQ_TOPIC_PREFIX + group).config.topic_name, 0

    def _policy(self, group: str) -> tuple[int, int]:
        """Return the group's number of retries and its number of retry queues.

        Raises:
            Refused: With code 26 if ``SubscriptionGroups.find`` returns None.
        """
        config = self._state.groups.find(group)
        if config is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group[:160]} \n{FAQ}")
        return config.retry_max_times, config.retry_queue_nums


def _gives_back(command: RemotingCommand) -> bool:
    """Return whether a request is a CONSUMER_SEND_MSG_BACK or a send to a retry topic."""
    fields = command.ext_fields or {}
    topic = fields.get("b") or fields.get("topic") or ""
    is_copy = command.code in SENDS and topic.startswith(RETRY_TOPIC_PREFIX)
    return is_copy or command.code == RequestCode.CONSUMER_SEND_MSG_BACK
