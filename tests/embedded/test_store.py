"""The store by itself: long runs of appends and evictions against a plain model."""

from __future__ import annotations

import random
from collections import deque

import pytest

from rmq_async.embedded.records import Draft, keys_of, pack_record, physical_offset, queue_offset, read_record, stored_ms
from rmq_async.embedded.store import RECORD_OVERHEAD, CommitLog, Queue, tag_code
from rmq_protocol.errors import ProtocolError
from rmq_protocol.java_types import string_hash
from rmq_protocol.properties import encode_properties
from rmq_protocol.stored import encode_stored

Entry = tuple[int, Queue, int, bytes, int]
"""Physical offset, queue, queue offset, record, time."""


def test_appends_and_evictions_agree_with_a_model() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    now = 1000
    log = CommitLog(300_000, lambda: now)
    queues = [Queue("T", "broker-a", queue_id) for queue_id in range(3)]
    model: deque[Entry] = deque()
    total = 0
    for step in range(12_000):
        queue = rng.choice(queues)
        record = b"%d " % step + bytes(rng.randrange(200))
        now += rng.randrange(3)
        stored = log.now()
        model.append((log.end, queue, queue.max_offset, record, stored))
        log.append(queue, record, step % 5, stored)
        total += len(record) + RECORD_OVERHEAD
        while total > log.max_memory:
            total -= len(model.popleft()[3]) + RECORD_OVERHEAD
        if step % 500 == 0 or step > 11_990:
            check(log, queues, model, rng)
    log.clear()
    assert (len(log), log.memory) == (0, 0)
    assert all(queue.min_offset == queue.max_offset for queue in queues)


def check(log: CommitLog, queues: list[Queue], model: deque[Entry], rng: random.Random) -> None:
    assert len(log) == len(model)
    assert log.memory == sum(len(entry[3]) + RECORD_OVERHEAD for entry in model) <= log.max_memory
    assert [record for record, _ in log.records()] == [entry[3] for entry in model]
    offset, queue, _, record, _ = rng.choice(list(model))
    assert log.view(offset) == (record, queue)
    assert log.view(offset + 1) is None
    assert log.view(model[0][0] - 1) is None
    for each in queues:
        mine = [entry for entry in model if entry[1] is each]
        if not mine:
            continue
        assert each.min_offset == mine[0][2]
        assert each.max_offset == mine[-1][2] + 1
        found, following = each.read(each.min_offset, 10**6, 10**9, 10**6, None)
        assert (found, following) == ([entry[3] for entry in mine], each.max_offset)
        when = rng.choice(mine)[4]
        assert each.offset_at(when, upper=False) == next(entry[2] for entry in mine if entry[4] >= when)
        assert each.offset_at(when, upper=True) == [entry[2] for entry in mine if entry[4] <= when][-1]
        assert each.stored_ms(mine[-1][2]) == mine[-1][4]
        assert each.stored_ms(each.min_offset - 1) is None
        assert each.stored_ms(each.max_offset) is None


def test_tag_codes_are_those_of_java() -> None:
    assert [tag_code(tags) for tags in (None, "", "TagA", "中文")] == [0, 0, 2598919, 646394]
    assert tag_code("polygenelubricants") == string_hash("polygenelubricants") == -(2**31)


HOSTS = ("127.0.0.1:1", "[::1]:65535", "10.1.2.3:10911", "[2001:db8::7]:80")


def random_draft(rng: random.Random) -> Draft:
    properties = {f"n{index}": "文" * rng.randrange(1, 20) for index in range(rng.randrange(4))}
    if rng.random() < 0.7:
        properties |= {"UNIQ_KEY": f"u{rng.randrange(9)}", "KEYS": rng.choice(["k1", "k1 k2", " ", "a  b"])}
    return Draft(
        topic="t" * rng.choice([1, 20, 127, 128, 255]),
        queue_id=rng.randrange(100),
        body=rng.randbytes(rng.randrange(300)),
        properties=properties,
        flag=rng.randrange(-(2**31), 2**31),
        sys_flag=rng.randrange(-(2**31), 2**31) & ~0x30,
        born_time_ms=rng.randrange(-(2**63), 2**63),
        born_host=rng.choice(HOSTS),
        reconsume_times=rng.randrange(-(2**31), 2**31),
        prepared_offset=rng.randrange(-(2**63), 2**63),
    )


