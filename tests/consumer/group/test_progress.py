"""Which offsets are settled: any interleaving of entering, settling, passing and withdrawing, against a set of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_async.consumer.progress import Progress

Steps = list[tuple[str, int]]
steps = st.lists(st.tuples(st.sampled_from(["enter", "skip", "settle", "withdraw"]), st.integers(0, 30)), max_size=60)


class Model:
    """Every offset from the start on: open, settled, or passed without a message."""

    def __init__(self, start: int) -> None:
        self.start = self.next = start
        self.open: set[int] = set()
        self.settled: set[int] = set()

    @property
    def watermark(self) -> int:
        return min(self.open, default=self.next)


@given(st.integers(0, 5), steps)
def test_progress_any_interleaving(start: int, todo: Steps) -> None:
    progress, model = Progress(start), Model(start)
    for what, number in todo:
        if what == "enter":
            offset = model.next + number % 3
            progress.enter(offset)
            model.open.add(offset)
            model.next = offset + 1
        elif what == "skip":
            progress.pass_to(model.next + number % 4)
            model.next += number % 4
        elif what == "settle":
            offset = start + number
            assert progress.settle(offset) is (offset in model.open)
            if offset in model.open:
                model.open.discard(offset)
                model.settled.add(offset)
        else:
            offset = max(start + number, model.watermark)
            if any(each >= offset for each in model.settled if each > model.watermark):
                with pytest.raises(ValueError, match="settled already"):
                    progress.withdraw(offset)
                continue
            progress.withdraw(offset)
            model.open = {each for each in model.open if each < offset}
            model.next = min(model.next, offset)
        above = [each for each in model.settled if each > model.watermark]
        assert progress.watermark == model.watermark
        assert progress.next == model.next
        assert progress.span == model.next - model.watermark
        assert progress.open == len(model.open)
        assert progress.highest_settled == max(above, default=-1)
        for offset in range(start, model.next):
            assert progress.is_open(offset) is (offset in model.open)
            if offset in model.open:
                assert progress.settled_above(offset) is any(each > offset for each in model.settled)


def test_progress_lower_offset() -> None:
    progress = Progress(7)
    progress.enter(7)
    with pytest.raises(ValueError, match="offset 7 is below 8"):
        progress.enter(7)
