"""The loop over ordinary records accepts nothing that the general way would read otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_samples import record
from strategies_messages import damaged, encode, fuzz, stored_records
from test_stored import DAMAGE

from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.stored import MessageBlock, decode_messages, decode_pull, encode_stored

QUEUE = MessageQueue("t", "broker-a", 3)
TEXTS = [
    b"UNIQ_KEY\x01A1\x02WAIT\x01true\x02",
    b"UNIQ_KEY\x01B2\x02WAIT\x01true\x02",
    b"UNIQ_KEY\x01C33\x02WAIT\x01true\x02",
    b"WAIT\x01true\x02UNIQ_KEY\x01A1\x02TAGS\x01a\x02",
    b"WAIT\x01true\x02UNIQ_KEY\x01B2\x02TAGS\x01b\x02",
    b"UNIQ_KEY\x01A1\x02UNIQ_KEY\x01A1\x02",  # the later one counts
    b"UNIQ_KEY\x01B2\x02UNIQ_KEY\x01A1\x02",
    b"__UNIQ_KEY\x01A1\x02TAGS\x01a\x02",
    b"__UNIQ_KEY\x01B2\x02TAGS\x01a\x02",
    b"UNIQ_KEY\x01\x02TAGS\x01a\x02",
    b"UNIQ_KEY\x01A1",
    b"UNIQ_KEY\x01A\xff\x02",
    b"UNIQ_KEY\x01A\x01B\x02",
    b"UNIQ_KEY\x01\xc3\xa4\x02WAIT\x01true\x02",
    b"TRAN_MSG\x01TRUE\x02UNIQ_KEY\x01A1\x02",
    b"TRAN_MSG\x01TRUE\x02UNIQ_KEY\x01B2\x02",
    b"TRAN_MSG\x01false\x02UNIQ_KEY\x01B2\x02",
    b"UNIQ_KEY\x02",
    b"",
]


def outcome(block: bytes, **options: Any) -> tuple[Any, ...]:
    found = [decode_messages(block), decode_messages(block, check_crc=False), decode_pull(block, QUEUE, **options)]
    return tuple((each.messages, [(str(error), error.msg_id) for error in each.corrupt], each.resume_at) for each in found)


def check_same(block: bytes, **options: Any) -> None:
    fast = outcome(block, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageBlock, "_ordinary", lambda _, position: position)
        assert outcome(block, **options) == fast


def stored(text: bytes, number: int = 0, **changes: Any) -> bytes:
    fields: dict[str, Any] = {"topic": "t", "body": b"x" * number, "properties": text, "queue_offset": number}
    return encode_stored(**(fields | changes))


@given(st.lists(st.sampled_from(TEXTS), max_size=8), st.sampled_from(["*", "a", "a || b"]), st.sampled_from([None, 0, 7]))
@fuzz
def test_neighbours_with_texts_that_are_nearly_alike(texts: list[bytes], tags: str, delta: int | None) -> None:
    block = b"".join(stored(text, number) for number, text in enumerate(texts))
    check_same(block, tags=tags, offset_delta=delta, min_offset=1, max_offset=2)


def test_neighbours_of_several_topics_queues_hosts_and_bodies() -> None:
    block = b"".join(
        stored(TEXTS[0], number, topic=topic, queue_id=queue_id, born_host=host, body=b"x" * size)
        for number, (topic, queue_id, host, size) in enumerate(
            (topic, queue_id, host, size)
            for topic in ("t", "u", "tt")
            for queue_id in (-1, 0, 3)
            for host in ("1.2.3.4:5", "1.2.3.4:65535", "[::1]:1")
            for size in (0, 1, 511, 512, 513)
        )
    )
    check_same(block)


def test_a_wrong_size_behind_an_ordinary_record_is_noticed() -> None:
    first, second = stored(TEXTS[0]), bytearray(stored(TEXTS[1]))
    for total in (len(second) + 5, len(second) - 1, 0, -1, 2**31 - 1):
        second[:4] = total.to_bytes(4, "big", signed=True)
        check_same(first + second)
        check_same(first + second + first)


def test_a_port_above_16_bits_is_left_to_the_general_way() -> None:
    block = bytearray(stored(TEXTS[0]) + stored(TEXTS[1]))
    block[52:54] = b"\x00\x01"
    check_same(bytes(block))


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_records(name: str) -> None:
    bad, _ = DAMAGE[name]
    for block in (record(0) + record(1) + bad + record(3), bad + bad + record(1) + bad, record(0) + bad[:-3]):
        check_same(block)


@given(damaged(st.lists(stored_records().map(encode), max_size=4).map(b"".join)))
@fuzz
def test_damaged_blocks(block: bytes) -> None:
    check_same(block)


@given(st.lists(stored_records().map(encode), max_size=5))
@fuzz
def test_sound_records_of_every_kind(blocks: list[bytes]) -> None:
    check_same(b"".join(blocks))


def test_messages_do_not_share_their_properties() -> None:
    found = decode_pull(stored(TEXTS[0]) + stored(TEXTS[0], 1), QUEUE).messages
    one, other = found
    assert isinstance(one, MessageExt)
    assert one.properties == other.properties
    one.properties["mine"] = "x"
    assert "mine" not in other.properties
