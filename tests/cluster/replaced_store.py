"""A broker whose store is replaced by an older copy, under members that read, pause, are suspended, stop, or start afterwards.

By hand: ``python -m tests.cluster.replaced_store --runs 10``. Each run replaces the store once, with members of six groups, and
prints what they have handled of the messages that are acknowledged after the replacement. A reading that follows ends with an error
that names where to begin again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, OffsetRangeError, Producer, PullConsumer
from rmq_async.testing.cluster import RealCluster, Server

__all__ = ["KINDS", "Count", "replace"]

KINDS: Final = ("reading", "shared", "paused", "suspended", "stopped", "started")
OLD: Final = 90
LATER: Final = 10
"""``OLD``: messages in the older copy; ``LATER``: those that are lost with the newer store."""
SETTINGS: Final = {"flushConsumerOffsetInterval": "300", "timerWheelEnable": "false"}
COMMIT_INTERVAL: Final = 1.0
TAKES: Final = 300.0
"""Seconds that a step may take, at most: some 10 on a quiet machine, with the start of a broker."""


class Count(NamedTuple):
    """The messages of one group that were acknowledged after the replacement. ``repeated``: older ones that were handled again,
    and copies of new ones; ``lost``: ``stats().lost`` of its member."""

    acknowledged: int
    handled: int
    repeated: int
    lost: int


class Group:
    """One group with one member, and its topic."""

    def __init__(self, namesrv: str, kind: str) -> None:
        self.namesrv = namesrv
        self.kind = kind
        self.name = f"replaced-{kind}-{uuid.uuid4().hex[:12]}"
        self.bodies: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.consumer = self.member("first")

    def member(self, name: str) -> Consumer:
        consumer = Consumer(
            self.name,
            namesrv=self.namesrv,
            instance_name=f"{self.name}-{name}",
            start_from="earliest",
            commit_interval=COMMIT_INTERVAL,
        )
        consumer.subscribe(self.name, self.handle)
        return consumer

    async def start(self) -> None:
        await self.consumer.start()

    async def stop(self) -> None:
        await self.consumer.stop()

    async def handle(self, message: MessageExt) -> None:
        self.bodies[message.body.decode()] += 1

    async def send(self, producer: Producer, age: str, count: int) -> None:
        for number in range(count):
            await producer.send(Message(self.name, f"{age} {number}".encode()))
            if age == "new":
                self.acknowledged.add(f"new {number}")

    async def has_handled(self, age: str, count: int) -> None:
        await _until(lambda: sum(body.startswith(age) for body in self.bodies) >= count, f"{count} {age} of {self.name}")

    @property
    def count(self) -> Count:
        handled = sum(body in self.acknowledged for body in self.bodies)
        return Count(len(self.acknowledged), handled, sum(self.bodies.values()) - len(self.bodies), self.consumer.stats().lost)


class Shared(Group):
    """A group with a second member, which has no queue as long as its broker lists both."""

    def __init__(self, namesrv: str, kind: str) -> None:
        super().__init__(namesrv, kind)
        self.other = self.member("other")

    async def start(self) -> None:
        await super().start()
        await self.other.start()

    async def stop(self) -> None:
        await asyncio.gather(super().stop(), self.other.stop())


class Suspended(Group):
    """A group whose member is a process that is stopped by SIGSTOP while the store is replaced and new messages are sent."""

    process: asyncio.subprocess.Process
    reading: asyncio.Task[None]

    async def begin(self) -> None:
        arguments = (__file__, "--member", self.namesrv, self.name)
        self.process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.bodies[line.decode().strip()] += 1

    async def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        await self.process.wait()
        await self.reading


class Following:
    """A reading without an end of the topic of another group, and one that begins anew where its error says."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.queue = MessageQueue(group.name, "broker-a", 0)
        self.bodies: list[str] = []
        self.consumer = PullConsumer(f"{group.name}-reads", namesrv=group.namesrv, instance_name=f"{group.name}-reads")

    async def run(self) -> None:
        start: dict[MessageQueue, int] = {self.queue: 0}
        async with self.consumer:
            while True:
                try:
                    async for message in self.consumer.read(self.group.name, start=start, end=None):
                        body = message.body.decode()
                        self.bodies.append(body)
                except OffsetRangeError as error:
                    named = re.findall(r"may have other messages from (\d+) on", str(error))
                    start = {self.queue: int(named[0])}
                    self.bodies.append("error")

    async def has_read(self, new: int) -> None:
        await _until(lambda: len({*self.bodies} & self.group.acknowledged) == new, f"{new} new read of {self.group.name}")


