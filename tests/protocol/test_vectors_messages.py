"""Golden vectors of messages, properties, ids, CRC, compression and validators; see vectors.py."""

from __future__ import annotations

import ipaddress
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import crcmod.predefined
import pytest
from stored_oracle import check_block, take

from rmq_protocol.batch import check_batch, decode_batch, encode_batch_message
from rmq_protocol.checksum import crc32, crc_property
from rmq_protocol.compression import CompressionType, compress, compression_type, decompress
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.ids import pack_host, pack_offset_id, pack_unique_id, unique_id_prefix, unpack_offset_id, unpack_unique_id
from rmq_protocol.message import Message, MessageExt, MessageQueue
from rmq_protocol.properties import decode_properties, encode_properties, message_properties
from rmq_protocol.stored import decode_messages, decode_pull, encode_stored, parse_tags
from rmq_protocol.validation import (
    broker_group_remark,
    broker_topic_remark,
    check_group,
    check_message,
    check_topic,
    is_not_allowed_send_topic,
    is_system_topic,
)
from vectors import CONTENT_KINDS, Case, Outcome, Suite, check_bytes, data, is_error, official_or_refused, refused

SUITE = Suite(*CONTENT_KINDS)
crcmod_crc32 = crcmod.predefined.mkPredefinedCrcFun("crc-32")


@pytest.mark.parametrize("path", SUITE.files(), ids=lambda path: path.name)
def test_golden_vectors(path: Path) -> None:
    SUITE.run(path)


def pairs_of(spec: list[list[str | None]] | None) -> dict[str, str | None]:
    return {str(name): value for name, value in spec or []}


def has_lone_surrogate(*texts: str | None) -> bool:
    return any("\ud800" <= char <= "\udfff" for text in texts if text is not None for char in text)


# ---------------------------------------------------------------------------------------------------------------- messages


def encoded_batch(messages: list[dict[str, Any]]) -> bytes:
    encoded = b""
    for message in messages:
        body: Any = None if message["body"] is None else data(message["body"])
        encoded += encode_batch_message(body, message["flag"], encode_properties(pairs_of(message["property_pairs"])))
    return encoded


@SUITE.handles("messages", "encode_message", "encode_messages")
def batch_encoding(case: Case) -> None:
    messages = case.given.get("messages", [case.given])
    if is_error(case.expected):
        with refused():
            encoded_batch(messages)
        return
    encoded = encoded_batch(messages)
    check_bytes(encoded, case.expected["bytes"])
    decoded = case.expected.get("decoded")
    if decoded is not None:
        assert [(record.flag, record.body, decode_properties(record.properties)) for record in decode_batch(encoded)] == [
            (expected["flag"], data(expected["body"]), expected["properties"] or {}) for expected in decoded
        ]


@SUITE.handles("messages", "message_batch")
def batch_rules(case: Case) -> None:
    messages = []
    for given in case.expected["messages"]:
        properties = given["properties"]
        messages.append(
            Message(
                given["topic"],
                data(given["body"]),
                tags=properties.get("TAGS"),
                keys=properties.get("KEYS", ""),
                delay_level=int(properties.get("DELAY", 0)),
                wait_store=properties.get("WAIT") != "false",
            )
        )
    result = case.expected["result"]
    if is_error(result):
        with refused():
            check_batch(messages)
        return
    check_batch(messages)
    assert {message.topic for message in messages} == {result["topic"]}
    assert {message.wait_store for message in messages} == {result["waitStoreMsgOK"]}
    body = b"".join(encode_batch_message(m.body, m.flag, message_properties(m, "U").encode()) for m in messages)
    assert len(decode_batch(body)) == result["decoded_count"]


@SUITE.handles("messages", "decodes")
def blocks(case: Case) -> Outcome:
    block = data(case.given["bytes"])
    return check_block(block, decode_messages(block, unwrap_batches=False), case.expected["messages"])


@SUITE.handles("messages", "pull_process")
def pulls(case: Case) -> Outcome:
    given = case.given
    block = data(given["bytes"])
    delta = given["offsetDelta"]
    ours = decode_pull(
        block,
        MessageQueue("T", given["brokerName"], given["queueId"]),
        tags=given["subscription"],
        min_offset=given["minOffset"],
        max_offset=given["maxOffset"],
        offset_delta=delta,
    )
    tags = parse_tags(given["subscription"])
    return check_block(block, ours, case.expected["messages"], unwrapped=True, delta=delta or 0, tags=tags)


