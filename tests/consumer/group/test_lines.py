"""Lines of keys, against brute force: of all messages that are neither settled nor in a call, which may begin now."""

from __future__ import annotations

from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq_async import MessageExt, MessageQueue
from rmq_async.consumer.handling.lines import Lines
from rmq_async.consumer.held_queue import HeldQueue, Waiting

QUEUE = MessageQueue("T", "a", 0)
HELD = HeldQueue(QUEUE, QUEUE, None, 0)


class Known:
    """What the model knows of a message. ``state``: "waits", "runs", "away" or "over"."""

    def __init__(self, item: Waiting, key: str | None) -> None:
        self.item = item
        self.key = key
        self.state = "waits"
        self.failed = False

    @property
    def offset(self) -> int:
        return self.item.message.queue_offset


class LinesMachine(RuleBasedStateMachine):
    """Any row of additions, calls of one or more messages, attempts again, wake-ups and drops."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.now, self.next = Lines(), 0.0, 0
        self.known: dict[Waiting, Known] = {}
        self.calls: list[list[Waiting]] = []
        self.begun: dict[str, list[int]] = {}

    def of(self, key: str | None, *states: str) -> list[Known]:
        return [each for each in self.known.values() if each.key == key and each.state in states]

    def add_at(self, offset: int, key: str | None) -> None:
        item = Waiting(HELD, MessageExt("T", b"", queue=QUEUE, queue_offset=offset))
        self.known[item] = Known(item, key)
        self.lines.add(item, key)

    @rule(key=st.sampled_from(["a", "b", "c", None]))
    def add(self, key: str | None) -> None:
        if not any(each.state == "away" for each in self.known.values()):
            self.add_at(self.next, key)
            self.next += 1

    @rule()
    def add_dropped_again(self) -> None:
        for each in sorted((each for each in self.known.values() if each.state == "away"), key=lambda each: each.offset):
            del self.known[each.item]
            self.add_at(each.offset, each.key)

    @precondition(lambda self: self.lines.ready)
    @rule(more=st.integers(0, 3))
    def begin(self, more: int) -> None:
        allowed = self.may_begin()
        item = self.lines.ready.popleft()
        call = [item, *self.lines.take_behind(item, more, self.now)]
        assert item in allowed
        key = self.known[item].key
        if key is not None:
            waiting = sorted(each.offset for each in self.of(key, "waits"))
            assert [each.message.queue_offset for each in call] == waiting[: len(call)]
            assert len(call) == 1 + min(more, self.due_behind(key))
        for each in call:
            self.known[each].state = "runs"
        self.calls.append(call)

    def due_behind(self, key: str) -> int:
        """How many of a key's waiting messages are due one after the other, without the first."""
        behind = sorted(self.of(key, "waits"), key=lambda each: each.offset)[1:]
        return next((place for place, each in enumerate(behind) if each.item.due > self.now), len(behind))

    @precondition(lambda self: self.calls)
    @rule(which=st.integers(0, 9), again=st.lists(st.integers(0, 9), max_size=4), wait=st.sampled_from([0.0, 1.0, 5.0]))
    def end(self, which: int, again: list[int], wait: float) -> None:
        call = self.calls.pop(which % len(self.calls))
        returned = {call[number % len(call)] for number in again}
        for item in call:
            if item not in returned:
                self.known[item].state = "over"
                continue
            self.known[item].state, self.known[item].failed = "waits", wait > 0.0
            if wait:
                item.held_since = self.now
            item.due = self.now + wait if self.known[item].key is not None else 0.0
            self.lines.put_back(item)
        for line in self.lines.ended(call, self.now):
            assert line.rests_until is not None
            assert line.rests_until > self.now

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for line in self.lines.resting():
            if line.rests_until is not None and line.rests_until <= self.now:
                self.lines.wake(line)

    @rule(share=st.integers(0, 10), failed=st.booleans())
    def drop(self, share: int, failed: bool) -> None:
        above = self.next * share // 10 - 1
        waiting = {item for item, each in self.known.items() if each.state == "waits"}
        dropped = self.lines.drop(above, failed=failed)
        assert waiting.issuperset(dropped)
        for item in waiting:
            each = self.known[item]
            held_back = item.held_since is not None and not failed
            behind = [other for other in self.of(each.key, "waits") if each.key is not None and other.offset > each.offset]
            kept_behind = any(other.item.held_since is not None and not failed for other in behind)
            assert (item in dropped) is (each.offset > above and not held_back and not kept_behind)
        for item in dropped:
            self.known[item].state = "away"

    @rule()
    def drop_a_resting_line(self) -> None:
        for line in self.lines.resting()[:1]:
            for item in self.lines.drop_line(line):
                self.known[item].state = "away"

    def may_begin(self) -> set[Waiting]:
        """The first waiting message of each key without a call, if it is due, and all without a key."""
        found = {each.item for each in self.of(None, "waits")}
        for key in ("a", "b", "c"):
            waiting = sorted(self.of(key, "waits"), key=lambda each: each.offset)
            if waiting and not self.of(key, "runs") and waiting[0].item.due <= self.now:
                found.add(waiting[0].item)
        return found

    @invariant()
    def ready_ones_are_those_that_may_begin(self) -> None:
        assert set(self.lines.ready) == self.may_begin()
        assert len(self.lines.ready) == len(set(self.lines.ready))

    @invariant()
    def nothing_is_lost_or_kept(self) -> None:
        waiting = {item for item, each in self.known.items() if each.state == "waits"}
        assert set(self.lines.waiting()) == waiting
        assert len(self.lines) == len(waiting)
        keys = {each.key for each in self.known.values() if each.key is not None and each.state in ("waits", "runs")}
        assert self.lines.by_key.keys() == keys
        assert bool(self.lines) is bool(waiting or keys)
        resting = {line.key for line in self.lines.resting()}
        assert all(min(self.of(key, "waits"), key=lambda each: each.offset).item.due > -inf for key in resting)


TestLines = LinesMachine.TestCase
TestLines.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
