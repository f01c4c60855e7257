"""Which rows leave together, which one after the other."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rmq_async import Message
from rmq_async.outbox.rows import Held
from rmq_async.outbox.sending import KeyOrders, batches

KEY = ("T", "k")
_numbers = iter(range(1, 1_000_000))


def held(topic: str = "T", *, size: int = 10, whole: bool = True, **more: Any) -> Held:
    return Held(next(_numbers), Message(topic, b"x" * (size if whole else 0), **more), size, 0, 1e9, whole)


def together(rows: list[Held], small: int = 4096, max_bytes: int = 4 << 20, max_rows: int = 256) -> list[int]:
    return sorted(len(batch) for batch in batches(rows, small, max_bytes, max_rows))


def test_small_rows_of_one_topic_leave_together() -> None:
    assert together([held() for _ in range(5)]) == [5]
    assert together([held("A"), held("B"), held("A")]) == [1, 2]
    assert together([]) == []


@pytest.mark.parametrize(
    "row",
    [
        held(size=4096), held(whole=False), held(delay_level=3), held(deliver_at=0.0), held("%RETRY%g"), held(wait_store=False),
    ],
    ids=["large", "without its body", "level", "deliver_at", "retry", "wait_store"],
)  # fmt: skip
def test_what_no_batch_takes_leaves_alone(row: Held) -> None:
    assert together([held(), row, held()]) == [1, 2]


def test_a_batch_has_a_limit_of_rows_and_bytes() -> None:
    assert together([held() for _ in range(10)], max_rows=4) == [2, 4, 4]
    assert together([held(size=1000) for _ in range(4)], max_bytes=2 * 1512 + 1) == [2, 2]
    properties = {"p": "v" * 1000}
    assert together([held(properties=properties) for _ in range(2)], max_bytes=6000) == [1, 1]


def test_each_row_is_in_one_batch_for_any_rows() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    luck = random.Random(seed)
    for _ in range(50):
        rows = [
            held(luck.choice("AB"), size=luck.choice([1, 500, 5000]), whole=luck.random() < 0.9, wait_store=luck.random() < 0.7)
            for _ in range(luck.randrange(60))
        ]
        found = list(batches(rows, 4096, 8000, luck.randrange(1, 20)))
        assert sorted(row.id for batch in found for row in batch) == sorted(row.id for row in rows)
        for batch in found:
            assert len({(row.message.topic, row.message.wait_store) for row in batch}) == 1
            assert [row.id for row in batch] == sorted(row.id for row in batch)


def test_a_row_that_has_failed_goes_alone() -> None:
    rows = [held() for _ in range(4)]
    rows[2].attempts = 1
    assert together(rows) == [1, 3]


def test_rows_of_one_key_share_an_order_and_others_do_not() -> None:
    orders = KeyOrders()
    first, second, other = held(), held(), held()
    assert orders.add(KEY, first) is orders.add(KEY, second)
    assert orders.add(("T", "other"), other) is not orders.add(KEY, held())
    assert set(orders.in_hand([KEY])) >= {first.id, second.id}
    assert other.id not in orders.in_hand([KEY])
    assert other.id in orders.in_hand()


def test_a_broken_order_takes_nothing_until_the_failure_is_recorded() -> None:
    orders = KeyOrders()
    rows = [held() for _ in range(3)]
    order = None
    for row in rows:
        order = orders.add(KEY, row)
    assert order is not None
    order.waiting.popleft()
    assert orders.break_off(order) == rows[1:]
    assert (orders.breaks, orders.in_hand([KEY])) == (1, [])
    assert orders.add(KEY, held()) is None
    for row in rows:
        orders.recorded(KEY, row.id)
    assert orders.add(KEY, held()) is not order


def test_nothing_stays_of_an_order_whose_rows_are_recorded() -> None:
    orders = KeyOrders()
    for number in range(1000):
        row, key = held(), ("T", str(number))
        order = orders.add(key, row)
        assert order is not None
        order.busy = True
        orders.recorded(key, row.id)  # before its sender has seen to the next one
        order.busy = False
        again = held()
        assert orders.add(key, again) is order
        orders.recorded(key, again.id)
        orders.recorded(key, 12345)
    assert orders._orders == {}  # noqa: SLF001
