"""Members of a consumer group as processes that come, leave and are killed under load, and what became of each message.

``test_consumer_handover_real`` and ``benchmarks/consumer_handover.py`` share it. The counting has no part in the consuming: it
holds the numbers that were sent against the files of the members.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Literal

import msgspec

from rmq_async import Admin, Message, Producer, PullConsumer, RocketMQError, TopicNotFoundError
from rmq_async.testing.cluster import RealCluster

from .group_calls import Call, read_calls
from .group_member import MemberSettings
from .java_members import JavaMember, JavaMembers

PROGRAM = Path(__file__).with_name("group_member.py")
QUIET = 60.0
"""Seconds for the members to handle what is left."""


class Member:
    """One process. ``reading``: done when it reads queues."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.reading = asyncio.create_task(self._first_line())

    async def _first_line(self) -> None:
        assert self.process.stdout is not None
        await self.process.stdout.readline()

    async def end(self, number: signal.Signals) -> tuple[int, float]:
        """Returns exit code and seconds."""
        began = monotonic()
        self.process.send_signal(number)
        code = await self.process.wait()
        await self.reading
        return code, monotonic() - began

    async def close(self) -> None:
        """Ends what is left of it."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.reading


class Count(msgspec.Struct):
    """``repeated``: handler calls that ended beyond the first of their message; ``begun_again``: that began beyond the first.
    ``stored_twice``: messages whose calls were of more than one stored record without a retry."""

    sent: int
    unconfirmed: int
    handled: int
    lost: int
    repeated: int
    begun_again: int
    stored_twice: int
    retried: int
    dead_letters: int
    longest_wait: float
    seconds: float

    @property
    def exactly_once(self) -> bool:
        return not (self.lost or self.repeated or self.dead_letters)


@dataclass
class Group:
    """Members on a topic of their own, and a producer that sends ``rate`` messages a second to it.

    ``retry``: limit and delays of the members. ``java``: members join there; None for members in Python. ``tag_of``: the tag of a
    message, by its number; handlers raise at what has one. ``order``: of the members' subscriptions. ``fails``: this share of the
    attempts raises. ``keys``: of the messages, by their numbers; 0 for none. ``batch``, ``by_hand``: of the members' settings.
    ``sent``: number -> when its send was confirmed.
    """

    real: RealCluster
    directory: Path
    rate: float
    work: float
    queues: int = 16
    options: Mapping[str, int | float | str] = field(default_factory=dict)
    retry: tuple[int, tuple[float, ...]] | None = None
    java: JavaMembers | None = None
    tag_of: Callable[[int], str | None] = lambda number: None
    order: Literal["key", "queue"] | None = None
    fails: float = 0.0
    keys: int = 0
    batch: int | None = None
    by_hand: bool = False
    members: list[Member | JavaMember] = field(default_factory=list)
    sent: dict[int, float] = field(default_factory=dict)
    tagged: dict[int, str] = field(default_factory=dict)
    unconfirmed: set[int] = field(default_factory=set)
    name: str = field(default_factory=lambda: f"group-{uuid.uuid4().hex[:12]}")
    started: int = 0
    began: float = field(default_factory=monotonic)
    _sending: asyncio.Task[None] | None = None
    _stop: bool = False

    async def __aenter__(self) -> Group:
        self.directory.mkdir(parents=True, exist_ok=True)
        async with Admin(namesrv=self.real.namesrv) as admin:
            await admin.create_topic(self.name, queues=self.queues)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_sending()
        for member in self.members:
            await member.close()

    async def join(self, *, java: JavaMembers | None = None) -> Member | JavaMember:
        """``java``: where, instead of the group's own kind."""
        name = f"member-{self.started}"
        self.started += 1
        if (place := java or self.java) is not None:
            joined = place.join(name, self.directory / name)
            self.members.append(joined)
            return joined
        settings = MemberSettings(
            namesrv=self.real.namesrv, group=self.name, topic=self.name, name=name, file=str(self.directory / name),
            work=self.work, options=dict(self.options), retry=self.retry, order=self.order, fails=self.fails,
            batch=self.batch, by_hand=self.by_hand,
        )  # fmt: skip
        with (self.directory / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(PROGRAM), msgspec.json.encode(settings).decode(), stdout=asyncio.subprocess.PIPE, stderr=log
            )
        member = Member(name, process)
        self.members.append(member)
        return member

    async def leave(self, member: Member | JavaMember, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        self.members.remove(member)
        return await member.end(number)

    def send(self) -> None:
        self._sending = asyncio.create_task(self._send())

    async def stop_sending(self) -> None:
        self._stop = True
        if self._sending is not None:
            await self._sending
            self._sending = None

    async def _send(self) -> None:
        calls: set[asyncio.Task[None]] = set()
        number, began = 0, monotonic()
        async with Producer(f"sender-{self.name}", namesrv=self.real.namesrv, batching=True) as producer:
            while not self._stop:
                while number < (monotonic() - began) * self.rate:
                    call = asyncio.create_task(self._one(producer, number))
                    calls.add(call)
                    call.add_done_callback(calls.discard)
                    number += 1
                await asyncio.sleep(0.01)
            await asyncio.gather(*calls)

    async def _one(self, producer: Producer, number: int) -> None:
        try:
            tag = self.tag_of(number)
            if tag is not None:
                self.tagged[number] = tag
            key = f"key {number % self.keys}" if self.keys else None
            await producer.send(Message(self.name, b"%d" % number, tags=tag, sharding_key=key))
        except RocketMQError:
            self.unconfirmed.add(number)
        else:
            self.sent[number] = time()

    def calls(self) -> list[Call]:
        """All handler calls of all members."""
        return read_calls(self.directory)

    def handled(self) -> set[int]:
        return {call.number for call in self.calls() if call.done}

    async def settle(self) -> None:
        """Stops the sending and waits until all that was sent without a tag is handled, or for a minute without progress."""
        await self.stop_sending()
        last, since = -1, monotonic()
        while (done := len(self.handled())) < len(self.sent.keys() - self.tagged.keys()) and monotonic() - since < QUIET:
            if done != last:
                last, since = done, monotonic()
            await asyncio.sleep(0.5)

    async def count(self) -> Count:
        calls = [call for call in self.calls() if call.number not in self.tagged]
        ends: dict[int, list[Call]] = defaultdict(list)
        begins: dict[int, list[Call]] = defaultdict(list)
        for call in calls:
            begins[call.number].append(call)
            if call.done:
                ends[call.number].append(call)
        first = {number: min(call.begun for call in found) for number, found in begins.items()}
        return Count(
            sent=len(self.sent),
            unconfirmed=len(self.unconfirmed),
            handled=len(ends),
            lost=len(self.sent.keys() - ends.keys() - self.tagged.keys()),
            repeated=sum(len(found) - 1 for found in ends.values()),
            begun_again=sum(len(found) - 1 for found in begins.values()),
            stored_twice=sum(len({call.place for call in found if not call.times}) > 1 for found in begins.values()),
            retried=sum(1 for call in calls if call.times),
            dead_letters=len(await self.dead_letters()),
            longest_wait=round(
                max((first[number] - at for number, at in self.sent.items() if number in first), default=0.0), 2
            ),
            seconds=round(monotonic() - self.began, 1),
        )

    async def dead_letters(self) -> list[int]:
        """The numbers of the group's dead letters."""
        async with PullConsumer(f"counts-{self.name}", namesrv=self.real.namesrv) as consumer:
            try:
                return [int(message.body) async for message in consumer.read(f"%DLQ%{self.name}")]
            except TopicNotFoundError:
                return []


async def rebalances(group: Group, changes: int, every: float, seed: int, *, members: int = 6) -> Count:
    """One member joins or stops each ``every`` seconds, ``changes`` times."""
    chance = random.Random(seed)
    for _ in range(members):
        await group.join()
    await asyncio.gather(*(member.reading for member in group.members))
    group.send()
    leaving: set[asyncio.Task[tuple[int, float]]] = set()
    exits: list[tuple[int, float]] = []
    for _ in range(changes):
        await asyncio.sleep(every)
        if len(group.members) <= members - 2 or (len(group.members) < members + 2 and chance.random() < 0.5):
            await group.join()
        elif reading := [member for member in group.members if member.reading.done()]:  # before, a signal ends Python itself
            leaving.add(asyncio.create_task(group.leave(chance.choice(reading))))
    exits += await asyncio.gather(*leaving)
    await group.settle()
    assert not [code for code, _ in exits if code], exits
    return await group.count()


@dataclass
class Ended:
    """``bound``: what it handled in the last commit interval, or since its oldest running handler began, and what ran.
    ``replayed``: messages that it had handled and another member handled again."""

    code: int
    seconds: float
    last_end: float
    """Seconds from the signal to the end of its last handler; 0 for none."""
    running: int
    begun_after: int
    """Handlers that began after the signal: of messages below one that was handled already."""
    bound: int
    replayed: int


async def ends_of_members(
    group: Group, number: signal.Signals, runs: int, seed: int, interval: float
) -> tuple[Count, list[Ended]]:
    """Ends one of three members ``runs`` times under load; a new one takes its place."""
    chance = random.Random(seed)
    for _ in range(3):
        await group.join()
    await asyncio.gather(*(member.reading for member in group.members))
    group.send()
    moments: list[tuple[Member | JavaMember, float, int, float]] = []
    for _ in range(runs):
        await asyncio.sleep(chance.uniform(1.0, 3.0))
        member, at = chance.choice(group.members), time()
        code, seconds = await group.leave(member, number)
        moments.append((member, at, code, seconds))
        await (await group.join()).reading
    await group.settle()
    calls = group.calls()
    by_number: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        if call.ended is not None:
            by_number[call.number].append(call)
    ended = []
    for member, at, code, seconds in moments:
        mine = [call for call in calls if call.member == member.name]
        done = [call for call in mine if call.ended is not None]
        running = [call for call in mine if call.begun <= at and (call.ended is None or call.ended > at)]
        since = min([call.begun for call in running], default=at) - interval
        bound = len(running) + sum(1 for call in done if call not in running and (call.ended or 0.0) > since)
        replayed = sum(1 for call in done if any(other.begun > (call.ended or 0.0) for other in by_number[call.number]))
        last_end = max([0.0, *((call.ended or at) - at for call in done)])
        begun_after = sum(call.begun > at for call in mine)
        ended.append(Ended(code, round(seconds, 2), round(last_end, 2), len(running), begun_after, bound, replayed))
    return await group.count(), ended
