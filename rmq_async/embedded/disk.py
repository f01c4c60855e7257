"""The data of a broker on its disk, which survive a crash of its process or its machine.

All other state of a broker is in memory: connections, members of groups, queue locks, held pulls, pending requests and resets
of offsets. Settings of topics and groups are written when they change. Messages are written as the docstring of ``DiskLog``
describes. Committed offsets and the progress of delays and transactions are written every 5 s (delay levels every 10 s, offsets
for the first time after 10 s) and when the broker stops gracefully. Check points of popped messages and their acks are written
at once, and a loss of power removes only the check points of messages that it removes. Modes of consumption are written at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .check_points import CheckPoints, Handle
from .clock import PendingCall
from .groups import SubscriptionGroups
from .offsets import SavedOffsets
from .store import CommitLog, Queue
from .topics import CLUSTER, TopicTable


class ScheduleProgress(NamedTuple):
    """The progress of delayed messages, as the disk stores it.

    Attributes:
        levels: For each delay level, the offset of the next message to deliver.
        timers: Epoch ms. The timers that were due before this time are done.
        entered: Maximum offset of the timers' queue when the progress was saved. After a crash, the timers from this offset on
            are delivered twice.
    """

    levels: tuple[int, ...] = ()
    timers: int = 0
    entered: int = 0


class TransactionProgress(NamedTuple):
    """The progress of transactions, as the disk stores it.

    Attributes:
        open: Offset of the oldest half message whose transaction has not ended.
        ended: One byte for each offset from ``open`` on, 1 if the transaction has ended.
        ends: The ends of transactions that are undone if the log loses their records, in log order. Each is a pair: the log
            position after the end, and the offset of the transaction's half message.
    """

    open: int = 0
    ended: bytes = b""
    ends: tuple[tuple[int, int], ...] = ()


class DiskLog(CommitLog):
    """The commit log of one broker.

    An appended record survives a crash of the process. Once it is flushed, it also survives a crash of the machine.

    Args:
        flush_interval: Seconds from the first unflushed message to the flush (ASYNC_FLUSH). With 0, each message is flushed
            before it is acknowledged (SYNC_FLUSH). The attribute can be set at any time; a pending flush keeps its time. Unless
            the interval is 0, ``append`` needs a running event loop.
    """

    def __init__(self, max_memory: int, clock: Callable[[], int], *, flush_interval: float = 0.5) -> None:
        super().__init__(max_memory, clock)
        self.flush_interval = flush_interval
        self._flushed = 0
        self._flushing = PendingCall(self.flush)

    @property
    def flushed(self) -> int:
        return self._flushed

    def append(self, queue: Queue, record: bytes, code: int, stored_ms: int, light: tuple[Queue, ...] = ()) -> None:
        super().append(queue, record, code, stored_ms, light)
        if not self.flush_interval:
            self._flushed = self.end
        elif not self._flushing.pending:
            self._flushing.after(self.flush_interval)

    def flush(self) -> None:
        self._flushed = self.end
        self.halt()

    def halt(self) -> None:
        self._flushing.cancel()

    def truncate(self, position: int, broker_name: str) -> int:
        taken = super().truncate(position, broker_name)
        self._flushed = min(self._flushed, self.end)
        return taken


class BrokerDisk:
    """The disk of broker ``name``.

    The disk outlives the ``Broker``. After ``crash()`` or ``stop()``, create a new ``Broker`` with the same disk.

    Args:
        log: A ``DiskLog`` of this broker alone, or a ``CommitLog``, which several brokers can share and which loses no records.
        auto_create_topics: The ``auto_create_topics`` of ``EmbeddedRocketMQ``.
        auto_create_groups: The ``auto_create_groups`` of ``EmbeddedRocketMQ``.
    """

    def __init__(self, name: str, log: CommitLog, *, auto_create_topics: bool = True, auto_create_groups: bool = True) -> None:
        self.name = name
        self.log = log
        self.topics = TopicTable(name, CLUSTER, auto_create=auto_create_topics)
        self.groups = SubscriptionGroups(auto_create=auto_create_groups)
        self.offsets: SavedOffsets = {}
        self.pop_offsets: SavedOffsets = {}
        """Offsets from which the next pops read, with the key-value store. With the revive log, these offsets are in
        ``offsets``."""
        self.check_points = CheckPoints()
        self.request_modes: dict[tuple[str, str], tuple[str, int]] = {}
        """Consumption modes by topic and group. Each is a pair: PULL or POP, and the number of other members from whose queues a
        member pops."""
        self.schedule = ScheduleProgress()
        self.transactions = TransactionProgress()

    def power_loss(self) -> int:
        """Remove the records that were not flushed, from the log and the queues. Return their number. No broker may be using
        the disk.
        """
        self.log.halt()
        taken = self.log.truncate(self.log.flushed, self.name)
        self.forget_check_points()
        return taken

    def forget_check_points(self) -> None:
        """Remove the check points of lost messages, because other messages will get the offsets of the lost messages."""

        def gone(handle: Handle, offset: int) -> bool:
            queue = self.topics.find_queue(handle.topic, handle.queue_id)
            return queue is None or offset >= queue.max_offset

        self.check_points.forget(gone)

    def mount(self) -> None:
        """Prepare the disk for a new broker object. Data that an earlier broker object has written count as flushed, and the
        numbers of waiting pulls are reset.
        """
        self.log.flush()
        for topic in self.topics:
            for queue in topic.queues():
                queue.waiting = 0
        for queue in self.topics.light:
            queue.waiting = 0