async def replace(cluster: RealCluster, new: int, *, offsets: bool) -> dict[str, Count]:
    """Replaces the store of the only broker under six groups, and sends ``new`` messages to each; returns what they handled.

    ``offsets``: True takes the groups' offsets of the older copy too; False gives the groups their newest ones, as a replica has
    them that copies offsets before messages.
    """
    (broker,) = cluster.brokers
    groups = {kind: {"suspended": Suspended, "shared": Shared}.get(kind, Group)(cluster.namesrv, kind) for kind in KINDS}
    suspended, started, paused, stopped = (groups[kind] for kind in ("suspended", "started", "paused", "stopped"))
    assert isinstance(suspended, Suspended)
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        for group in groups.values():
            await admin.create_topic(group.name, queues=1)
    async with Producer("replaced-store", namesrv=cluster.namesrv, timeout=60.0) as producer:
        await suspended.begin()
        follows = Following(groups["reading"])
        following = asyncio.create_task(follows.run())
        here = [group for group in groups.values() if group is not suspended]
        await asyncio.gather(*(group.start() for group in here))
        try:
            await asyncio.gather(*(group.send(producer, "old", OLD) for group in groups.values()))
            await asyncio.gather(*(group.has_handled("old", OLD) for group in groups.values()))
            await _until(lambda: _written(broker, groups.values()) == {OLD}, "offsets of the older copy")
            await _exchange(broker, lambda store: shutil.copytree(store, store.with_name("older")))
            await asyncio.gather(*(group.send(producer, "later", LATER) for group in groups.values()))
            await asyncio.gather(*(group.has_handled("later", LATER) for group in groups.values()))
            await _until(lambda: _written(broker, groups.values()) == {OLD + LATER}, "offsets of the newer store")
            await started.consumer.stop()
            paused.consumer.pause()
            stopped.consumer.pause()
            suspended.process.send_signal(signal.SIGSTOP)
            await _exchange(broker, lambda store: _put_back(store, [] if offsets else [*groups.values()]))
            started.consumer = started.member("second")
            await started.consumer.start()
            await asyncio.gather(*(group.send(producer, "new", new) for group in groups.values()))
            await stopped.consumer.stop(timeout=TAKES)  # before it has pulled from the new store
            stopped.consumer = stopped.member("second")
            await stopped.consumer.start()
            paused.consumer.resume()
            suspended.process.send_signal(signal.SIGCONT)
            for group in groups.values():
                try:
                    await group.has_handled("new", new)
                except TimeoutError as error:
                    print(error, flush=True)
            await follows.has_read(new)
            assert follows.bodies.count("error") == 1
            return {kind: group.count for kind, group in groups.items()}
        finally:
            following.cancel()
            await suspended.end()
            await asyncio.wait([following])
            await asyncio.gather(*(group.stop() for group in here))


async def _exchange(broker: Server, change: Callable[[Path], object]) -> None:
    """Kills the broker, changes its store, and starts it again."""
    await broker.kill()
    await asyncio.to_thread(change, broker.directory / "store")
    await broker.start(timeout=TAKES)


def _written(broker: Server, groups: Iterable[Group]) -> set[int]:
    """The offsets of the groups on the disk of the broker; -1 for a group without one."""
    try:
        written = (broker.directory / "store" / "config" / "consumerOffset.json").read_text()
        table = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', written))["offsetTable"]  # numbers of queues are bare
    except (FileNotFoundError, ValueError):  # it is written anew each time
        return {-1}
    return {table.get(f"{group.name}@{group.name}", {}).get("0", -1) for group in groups}


def _put_back(store: Path, newest: Iterable[Group]) -> None:
    """Puts the older copy in the place of the store. ``newest``: groups that keep their newest offsets."""
    shutil.rmtree(store)
    store.with_name("older").rename(store)
    if table := {f"{group.name}@{group.name}": {"0": OLD + LATER} for group in newest}:
        (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


async def _until(condition: Callable[[], object], what: str) -> None:
    end = monotonic() + TAKES
    while not condition():
        if monotonic() > end:
            raise TimeoutError(f"not within {TAKES:g} s: {what}")
        await asyncio.sleep(0.05)


async def _member(namesrv: str, topic: str) -> None:
    """The member that is suspended: it prints the body of each message that it handles."""
    consumer = Consumer(topic, namesrv=namesrv, start_from="earliest", commit_interval=COMMIT_INTERVAL)

    @consumer.handler(topic)
    async def show(message: MessageExt) -> None:
        os.write(1, message.body + b"\n")

    await consumer.run()


async def _runs(count: int, version: str) -> int:
    left_out = 0
    with tempfile.TemporaryDirectory(prefix="rmq-replaced-") as directory:
        async with RealCluster(version=version, broker_conf=SETTINGS, directory=Path(directory)) as cluster:
            for number in range(count):
                new, offsets = (3, 30)[number // 2 % 2], number % 2 == 1
                counts = await replace(cluster, new, offsets=offsets)
                left_out += sum(each.acknowledged - each.handled for each in counts.values())
                whose = "older" if offsets else "newer"
                print(f"run {number + 1}, {new} new messages, {whose} offsets: {counts}", flush=True)
    print(f"{count} runs, {left_out} acknowledged messages left out")
    return left_out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--version", default="5.5.0")
    parser.add_argument("--member", nargs=2, metavar=("NAMESRV", "TOPIC"))
    given = parser.parse_args()
    if given.member:
        asyncio.run(_member(*given.member))
    else:
        sys.exit(1 if asyncio.run(_runs(given.runs, given.version)) else 0)
