"""Runs of members as processes: a rolling restart, messages that fail, members of two kinds.

``test_group_runs_real`` and ``benchmarks/consumer_runs.py`` share them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from time import monotonic, time

import msgspec

from .group_calls import Call, Pause, high, longest_overlap, pauses
from .group_member import DEAD, RAISES
from .group_members import Count, Group
from .java_members import JavaMembers

__all__ = ["Poison", "Shares", "mixed", "poisoned", "rolling_restart"]

AGREE_WITHIN = 60.0
"""Seconds for the members to hold the shares that Java computes: Java's look at the group every 20 s where a notice was missed."""


async def joined(group: Group, members: int) -> None:
    for _ in range(members):
        await group.join()
    await asyncio.gather(*(member.reading for member in group.members))


async def rolling_restart(group: Group, members: int, every: float) -> tuple[Count, list[Pause], float]:
    """Each of ``members`` is stopped by SIGTERM and replaced, ``every`` seconds after the one before began to read.

    Returns the pauses of queues that moved, and the longest exit, in seconds.
    """
    await joined(group, members)
    group.send()
    longest = 0.0
    for member in [*group.members]:
        await asyncio.sleep(every)
        code, seconds = await group.leave(member)
        assert code == 0, f"{member.name} ended with exit code {code}"
        longest = max(longest, seconds)
        await (await group.join()).reading
    await asyncio.sleep(every)
    await group.settle()
    return await group.count(), pauses(group.calls(), group.sent), round(longest, 2)


class Poison(msgspec.Struct):
    """``rates``: good messages handled per second while none fails, while some raise, and while some raise DeadLetter; ``offered``:
    confirmed per second in the same times.
    ``waits``: 99 % of the good ones began within so many seconds of their confirmation. ``attempts``: how many messages got how
    many calls, by tag. ``dead``: tagged messages among the dead letters. ``good_dead``: good ones among them."""

    rates: dict[str, float]
    offered: dict[str, float]
    waits: dict[str, float]
    tagged: dict[str, int]
    attempts: dict[str, dict[int, int]]
    dead: dict[str, int]
    dead_twice: int
    good_dead: int
    overlap: float


async def poisoned(group: Group, members: int, seconds: float, every: int) -> tuple[Count, Poison]:
    """``every``: one of so many messages fails. Three parts of ``seconds`` each: none, RAISES, DEAD."""
    await joined(group, members)
    group.send()
    await asyncio.sleep(seconds * 0.4)
    windows: dict[str, tuple[float, float]] = {}
    for tag in ("", RAISES, DEAD):
        group.tag_of = lambda number, tag=tag: tag if tag and number % every == 0 else None  # type: ignore[misc]
        since = time()
        await asyncio.sleep(seconds)
        windows[tag] = (since, time())
    await group.settle()
    deadline = monotonic() + 30.0
    while len(set(dead := await group.dead_letters())) < len(group.tagged) and monotonic() < deadline:
        await asyncio.sleep(0.5)
    return await group.count(), _poison(group, windows, dead)


def _poison(group: Group, windows: dict[str, tuple[float, float]], dead: list[int]) -> Poison:
    calls, tagged = group.calls(), group.tagged
    good = [call for call in calls if call.number not in tagged and call.done]
    rates, offered, waits = {}, {}, {}
    for tag, (since, until) in windows.items():
        inside = [call for call in good if since <= (call.ended or 0.0) < until]
        rates[tag] = round(len(inside) / (until - since), 1)
        sent = sum(since <= at < until for number, at in group.sent.items() if number not in tagged)
        offered[tag] = round(sent / (until - since), 1)
        waits[tag] = high(call.begun - group.sent.get(call.number, call.begun) for call in inside)
    by_number = Counter(call.number for call in calls if call.number in tagged)
    return Poison(
        rates=rates,
        offered=offered,
        waits=waits,
        tagged=dict(Counter(tagged.values())),
        attempts={
            tag: dict(Counter(by_number[number] for number, each in tagged.items() if each == tag)) for tag in (RAISES, DEAD)
        },
        dead=dict(Counter(tagged[number] for number in set(dead) if number in tagged)),
        dead_twice=len(dead) - len(set(dead)),
        good_dead=len(set(dead) - tagged.keys()),
        overlap=longest_overlap(call for call in calls if call.number in tagged),
    )


class Shares(msgspec.Struct):
    """``differences``: what was left of them when the time was over, by change; "equal" is left out. ``seconds``: until the shares
    were equal, of each change. ``java``, ``python``: calls of members of each kind."""

    changes: int
    differences: list[str]
    seconds: list[float]
    java: int
    python: int


async def mixed(group: Group, java: JavaMembers, changes: int, every: float, seed: int) -> tuple[Count, Shares]:
    """Two members of each kind; then one joins or leaves, of either kind, ``changes`` times, each after the shares were looked at
    and ``every`` seconds have passed."""
    chance = random.Random(seed)
    in_java: set[str] = set()
    for place in (None, java, None, java):
        member = await group.join(java=place)
        if place is not None:
            in_java.add(member.name)
    await asyncio.gather(*(member.reading for member in group.members))
    group.send()
    differences, seconds = [], []
    for change in range(changes):
        await asyncio.sleep(every)
        kind = java if change // 2 % 2 else None  # each kind joins and leaves in turn
        mine = [member for member in group.members if (member.name in in_java) == (kind is not None)]
        if change % 2 == 0:
            member = await group.join(java=kind)
            if kind is not None:
                in_java.add(member.name)
            await member.reading
        else:
            await group.leave(chance.choice(mine))
        took, found = await _agreed(group, java)
        seconds.append(took)
        if found != "equal":
            differences.append(f"change {change}: {found}")
    await group.settle()
    calls: list[Call] = group.calls()
    of_java = sum(call.member in in_java for call in calls)
    return await group.count(), Shares(changes, differences, seconds, of_java, len(calls) - of_java)


async def _agreed(group: Group, java: JavaMembers) -> tuple[float, str]:
    """Seconds until all members hold the shares that Java's AVG gives them, and what differs at the end."""
    began = monotonic()
    while (found := await java.differences(len(group.members))) != "equal" and monotonic() - began < AGREE_WITHIN:
        await asyncio.sleep(0.1)
    return round(monotonic() - began, 2), found
