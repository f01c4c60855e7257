"""Who is missing, who came twice: the demo's arithmetic."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rmq_async.cli.demo.accounting import Account, account
from rmq_async.cli.demo.report import percentile


def test_everything_acknowledged_and_read_leaves_nothing_to_report() -> None:
    assert account("abc", "abc", "cab") == Account(3, 3, 3, (), (), (), (), 0, ())


def test_an_acknowledged_message_that_was_not_read_is_lost() -> None:
    counts = account("abcd", "abd", "ad")
    assert counts.lost == ("b",)
    assert (counts.attempted, counts.acknowledged, counts.stored) == (4, 3, 2)


def test_a_message_neither_acknowledged_nor_read_is_absent_and_not_lost() -> None:
    counts = account("ab", "a", "a")
    assert (counts.lost, counts.absent) == ((), ("b",))


def test_a_message_read_without_acknowledgement_is_counted_apart() -> None:
    counts = account("ab", "a", "ab")
    assert (counts.unacknowledged, counts.lost, counts.stored) == (("b",), (), 2)


def test_each_copy_too_many_counts() -> None:
    counts = account("ab", "ab", "abbb")
    assert (counts.duplicated, counts.copies, counts.stored) == (("b",), 2, 2)


def test_a_message_that_was_not_sent_is_unknown_and_stored_for_no_send() -> None:
    counts = account("a", "a", "az")
    assert (counts.unknown, counts.stored) == (("z",), 1)


def test_nothing_at_all() -> None:
    assert account("", "", "") == Account(0, 0, 0, (), (), (), (), 0, ())


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.lists(st.integers(0, 40)))
def test_every_message_is_counted_once(attempted: set[int], acknowledged: set[int], read: list[int]) -> None:
    counts = account(attempted, acknowledged, read)
    tried, seen = attempted | acknowledged, Counter(read)
    assert counts.attempted == len(tried)
    assert set(counts.lost) == acknowledged - seen.keys()
    assert set(counts.unacknowledged) == (attempted - acknowledged) & seen.keys()
    assert counts.stored + len(counts.lost) + len(counts.absent) == counts.attempted
    assert counts.stored + len(counts.unknown) + counts.copies == len(read)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (50.0, 99.0, 100.0)
    assert percentile([7.0], 99) == 7.0
    assert math.isnan(percentile([], 50))
