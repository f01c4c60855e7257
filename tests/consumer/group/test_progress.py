"""Which offsets are settled: any interleaving of entering, settling, passing and withdrawing, against a set of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_async.consumer.held_queue import Progress

Steps = list[tuple[str, int]]
kinds = st.sampled_from(["enter", "again", "skip", "settle", "withdraw", "withdraw some"])
steps = st.lists(st.tuples(kinds, st.integers(0, 30)), max_size=60)


class Model:
    """Every offset from the start on: open, settled, or passed without a message. ``away``: open ones that were withdrawn."""

    def __init__(self, start: int) -> None:
        self.start = self.next = start
        self.open: set[int] = set()
        self.settled: set[int] = set()
        self.away: set[int] = set()

    @property
    def watermark(self) -> int:
        return min(self.open, default=self.next)

    def withdraw(self, offsets: set[int]) -> None:
        while (entered := self.open | self.settled) and (top := max(entered)) in offsets:
            self.open.discard(top)
            self.away.discard(top)
            self.next = top
        self.away |= offsets & self.open


@given(st.integers(0, 5), steps)
def test_progress_any_interleaving(start: int, todo: Steps) -> None:
    progress, model = Progress(start), Model(start)
    for what, number in todo:
        if what == "enter":
            offset = model.next + number % 3
            assert progress.enter(offset)
            model.open.add(offset)
            model.next = offset + 1
        elif what == "again":
            offset = start + number
            if offset < model.next:
                assert progress.enter(offset) is (offset in model.away)
                model.away.discard(offset)
        elif what == "skip":
            to = max(model.next - 4, start) + number % 8
            progress.pass_to(to)
            gone = {each for each in model.away if each < to}
            model.open -= gone
            model.away -= gone
            model.settled |= gone
            model.next = max(model.next, to)
        elif what == "settle":
            offset = start + number
            if offset not in model.away:
                assert progress.settle(offset) is (offset in model.open)
            if offset in model.open - model.away:
                model.open.discard(offset)
                model.settled.add(offset)
        else:
            offset = start + number
            chosen = {each for each in model.open - model.away if each >= offset}
            if what == "withdraw some":
                chosen = {each for each in chosen if each % 2}
            if chosen:
                assert progress.withdraw(chosen) == min(chosen)
                model.withdraw(chosen)
        above = [each for each in model.settled if each > model.watermark]
        assert progress.watermark == model.watermark
        assert progress.next == model.next
        assert progress.open == len(model.open)
        assert progress.highest_settled == max(above, default=-1)
        for offset in range(start, model.next):
            assert progress.is_open(offset) is (offset in model.open)
            if offset in model.open:
                assert progress.settled_above(offset) is any(each > offset for each in model.settled)


def test_progress_lower_offset() -> None:
    progress = Progress(7)
    assert progress.enter(7)
    assert not progress.enter(7)
    assert not progress.enter(6)


def test_progress_withdrawn_below_a_settled_one() -> None:
    progress = Progress(0)
    for offset in range(4):
        progress.enter(offset)
    progress.settle(2)
    assert progress.withdraw([1, 3]) == 1
    assert (progress.next, progress.watermark) == (3, 0)
    assert [progress.enter(offset) for offset in range(1, 5)] == [True, False, True, True]
    with pytest.raises(ValueError, match=r"offsets \[2\] are not open"):
        progress.withdraw([2])


def test_progress_withdrawn_messages_that_are_deleted() -> None:
    progress = Progress(0)
    for offset in range(3):
        progress.enter(offset)
    progress.settle(2)
    progress.withdraw([0, 1])
    progress.pass_to(1)
    assert progress.watermark == 1
    progress.pass_to(9)
    assert (progress.watermark, progress.open) == (9, 0)
