"""Serves RECALL_MESSAGE (370), which recalls a timer message before its delivery, by the handle in the response to its send.

A stock broker refuses this (``recallMessageEnable`` is false); here it is enabled. The answer is success even if the message
does not exist, as on a real broker.
"""

from __future__ import annotations

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import LocalProtocolError, RemoteProtocolError
from rmq_protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader, to_ext
from rmq_protocol.recall import RecallHandle, decode_recall_handle, encode_recall_handle

from .schedule import MAX_DELAY_MS, Schedule
from .server import Connection
from .service import Handler, Refused, header_of
from .state import REGION, BrokerState

__all__ = ["RecallProcessor", "recall_handle"]


def recall_handle(topic: str, broker: str, out_ms: int, unique_id: str) -> str | None:
    """Return the recall handle of a timer message; None for a unique id that no handle can contain.

    Args:
        out_ms: TIMER_OUT_MS of the message.
    """
    try:
        return encode_recall_handle(RecallHandle(topic, broker, str(out_ms + 1), unique_id))
    except LocalProtocolError:
        return None


class RecallProcessor:
    def __init__(self, state: BrokerState, schedule: Schedule) -> None:
        self._state = state
        self._schedule = schedule

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(RecallMessageRequestHeader, command)
        ext: dict[str, str | None] = {"MSG_REGION": REGION}
        if self._state.topics.get(header.topic) is None:
            remark = f"recall failed, the topic[{header.topic[:160]}] not exist"
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark, ext)
        try:
            handle = decode_recall_handle(header.recallHandle)
        except RemoteProtocolError:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", ext) from None
        now, due = self._state.log.now(), handle.timestamp
        left = int(due) - now if due.isascii() and due.isdecimal() and len(due) < 19 else -1
        if handle.topic != header.topic:
            remark = "recall failed, topic not match"
        elif handle.broker_name != self._state.name:
            remark = "recall failed, broker service not available"
        elif not 0 < left < MAX_DELAY_MS:
            remark = "recall failed, timestamp invalid"
        else:
            self._schedule.recall(handle.topic, handle.message_id, int(due), connection.remote)
            reply = to_ext(RecallMessageResponseHeader(msgId=handle.message_id))
            return make_response(command, ResponseCode.SUCCESS, None, {**reply, **ext})
        raise Refused(ResponseCode.ILLEGAL_OPERATION, remark, ext)
