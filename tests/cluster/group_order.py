"""Runs of ordered members: whether calls of a key, or of a queue, overlapped or went backwards, and how fast they are.

``test_consumer_order_real`` and ``benchmarks/consumer_order.py`` share them.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import Iterable
from time import monotonic
from uuid import uuid4

import msgspec

from rmq_async import Admin, Consumer, Message, MessageExt, Producer
from rmq_async.testing.cluster import RealCluster

from .group_calls import Call
from .group_members import Count, Group
from .java_members import JavaMembers

__all__ = ["Order", "Rates", "key_rates", "order_of", "ordered_changes"]


class Order(msgspec.Struct):
    """``lines``: keys of a queue, or queues, with calls. ``failed``: attempts that raised. ``overlaps``: calls that began before
    another one of their line had ended. ``backwards``: calls of an offset below one whose call of the line had begun before;
    ``after_a_kill``: of these, by another member than that one."""

    lines: int
    calls: int
    failed: int
    overlaps: int
    backwards: int
    after_a_kill: int


def order_of(calls: Iterable[Call], keys: int) -> Order:
    """``keys``: of the messages, by their numbers; 0 for order by queue."""
    lines: defaultdict[tuple[str, int], list[Call]] = defaultdict(list)
    total = failed = 0
    for call in calls:
        total, failed = total + 1, failed + call.failed
        lines[call.place.rpartition(":")[0], call.number % keys if keys else 0].append(call)
    found = Order(len(lines), total, failed, 0, 0, 0)
    for line in lines.values():
        line.sort(key=lambda call: call.begun)
        highest, last, busy_until = -1, line[0], 0.0
        for call in line:
            offset = int(call.place.rpartition(":")[2])
            found.overlaps += call.begun < busy_until
            if offset < highest:
                found.backwards += 1
                found.after_a_kill += call.member != last.member
            elif offset > highest:
                highest, last = offset, call
            busy_until = max(busy_until, call.ended or call.begun)
    return found


async def ordered_changes(
    group: Group, changes: int, every: float, seed: int, *, members: int = 3, java: JavaMembers | None = None, kills: int = 0
) -> tuple[Count, Order]:
    """One member joins or stops each ``every`` seconds, ``changes`` times, one of them in Java in the group if ``java`` is given;
    ``kills`` members of ours end by SIGKILL afterwards."""
    chance = random.Random(seed)
    for _ in range(members):
        await group.join()
    if java is not None:
        await group.join(java=java)
    await asyncio.gather(*(member.reading for member in group.members))
    group.send()
    in_java = group.members[-1] if java is not None else None
    for change in range(changes):
        await asyncio.sleep(every)
        if in_java is not None and change % 3 == 2:
            await group.leave(in_java)
            in_java = await group.join(java=java)
        elif change % 2 == 0:
            await group.join()
        else:
            mine = [member for member in group.members if member is not in_java and member.reading.done()]
            code, _ = await group.leave(chance.choice(mine))
            assert code == 0, code
    for _ in range(kills):
        mine = [member for member in group.members if member is not in_java and member.reading.done()]
        await group.leave(chance.choice(mine), signal.SIGKILL)
        await asyncio.sleep(every)
    await group.settle()
    return await group.count(), order_of(group.calls(), group.keys if group.order == "key" else 0)


class Rates(msgspec.Struct):
    """Messages a second of one queue, by round. ``empty``: handlers without order that do nothing. ``unordered``: handlers that
    take ``work`` seconds. ``ordered``: the same, by key. ``overlaps``, ``backwards``: of the ordered ones."""

    messages: int
    keys: int
    work: float
    empty: list[float] = msgspec.field(default_factory=list)
    unordered: list[float] = msgspec.field(default_factory=list)
    ordered: list[float] = msgspec.field(default_factory=list)
    overlaps: int = 0
    backwards: int = 0


async def key_rates(
    real: RealCluster, messages: int, keys: int, work: float, rounds: int, concurrency: int, span: int
) -> Rates:
    """Reads one queue of ``messages`` messages with ``keys`` keys by new groups, the two kinds in turns."""
    topic = f"rates-{uuid4().hex[:12]}"
    async with Admin(namesrv=real.namesrv) as admin:
        await admin.create_topic(topic, queues=1)
    async with Producer(f"fills-{topic}", namesrv=real.namesrv, batching=True) as producer:
        for first in range(0, messages, 1000):
            batch = [
                Message(topic, b"%d" % number, sharding_key=f"key {number % keys}") for number in range(first, first + 1000)
            ]
            await asyncio.gather(*(producer.send(message) for message in batch))
    found = Rates(messages, keys, work)
    options = {"concurrency": concurrency, "max_span": span, "buffered_limit": span, "start_from": "earliest"}

    async def empty(message: MessageExt) -> None:
        """Does nothing."""

    kinds = {"empty": empty, "unordered": _Watched(work), "ordered": _Watched(work)}
    for turn in range(rounds):
        for kind in sorted(kinds, key=lambda kind: (list(kinds).index(kind) + turn) % 3):
            consumer = Consumer(f"{topic}-{turn}-{kind}", namesrv=real.namesrv, **options)  # type: ignore[arg-type]
            handler = kinds[kind]
            if isinstance(handler, _Watched):
                handler.last.clear()
            consumer.subscribe(topic, handler, order="key" if kind == "ordered" else None)
            async with consumer:
                began, first = monotonic(), consumer.stats().handled
                async with asyncio.timeout(120):
                    while (handled := consumer.stats().handled) < messages:
                        await asyncio.sleep(0.02)
                rate = (handled - first) / (monotonic() - began)
            getattr(found, kind).append(round(rate))
    found.overlaps, found.backwards = kinds["ordered"].overlaps, kinds["ordered"].backwards  # type: ignore[union-attr]
    return found


class _Watched:
    """A handler that takes ``work`` seconds, and looks whether its key is in order."""

    def __init__(self, work: float) -> None:
        self.work = work
        self.overlaps = self.backwards = 0
        self.running: set[str] = set()
        self.last: dict[str, int] = {}

    async def __call__(self, message: MessageExt) -> None:
        key = message.sharding_key or ""
        self.overlaps += key in self.running
        self.backwards += message.queue_offset < self.last.get(key, -1)
        self.last[key] = message.queue_offset
        self.running.add(key)
        await asyncio.sleep(self.work)
        self.running.discard(key)
