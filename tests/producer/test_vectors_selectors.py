"""Golden vectors of queue selection; see tests/protocol/vectors.py, the runner."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from rmq_async import (
    FaultTable,
    Message,
    MessageQueue,
    errors,
    select_best,
    select_by_hash,
    select_by_machine_room,
)
from rmq_async.producer.routing.fault_table import LatencyTable
from rmq_async.producer.routing.queue_selection import QueueSelection
from rmq_async.producer.routing.selectors import java_hash
from rmq_protocol.allocation import allocate_averagely, allocate_by_circle, allocate_by_consistent_hash
from vectors import CLIENT_KINDS, Case, Outcome, Suite, is_error, refused

from .support import is_available, topic_queues_of

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
    """No queues: the producer asks no selector then, but a direct caller gets an error too."""
    given = {"queues": 4, "arg": "key"} | case.given
    with refused():
        select_by_hash(queues(given["queues"]), MESSAGE, given["arg"])
    return None


@SUITE.handles("selectors", "machine_room_select")
def machine_room_select(case: Case) -> Outcome | None:
    """Java's class is an empty shell that always returns null; here a room without queues is an error."""
    assert case.expected["selected"] is None
    with refused():
        select_by_machine_room({})(queues(case.given["queues"]), MESSAGE, case.given["arg"])
    return Outcome.DIFFERS


@SUITE.handles("selectors", "round_robin")
def round_robin(case: Case) -> Outcome | None:
    """Queues whose turn stands where Java's counter does gives the same queues, until Java's counter jumps back to 0."""
    given = case.given
    if not given["queues_per_broker"]:
        assert all(map(is_error, case.expected["chosen"]))
        with pytest.raises(errors.BrokerNotFoundError):
            topic_queues_of([])
        return None
    topic_queues, faults = topic_queues_of(given["queues_per_broker"]), None
    if given["send_latency_enable"]:
        faults = LatencyTable(FaultTable.V5)
        for update in given["fault_updates"]:
            state: dict[str, Any] = {"isolated": update["isolation"], "reachable": update["reachable"]}
            faults.update(update["broker"], update["latency_ms"] / 1000, now=monotonic(), **state)
    selection = QueueSelection(select_best, faults)
    first = (given["index_before_first_call"] + 1) & 0x7FFFFFFF
    count = len(topic_queues.queues)
    while topic_queues.next().queue != topic_queues.queues[(first - 1) % count]:
        pass
    chosen = []
    for last in given["lastBrokerName_per_call"]:
        others = topic_queues.brokers - {last}
        queue = selection.next(topic_queues, others if last in topic_queues.brokers and others else topic_queues.brokers).queue
        chosen.append([queue.broker_name, queue.queue_id])
    if chosen != case.expected["chosen"]:
        before_the_jump = 0x7FFFFFFF - first + 1
        assert before_the_jump < len(chosen)
        assert chosen[:before_the_jump] == case.expected["chosen"][:before_the_jump]
        return Outcome.DIFFERS
    return None


@SUITE.handles("selectors", "fault_duration")
def fault_duration(case: Case) -> Outcome | None:
    thresholds = tuple(each / 1000 for each in case.given["latencyMax"])
    (table,) = [table for table in (FaultTable.V5, FaultTable.V4) if table.latencies == thresholds]
    assert table.durations == tuple(each / 1000 for each in case.given["notAvailableDuration"])
    assert table.isolation == case.given["isolation_uses_latency"] / 1000
    for latency, duration in case.expected["latency_to_duration"]:
        assert table.duration(latency / 1000) == duration / 1000
    return None


@SUITE.handles("selectors", "fault_item")
def fault_item(case: Case) -> Outcome | None:
    faults, now = LatencyTable(FaultTable.V5), 1000.0
    for broker, latency, duration, reachable in case.given["updates_name_latency_duration_reachable"]:
        faults.note(broker, latency / 1000, duration / 1000, reachable=reachable, now=now)
    for broker, expected in case.expected["items"].items():
        assert is_available(faults, broker, now) is expected["available"]
        assert faults.reachable(broker, now) is expected["reachable"]
        assert is_available(faults, broker, now + expected["isolated_for_about_ms"] / 1000)
        just_before = max(now, now + expected["isolated_for_about_ms"] / 1000 - 0.001)
        assert is_available(faults, broker, just_before) is expected["available"]
    assert case.expected["unknown_broker_available_and_reachable"]
    assert all([is_available(faults, "unknown", now), faults.reachable("unknown", now)])
    return None


STRATEGIES = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_by_circle,
    "CONSISTENT_HASH": allocate_by_consistent_hash,
}


@SUITE.handles("selectors", "allocate")
def allocate(case: Case) -> Outcome | None:
    share = STRATEGIES[case.given["strategy"]]
    offered = [MessageQueue("T", broker, number) for broker, number in case.given["queues_sorted"]]
    for member, expected in case.expected.items():
        got = share(member, offered, case.given["consumer_ids_sorted"])
        assert [[queue.broker_name, queue.queue_id] for queue in got] == expected
    return None


@pytest.mark.parametrize("path", SUITE.files(), ids=lambda path: path.name)
def test_golden_vectors(path: Path) -> None:
    SUITE.run(path)
