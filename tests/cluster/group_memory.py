"""A member's memory under a backlog of large messages, and how soon an idle queue's message is handled beside a backlog."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic, time

import msgspec

from rmq_async import Message, MessageQueue, Producer
from rmq_async.testing.cluster import RealCluster

from .group_calls import high
from .group_members import Group, Member

__all__ = ["Idle", "Memory", "idle_queue", "memory"]

MIB = 1 << 20
AT_ONCE = 8
BATCH = 250


class Memory(msgspec.Struct):
    """MiB. ``base``: resident, of a member that reads the empty queues. ``backlog``: the most above it while the queues hold
    messages from before its start; ``arriving``: while one message comes to each queue that is read to its end. ``limit``: of
    buffered bytes."""

    queues: int
    body: float
    stored: int
    limit: float
    base: float
    backlog: float
    arriving: float
    handled: int


def status(member: Member, field: str) -> float:
    """MiB of VmRSS or VmHWM of a member's process."""
    text = Path(f"/proc/{member.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(field))


def reset_peak(member: Member) -> None:
    Path(f"/proc/{member.process.pid}/clear_refs").write_text("5")


async def fill(group: Group, bodies: int, size: int) -> None:
    """``bodies`` messages of ``size`` bytes into each queue, with numbers from those of the last call on."""
    async with Producer(f"fills-{group.name}", namesrv=group.real.namesrv, timeout=30.0, compress_over=1 << 30) as producer:
        queues = sorted(await producer.fetch_publish_queues(group.name))
        waiting = deque((len(group.sent) + place, queue) for place, queue in enumerate(queues * bodies))

        async def one_by_one() -> None:
            while waiting:
                number, queue = waiting.popleft()
                await producer.send(Message(group.name, (b"%d " % number).ljust(size, b"x")), queue=queue)
                group.sent[number] = time()

        await asyncio.gather(*(one_by_one() for _ in range(AT_ONCE)))


async def _watched(group: Group, member: Member, seconds: float, handled: int) -> float:
    """The most that is resident within ``seconds``, or until so many messages are handled."""
    deadline = monotonic() + seconds
    while monotonic() < deadline and len(group.handled()) < handled:
        await asyncio.sleep(0.5)
    return status(member, "VmHWM")


async def memory(
    real: RealCluster, directory: Path, queues: int, size: int, limit: int, seconds: tuple[float, float]
) -> Memory:
    """Watches a member with a backlog of two bodies of ``size`` in each queue for ``seconds[0]``, and one that has read its queues
    to their ends, each of which gets one body, for ``seconds[1]``. Handlers take up to 5 s."""
    options: dict[str, int | float | str] = {"buffered_bytes_limit": limit, "concurrency": 16, "start_from": "earliest"}
    async with AsyncExitStack() as stack:
        empty = await stack.enter_async_context(Group(real, directory / "empty", 0.0, 5.0, queues, options))
        idle = await _reads_all(empty)
        await asyncio.sleep(3.0)
        base = status(idle, "VmRSS")
        reset_peak(idle)
        await fill(empty, 1, size)
        arriving = await _watched(empty, idle, seconds[1], len(empty.sent))
        full = await stack.enter_async_context(Group(real, directory / "full", 0.0, 5.0, queues, options))
        await fill(full, 2, size)
        backlog = await _watched(full, await _reads_all(full), seconds[0], len(full.sent))
        handled = len(full.handled())
    return Memory(
        queues,
        size / MIB,
        len(full.sent),
        limit / MIB,
        round(base, 1),
        round(backlog - base, 1),
        round(arriving - base, 1),
        handled,
    )


async def _reads_all(group: Group) -> Member:
    member = await group.join()
    assert isinstance(member, Member)
    await member.reading
    return member


class Idle(msgspec.Struct):
    """``waits``: seconds from the send of a message to the idle queue to the beginning of its handler, the longest and the 99 %.
    ``left``: of the backlog at the end."""

    backlog: int
    left: int
    messages: int
    longest: float
    high: float
    mean: float


async def idle_queue(group: Group, backlog: int, messages: int, every: float) -> Idle:
    """Fills all queues but the last with ``backlog`` messages; a member handles them while the last queue gets one each ``every``
    seconds."""
    async with Producer(f"fills-{group.name}", namesrv=group.real.namesrv, timeout=30.0) as producer:
        *others, idle = sorted(await producer.fetch_publish_queues(group.name))
        await _fill_others(group, producer, others, backlog)
        await _reads_all(group)
        await asyncio.sleep(2.0)
        calls: dict[int, float] = {}
        for number in range(backlog, backlog + messages):
            await asyncio.sleep(every)
            calls[number] = time()
            await producer.send(Message(group.name, b"%d" % number), queue=idle)
        await asyncio.sleep(2.0)
    found = group.calls()
    begun = {call.number: call.begun for call in found if call.number in calls}
    waits = [begun[number] - at if number in begun else float("inf") for number, at in calls.items()]
    left = backlog - sum(call.number < backlog for call in found)
    return Idle(backlog, left, messages, round(max(waits), 3), high(waits), round(sum(waits) / len(waits), 3))


async def _fill_others(group: Group, producer: Producer, queues: list[MessageQueue], backlog: int) -> None:
    parts = deque(range(0, backlog, BATCH))

    async def one_by_one() -> None:
        while parts:
            first = parts.popleft()
            batch = [Message(group.name, b"%d" % number) for number in range(first, min(first + BATCH, backlog))]
            await producer.send_batch(batch, queue=queues[first // BATCH % len(queues)])

    await asyncio.gather(*(one_by_one() for _ in range(AT_ONCE)))
