"""Failovers between two brokers by controllers, under groups whose member stops soon after one and starts again with "latest".

By hand: ``python -m tests.cluster.controller_failovers --runs 10``. Each run kills the master once and prints what the groups have
not handled of the messages that are acknowledged since their first start; ``--java`` adds a group of the official client. In every
second run messages are sent during the failover, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple, Protocol, TypeVar

from rmq_async import Admin, Consumer, Message, MessageExt, Producer, RocketMQError
from rmq_async.testing._ports import find_ports
from rmq_async.testing._probe import ask, broker_addresses
from rmq_async.testing.cluster import RealCluster, Server
from rmq_protocol.constants import RequestCode, ResponseCode

from .java_members import JavaMember, JavaMembers, java_members

__all__ = ["DELAYS", "Failovers", "Lost", "controlled", "failovers"]

TOPIC: Final = "failovers"
DELAYS: Final = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
"""Seconds from the kill of the master to the stop of a group's member: a group for each."""
COUNT: Final = 20
TAKES: Final = 90.0
IN_SYNC: Final = {
    "enableControllerMode": "true",
    "inSyncReplicas": "2",
    "minInSyncReplicas": "1",
    "allAckInSyncStateSet": "true",
    "haSendHeartbeatInterval": "1000",
    "timerWheelEnable": "false",
}
"""A send is acknowledged when all replicas in sync have it; one of them alone goes on."""


@asynccontextmanager
async def controlled() -> AsyncIterator[RealCluster]:
    """Two brokers of one name, and three name servers with controllers, which elect the master."""
    cluster = RealCluster(nameservers=3, replicas=1)
    await cluster.start()
    try:
        for server in cluster.servers:
            await server.kill()
        ports = find_ports([(0,)] * 3)
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        controllers = ";".join(f"127.0.0.1:{port}" for port in ports)
        for number, server in enumerate(cluster.nameservers):
            own = {"controllerDLegerSelfId": f"n{number}", "controllerStorePath": str(server.directory / "controller")}
            common = {"enableControllerInNamesrv": "true", "controllerDLegerGroup": "group", "controllerDLegerPeers": peers}
            server.relocate(server.address, {**common, **own})
            server.spawn()
        for server in (*cluster.brokers, *cluster.replicas):
            server.relocate(server.address, {**IN_SYNC, "brokerRole": "ASYNC_MASTER", "controllerAddr": controllers})
            server.spawn()
            await _until(lambda: _master(cluster), "a master")
        await _until(lambda: _in_sync(cluster), "a replica in sync")
        yield cluster
    finally:
        await cluster.stop()


class Lost(NamedTuple):
    """The messages since the groups' first start. ``missing``, ``repeated``: by group."""

    acknowledged: int
    missing: dict[str, int]
    repeated: dict[str, int]


class Member(Protocol):
    """A group's only member."""

    name: str
    delay: float

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def handled(self) -> Counter[int]: ...


class Own(Member):
    """A member of this library."""

    def __init__(self, namesrv: str, delay: float) -> None:
        self.name = f"{delay:g} s"
        self.delay = delay
        self._namesrv = namesrv
        self._group = f"after-{delay:g}-{uuid.uuid4().hex[:8]}"
        self._handled: Counter[int] = Counter()

    async def start(self) -> None:
        self._consumer = Consumer(self._group, namesrv=self._namesrv, instance_name=uuid.uuid4().hex, start_from="latest")
        self._consumer.subscribe(TOPIC, self._handle)
        await self._consumer.start()

    async def stop(self) -> None:
        await self._consumer.stop()

    async def _handle(self, message: MessageExt) -> None:
        self._handled[int(message.body)] += 1

    def handled(self) -> Counter[int]:
        return self._handled


class Java(Member):
    """A push consumer of the official client; each run stops it after another of the delays."""

    member: JavaMember

    def __init__(self, java: JavaMembers, file: Path) -> None:
        self.name = "Java"
        self.delay = 0.0
        self._java = java
        self._file = file
        self._starts = 0

    async def start(self) -> None:
        self.delay = DELAYS[self._starts % len(DELAYS)]
        self._starts += 1
        self.member = self._java.join(f"member-{self._starts}", self._file)
        await self.member.reading

    async def stop(self) -> None:
        await self.member.end(signal.SIGTERM)

    def handled(self) -> Counter[int]:
        lines = [line.split() for line in self._file.read_text().splitlines()]
        return Counter(int(line[1]) for line in lines if line[0] == "ended")


