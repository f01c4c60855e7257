"""Serves transactions: half messages, END_TRANSACTION (37), and CHECK_TRANSACTION_STATE (39) for transactions that stay open.

As on a real broker, a half message waits in RMQ_SYS_TRANS_HALF_TOPIC, where no consumer of its real topic sees it. A commit
stores it again in its real topic. Each check stores it again at the end of the half topic's queue, with TRANSACTION_CHECK_TIMES
increased by one. From ``_open`` on, the queue therefore holds every open transaction once, each message holds its number of
checks, and ``max_memory`` covers both. In addition to the queue, one byte per offset records whether the transaction has ended.

A real broker reads the log and not the state of the transaction, so a second commit delivers the message a second time, and a
commit after a rollback also delivers the message. This broker does the same.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, NamedTuple

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import TRANSACTION_MASK, RequestCode, ResponseCode, SysFlag
from rmq_protocol.errors import InvalidMessageError, ProtocolError
from rmq_protocol.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader, to_ext
from rmq_protocol.ids import pack_offset_id
from rmq_protocol.properties import encode_properties

from .calls import ClientCalls
from .clock import Alarm, Clock
from .disk import TransactionProgress
from .records import Draft, pack_record, queue_offset, read_record, stored_ms
from .schedule import Schedule
from .server import Connection
from .service import Processor, Refused, handles, header_of
from .state import BrokerState
from .writer import MessageWriter, Place

logger = logging.getLogger("rmq_async.embedded")

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
_ROLLBACK: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_STATE: Final = int(TRANSACTION_MASK)
_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_BATCH: Final = 64
"""Number of half messages that are checked before the event loop serves other requests."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Number of bytes of these messages after which the event loop serves other requests."""


class CheckSettings(NamedTuple):
    """The settings of checks.

    Attributes:
        timeout: Seconds before the first check of a half message without CHECK_IMMUNITY_TIME_IN_SECONDS.
        interval: Seconds between rounds of checks.
        max_checks: Number of checks of one half message before it moves to TRANS_CHECK_MAX_TIME_TOPIC.
    """

    timeout: float = 6.0
    interval: float = 30.0
    max_checks: int = 15