@SUITE.handles("messages", "stored")
def stored(case: Case) -> Outcome:
    given, expected = case.given, case.expected
    body = data(given["body"])
    if is_error(expected):
        with refused():
            if given["need_compress"]:
                body = compress(body, compression_type(given["sysFlag"]))
            encoded_record(given, body, {})
        return Outcome.EQUAL
    decoded = expected["decoded"]
    compressed_by_us = given["need_compress"] and "sha256" in expected["bytes"]
    if compressed_by_us:
        body = compress(body, compression_type(given["sysFlag"]))
    elif given["need_compress"]:  # take the official encoder's bytes, they need not be ours
        fixed = 76 + (16 if given["sysFlag"] & 0x10 else 4) + (16 if given["sysFlag"] & 0x20 else 4)
        body, _ = take(data(expected["bytes"]), fixed, ">i")
    properties = (decoded or expected.get("decoded_no_decompress") or {}).get("properties")
    block = encoded_record(given, body, properties or {})
    if not compressed_by_us:
        check_bytes(block, expected["bytes"])
    elif decoded:
        decoded = {**decoded, "storeSize": len(block)}
    return check_block(block, decode_messages(block, unwrap_batches=False), [decoded] if decoded else [])


def encoded_record(given: dict[str, Any], body: bytes, decoded_properties: dict[str, str]) -> bytes:
    def host(spec: dict[str, Any]) -> str:
        ip = ipaddress.ip_address(bytes.fromhex(spec["ip_hex"]))
        return f"{ip}:{spec['port']}" if ip.version == 4 else f"[{ip}]:{spec['port']}"

    def encode(properties: bytes) -> bytes:
        return encode_stored(
            topic=given["topic"],
            body=body,
            properties=properties,
            queue_id=given["queueId"],
            queue_offset=given["queueOffset"],
            commit_log_offset=given["commitLogOffset"],
            flag=given["flag"],
            sys_flag=given["sysFlag"],
            born_time_ms=given["bornTimestamp"],
            born_host=host(given["bornHost"]),
            store_time_ms=given["storeTimestamp"],
            store_host=host(given["storeHost"]),
            reconsume_times=given["reconsumeTimes"],
            prepared_transaction_offset=given["preparedTransactionOffset"],
            body_crc=given["bodyCRC"],
            version=2 if given["layout"].endswith("V2") else 1,
        )

    properties = encode_properties(pairs_of(given["property_pairs"]))
    if "__CRC32#" in decoded_properties and "__CRC32#" not in pairs_of(given["property_pairs"]):
        # The broker appended the CRC of the record up to that property.
        placeholder = encode(properties + crc_property(0))
        properties += crc_property(crc32(placeholder[: -len(crc_property(0))]))
    return encode(properties)


# -------------------------------------------------------------------------------------------------------------- properties


@SUITE.handles("properties", "to_string")
def properties_to_text(case: Case) -> Outcome:
    pairs = pairs_of(case.given["pairs"])
    texts = [text for pair in pairs.items() for text in pair]
    if has_lone_surrogate(*texts) or len(bytes.fromhex(case.expected["utf8_hex"])) > 32767:
        with refused():  # Java writes "?" for the one and a length that wraps for the other
            encode_properties(pairs)
        return Outcome.DIFFERS
    encoded = encode_properties(pairs)
    assert encoded.hex() == case.expected["utf8_hex"]
    assert encoded.decode() == case.expected["string"]
    assert decode_properties(encoded) == case.expected["decoded_back"]
    return Outcome.EQUAL


@SUITE.handles("properties", "from_string")
def properties_from_text(case: Case) -> None:
    assert decode_properties(case.given["string"] or "") == case.expected["map"]


@SUITE.handles("properties", "put_user_property")
def user_property(case: Case) -> Outcome:
    name, value = case.given["name"], case.given["value"]
    accepted = not is_error(case.expected)
    separators = any(char in (name or "") + (value or "") for char in "\x00\x01\x02")
    if not accepted or separators or has_lone_surrogate(name, value):
        with refused():
            Message("T", b"x", properties={name: value})
        return Outcome.DIFFERS if accepted else Outcome.EQUAL  # Java lets separators through and breaks the text
    message = Message("T", b"x", properties={name: value})
    assert decode_properties(message_properties(message, "U"))[name] == value
    return Outcome.EQUAL


def sent_properties(message: Message) -> dict[str, str]:
    properties = decode_properties(message_properties(message, "U"))
    assert properties.pop("UNIQ_KEY") == "U"
    return properties


