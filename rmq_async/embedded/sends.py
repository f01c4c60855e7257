"""Serves SEND_MESSAGE (10, 310, 320): a broker's checks, its additions to the message, and the response.

This is the most frequent request of the server, so a JSON send in the one-letter form has a separate path (``fast``), which
decodes the header into its Struct and builds the response from a template. Both paths store the message with ``_put``. ``fast``
leaves a send that is refused to the general path.
"""

from __future__ import annotations

import re
import struct
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from rmq_protocol import headers
from rmq_protocol.batch import decode_batch
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import (
    MAX_BODY_SIZE,
    MAX_PROPERTIES_SIZE,
    MAX_TOPIC_LENGTH,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    RETRY_TOPIC_PREFIX,
    TRANSACTION_MASK,
    VERSION,
    RequestCode,
    ResponseCode,
    SysFlag,
)
from rmq_protocol.errors import InvalidMessageError, ProtocolError, RemoteProtocolError
from rmq_protocol.frame import Frame
from rmq_protocol.ids import pack_host, pack_offset_id, pack_unique_id, unique_id_prefix
from rmq_protocol.lite import check_lite_topic, lmq_name
from rmq_protocol.properties import decode_properties, properties_text

from .. import machine
from .records import Draft
from .schedule import DELAY_NAMES, TIMER_TOPIC, Schedule, recall_handle
from .send_back import SendBackProcessor
from .server import Connection
from .service import ExtFields, Processor, Refused, handles, header_of
from .state import REGION, BrokerState
from .topics import CLUSTER, Topic, describe
from .transactions import Transactions
from .writer import ILLEGAL, MessageWriter, utf8

MAX_BATCH: Final = 65_536
"""Maximum number of messages in one batch."""
_ADDED: Final = {"CLUSTER": CLUSTER, "MSG_REGION": REGION, "TRACE_ON": "true"}
_ADDED_TEXT: Final = properties_text(_ADDED)
_REPLY_FIELDS: Final = {"TRACE_ON": "true", "MSG_REGION": REGION}
_LITE: Final = "__LITE_TOPIC"
_DISPATCH: Final = "INNER_MULTI_DISPATCH"
_SPECIAL: Final = frozenset({*_ADDED, *DELAY_NAMES, "TRAN_MSG", "POP_CK", _LITE, _DISPATCH})
_TRANSACTION: Final = int(TRANSACTION_MASK)
_COMMITTED: Final = int(SysFlag.TRANSACTION_COMMIT)
_priority = re.compile(r"\+?[0-9]{1,10}").fullmatch
_MAX_INT: Final = 0x7FFFFFFF
_MULTI_TAGS: Final = int(SysFlag.MULTI_TAGS)
_WORDS = struct.Struct(">II").pack
_REPLY_MIDDLE: Final = f'"TRACE_ON":"true","MSG_REGION":"{REGION}","queueOffset":"'
_REPLY_END: Final = f',"flag":{RESPONSE_FLAG},"language":"PYTHON","serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
_quote = msgspec.json.Encoder().encode


class SendFrame(msgspec.Struct, gc=False):
    """The JSON header of a send in the one-letter form."""

    code: int
    extFields: headers.SendMessageRequestHeaderV2  # noqa: N815 - the member's name on the wire
    opaque: int = 0
    flag: int = 0


decode_send = msgspec.json.Decoder(SendFrame, strict=False).decode
_FAST_CODES: Final = frozenset({int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)})


class _Stored(NamedTuple):
    queue_id: int
    queue_offset: int
    msg_id: str
    transaction_id: str | None
    recall_handle: str | None = None


