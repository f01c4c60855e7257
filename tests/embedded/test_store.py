"""The store by itself: long runs of appends and evictions against a plain model."""

from __future__ import annotations

import random
from collections import deque

from rmq_async.embedded.store import RECORD_OVERHEAD, CommitLog, Queue, tag_code
from rmq_protocol.heartbeat import java_hash

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
    assert tag_code("polygenelubricants") == java_hash("polygenelubricants") == -(2**31)
