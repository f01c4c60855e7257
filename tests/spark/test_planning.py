"""Ends of micro-batches and partitions, as arithmetic: what must hold for any backlog, tried on thousands of random ones."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from rmq_async.errors import ConfigError, OffsetRangeError
from rmq_async.spark.planning import EndOffset, Range, advance, cut, find_losses, find_odd, limited, raise_losses, starts_of
from rmq_protocol.message import MessageQueue

ROUNDS = 1500


@pytest.fixture
def dice() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def queue(number: int, topic: str = "t") -> MessageQueue:
    return MessageQueue(topic, f"broker-{number % 3}", number)


def backlogs(dice: random.Random) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
    start = {queue(number): dice.choice((0, 1, dice.randrange(10**6))) for number in range(dice.randrange(1, 20))}
    sizes = (0, 1, 2, dice.randrange(100), dice.randrange(10**6))
    return start, {each: offset + dice.choice(sizes) for each, offset in start.items()}


class TestLimited:
    def test_a_limit_is_used_up_and_never_passed(self, dice: random.Random) -> None:
        for _ in range(ROUNDS):
            start, latest = backlogs(dice)
            total = sum(latest.values()) - sum(start.values())
            limit = dice.choice((None, 1, 2, dice.randrange(1, 50), dice.randrange(1, 10**6), total or 1))
            ends = limited(start, latest, limit)
            assert ends.keys() == latest.keys()
            assert all(start[each] <= ends[each] <= latest[each] for each in start), (start, latest, limit)
            assert sum(ends.values()) - sum(start.values()) == (total if limit is None else min(limit, total))

    def test_shares_follow_the_backlog_and_each_queue_has_one(self, dice: random.Random) -> None:
        for _ in range(ROUNDS):
            start, latest = backlogs(dice)
            backlog = {each: latest[each] - start[each] for each in start if latest[each] > start[each]}
            limit = dice.randrange(len(backlog), len(backlog) + 10**5) or 1
            ends = limited(start, latest, limit)
            total = sum(backlog.values())
            if total <= limit:
                continue
            for each, size in backlog.items():
                share = ends[each] - start[each]
                assert share >= 1
                assert abs(share - size * limit / total) <= len(backlog) + 1, (start, latest, limit, each)

    def test_everything_is_read_in_no_more_micro_batches_than_needed(self, dice: random.Random) -> None:
        for _ in range(ROUNDS // 10):
            start, latest = backlogs(dice)
            total = sum(latest.values()) - sum(start.values())
            limit = max(dice.randrange(1, 100), total // 50)
            count = 0
            while start != latest:
                start = limited(start, latest, limit)
                count += 1
            assert count == -(-total // limit)

    def test_a_small_backlog_is_not_starved_by_a_large_one_that_grows_as_fast_as_it_is_read(self, dice: random.Random) -> None:
        for limit in (1, 2, 3, 5, 1000):
            start = {queue(number): dice.randrange(100) for number in range(4)}
            latest = {each: offset + (10**6 if each == queue(0) else 3) for each, offset in start.items()}
            for _ in range(4 * 4 * 3):
                start = limited(start, latest, limit)
                latest[queue(0)] = start[queue(0)] + 10**6
            assert all(start[each] == latest[each] for each in start if each != queue(0)), limit


class TestCut:
    def random_ranges(self, dice: random.Random) -> list[Range]:
        ranges = []
        for number in range(dice.randrange(12)):
            first = dice.randrange(10**6)
            ranges.append(Range(*queue(number), first, first + dice.choice((0, 1, 2, dice.randrange(10**4), -5))))
        return ranges

    def test_partitions_hold_each_offset_once(self, dice: random.Random) -> None:
        for _ in range(ROUNDS):
            ranges = self.random_ranges(dice)
            at_least = dice.choice((None, 1, dice.randrange(1, 40)))
            max_records = dice.choice((None, 1000, dice.randrange(200, 5000)))
            at_most = dice.choice((None, 1, dice.randrange(1, 20))) if at_least is None and max_records is None else None
            partitions = cut(ranges, at_least=at_least, at_most=at_most, max_records=max_records)
            assert all(partitions)
            pieces = sorted(piece for part in partitions for piece in part)
            assert all(piece.size > 0 for piece in pieces)
            for whole in ranges:
                edges = [(piece.start, piece.end) for piece in pieces if piece.queue == whole.queue]
                if whole.size:
                    assert edges[0][0] == whole.start
                    assert edges[-1][1] == whole.end
                    assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))
                else:
                    assert not edges
            total = sum(whole.size for whole in ranges)
            if at_least is not None:
                assert len(partitions) >= min(at_least, total)
                assert at_least > total or len(partitions) <= at_least + 2 * len(ranges) + total // (max_records or total + 1)
            if at_most is not None:
                assert len(partitions) <= at_most
            if max_records is not None:
                assert all(piece.size <= max_records for piece in pieces)

    def test_several_queues_in_a_partition_are_balanced(self) -> None:
        ranges = [Range(*queue(number), 0, size) for number, size in enumerate((100, 90, 60, 50, 40, 10))]
        assert sorted(sum(piece.size for piece in part) for part in cut(ranges, at_most=2)) == [160, 190]

    def test_nothing_is_cut_unless_set(self) -> None:
        ranges = [Range(*queue(0), 0, 10**9), Range(*queue(1), 5, 5), Range(*queue(2), 5, 6)]
        assert cut(ranges) == [(ranges[0],), (ranges[2],)]


class TestEndOffset:
    def test_it_is_the_same_after_a_checkpoint(self, dice: random.Random) -> None:
        for _ in range(100):
            start, latest = backlogs(dice)
            for offset in (EndOffset(latest), EndOffset(latest, start)):
                text = json.dumps(offset.to_json())
                assert EndOffset.from_json(json.loads(text)) == offset
                shuffled = dict(dice.sample(sorted(latest.items()), len(latest)))
                assert json.dumps(EndOffset(shuffled, offset.init).to_json()) == text, "Spark compares the text"

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            ({"topic": {"0": 5}}, "the checkpoint holds no offsets of this source"),
            (17, "the checkpoint holds no offsets of this source: '17'"),
            ({"v": 2, "q": {}}, "the checkpoint has version 2, not 1"),
            ({"v": 1, "q": {"t": 5}}, "the checkpoint's offsets cannot be read: a queue must be topic/broker/number, not 't'"),
            ({"v": 1, "q": {"t/b/0": "x"}}, "the checkpoint's offsets cannot be read: "),
            ({"v": 1, "q": {"t/b/0": float("inf")}}, "the checkpoint's offsets cannot be read: "),
            ({"v": 1, "q": {}, "init": [5]}, "the checkpoint's offsets cannot be read: "),
        ],
    )
    def test_another_checkpoint_is_refused(self, data: object, expected: str) -> None:
        with pytest.raises(ConfigError) as caught:
            EndOffset.from_json(data)
        assert str(caught.value).startswith(expected)


A, B, C = queue(0), queue(1), queue(2)


class TestAdvance:
    def test_the_first_end_says_where_the_stream_began(self) -> None:
        step = advance(EndOffset({A: 100, B: 7}), {A: 150, B: 7}, {}, None)
        assert step.end == EndOffset({A: 150, B: 7}, {A: 100, B: 7})
        assert (step.backlog, step.losses) == (50, [])

    def test_a_restart_before_the_first_commit_reads_what_was_planned(self) -> None:
        """The sequence that loses rows where ``latest`` is resolved again: 100, planned to 150, killed, restarted at 180."""
        planned = advance(EndOffset({A: 100}), {A: 150}, {}, None).end
        again = EndOffset({A: 180})
        assert starts_of(again, planned) == {A: 100}
        following = advance(planned, {A: 180}, {}, None).end
        assert starts_of(planned, following) == {A: 150}
        assert following.init == {}, "the end before it says where it begins"
        assert advance(planned, {A: 180}, {}, None, keep_init=True).end.init == {A: 100}
        assert advance(planned, {A: 150}, {}, None).end is planned, "nothing new: Spark compares the text"

    def test_a_new_queue_is_read_from_its_beginning_also_when_planned_again_later(self) -> None:
        begin = EndOffset({A: 10}, {A: 0})
        latest = {A: 10, B: 40}
        assert find_odd(begin, latest) == [B]
        step = advance(begin, latest, {B: 0}, 15)
        assert step.losses == []
        assert step.end == EndOffset({A: 10, B: 15}, {B: 0})
        assert starts_of(begin, step.end) == {A: 10, B: 0}

    def test_a_new_queue_that_does_not_begin_with_0_is_reported(self) -> None:
        step = advance(EndOffset({A: 10}, {A: 0}), {A: 10, B: 40}, {B: 30}, None)
        assert [(loss.queue, loss.wanted) for loss in step.losses] == [(B, (0, 30))]
        assert starts_of(EndOffset({A: 10}, {A: 0}), step.end) == {A: 10, B: 30}

    @pytest.mark.parametrize("limit", [None, 1, 2, 5])
    def test_a_queue_made_anew_is_reported_and_read_from_its_beginning(self, limit: int | None) -> None:
        begin = EndOffset({A: 100, B: 5}, {A: 50, B: 0})
        latest = {A: 4, B: 9}
        assert find_odd(begin, latest) == [A]
        step = advance(begin, latest, {A: 0}, limit)
        assert [str(loss) for loss in step.losses] == [
            "t/broker-0/0: the queue was created again or has lost its end; offsets 100 to 100 were to be read, "
            "available are 0 to 4"
        ]
        read: list[tuple[int, int]] = []
        last = begin
        while True:
            starts = starts_of(last, step.end)
            read.append((starts[A], step.end.queues[A]))
            if step.end.queues == latest:
                break
            last, step = step.end, advance(step.end, latest, {}, limit)
        assert read[0][0] == 0
        assert read[-1][1] == 4
        assert all(one[1] == other[0] for one, other in itertools.pairwise(read))

    def test_a_queue_that_is_absent_keeps_its_place(self, dice: random.Random) -> None:
        begin = EndOffset({A: 10, B: 20}, {A: 1, B: 2})
        step = advance(begin, {A: 30}, {}, None)
        assert step.end == EndOffset({A: 30, B: 20}, {})
        assert starts_of(begin, step.end) == {A: 10, B: 20}
        back = advance(step.end, {A: 30, B: 25}, {}, None)
        assert starts_of(step.end, back.end) == {A: 30, B: 20}

    def test_any_history_reads_every_offset_once_in_order(self, dice: random.Random) -> None:
        """Random growth, absences, new queues, limits, and restarts that ask for the initial offset again."""
        for _ in range(ROUNDS // 10):
            latest = {queue(number): dice.randrange(50) for number in range(dice.randrange(1, 4))}
            begin = EndOffset(dict(latest))
            positions = dict(latest)
            known = set(latest)
            for _ in range(30):
                for each in latest:
                    latest[each] += dice.choice((0, 0, 1, dice.randrange(100)))
                if dice.random() < 0.1:
                    latest[queue(len(latest))] = dice.randrange(40)
                there = {each: offset for each, offset in latest.items() if dice.random() < 0.9}
                odd = find_odd(begin, there)
                assert all(each not in known for each in odd)
                known |= there.keys()
                step = advance(begin, there, dict.fromkeys(odd, 0), dice.choice((None, 1, 7, 100)))
                first = EndOffset(dict(latest)) if begin.init is None else begin
                starts = starts_of(first, step.end)
                for each, end in step.end.queues.items():
                    assert starts[each] == positions.get(each, 0)
                    assert starts[each] <= end <= latest[each]
                    positions[each] = end
                begin = step.end


class TestLosses:
    def test_each_kind(self) -> None:
        start, end = {A: 10, B: 10, C: 10}, {A: 20, B: 20, C: 20}
        there = {A: 0, B: 0, C: 0}
        whole = {A: 30, B: 20, C: 25}
        assert find_losses(start, end, there, whole) == []
        losses = [str(loss) for loss in find_losses(start, end, {A: 12, B: 0}, {A: 30, B: 15})]
        assert losses == [
            "t/broker-0/0: messages were deleted before they were read; offsets 10 to 20 were to be read, available are 12 to 30",
            "t/broker-1/1: the end is beyond the last message; offsets 10 to 20 were to be read, available are 0 to 15",
            "t/broker-2/2: the queue is gone; offsets 10 to 20 were to be read, nothing is available",
        ]
        (loss,) = find_losses({A: 10}, {A: 20}, {A: 0}, {A: 5})
        assert loss.why == "the start is beyond the last message"

    def test_a_queue_that_is_gone_and_was_wholly_read_is_none(self) -> None:
        assert find_losses({A: 20}, {A: 20}, {}, {}) == []

    def test_deleted_messages_that_are_not_wanted_are_none(self) -> None:
        assert find_losses({A: 5}, {A: 5}, {A: 9}, {A: 12}) == []

    def test_the_error_names_the_first_and_counts_the_others(self) -> None:
        raise_losses([])
        losses = find_losses({A: 1, B: 1}, {A: 2, B: 2}, {}, {})
        with pytest.raises(OffsetRangeError) as caught:
            raise_losses(losses)
        assert str(caught.value).endswith(
            "data is lost: t/broker-0/0: the queue is gone; offsets 1 to 2 were to be read, nothing is available "
            "(and 1 more); with failOnDataLoss=false the query continues with the existing messages"
        )
