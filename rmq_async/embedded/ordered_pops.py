"""Queues that are popped in order. A queue whose messages were popped is blocked for other pops until each of these messages is
acknowledged or visible again.

Each queue has one batch: the messages that were popped last. Their acks can arrive in any order, and the committed offset moves
to the first message without an ack. Messages without an ack are delivered again from the queue itself, with a count of
deliveries (``OrderInfo``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .clock import Alarm, Clock


class OrderedQueue(NamedTuple):
    group: str
    topic: str
    queue_id: int


class _Batch:
    """The messages of an ordered queue that were popped last.

    Attributes:
        counts: Number of earlier deliveries by offset, for messages that were delivered before.
        free_at: Time at which a waiting pop reads again, in epoch ms. 0 if no time is set.
    """

    __slots__ = ("acked", "attempt", "counts", "free_at", "invisible_time", "offsets", "pop_time", "visible")

    def __init__(self, attempt: str | None, pop_time: int, invisible_time: int, offsets: Sequence[int]) -> None:
        self.attempt = attempt
        self.pop_time = pop_time
        self.invisible_time = invisible_time
        self.offsets = offsets
        self.acked: dict[int, None] = {}
        self.visible: dict[int, int] = {}
        """Epoch ms at which messages become visible again, by offset, for messages whose invisible time was changed."""
        self.counts: dict[int, int] = {}
        self.free_at = 0

    def visible_at(self, offset: int) -> int:
        return self.visible.get(offset, self.pop_time + self.invisible_time)

    def blocks(self, now: int) -> bool:
        return any(now < self.visible_at(offset) for offset in self.offsets if offset not in self.acked)

    def next_offset(self) -> int:
        return next((offset for offset in self.offsets if offset not in self.acked), self.offsets[-1] + 1)


class OrderedQueues:
    """The queues that were popped in order.

    Args:
        wake: Called with a queue when its first invisible message becomes visible.
        when_free: Call ``wake`` when the last invisible message becomes visible, and after an ack that frees the queue.
    """

    def __init__(self, clock: Clock, wake: Callable[[OrderedQueue], object], *, when_free: bool = False) -> None:
        self._clock = clock
        self._wake = wake
        self._when_free = when_free
        self._batches: dict[OrderedQueue, _Batch] = {}
        self._times: list[tuple[int, OrderedQueue]] = []
        self._alarm = Alarm(clock, self._ring)

    def __len__(self) -> int:
        return len(self._batches)

    def start(self) -> None:
        self._alarm.start()

    def stop(self) -> None:
        self._alarm.stop()

    def blocked(self, queue: OrderedQueue, attempt: str | None) -> bool:
        """Return whether the queue is blocked for a pop.

        The queue is not blocked for a repetition of the last pop, which has the same attempt id.
        """
        batch = self._batches.get(queue)
        if batch is None or (batch.attempt is not None and batch.attempt == attempt):
            return False
        return batch.blocks(self._clock.now_ms())

    def popped(
        self, queue: OrderedQueue, attempt: str | None, pop_time: int, invisible_time: int, offsets: Sequence[int]
    ) -> dict[int, int]:
        """Record a pop of messages. Return, by offset, the number of earlier deliveries of each message that was delivered
        before.
        """
        batch, before = _Batch(attempt, pop_time, invisible_time, offsets), self._batches.get(queue)
        if before is not None:
            if before.attempt is not None and before.attempt == attempt:
                batch.counts = before.counts
            else:
                batch.counts = {each: before.counts.get(each, 0) + 1 for each in offsets if each in before.offsets}
        self._batches[queue] = batch
        self._look_later(queue, batch)
        return batch.counts

    def ack(self, queue: OrderedQueue, offset: int, pop_time: int) -> int | None:
        """Record an ack.

        Return the offset to commit. Return None if the ack does not belong to the queue's last pop; such an ack has no effect.

        Raises:
            LookupError: For an ack of the last pop with an offset that this pop did not take.
        """
        batch = self._batches.get(queue)
        if batch is None:
            return offset + 1
        if batch.pop_time != pop_time:
            return None
        if offset not in batch.offsets:
            raise LookupError(f"the last pop of {queue} did not take offset {offset}; acknowledge only offsets that it took")
        batch.acked[offset] = None
        self._look_later(queue, batch)
        return batch.next_offset()

    def change(self, queue: OrderedQueue, offset: int, pop_time: int, visible_at: int) -> None:
        """Change the time at which a message of the queue's last pop becomes visible. Do nothing for other pops and messages."""
        batch = self._batches.get(queue)
        if batch is not None and batch.pop_time == pop_time and offset in batch.offsets:
            batch.visible[offset] = visible_at
            self._look_later(queue, batch)

    def suspend(self, queue: OrderedQueue, pop_time: int, visible_at: int) -> None:
        """Make all messages of the queue's last pop without an ack visible at one time, without counting the delivery if they were
        delivered before (``MemoryConsumerOrderInfoManager.suspendQueue``). Do nothing for other pops.
        """
        batch = self._batches.get(queue)
        if batch is not None and batch.pop_time == pop_time:
            batch.counts = {offset: max(count - 1, 0) for offset, count in batch.counts.items()}
            batch.visible.clear()
            batch.invisible_time = visible_at - pop_time
            self._look_later(queue, batch)

    def clear(self, queue: OrderedQueue) -> None:
        """Unblock the queue for all pops."""
        self._batches.pop(queue, None)

    def forget(self, gone: Callable[[OrderedQueue], bool]) -> None:
        """Clear the queues for which ``gone`` is true."""
        for queue in [each for each in self._batches if gone(each)]:
            del self._batches[queue]

    def _look_later(self, queue: OrderedQueue, batch: _Batch) -> None:
        """Set the time at which waiting pops are woken. It is the time at which the first invisible message without an ack
        becomes visible (``OrderInfo.getLockFreeTimestamp``). With ``when_free``, it is the time at which all are visible, at the
        earliest now (``getMaxLockFreeTimestamp``).
        """
        now = self._clock.now_ms()
        times = [batch.visible_at(offset) for offset in batch.offsets if offset not in batch.acked]
        if self._when_free:
            batch.free_at = max([now, *times])
        else:
            batch.free_at = next((time for time in times if now < time), 0)
        if batch.free_at:
            heapq.heappush(self._times, (batch.free_at, queue))
            if len(self._times) > 1024 + 2 * len(self._batches):
                self._times = [each for each in self._times if self._is_next(*each)]
                heapq.heapify(self._times)
            self._alarm.by(self._times[0][0])

    def _is_next(self, time: int, queue: OrderedQueue) -> bool:
        batch = self._batches.get(queue)
        return batch is not None and batch.free_at == time

    def _ring(self) -> None:
        now = self._clock.now_ms()
        while self._times and self._times[0][0] <= now:
            time, queue = heapq.heappop(self._times)
            if self._is_next(time, queue):
                self._wake(queue)
        if self._times:
            self._alarm.by(self._times[0][0])