@SUITE.handles("properties", "set_keys")
def keys_setter(case: Case) -> Outcome:
    keys = case.given["keys"]
    message = Message("T", b"x", keys=keys)
    if any(keys) and all(keys):
        assert sent_properties(message) == case.expected["properties"]
        return Outcome.EQUAL
    # Java writes empty keys: an empty KEYS is lost on decode, an empty first key becomes a leading space.
    official = {**case.expected["properties"], "KEYS": case.expected["KEYS"].strip(" ")}
    assert sent_properties(message) == {name: value for name, value in official.items() if value}
    return Outcome.DIFFERS


@SUITE.handles("properties", "message_ctor")
def message_constructor(case: Case) -> None:
    given, expected = case.given, case.expected["properties"]
    message = Message(given["topic"], b"x", tags=given["tags"], keys=given["keys"], wait_store=expected["WAIT"] == "true")
    assert sent_properties(message) == expected


@SUITE.handles("properties", "message_setters")
def message_setters(case: Case) -> Outcome:
    given, expected = case.given, case.expected["properties"]
    assert sent_properties(Message("T", b"x", delay_level=given["delayTimeLevel"]))["DELAY"] == expected["DELAY"]
    assert (
        sent_properties(Message("T", b"x", delay=given["delayTimeMs"] / 1000))["TIMER_DELAY_MS"] == expected["TIMER_DELAY_MS"]
    )
    deliver_at = given["deliverTimeMs"] / 1000
    assert sent_properties(Message("T", b"x", deliver_at=deliver_at))["TIMER_DELIVER_MS"] == expected["TIMER_DELIVER_MS"]
    # Seconds go out as milliseconds, and one message has one delay: brokers would pick one of several by precedence.
    seconds = sent_properties(Message("T", b"x", delay=given["delayTimeSec"]))
    assert int(seconds["TIMER_DELAY_MS"]) == 1000 * int(expected["TIMER_DELAY_SEC"])
    with refused():
        Message("T", b"x", delay_level=given["delayTimeLevel"], delay=given["delayTimeSec"], deliver_at=deliver_at)
    return Outcome.DIFFERS


# --------------------------------------------------------------------------------------------------------------------- ids


