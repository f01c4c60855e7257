"""A log that loses its newest records, by itself: against a plain model."""

from __future__ import annotations

import random
from typing import NamedTuple

from rmq_async.embedded.records import Draft, pack_record
from rmq_async.embedded.store import CommitLog, Queue, key_hash
from rmq_protocol.properties import encode_properties

HOST = "127.0.0.1:1"


class Entry(NamedTuple):
    position: int
    queue: Queue
    offset: int
    record: bytes


class Filled:
    """A log that two brokers share, and what must be in it."""

    def __init__(self, rng: random.Random, max_memory: int = 10**8) -> None:
        self.rng = rng
        self.log = CommitLog(max_memory, lambda: 1000)
        self.queues = [Queue("T", f"broker-{letter}", queue_id) for letter in "ab" for queue_id in range(3)]
        self.model: list[Entry] = []
        self.made = 0

    def append(self, count: int, queues: list[Queue] | None = None) -> None:
        for _ in range(count):
            queue = self.rng.choice(queues or self.queues)
            self.made += 1
            properties = encode_properties({"UNIQ_KEY": f"u{self.made}", "KEYS": f"k{self.made % 7}"})
            draft = Draft("T", queue.queue_id, bytes(self.rng.randrange(99)), {}, 0, 0, 0, HOST)
            entry = Entry(self.log.end, queue, queue.max_offset, b"")
            record = pack_record(draft, properties, entry.offset, entry.position, self.made, HOST)
            self.log.append(queue, record, 0, self.made)
            self.model.append(entry._replace(record=record))

    def truncate(self, position: int, broker: str) -> None:
        lost = [entry for entry in self.model if entry.position >= position and entry.queue.broker_name == broker]
        assert self.log.truncate(position, broker) == len(lost)
        self.model = [entry for entry in self.model if entry not in lost]

    def check(self) -> None:
        log, model = self.log, self.model
        assert [(record, queue) for record, queue in log.records()] == [(entry.record, entry.queue) for entry in model]
        for entry in self.rng.sample(model, min(len(model), 20)):
            assert log.view(entry.position) == (entry.record, entry.queue)
        for queue in self.queues:
            mine = [entry for entry in model if entry.queue is queue]
            assert queue.max_offset - queue.min_offset == len(mine)
            assert queue.read(queue.min_offset, 10**6, 10**9, 10**6, None)[0] == [entry.record for entry in mine]

    def found(self, broker: str, key: str) -> list[int]:
        while not self.log.index(10**6):
            pass
        return [
            position
            for position in self.log.keys.find(key_hash(broker, "T", key), 0, self.log.end)
            if self.log.view(position) is not None
        ]


def seeded() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def test_truncations_agree_with_a_model() -> None:
    rng = seeded()
    filled = Filled(rng)
    for _ in range(60):
        filled.append(rng.randrange(100))
        if rng.random() < 0.3:
            filled.log.index(rng.randrange(200))
        broker = rng.choice(["broker-a", "broker-b"])
        position = rng.choice(filled.model).position + rng.choice([0, 0, 1]) if filled.model else 0
        filled.truncate(position, broker)
        filled.check()
    for broker in ("broker-a", "broker-b"):
        filled.truncate(0, broker)
    filled.check()
    assert (len(filled.log), filled.log.memory, filled.log.end) == (0, 0, 0)


def test_log_of_one_broker_ends_where_it_was_cut() -> None:
    filled = Filled(seeded())
    filled.append(50, filled.queues[:3])
    cut = filled.model[30].position
    assert filled.log.place_of_last(20, "broker-a") == cut
    assert filled.log.place_of_last(50, "broker-a") == filled.log.place_of_last(99, "broker-a") == 0
    assert filled.log.place_of_last(0, "broker-a") == filled.log.place_of_last(5, "broker-b") == filled.log.end
    filled.truncate(cut, "broker-a")
    assert (filled.log.end, filled.log.last()) == (cut, (filled.model[-1].position, filled.model[-1].record))


def test_records_of_another_broker_stay_where_they_are() -> None:
    filled = Filled(seeded())
    filled.append(20, filled.queues[:3])
    filled.append(20, filled.queues[3:])
    end = filled.log.end
    filled.truncate(0, "broker-a")
    filled.check()
    assert filled.log.end == end
    assert filled.log.place_of_last(1, "broker-b") == filled.model[-1].position


def test_index_finds_what_was_stored_after_a_cut_and_nothing_else() -> None:
    filled = Filled(seeded())
    filled.append(200, filled.queues[:3])
    before = filled.found("broker-a", "k3")
    assert before
    filled.truncate(filled.model[100].position, "broker-a")
    kept = filled.found("broker-a", "k3")
    assert kept == [position for position in before if position < filled.log.end]
    filled.append(100, filled.queues[:3])
    wanted = [entry.position for entry in filled.model if b"k3\x02" in entry.record or entry.record.endswith(b"k3")]
    assert filled.found("broker-a", "k3") == sorted(wanted, reverse=True)
    filled.truncate(0, "broker-a")
    assert filled.log.memory == 0


def test_cut_after_evictions_leaves_only_what_is_older() -> None:
    rng = seeded()
    filled = Filled(rng, max_memory=30_000)
    filled.append(3000, filled.queues[:3])
    kept = len(filled.log)
    filled.model = filled.model[-kept:]
    filled.check()
    filled.truncate(0, "broker-a")  # below the oldest one
    filled.check()
    assert filled.log.memory == 0
    assert filled.log.end == filled.log.start > 0
    assert all(queue.min_offset == queue.max_offset > 0 for queue in filled.queues[:3])
    filled.append(5, filled.queues[:3])
    assert len(filled.log) == 5


def test_expired_offsets_stay_counted() -> None:
    filled = Filled(seeded())
    (queue, *_) = filled.queues
    filled.append(10, [queue])
    filled.log.expire(queue, 6)
    assert filled.log.truncate(0, "broker-a") == 4
    assert (queue.min_offset, queue.oldest, queue.max_offset) == (0, 6, 6)
    filled.append(1, [queue])
    assert filled.log.view(filled.model[-1].position) == (filled.model[-1].record, queue)
    assert (queue.oldest, queue.max_offset) == (6, 7)