class Transactions(Processor):
    def __init__(
        self,
        state: BrokerState,
        writer: MessageWriter,
        schedule: Schedule,
        calls: ClientCalls,
        clock: Clock,
        checks: CheckSettings,
    ) -> None:
        self._state = state
        self._writer = writer
        self._schedule = schedule
        self._calls = calls
        self._clock = clock
        self._timeout = round(checks.timeout * 1000)
        self._interval = max(round(checks.interval * 1000), 1)
        self._max_checks = checks.max_checks
        self._queue = state.topics.ensure(HALF_TOPIC).queue(0)
        self._open, ended, ends = state.disk.transactions
        self._ended = bytearray(ended)  # from offset _open, which is open, to the last offset that has ended
        self._ends = deque(ends)  # (log position after the end, offset) per end whose half message still exists
        self._began = 0
        self._round: tuple[int, int] | None = None
        self._alarm = Alarm(clock, self._ring)
        self._forget_from(state.log.end)

    def progress(self) -> TransactionProgress:
        """Return the open transactions, as the disk stores them. A transaction that ends later is checked again after a crash."""
        return TransactionProgress(self._open, bytes(self._ended), tuple(self._ends))

    def truncated(self, position: int) -> None:
        """Remove the transactions of messages that the log has lost, from a log position on."""
        self._forget_from(position)
        self._arm()

    def _forget_from(self, position: int) -> None:
        """Remove the transactions of messages from a log position on, and the ends of transactions that were lost with these
        messages.

        On a real broker, the end of a transaction is also a message, stored after the committed message. Here, a rollback
        stores no message; it is kept as long as the records before it are kept.
        """
        end = self._queue.max_offset
        while self._ends and self._ends[-1][0] > position:
            self._reopen(self._ends.pop()[1])
        self._open = min(self._open, end)
        del self._ended[end - self._open :]

    def _reopen(self, offset: int) -> None:
        if offset < self._open:
            self._ended[:0] = b"\1" * (self._open - offset)
            self._open = offset
        if offset - self._open < len(self._ended):
            self._ended[offset - self._open] = 0

    def start(self) -> None:
        self._began = self._clock.now_ms()
        self._alarm.start()
        self._arm()

    def stop(self) -> None:
        self._alarm.stop()
        self._round = None

    def put_half(self, draft: Draft) -> Place:
        properties = draft.properties
        properties["__transactionId__"] = properties["UNIQ_KEY"]
        properties["REAL_TOPIC"], properties["REAL_QID"] = draft.topic, str(draft.queue_id)
        draft.topic, draft.queue_id = HALF_TOPIC, 0
        draft.sys_flag &= ~_STATE
        place = self._writer.put(draft)
        self._arm()
        return place

    @handles(RequestCode.END_TRANSACTION)
    def end(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = header_of(EndTransactionRequestHeader, command)
        if header.commitOrRollback not in (_COMMIT, _ROLLBACK):
            return None  # brokers do not respond to an unknown state, one-way or not
        record = self._half(header)
        draft = read_record(record)
        if not header.fromTransactionCheck and _IMMUNITY in draft.properties:
            passed = self._clock.now_ms() - stored_ms(record)
            if passed > self._immunity(draft):
                raise Refused(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the end came {passed} ms after the message, which has {_IMMUNITY}: {self._immunity(draft)} ms are allowed; "
                    "answer the broker's check instead",
                )
        if draft.properties.get("PGROUP") != header.producerGroup:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if queue_offset(record) != header.tranStateTableOffset:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if header.commitOrRollback == _COMMIT:
            draft.topic, draft.queue_id = draft.properties.pop("REAL_TOPIC"), int(draft.properties.pop("REAL_QID"))
            draft.sys_flag = draft.sys_flag & ~_STATE | _COMMIT
            draft.prepared_offset = header.commitLogOffset
            self._schedule.put(draft)
        self._has_ended(header.tranStateTableOffset)
        return make_response(command, ResponseCode.SUCCESS)

    def _half(self, header: EndTransactionRequestHeader) -> bytes:
        found = self._state.log.view(header.commitLogOffset)
        if found is None or found[1] is not self._queue:
            raise Refused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        return found[0]

    def _immunity(self, draft: Draft) -> int:
        """Return the milliseconds before the first check of the message."""
        text = draft.properties.get(_IMMUNITY, "-1")
        seconds = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
        return self._timeout if seconds < 0 else seconds * 1000

    def _has_ended(self, offset: int) -> None:
        self._skip_forgotten()
        self._ends.append((self._state.log.end, offset))
        ended, at = self._ended, offset - self._open
        if at >= 0:
            ended.extend(bytes(max(at + 1 - len(ended), 0)))
            ended[at] = 1
            self._skip_ended()

    def _skip_ended(self) -> None:
        following = self._next_open(self._open)
        del self._ended[: following - self._open]
        self._open = following

    def _skip_forgotten(self) -> None:
        """Drop the offsets whose messages ``max_memory`` has removed."""
        while self._ends and self._ends[0][1] < self._queue.min_offset:
            self._ends.popleft()
        forgotten = self._queue.min_offset - self._open
        if forgotten > 0:
            del self._ended[:forgotten]
            self._open += forgotten
            self._skip_ended()

    def _next_open(self, offset: int) -> int:
        """Return the first offset from ``offset`` on whose transaction has not ended. The offset may be beyond the end of the
        queue.
        """
        at = max(offset - self._open, 0)
        found = self._ended.find(0, at)
        return self._open + (max(at, len(self._ended)) if found < 0 else found)

    # -------------------------------------------------------------------------------------------------------------- checks

    def _arm(self) -> None:
        """Set the alarm to the next round. Rounds come at fixed intervals from the start."""
        if self._open < self._queue.max_offset and self._round is None:
            rounds = (self._clock.now_ms() - self._began) // self._interval + 1
            self._alarm.by(self._began + rounds * self._interval)

    def _ring(self) -> None:
        self._skip_forgotten()
        at, end = self._round or (0, self._queue.max_offset)
        now, count, room = self._clock.now_ms(), _BATCH, _BATCH_BYTES
        at = self._next_open(at)
        while at < end and count and room > 0:
            room -= self._check(at, now)
            count -= 1
            at = self._next_open(at + 1)
        if at < end:
            self._round = (at, end)
            self._alarm.by(now)
        else:
            self._round = None
            self._arm()

    def _check(self, offset: int, now: int) -> int:
        """Check the transaction at ``offset`` if it is due. Return the size of its record."""
        record = self._queue.record(offset)
        if record is None:
            return 0
        draft = read_record(record)
        text = draft.properties.get(_CHECK_TIMES, "0")
        times = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        if times == 0 and now - stored_ms(record) < self._immunity(draft):
            return len(record)
        try:
            if times >= self._max_checks:
                draft.topic, draft.queue_id = self._state.topics.ensure(CHECK_MAX_TOPIC).config.topic_name, 0
                self._writer.put(draft)
            else:
                draft.properties[_CHECK_TIMES] = str(times + 1)
                self._ask(draft, self._writer.put(draft), now)
        except (Refused, ProtocolError) as error:
            key = draft.properties.get("UNIQ_KEY")
            logger.warning("%s: half message %s is not checked again: it cannot be stored: %s", self._state.name, key, error)
        except InvalidMessageError as error:
            key = draft.properties.get("UNIQ_KEY")
            logger.warning("%s: no check of half message %s can be sent: %s", self._state.name, key, error)
        self._has_ended(offset)
        return len(record)

    def _ask(self, draft: Draft, place: Place, now: int) -> None:
        properties = draft.properties
        state, group = self._state, properties.get("PGROUP", "")
        connection = state.clients.producer_connection(group)
        if connection is None:
            logger.info("%s: no producer of group %r is connected for the check of a transaction", state.name, group[:160])
            return
        header = CheckTransactionStateRequestHeader(
            bname=state.name,
            topic=HALF_TOPIC,
            tranStateTableOffset=place.offset,
            commitLogOffset=place.position,
            msgId=properties["UNIQ_KEY"],
            transactionId=properties["UNIQ_KEY"],
            offsetMsgId=pack_offset_id(state.address, place.position),
        )
        draft.topic, draft.queue_id = properties["REAL_TOPIC"], int(properties["REAL_QID"])
        shown = encode_properties({**properties, "WAIT": "false"})
        body = pack_record(draft, shown, place.offset, place.position, now, state.address)
        self._calls.oneway(connection, RequestCode.CHECK_TRANSACTION_STATE, to_ext(header), body)
