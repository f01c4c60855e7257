"""Runs of ordered members: whether calls of a key, or of a queue, overlapped or went backwards, and how fast they are.

``test_consumer_order_real`` and ``benchmarks/consumer_order.py`` share them.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from time import monotonic
from uuid import uuid4

import msgspec

from rmq_async import Admin, Consumer, Message, MessageExt, Producer
from rmq_async.testing.cluster import RealCluster

from .group_calls import Call
from .group_members import Count, Group
from .java_members import JavaMembers

__all__ = ["Order", "Rates", "key_rates", "kills", "order_of", "ordered_changes"]


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


async def kills(group: Group, count: int, every: float, seed: int, *, members: int = 3) -> tuple[Count, Order]:
    """Each ``every`` seconds a member ends by SIGKILL, and another one joins, ``count`` times."""
    chance = random.Random(seed)
    for _ in range(members):
        await group.join()
    await asyncio.gather(*(member.reading for member in group.members))
    group.send()
    for _ in range(count):
        await asyncio.sleep(every)
        await group.leave(chance.choice([member for member in group.members if member.reading.done()]), signal.SIGKILL)
        await group.join()
    await group.settle()
    return await group.count(), order_of(group.calls(), group.keys if group.order == "key" else 0)


class Rates(msgspec.Struct):
    """Messages a second of one queue, by round, from the first pull to the end of the last call. ``empty``: handlers without order
    that do nothing. ``unordered``: handlers that take ``work`` seconds. ``ordered``: the same, by key. ``tasks``: as many tasks of
    asyncio alone that sleep for ``work`` seconds, as many at a time. ``most``: what ``work`` and ``concurrency`` allow at best.
    ``overlaps``, ``backwards``: of the ordered ones."""

    messages: int
    keys: int
    work: float
    concurrency: int
    body: int
    most: float
    empty: list[float] = msgspec.field(default_factory=list)
    unordered: list[float] = msgspec.field(default_factory=list)
    ordered: list[float] = msgspec.field(default_factory=list)
    tasks: list[float] = msgspec.field(default_factory=list)
    overlaps: int = 0
    backwards: int = 0


async def key_rates(
    real: RealCluster,
    messages: int,
    keys: int,
    work: float,
    rounds: int,
    concurrency: int,
    span: int,
    *,
    body: int = 0,
) -> Rates:
    """Reads one queue of ``messages`` messages with ``keys`` keys by new groups, the kinds in turns. ``body``: bytes at least."""
    topic = f"rates-{uuid4().hex[:12]}"
    async with Admin(namesrv=real.namesrv) as admin:
        await admin.create_topic(topic, queues=1)
    async with Producer(f"fills-{topic}", namesrv=real.namesrv, batching=True, compress_over=1 << 22) as producer:
        for first in range(0, messages, 1000):
            batch = [
                Message(topic, (b"%d" % number).ljust(body, b" "), sharding_key=f"key {number % keys}")
                for number in range(first, first + 1000)
            ]
            await asyncio.gather(*(producer.send(message) for message in batch))
    found = Rates(messages, keys, work, concurrency, body, concurrency / work)
    kinds = {"empty": _Watched(0.0), "unordered": _Watched(work), "ordered": _Watched(work)}
    for turn in range(rounds):
        for kind in sorted(kinds, key=lambda kind: (list(kinds).index(kind) + turn) % 3):
            consumer = Consumer(
                f"{topic}-{turn}-{kind}", namesrv=real.namesrv, concurrency=concurrency, max_span=span, buffered_limit=span
            )
            order = "key" if kind == "ordered" else None
            consumer.subscribe(topic, kinds[kind].handler(messages), order=order)  # type: ignore[arg-type]
            async with consumer:  # from the end of the queue, so that it has read nothing when the clock starts
                consumer.pause()
                (queue,) = [each for each in consumer.assignment if each.topic == topic]
                await consumer.seek(queue, 0)
                began = monotonic()
                consumer.resume()
                async with asyncio.timeout(120):
                    await kinds[kind].over.wait()
            getattr(found, kind).append(round(messages / (monotonic() - began)))
        found.tasks.append(round(messages / await _tasks_only(messages, work, concurrency)))
    found.overlaps, found.backwards = kinds["ordered"].overlaps, kinds["ordered"].backwards
    return found


async def _tasks_only(count: int, work: float, at_once: int) -> float:
    """Returns the seconds that ``count`` tasks take which sleep."""
    loop, over, left = asyncio.get_running_loop(), asyncio.Event(), count

    async def one() -> None:
        await asyncio.sleep(work)

    def begin(_: object = None) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            loop.create_task(one()).add_done_callback(begin)
        elif left == -at_once:
            over.set()

    began = monotonic()
    for _ in range(at_once):
        begin()
    await over.wait()
    return monotonic() - began


class _Watched:
    """Handlers that take ``work`` seconds, and look whether their keys are in order; one that takes none only counts."""

    def __init__(self, work: float) -> None:
        self.work = work
        self.overlaps = self.backwards = 0
        self.over = asyncio.Event()

    def handler(self, messages: int) -> Callable[[MessageExt], Coroutine[None, None, None]]:
        """Returns a handler that sets ``over`` at the end of the last of ``messages`` calls."""
        running: set[str] = set()
        last: dict[str, int] = {}
        left = messages
        self.over.clear()

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.over.set()

        async def empty(message: MessageExt) -> None:
            ended()

        async def works(message: MessageExt) -> None:
            key = message.sharding_key or ""
            self.overlaps += key in running
            self.backwards += message.queue_offset < last.get(key, -1)
            last[key] = message.queue_offset
            running.add(key)
            await asyncio.sleep(self.work)
            running.discard(key)
            ended()

        return works if self.work else empty