def packed(draft: Draft, offset: int, position: int, store_time_ms: int, store_host: str) -> bytes:
    return pack_record(draft, encode_properties(draft.properties), offset, position, store_time_ms, store_host)


def test_records_are_as_the_codec_writes_them_and_read_back_as_they_were() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(500):
        draft, store_host = random_draft(rng), rng.choice(HOSTS)
        offset, position, now = (rng.randrange(2**63) for _ in range(3))
        record = packed(draft, offset, position, now, store_host)
        assert record == encode_stored(
            topic=draft.topic,
            body=draft.body,
            properties=encode_properties(draft.properties),
            queue_id=draft.queue_id,
            queue_offset=offset,
            commit_log_offset=position,
            flag=draft.flag,
            sys_flag=draft.sys_flag,
            born_time_ms=draft.born_time_ms,
            born_host=draft.born_host,
            store_time_ms=now,
            store_host=store_host,
            reconsume_times=draft.reconsume_times,
            prepared_transaction_offset=draft.prepared_offset,
        )
        assert (queue_offset(record), physical_offset(record), stored_ms(record)) == (offset, position, now)
        keys = {*draft.properties.get("KEYS", "").split(), draft.properties.get("UNIQ_KEY", "")} - {""}
        assert keys_of(record).keys() == keys
        again = read_record(record)
        again.sys_flag &= ~0x30
        assert again == draft
        again.sys_flag |= 0x30
        assert packed(again, offset, position, now, store_host) == record


@pytest.mark.parametrize(
    "over", [{"flag": 2**31}, {"queue_id": -(2**31) - 1}, {"born_time_ms": 2**63}, {"topic": "t" * 40_000}]
)
def test_values_that_do_not_fit_a_record_are_refused(over: dict[str, int | str]) -> None:
    draft = Draft("T", 0, b"x", {}, 0, 0, 0, HOSTS[0])
    for name, value in over.items():
        setattr(draft, name, value)
    with pytest.raises(ProtocolError, match="cannot be encoded"):
        packed(draft, 0, 0, 0, HOSTS[0])


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_dropped_queues_leave_nothing_but_times(share: float) -> None:
    """Half of the messages, and one of a hundred, take different ways."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    log = CommitLog(600_000, lambda: 1000)
    gone, empty, kept = (Queue(topic, "broker-a", 0) for topic in ("gone", "empty", "kept"))
    for step in range(5000):
        queue = gone if rng.random() < share else kept
        draft = Draft(queue.topic, 0, bytes(rng.randrange(200)), {}, 0, 0, 0, HOSTS[0])
        log.append(queue, packed(draft, queue.max_offset, log.end, 1000 + step, HOSTS[step % 2]), 0, 1000 + step)
    assert gone.min_offset > 0
    before = len(log)
    lost = sum(len(record) - 80 for record, queue in log.records() if queue is gone)
    memory = log.memory
    log.drop([gone, empty])
    assert (len(log), log.memory) == (before, memory - lost)
    assert [record for record, _ in log.records()] == kept.read(kept.min_offset, 10**6, 10**9, 10**6, None)[0]
    assert all(queue is kept for _, queue in log.records())
    assert log.earliest_ms() == 1000 + 5000 - before
    first, behind = log.between(1000 + 4990, 1000 + 4999)
    assert behind == log.end
    assert first < log.end
    for _ in range(5000):
        log.append(kept, bytes(100), 0, 9000)
    assert log.memory == len(log) * (100 + RECORD_OVERHEAD) <= 600_000


def test_an_empty_log_has_no_earliest_time() -> None:
    log = CommitLog(1000, lambda: 5)
    assert (log.earliest_ms(), log.last(), log.between(0, 10), log.start) == (-1, None, (0, 0), 0)
    log.drop([Queue("T", "broker-a", 0)])
    assert log.index(10)