class Failovers:
    """The groups of a cluster and what was acknowledged. ``failed``: sends that were not."""

    def __init__(self, cluster: RealCluster, members: list[Member], producer: Producer) -> None:
        self.cluster = cluster
        self.members = members
        self.producer = producer
        self.acknowledged: set[int] = set()
        self.failed: Counter[str] = Counter()
        self._sent = 0

    async def run(self, *, sends: bool) -> Lost:
        """Kills the master and starts it again. ``sends``: messages are sent meanwhile."""
        await self._send(COUNT)
        await self._all_handled()
        await asyncio.sleep(2)  # offsets are committed
        master = await _until(lambda: _master(self.cluster), "a master")
        await master.kill()
        sending = asyncio.create_task(self._send(100, 0.25)) if sends else None
        await asyncio.gather(*[self._stop(member) for member in self.members])
        if sending is not None:
            await sending
        await _until(lambda: _master(self.cluster), "a new master")
        await self._send(COUNT)
        await asyncio.gather(*[member.start() for member in self.members])
        try:
            await self._all_handled()
        except TimeoutError as error:
            print(error, flush=True)
        master.spawn()
        await _until(lambda: _in_sync(self.cluster), "a replica in sync")
        missing = {member.name: len(self.acknowledged - {*member.handled()}) for member in self.members}
        repeated = {member.name: sum(member.handled().values()) - len(member.handled()) for member in self.members}
        return Lost(len(self.acknowledged), missing, repeated)

    async def _stop(self, member: Member) -> None:
        await asyncio.sleep(member.delay)
        await member.stop()

    async def _send(self, count: int, pause: float = 0.0) -> None:
        for _ in range(count):
            self._sent += 1
            number = self._sent
            try:
                await self.producer.send(Message(TOPIC, b"%d" % number), key=number % 8)
                self.acknowledged.add(number)
            except RocketMQError as error:
                self.failed[type(error.__cause__ or error).__name__] += 1
            await asyncio.sleep(pause)

    async def _all_handled(self) -> None:
        async def left() -> bool:
            return all(self.acknowledged <= {*member.handled()} for member in self.members)

        await _until(left, "all that was acknowledged is handled")


T = TypeVar("T")


async def _until(found: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Returns the first true result."""
    end = monotonic() + TAKES
    while not (result := await found()):
        if monotonic() > end:
            raise TimeoutError(f"not within {TAKES:g} s: {what}")
        await asyncio.sleep(0.1)
    return result


async def _master(cluster: RealCluster) -> Server | None:
    """Returns the running broker that all name servers list as the master."""
    listed = [(await broker_addresses(each.address)).get(cluster.brokers[0].name) for each in cluster.nameservers]
    brokers = (*cluster.brokers, *cluster.replicas)
    return next((each for each in brokers if each.running and {*listed} == {each.address}), None)


async def _in_sync(cluster: RealCluster) -> bool:
    """Returns whether the master counts the other broker as in sync, which also knows the topic."""
    if (master := await _master(cluster)) is None:
        return False
    answer = await ask(master.address, RequestCode.GET_BROKER_HA_STATUS)
    return answer is not None and bool(answer.body) and json.loads(answer.body)["inSyncSlaveNums"] == 1


async def _knows_topic(cluster: RealCluster) -> bool:
    """Returns whether both brokers know the topic."""
    brokers = (*cluster.brokers, *cluster.replicas)
    answers = [await ask(each.address, RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC}) for each in brokers]
    return all(answer is not None and answer.code == ResponseCode.SUCCESS for answer in answers)


@asynccontextmanager
async def failovers(cluster: RealCluster, *, java: bool = False) -> AsyncIterator[Failovers]:
    """The groups of a cluster, which have begun. ``java``: with one of the official client."""
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(namesrv=cluster.namesrv, request_timeout=30.0))
        await admin.create_topic(TOPIC, queues=4)
        await _until(lambda: _knows_topic(cluster), "both brokers know the topic")
        members: list[Member] = [Own(cluster.namesrv, delay) for delay in DELAYS]
        if java:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-failovers-")))
            jvm = await stack.enter_async_context(java_members(cluster.namesrv, "after-java", 0.0, topic=TOPIC, latest=True))
            members.append(Java(jvm, directory / "calls"))
        producer = await stack.enter_async_context(Producer("failovers", namesrv=cluster.namesrv, timeout=30.0))
        for member in members:
            await member.start()
        try:
            yield Failovers(cluster, members, producer)
        finally:
            await asyncio.gather(*[member.stop() for member in members])


async def _runs(count: int, *, java: bool) -> int:
    async with controlled() as cluster, failovers(cluster, java=java) as runs:
        for number in range(count):
            began = monotonic()
            lost = await runs.run(sends=number % 2 == 1)
            print(f"run {number + 1}, {monotonic() - began:.0f} s: {lost}, failed sends {dict(runs.failed)}", flush=True)
    missing = sum(each for name, each in lost.missing.items() if name != "Java")
    print(f"{count} failovers, {missing} acknowledged messages missing")
    return missing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--java", action="store_true")
    given = parser.parse_args()
    sys.exit(1 if asyncio.run(_runs(given.runs, java=given.java)) else 0)