def bracketed(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


@SUITE.handles("ids", "create_message_id")
def create_message_id(case: Case) -> None:
    given, expected = case.given, case.expected
    assert pack_offset_id(bracketed(given["ip"], given["port"]), given["offset"]) == expected["id"]
    check_offset_id(expected["id"], expected["decoded"])


def check_offset_id(msg_id: str, expected: dict[str, Any]) -> None:
    host, offset = unpack_offset_id(msg_id)
    ip, port = pack_host(host)
    assert {"ip_hex": ip.hex(), "port": port, "offset": offset} == expected


def is_hex_id(text: str | None) -> bool:
    return text is not None and len(text) in (32, 56) and all(char in "0123456789abcdefABCDEF" for char in text)


@SUITE.handles("ids", "decode_message_id")
def decode_message_id(case: Case) -> None:
    msg_id = case.given["id"]
    if is_error(case.expected):
        with refused():
            unpack_offset_id(msg_id)
    elif is_hex_id(msg_id):
        check_offset_id(msg_id, case.expected)
    else:
        official_or_refused(lambda: check_offset_id(msg_id, case.expected))


@SUITE.handles("ids", "uniq_decode")
def decode_unique_id(case: Case) -> None:
    given, expected = case.given, case.expected
    if not is_hex_id(given["id"]):
        with refused():
            unpack_unique_id(given["id"])
        return
    unique = unpack_unique_id(given["id"])
    assert ipaddress.ip_address(unique.ip) == ipaddress.ip_address(expected["ip"])
    assert ipaddress.ip_address(unique.ip).packed.hex() == expected["ip_hex"]
    assert unique.pid == expected["pid"]
    assert unique.nearly_time_ms(given["now_ms"], ZoneInfo(given["timezone"])) == expected["nearly_time_ms"]


@SUITE.handles("ids", "create_uniq_id")
def create_unique_id(case: Case) -> None:
    given, expected = case.given, case.expected
    unique = unpack_unique_id(expected["id"])
    now = datetime.fromtimestamp(given["at_ms"] / 1000, ZoneInfo(given["timezone"]))
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    elapsed = given["at_ms"] - round(month.timestamp() * 1000)
    assert abs(unique.elapsed_ms - elapsed) <= 1000  # the clock went on between the two
    prefix = unique_id_prefix(bytes.fromhex(given["ip_hex"]), given["pid"], unique.salt)
    assert pack_unique_id(prefix, unique.elapsed_ms, unique.counter) == expected["id"]
    assert len(expected["id"]) == expected["length"]


@SUITE.handles("ids", "client_ext")
def received_id(case: Case) -> None:
    host, offset = unpack_offset_id(case.given["offsetMsgId"])
    unique_id = case.given["UNIQ_KEY"]
    properties = {} if unique_id is None else {"UNIQ_KEY": unique_id}
    message = MessageExt("T", b"x", properties=properties, store_host=host, commit_log_offset=offset)
    assert message.msg_id == case.expected["getMsgId"]
    assert message.offset_msg_id == case.expected["getOffsetMsgId"]


# ------------------------------------------------------------------------------------------------------- crc, compression


@SUITE.handles("crc", "crc32")
def checksums(case: Case) -> None:
    body = data(case.given["body"])
    expected = case.expected
    assert crc32(body) == expected["crc32"] == crcmod_crc32(body) & 0x7FFFFFFF
    assert zlib.crc32(body) == expected["plain_crc32_unsigned"]
    assert (zlib.crc32(body) >> 31 == 1) == expected["top_bit_was_set"]
    assert crc_property(crc32(body)).hex() == expected["crc_property_bytes"]


@SUITE.handles("compression", "roundtrip")
def compression_round_trip(case: Case) -> None:
    kind = CompressionType.from_name(case.given["algorithm"])
    body = data(case.given["body"])
    packed = data(case.expected["compressed"]) if "sha256" not in case.expected["compressed"] else None
    if packed is not None:
        assert decompress(packed, kind) == body
        assert decompress(packed, kind, len(body)) == body
        if body:
            with refused():
                decompress(packed, kind, len(body) - 1)
    assert decompress(compress(body, kind, case.given["level"]), kind) == body


@SUITE.handles("compression", "decompress")
def decompression(case: Case) -> None:
    kind = CompressionType.from_name(case.given["algorithm"])
    packed = data(case.given["bytes"])
    if is_error(case.expected):
        with refused():
            decompress(packed, kind)
        return

    def check() -> None:
        check_bytes(decompress(packed, kind), case.expected["body"])

    official_or_refused(check)


@SUITE.handles("compression", "sysflag_type")
def type_of_sys_flag(case: Case) -> None:
    if is_error(case.expected):
        with refused():
            compression_type(case.given["sysFlag"])
    else:
        assert compression_type(case.given["sysFlag"]).name == case.expected["type"]


@SUITE.handles("compression", "type_by_name")
def type_by_name(case: Case) -> None:
    if is_error(case.expected):
        with refused():
            CompressionType.from_name(case.given["name"])
    else:
        kind = CompressionType.from_name(case.given["name"])
        assert (kind.name, kind.value) == (case.expected["type"], case.expected["flag"])


# -------------------------------------------------------------------------------------------------------------- validators


def check_verdict(expected: dict[str, Any], error: InvalidMessageError | None) -> None:
    assert (error is None) == expected["accepted"], error
    if error is not None:
        assert error.code == expected["response_code"]
        assert str(error)


def verdict(check: Any, *arguments: Any) -> InvalidMessageError | None:
    try:
        check(*arguments)
    except InvalidMessageError as error:
        return error
    return None


@SUITE.handles("validators", "name")
def names(case: Case) -> None:
    name, expected = case.given["name"], case.expected
    check_verdict(expected["checkTopic"], verdict(check_topic, name))
    check_verdict(expected["checkGroup"], verdict(check_group, name))
    if name is not None:
        assert is_system_topic(name) != expected["isSystemTopic"]["accepted"]
        assert is_not_allowed_send_topic(name) != expected["isNotAllowedSendTopic"]["accepted"]
    assert (broker_topic_remark(name) is None) == expected["broker_validateTopic"]["valid"]
    assert (broker_group_remark(name) is None) == expected["broker_validateGroup"]["valid"]


@SUITE.handles("validators", "message")
def messages_before_sending(case: Case) -> Outcome:
    given = case.given
    if "message" in given:
        assert given["message"] is None
        with refused():  # a message that is null has no counterpart; its parts would be
            check_message(None, None)  # type: ignore[arg-type]
        return Outcome.DIFFERS
    body: Any = None if given["body"] is None else data(given["body"])
    dispatch = given["INNER_MULTI_DISPATCH"]
    properties = None if dispatch is None else {"INNER_MULTI_DISPATCH": dispatch}
    check_verdict(case.expected, verdict(check_message, given["topic"], body, given["maxMessageSize"], properties))
    return Outcome.EQUAL