class SendMessageProcessor(Processor):
    """Serves sends.

    Args:
        knows_lite: Whether messages to lite topics get the name of their light queue, whether the broker serves lite topics or
            not.
    """

    def __init__(
        self,
        state: BrokerState,
        writer: MessageWriter,
        schedule: Schedule,
        transactions: Transactions,
        send_back: SendBackProcessor,
        *,
        knows_lite: bool = True,
    ) -> None:
        self._state = state
        self._append = writer.append
        self._schedule = schedule
        self._transactions = transactions
        self._send_back = send_back
        self._knows_lite = knows_lite
        self._id_prefix = ""
        self._unique_prefix = ""
        self._made = 0

    def listening(self) -> None:
        """Prepare the prefixes of message ids. Call this method once the broker's address is known."""
        address = self._state.address
        self._id_prefix = pack_offset_id(address, 0)[:-16]
        self._unique_prefix = unique_id_prefix(pack_host(address)[0], 0, pack_host(address)[1])

    def fast(self, connection: Connection, frame: Frame) -> tuple[int, bytes | None] | None:
        """Serve a well-formed JSON send (310, 320). Return its code and its response. The response is None for a one-way send.

        If the general path must decide, store nothing and return None.
        """
        try:
            request = decode_send(frame.header)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        opaque, flag = request.opaque, request.flag
        if request.code not in _FAST_CODES or flag & RESPONSE_FLAG or not -0x80000000 <= opaque <= 0x7FFFFFFF:
            return None
        try:
            stored = self._put(connection, request.extFields, frame.body)
        except (Refused, ProtocolError):
            return None
        return request.code, None if flag & ONEWAY_FLAG else _reply(opaque, stored)

    @handles(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    def send(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        fields = self.store(connection, send_header_of(command), command.body)
        return make_response(command, ResponseCode.SUCCESS, None, fields)

    def store(self, connection: Connection, header: headers.SendMessageRequestHeaderV2, body: bytes) -> ExtFields:
        """Store the message or batch of a send. Return the fields of the response. Raise the errors of ``_put``."""
        try:
            stored = self._put(connection, header, body)
        except Refused as refusal:
            raise Refused(refusal.code, refusal.remark, dict(_REPLY_FIELDS)) from None
        reply = headers.SendMessageResponseHeader(
            msgId=stored.msg_id,
            queueId=stored.queue_id,
            queueOffset=stored.queue_offset,
            transactionId=stored.transaction_id,
            recallHandle=stored.recall_handle,
        )
        return {**headers.to_ext(reply), **_REPLY_FIELDS}

    def _put(self, connection: Connection, header: headers.SendMessageRequestHeaderV2, body: bytes) -> _Stored:
        """Store the message or batch of a send. If this raises Refused or ProtocolError, no message is stored."""
        topics = self._state.topics
        topic = topics.sendable(header.b) or topics.for_send(header.b, header.c, header.d, unit_mode=header.k)
        queue_id = self._queue_of_send(connection, topic, header.e)
        if header.m:
            return self._put_batch(connection, header, topic, queue_id, body)
        if not 0 < len(body) <= MAX_BODY_SIZE:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
        text = header.i or ""
        properties = decode_properties(text)
        if "_SYS_MSG_PRIORITY_" in properties:
            queue_id = _queue_of_priority(topic, properties["_SYS_MSG_PRIORITY_"], queue_id)
        sys_flag = header.f
        if topic.config.topic_filter_type == "MULTI_TAG":
            sys_flag |= _MULTI_TAGS
        draft = Draft(header.b, queue_id, body, properties, header.h, sys_flag, header.g, connection.remote, header.j or 0)
        if sys_flag & _TRANSACTION or header.b[0] == "%" or not _SPECIAL.isdisjoint(properties):
            return self._put_special(draft, queue_id, header.l)
        encoded, unique_id = self._stored_properties(text, properties)
        offset, position = self._append(topic, draft, encoded, properties.get("TAGS"))
        return _Stored(queue_id, offset, f"{self._id_prefix}{position:016X}", unique_id)

    @staticmethod
    def _queue_of_send(connection: Connection, topic: Topic, queue_id: int) -> int:
        """Return the queue id of a send. For a negative id, return a random write queue.

        Raises:
            Refused: With code 29 if the queue does not exist.
        """
        config = topic.config
        if queue_id < 0 < config.write_queue_nums:
            return machine.random.randrange(config.write_queue_nums)
        if queue_id < 0 or queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {describe(config)} Producer: {connection.remote}",
            )
        return queue_id

    def _stored_properties(self, text: str, properties: dict[str, str]) -> tuple[bytes, str]:
        """Return the encoded properties of an ordinary message, including the broker's additions, and its unique id.

        Args:
            properties: The decoded ``text``.

        Raises:
            Refused: With code 13 for too many bytes; with code 1 for a text that cannot be encoded in UTF-8.
        """
        if text.count("\x02") != len(properties) or not text.endswith("\x02"):
            text = properties_text(properties)
        unique_id = properties.get("UNIQ_KEY")
        if unique_id is None:
            unique_id = self._unique_id()
            text += f"UNIQ_KEY\x01{unique_id}\x02"
        encoded = utf8(text + _ADDED_TEXT)
        if len(encoded) > MAX_PROPERTIES_SIZE:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
        return encoded, unique_id

    def _put_special(self, draft: Draft, queue_id: int, max_reconsume_times: int | None) -> _Stored:
        """Store a message that needs more than additional properties: a message with a delay or a transaction, a message for a
        lite topic or for a topic whose name begins with "%", or a message with properties that a broker has added earlier.
        """
        asked_for, properties = draft.topic, draft.properties
        for name in (*_ADDED, "POP_CK"):
            properties.pop(name, None)
        unique_id = properties.get("UNIQ_KEY") or self._unique_id()
        properties.update(UNIQ_KEY=unique_id, **_ADDED)
        if self._knows_lite and properties.get(_LITE):
            properties[_DISPATCH] = _light_queue(draft.topic, properties[_LITE])
        if draft.topic.startswith(RETRY_TOPIC_PREFIX):
            self._send_back.bury(draft, max_reconsume_times)
        if properties.get("TRAN_MSG", "").lower() == "true" and not _is_retry(draft):
            place = self._transactions.put_half(draft)
        elif draft.sys_flag & _TRANSACTION in (0, _COMMITTED):
            place = self._schedule.put(draft)
        else:
            raise self._not_a_half()
        handle = None
        if draft.topic == TIMER_TOPIC != asked_for:  # no handle for a client that sends to TIMER_TOPIC itself
            handle = recall_handle(properties["REAL_TOPIC"], self._state.name, int(properties["TIMER_OUT_MS"]), unique_id)
        return _Stored(queue_id, place.offset, f"{self._id_prefix}{place.position:016X}", unique_id, handle)

    def _put_batch(
        self, connection: Connection, header: headers.SendMessageRequestHeaderV2, topic: Topic, queue_id: int, body: bytes
    ) -> _Stored:
        """Store each message of a batch as a separate record. Brokers add no properties to the messages of a batch."""
        name = header.b
        if name.startswith(RETRY_TOPIC_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {name}")
        if len(name) > MAX_TOPIC_LENGTH:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"message topic length over 127: {len(name)}")
        if header.f & _TRANSACTION not in (0, _COMMITTED):
            raise self._not_a_half()
        if not body:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
        if len(body) > MAX_BODY_SIZE:
            raise Refused(ResponseCode.SYSTEM_ERROR, "message body size exceeded")
        properties = decode_properties(header.i or "")
        if properties.get("DELAY", "0") != "0":
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
        try:
            records = decode_batch(body, MAX_BATCH)
        except RemoteProtocolError as error:
            raise error if error.code is None else Refused(error.code, str(error)) from None
        ids: list[str] = []
        first = topic.queue(queue_id).max_offset
        for record in records:
            tags = decode_properties(record.properties).get("TAGS") if b"TAGS\x01" in record.properties else None
            draft = Draft(name, queue_id, record.body, {}, record.flag, header.f, header.g, connection.remote, header.j or 0)
            _, position = self._append(topic, draft, record.properties, tags)
            ids.append(f"{self._id_prefix}{position:016X}")
        return _Stored(queue_id, first, ",".join(ids), properties.get("UNIQ_KEY"))

    def _not_a_half(self) -> Refused:
        """Return the error for transaction flags in a send that is not a half message."""
        # a real broker stores such a message where no consumer sees it
        return Refused(ResponseCode.NO_PERMISSION, f"the broker[{self._state.ip}] sending transaction message is forbidden")

    def _unique_id(self) -> str:
        """Return a unique id for a message to which the client assigned none."""
        now = self._state.log.now()
        local = datetime.fromtimestamp(now / 1000).astimezone()
        month = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        self._made += 1
        return pack_unique_id(self._unique_prefix, now - round(month.timestamp() * 1000), self._made)


def send_header_of(command: RemotingCommand) -> headers.SendMessageRequestHeaderV2:
    """Return the header of a send or a reply in the one-letter form. Raise the errors of ``header_of``."""
    if command.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return headers.send_header_v2(header_of(headers.SendMessageRequestHeader, command))
    return header_of(headers.SendMessageRequestHeaderV2, command)


def _light_queue(topic: str, lite_topic: str) -> str:
    """Return the name of the queue of a lite topic.

    Raises:
        Refused: With code 13 for an invalid name, after which a real broker dispatches no more messages.
    """
    try:
        return lmq_name(topic, check_lite_topic(topic, lite_topic))
    except InvalidMessageError as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None


def _is_retry(draft: Draft) -> bool:
    """Return whether a message was sent back for a retry. Old consumers leave TRAN_MSG in a message that a transaction
    committed.
    """
    level = draft.properties.get("DELAY", "")
    return draft.reconsume_times > 0 and level.isascii() and level.isdecimal() and bool(level.strip("0"))


def _reply(opaque: int, stored: _Stored) -> bytes:
    """Build the response frame for a stored send. ``SendMessageProcessor.send`` builds the same response from Structs."""
    queue_id, offset, msg_id, transaction_id, recall = stored
    transaction = "" if recall is None else f'"recallHandle":"{recall}",'
    if transaction_id is not None:
        needs_no_escape = transaction_id.isascii() and transaction_id.isalnum()
        quoted = f'"{transaction_id}"' if needs_no_escape else _quote(transaction_id).decode()
        transaction += f'"transactionId":{quoted},'
    header = (
        f'{{"code":0,"extFields":{{"queueId":"{queue_id}",{transaction}"msgId":"{msg_id}",{_REPLY_MIDDLE}{offset}"}}'
        f',"opaque":{opaque}{_REPLY_END}'
    ).encode()
    return _WORDS(len(header) + 4, len(header)) + header


def _queue_of_priority(topic: Topic, priority: str, queue_id: int) -> int:
    """Return the queue of a message with a priority, in a topic of any type. Return ``queue_id`` if the text is not a priority."""
    if not _priority(priority) or int(priority) > _MAX_INT:
        return queue_id
    return min(int(priority), topic.config.write_queue_nums - 1)
