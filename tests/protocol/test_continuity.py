"""Which offsets an answer leaves out, against sets of offsets; and records that are not of the queue that was asked for."""

from __future__ import annotations

from itertools import pairwise
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_protocol.columns import QUEUE_OFFSET, StoredColumns, read_columns
from rmq_protocol.continuity import first_queue_offset, gaps_of_mapping, missing_offsets, ranges_text, without_ranges
from rmq_protocol.errors import CorruptMessageError
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import decode_pull, encode_stored
from rmq_protocol.topics import LogicQueueMappingItem, TopicConfigAndQueueMapping

QUEUE = MessageQueue("T", "broker-a", 2)
OFFSETS = st.lists(st.integers(-5, 60), max_size=40)
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda pair: range(pair[0], sum(pair))), max_size=6)


def all_of(ranges: tuple[range, ...]) -> set[int]:
    return {offset for each in ranges for offset in each}


@given(st.integers(0, 40), st.integers(0, 40), OFFSETS)
def test_missing_offsets_are_all_others(first: int, size: int, found: list[int]) -> None:
    missing = missing_offsets(first, first + size, found)
    assert all_of(missing) == set(range(first, first + size)) - set(found)
    assert all(each for each in missing)
    assert all(one.stop < other.start for one, other in pairwise(missing))


@given(OFFSETS, st.lists(st.integers(0, 39), max_size=3))
def test_a_corrupt_record_accounts_for_what_follows(found: list[int], corrupt: list[int]) -> None:
    errors = [CorruptMessageError("bad", queue_offset=offset) for offset in corrupt]
    lost = all_of(missing_offsets(0, 40, found, errors))
    for offset in set(range(40)) - set(found):
        before = max((each for each in {*found, *corrupt} if 0 <= each <= offset), default=None)
        assert (offset in lost) == (before not in corrupt)
    assert missing_offsets(0, 40, found, [*errors, CorruptMessageError("no offset")]) == ()
    assert missing_offsets(0, 40, found, [CorruptMessageError("odd", queue_offset=40)]) == ()


@given(RANGES, RANGES)
def test_ranges_without_others(ranges: list[range], others: list[range]) -> None:
    left = without_ranges(ranges, others)
    assert all_of(left) == all_of(tuple(ranges)) - all_of(tuple(others))
    assert all(each for each in left)


def test_huge_ranges_cost_nothing() -> None:
    huge = missing_offsets(0, 2**63 - 1, [5])
    assert huge == (range(5), range(6, 2**63 - 1))
    assert ranges_text(without_ranges(huge, [range(3, 2**62)])) == f"0 to 2, {2**62} to {2**63 - 2}"
    assert ranges_text([range(number, number + 1) for number in range(0, 14, 2)]) == "0, 2, 4, 6, 8 and 2 more ranges"


def test_many_gaps_cost_little() -> None:
    """Settings of a broker say where a queue has gaps, and may say so of thousands."""
    gaps = [range(number, number + 5) for number in range(0, 40_000, 10)]
    began = process_time()
    left = without_ranges([range(40_000)], gaps)
    took = process_time() - began
    assert left == tuple([range(number + 5, number + 10) for number in range(0, 40_000, 10)])
    assert took < 0.5, f"{took:.3f} s"  # 5 ms; 4 s where each gap costs a pass over what is left


def test_gaps_of_a_static_topic() -> None:
    """The settings as a 5.5.0 broker writes them, of a queue that went from one broker to another one."""
    body = (
        b'{"attributes":{},"mappingDetail":{"bname":"broker-b","currIdMap":{},"dirty":false,"epoch":1795376860952,"hostedQueues":{0:['
        b'{"bname":"broker-a","endOffset":10,"gen":0,"logicOffset":0,"queueId":0,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1},'
        b'{"bname":"broker-b","endOffset":-1,"gen":1,"logicOffset":10000,"queueId":0,"startOffset":0,"timeOfEnd":-1,'
        b'"timeOfStart":-1}]},"scope":"__global__","topic":"T","totalQueues":1},"order":false,"perm":6,"readQueueNums":1,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":1}'
    )
    config = decode_body(TopicConfigAndQueueMapping, body)
    assert config.mapping_detail is not None
    assert gaps_of_mapping(config.mapping_detail.hosted_queues[0]) == (range(10, 10_000),)
    undecided = LogicQueueMappingItem(gen=2, logic_offset=-1)
    assert gaps_of_mapping([*config.mapping_detail.hosted_queues[0], undecided]) == (range(10, 10_000),)
    assert gaps_of_mapping([]) == ()
    assert decode_body(TopicConfigAndQueueMapping, b'{"topicName":"T"}').mapping_detail is None


def stored(offset: int, *, topic: str = "T", queue_id: int = 2) -> bytes:
    return encode_stored(topic=topic, body=b"x", queue_id=queue_id, queue_offset=offset, properties=b"UNIQ_KEY\x01A\x02")


@pytest.mark.parametrize("unusual", [b"", stored(0)[:4]])
def test_only_records_of_the_queue_are_kept(unusual: bytes) -> None:
    """Both ways to read a block agree, also where something unusual follows."""
    damaged = encode_stored(topic="U", body=b"x", queue_offset=9, body_crc=1)
    block = stored(0) + stored(1, topic="U") + stored(2) + stored(3, queue_id=1) + damaged + stored(4) + unusual
    columns = StoredColumns()
    found = read_columns(block, columns, QUEUE, only_queue=True)
    decoded = decode_pull(block, QUEUE, only_queue=True)
    assert [*columns.int64(QUEUE_OFFSET)] == [message.queue_offset for message in decoded.messages] == [0, 2, 4]
    assert len(found.corrupt) == len(decoded.corrupt) == bool(unusual)
    assert len(decode_pull(block, QUEUE).messages) == 5
    static = decode_pull(block, QUEUE, offset_delta=100, only_queue=True)  # physical queues have numbers of their own
    assert [message.queue_offset for message in static.messages] == [100, 102, 103, 104]
    light = QUEUE._replace(topic="%LMQ%one")
    assert len(decode_pull(block, light, only_queue=True).messages) == 5


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:1"])
@pytest.mark.parametrize("topic", ["T", "T" * 200])
def test_the_offset_that_a_body_begins_at(host: str, topic: str) -> None:
    queue = QUEUE._replace(topic=topic)

    def at(offset: int, **over: Any) -> bytes:
        return encode_stored(**{"topic": topic, "body": b"x", "queue_id": 2, "queue_offset": offset, "born_host": host} | over)

    assert first_queue_offset(at(7) + at(8), queue, 5) == 7
    assert first_queue_offset(at(7), queue, 5) == 7
    assert first_queue_offset(at(7, queue_id=0), queue, 5, 100) == 107  # of a static topic
    for odd in (at(7) + at(6), at(7, queue_id=3), at(7, topic="U") + at(8), at(7, topic=f"{topic}-too"), b""):
        assert first_queue_offset(odd, queue, 5) is None
    for unreadable in (b"?" * 200, at(7)[:80]):
        assert first_queue_offset(unreadable, queue, 5) == 5


@given(st.binary(max_size=200), st.integers(-1, 300))
def test_no_bytes_make_it_raise(noise: bytes, cut: int) -> None:
    for body in (noise, stored(3)[: max(cut, 0)] + noise, stored(3) + noise):
        found = first_queue_offset(body, QUEUE, 5)
        assert found is None or isinstance(found, int)
