"""Finds messages by offset id, by unique id or by key.

A broker assigns an *offset id*, which contains the broker's address and a position in its commit log. The request goes only to
an address that a name server lists, because an id is untrusted input and must not determine the peer of a connection. Any other
id is treated as a *unique id*, which a client assigns, and is looked up in the index of every broker that has the topic.
Brokers build that index a moment after they acknowledge a message. Therefore, a call waits until the messages that were
acknowledged before it are indexed (``until_readable``). A search by id waits only if the index does not contain the id yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from rmq_protocol.cluster import ClusterInfo
from rmq_protocol.constants import BLANK_MAGIC_CODE, MAGIC_CODE_V1, MAGIC_CODE_V2, ResponseCode
from rmq_protocol.errors import LocalProtocolError
from rmq_protocol.headers import QueryMessageRequestHeader, ViewMessageRequestHeader, request_of
from rmq_protocol.ids import OffsetId, unpack_offset_id
from rmq_protocol.message import MessageExt
from rmq_protocol.stored import DecodedMessages, decode_messages

from .. import machine
from .._asyncio import for_each
from .._lookups import is_ip, look_up
from .._text import printable
from ..broker_answers import broker_error
from ..client import ClientInstance, until_readable
from ..errors import BrokerSystemError, FrameTooLargeError, QueryNotFoundError, RequestTimeoutError, RocketMQError
from ..tracebacks import without_frames
from .requests import ask_at, brokers_of, cluster_info

logger = logging.getLogger(__name__)

DECODE_IN_THREAD: Final = 64 * 1024
"""Minimum size, in bytes, of a response that is decoded in a thread."""
FOR_EVER: Final = 2**63 - 1
INDEX_STEP_MS: Final = 1000
"""Brokers index times in whole seconds, rounded down."""
UNIQUE: Final = "U"
"""``indexType`` of unique ids, for brokers with an index in RocksDB; other brokers keep ids and keys in one index."""
SAME_ID: Final = 32
"""Maximum number of messages with one unique id that a query asks for."""

_MAGIC: Final = frozenset(code.to_bytes(4, "big", signed=True) for code in (MAGIC_CODE_V1, MAGIC_CODE_V2, BLANK_MAGIC_CODE))


async def view(instance: ClientInstance, topic: str, msg_id: str, deadline: float) -> MessageExt:
    """Implement ``Admin.view_message``."""
    route = (await instance.routes.fetch(topic, max(deadline - machine.monotonic(), 0.0))).data
    place: OffsetId | None = None
    with suppress(LocalProtocolError):
        place = unpack_offset_id(msg_id)
    if place is not None:
        broker = await _broker_at(place.host, await cluster_info(instance, deadline), deadline)
        if broker is not None:
            return await _at(instance, topic, msg_id, place.offset, *broker, deadline)
    brokers = brokers_of(route)
    query = QueryMessageRequestHeader(
        topic=topic, key=msg_id, maxNum=SAME_ID, beginTimestamp=0, endTimestamp=FOR_EVER, indexType=UNIQUE
    )
    for settled in (False, True):
        if settled:
            await for_each(brokers, lambda name: until_readable(instance, name, topic))
        found = await _query(instance, brokers, query, lambda message: message.unique_id == msg_id, deadline, is_one=True)
        if found:
            return found[0]
    where = printable(", ".join(brokers))
    stranger = (
        f" (the id may contain the address {place.host}, which is not a broker of this cluster)" if place is not None else ""
    )
    raise QueryNotFoundError(
        f"no message of topic {instance.names.display_name(topic)} has the id {printable(msg_id)} on {where}{stranger}; "
        "check the topic and the id, and whether the message has been deleted",
        request="QUERY_MESSAGE",
    )


async def by_key(
    instance: ClientInstance, topic: str, key: str, max_num: int, begin_ms: int | None, end_ms: int | None, deadline: float
) -> tuple[MessageExt, ...]:
    """Implement ``Admin.query_message``."""
    brokers = brokers_of((await instance.routes.fetch(topic, max(deadline - machine.monotonic(), 0.0))).data)
    await for_each(brokers, lambda name: until_readable(instance, name, topic))
    begin, end = begin_ms or 0, FOR_EVER if end_ms is None else end_ms

    def wanted(message: MessageExt) -> bool:
        return key in message.keys and begin <= message.store_time_ms <= end

    query = QueryMessageRequestHeader(
        topic=topic, key=key, maxNum=max_num, beginTimestamp=max(begin - INDEX_STEP_MS, 0), endTimestamp=end
    )
    found = await _query(instance, brokers, query, wanted, deadline)
    return tuple(found[-max_num:])


# -- by offset id


async def _broker_at(host: str, info: ClusterInfo, deadline: float) -> tuple[str, str] | None:
    """Return the name and the listed address of a broker whose address is ``host`` ("ip:port") or resolves to it. Return None
    if there is no such broker.
    """
    ip, _, port = host.rpartition(":")
    for name, data in sorted(info.broker_addr_table.items()):
        for address in data.broker_addrs.values():
            listed, _, listed_port = address.rpartition(":")
            if address == host:
                return name, address
            if listed_port == port and not is_ip(listed.strip("[]")):
                with suppress(OSError, UnicodeError):  # the host does not exist, the name is invalid, or the look-up timed out
                    async with asyncio.timeout(max(deadline - machine.monotonic(), 0.0)):
                        resolved = await look_up(listed, int(port))
                    if ip.strip("[]") in {entry[4][0] for entry in resolved}:
                        return name, address
    return None


async def _at(
    instance: ClientInstance, topic: str, msg_id: str, offset: int, broker: str, address: str, deadline: float
) -> MessageExt:
    command = request_of(ViewMessageRequestHeader(topic=topic, offset=offset))
    response = await ask_at(instance, broker, address, command, deadline)
    not_found = partial(QueryNotFoundError, request="VIEW_MESSAGE_BY_ID", broker=broker, address=address)
    if response.code != ResponseCode.SUCCESS:
        error = broker_error(response.code, response.remark, request="VIEW_MESSAGE_BY_ID", broker=broker, address=address)
        if type(error) is BrokerSystemError:  # "can not find message by the offset", or no record begins at that position
            raise not_found(
                f"message {printable(msg_id)} was not found: {printable(response.remark or 'the broker gives no reason')}; "
                "check the id, and whether the message has been deleted"
            ) from None
        raise error
    decoded = await _decode(instance, response.body, broker, deadline)
    if decoded.corrupt and response.body[4:8] in _MAGIC:
        raise decoded.corrupt[0]
    if not decoded.messages or decoded.messages[0].commit_log_offset != offset:
        raise not_found(
            f"no message begins at offset {offset} of the commit log, which {printable(msg_id)} names; check the id"
        )
    message = decoded.messages[0]
    if message.topic != topic:
        shown, wanted = instance.names.shown(message.topic), instance.names.display_name(topic)
        raise not_found(f"message {printable(msg_id)} belongs to topic {printable(shown)}, not to {wanted}; give its topic")
    return message


# -- by index


async def _query(
    instance: ClientInstance,
    brokers: Mapping[str, str],
    query: QueryMessageRequestHeader,
    wanted: Callable[[MessageExt], bool],
    deadline: float,
    *,
    is_one: bool = False,
) -> list[MessageExt]:
    """Return the messages of the query's topic that the brokers' indexes find and that are ``wanted``, sorted by store time.

    Log damaged messages. An index also finds messages whose keys only have the same hash as the query's key.

    Args:
        is_one: True raises the error of a broker only if no other broker has found a message.
    """
    found: list[MessageExt] = []
    failures: list[RocketMQError] = []

    async def ask(name: str) -> None:
        try:
            messages = await _query_at(instance, name, brokers[name], query, deadline)
        except RocketMQError as error:
            if not is_one:
                raise
            failures.append(without_frames(error))
            return
        found.extend(message for message in messages if message.topic == query.topic and wanted(message))

    await for_each(brokers, ask, at_once=len(brokers))
    if failures and not found:
        try:
            raise failures[0]
        finally:
            failures.clear()  # otherwise the error, whose traceback holds this frame, would be in a reference cycle
    return sorted(found, key=lambda message: (message.store_time_ms, message.queue, message.queue_offset))


async def _query_at(
    instance: ClientInstance, broker: str, address: str, query: QueryMessageRequestHeader, deadline: float
) -> list[MessageExt]:
    """Return the newest messages that one broker's index finds.

    While the response exceeds ``max_frame_size``, request half as many messages at a time, from the newest to the oldest.
    """
    found: dict[int, MessageExt] = {}
    number, end = query.maxNum, query.endTimestamp
    while True:
        part = msgspec.structs.replace(query, maxNum=number, endTimestamp=end)
        try:
            messages = await _part(instance, broker, address, part, deadline)
        except FrameTooLargeError:
            if number == 1:
                raise
            number //= 2
            continue
        before = len(found)
        found |= {message.commit_log_offset: message for message in messages}
        if number == query.maxNum or len(messages) < number or len(found) >= query.maxNum:
            return [*found.values()]
        end = min(message.store_time_ms for message in messages)
        # more than ``number`` messages are from the same second, and the index has no finer unit of time
        if len(found) == before:
            text = "%s has more messages with key %s than the %d found: a response with more messages exceeds max_frame_size"
            logger.warning(text, broker, printable(query.key), before)
            return [*found.values()]


async def _part(
    instance: ClientInstance, broker: str, address: str, query: QueryMessageRequestHeader, deadline: float
) -> tuple[MessageExt, ...]:
    command = request_of(query)
    response = await ask_at(instance, broker, address, command, deadline)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return ()
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark, request="QUERY_MESSAGE", broker=broker, address=address)
    decoded = await _decode(instance, response.body, broker, deadline)
    for corrupt in decoded.corrupt:
        text = "a damaged message of broker %s that may have key %s is left out: %s"
        logger.error(text, broker, printable(query.key), printable(corrupt))
    return decoded.messages


async def _decode(instance: ClientInstance, body: bytes, broker: str, deadline: float) -> DecodedMessages:
    """Return the messages in a response.

    Raises:
        RequestTimeoutError: If a thread has not decoded a large response by ``deadline``.
    """
    limit = instance.config.max_decompressed_size
    decode = partial(decode_messages, body, topic_queue_broker=broker, max_decompressed_size=limit)
    if len(body) < DECODE_IN_THREAD:
        return decode()
    try:
        return await instance.threads.run(decode, deadline)
    except TimeoutError:
        text = (
            f"a response of {len(body)} bytes from {broker} was not decoded in time; "
            "request fewer messages, or raise request_timeout"
        )
        raise RequestTimeoutError(text, broker=broker) from None
