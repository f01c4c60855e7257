"""Golden vectors of queue selection; see tests/protocol/vectors.py, the runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_async import Message, MessageQueue, select_by_hash
from rmq_async.producer.selectors import java_hash
from vectors import CLIENT_KINDS, Case, Outcome, Suite, refused

SUITE = Suite(*CLIENT_KINDS)
MESSAGE = Message("T", b"x")
JAVA_TYPES = {"String": str, "Boolean": bool, "Integer": int, "Long": int}


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "a", number) for number in range(count)]


@SUITE.handles("selectors", "hash_select")
def hash_select(case: Case) -> Outcome | None:
    """A Long that fits 32 bits has another hash in Java than the Integer of the same value; here it is always the Integer."""
    kind, key = case.given["arg_type"], case.given["arg"]
    assert type(key) is JAVA_TYPES[kind]
    if kind == "Long" and -0x80000000 <= key < 0 and case.expected["hash_code"] != key:
        assert java_hash(key) == key
        for count, _ in case.expected["queue_count_to_index"]:
            assert select_by_hash(queues(count), MESSAGE, key).queue_id == abs(key) % count
        return Outcome.DIFFERS
    assert java_hash(key) == case.expected["hash_code"]
    for count, index in case.expected["queue_count_to_index"]:
        assert select_by_hash(queues(count), MESSAGE, key).queue_id == index
    return None


@SUITE.handles("selectors", "hash_select_error")
def hash_select_error(case: Case) -> Outcome | None:
    """No queues: the producer asks no selector then, but whoever calls it himself gets an error too."""
    given = {"queues": 4, "arg": "key"} | case.given
    with refused():
        select_by_hash(queues(given["queues"]), MESSAGE, given["arg"])
    return None


@pytest.mark.parametrize("path", SUITE.files(), ids=lambda path: path.name)
def test_golden_vectors(path: Path) -> None:
    SUITE.run(path)
