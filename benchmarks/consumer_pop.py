"""What members that pop promise, on a real broker: ``python benchmarks/consumer_pop.py --what outnumber,churn,kill,broker``.

One line of JSON for each run; exit code 1 where one breaks its promise. Members are processes of their own, but for ``churn``, and
write a line when a handler ends.

- ``outnumber``: 8 members and 2 queues. Every member handles messages; none is lost, none twice.
- ``churn``: a member joins and another one is stopped by SIGTERM, each second. Nothing is lost or twice; late is what a broker was
  answering when a member closed its connection.
- ``kill``: a member is killed and replaced, each 2 s. Nothing is lost; twice is what was handled and not acknowledged, some 50 ms.
- ``broker``: the broker is killed and started again. Nothing is lost; what was popped in its last 5 s comes again.
- ``slow``: one handler in 1,000 takes ten times the lease. Nothing is lost or twice.
- ``rate``: a backlog, handlers that do nothing: messages per second and CPU per message, beside pulls of the same backlog.

Needs what RealCluster needs. ``--kv``: with the brokers' store of popped messages (popConsumerKVServiceEnable).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic, process_time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rmq_async import Admin, Consumer, Message, MessageExt, Producer, RocketMQError, run
from rmq_async.testing.cluster import RealCluster

Record = dict[str, object]
KV = {"popConsumerKVServiceInit": "true", "popConsumerKVServiceEnable": "true"}


STARTED: list[asyncio.subprocess.Process] = []
"""Members, ended ones included."""


def end_members() -> None:
    for process in STARTED:
        if process.returncode is None:
            process.kill()


class Setting:
    """A topic, members of its group as processes, and what was sent to it."""

    def __init__(self, real: RealCluster, directory: Path, **options: object) -> None:
        self.real = real
        self.directory = directory
        self.options = options
        self.topic = f"P_{uuid.uuid4().hex[:12]}"
        self.sent: set[str] = set()
        self.members: list[asyncio.subprocess.Process] = []
        self.started = 0
        self.ends = False

    async def create(self, queues: int) -> None:
        async with Admin(namesrv=self.real.namesrv) as admin:
            await admin.create_topic(self.topic, queues=queues)

    async def join(self) -> asyncio.subprocess.Process:
        """Starts a member; returns when it pops."""
        self.started += 1
        given = {
            "namesrv": self.real.namesrv,
            "topic": self.topic,
            "file": str(self.directory / f"{self.topic}-{self.started}"),
            "options": {"mode": "pop", "start_from": "earliest", "instance_name": f"m{self.started}", **self.options},
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--member", json.dumps(given), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        self.members.append(process)
        STARTED.append(process)
        return process

    async def leave(self, process: asyncio.subprocess.Process, number: signal.Signals = signal.SIGTERM) -> float:
        """Ends a member; returns the seconds that took."""
        began = monotonic()
        self.members.remove(process)
        process.send_signal(number)
        await process.wait()
        return monotonic() - began

    async def send(self, rate: float) -> None:
        """Sends numbered messages until ``ends``; only those that were confirmed count."""
        async with Producer("p", namesrv=self.real.namesrv, timeout=20.0) as producer:
            number, began = 0, monotonic()

            async def one(body: str) -> None:
                try:
                    await producer.send(Message(self.topic, body.encode()))
                    self.sent.add(body)
                except RocketMQError:
                    pass

            tasks = set[asyncio.Task[None]]()
            while not self.ends:
                task = asyncio.create_task(one(str(number)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
                await asyncio.sleep(max(began + number / rate - monotonic(), 0.0))
            if tasks:
                await asyncio.wait(tasks)

    def handled(self) -> tuple[Counter[str], Counter[str]]:
        """Returns how often each message was handled, and how many each member has handled."""
        found, by_member = Counter[str](), Counter[str]()
        for file in self.directory.glob(f"{self.topic}-*"):
            lines = file.read_text().split()
            found.update(lines)
            by_member[file.name] = len(lines)
        return found, by_member

    async def settle(self, timeout: float) -> Record:
        """Waits until all that was sent is handled; ends the members, and counts."""
        deadline = monotonic() + timeout
        while monotonic() < deadline and self.sent - self.handled()[0].keys():  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.5)
        waited = timeout - (deadline - monotonic())
        await asyncio.sleep(1.0)
        for member in [*self.members]:
            await self.leave(member)
        found, by_member = self.handled()
        return {
            "sent": len(self.sent),
            "lost": len(self.sent - found.keys()),
            "twice": sum(count > 1 for count in found.values()),
            "members": len(by_member),
            "idle members": sum(count == 0 for count in by_member.values()),
            "until the last, s": round(waited, 1),
        }


async def with_sends(setting: Setting, rate: float, work: Callable[[], Awaitable[None]]) -> None:
    sending = asyncio.create_task(setting.send(rate))
    try:
        await work()
    finally:
        setting.ends = True
        await sending


async def outnumber(real: RealCluster, directory: Path, given: argparse.Namespace) -> tuple[bool, Record]:
    setting = Setting(real, directory, concurrency=4)
    await setting.create(2)
    await asyncio.gather(*(setting.join() for _ in range(8)))
    await with_sends(setting, given.rate, lambda: asyncio.sleep(given.seconds / 2))
    found = await setting.settle(30.0)
    return found["lost"] == found["twice"] == found["idle members"] == 0, found


async def churn(real: RealCluster, directory: Path, given: argparse.Namespace) -> tuple[bool, Record]:
    """Members are consumers in this process: a new process takes longer than a second to begin."""
    setting = Setting(real, directory)
    await setting.create(4)
    handled, late = Counter[str](), Counter[bool]()

    async def handle(message: MessageExt) -> None:
        await asyncio.sleep(random.uniform(0.0, 0.01))
        handled[message.body.decode()] += 1
        late[message.reconsume_times > 0] += 1

    def consumer(number: int) -> Consumer:
        options = {"mode": "pop", "start_from": "earliest", "concurrency": 4, "invisible_time": 5.0}
        found = Consumer(f"G_{setting.topic}", namesrv=real.namesrv, instance_name=f"m{number}", **options)
        found.subscribe(setting.topic, handle)
        return found

    members = [consumer(number) for number in range(3)]
    await asyncio.gather(*(each.start() for each in members))
    exits: list[float] = []

    async def leave(member: Consumer) -> None:
        began = monotonic()
        await member.stop()
        exits.append(monotonic() - began)

    async def work() -> None:
        leaving: list[asyncio.Task[None]] = []
        until = monotonic() + given.seconds
        while monotonic() < until:
            began = monotonic()
            members.append(consumer(len(exits) + 10))
            await members[-1].start()
            leaving.append(asyncio.create_task(leave(members.pop(0))))
            await asyncio.sleep(max(began + 1.0 - monotonic(), 0.0))
        await asyncio.gather(*leaving)

    await with_sends(setting, given.rate, work)
    deadline = monotonic() + 30.0
    while monotonic() < deadline and setting.sent - handled.keys():  # noqa: ASYNC110 - a broker gives them
        await asyncio.sleep(0.1)
    await asyncio.gather(*(each.stop() for each in members))
    lost, twice = len(setting.sent - handled.keys()), sum(count > 1 for count in handled.values())
    record = {"sent": len(setting.sent), "lost": lost, "twice": twice, "late": late[True], "changes": len(exits)}
    return lost == twice == 0, record | {"longest exit, s": round(max(exits), 2)}


async def kill(real: RealCluster, directory: Path, given: argparse.Namespace) -> tuple[bool, Record]:
    setting = Setting(real, directory, concurrency=4, invisible_time=4.0)
    await setting.create(4)
    await asyncio.gather(*(setting.join() for _ in range(3)))
    kills = 0

    async def work() -> None:
        nonlocal kills
        until = monotonic() + given.seconds
        while monotonic() < until:
            await asyncio.sleep(2.0)
            await setting.leave(random.choice(setting.members), signal.SIGKILL)
            await setting.join()
            kills += 1

    await with_sends(setting, given.rate, work)
    found = await setting.settle(40.0)
    return found["lost"] == 0, found | {"kills": kills}


async def broker(real: RealCluster, directory: Path, given: argparse.Namespace) -> tuple[bool, Record]:
    setting = Setting(real, directory, concurrency=4, invisible_time=8.0)
    await setting.create(4)
    await asyncio.gather(*(setting.join() for _ in range(2)))

    async def work() -> None:
        await asyncio.sleep(given.seconds / 3)
        await real.brokers[0].kill()
        await asyncio.sleep(2.0)
        await real.brokers[0].start()
        await asyncio.sleep(given.seconds / 2)

    await with_sends(setting, given.rate, work)
    found = await setting.settle(60.0)
    return found["lost"] == 0, found | {"rate": given.rate}


async def slow(real: RealCluster, directory: Path, given: argparse.Namespace) -> tuple[bool, Record]:
    setting = Setting(real, directory, concurrency=64, invisible_time=2.0)
    await setting.create(4)
    await asyncio.gather(*(setting.join() for _ in range(2)))
    await with_sends(setting, given.rate, lambda: asyncio.sleep(given.seconds))
    found = await setting.settle(40.0)
    return found["lost"] == found["twice"] == 0, found


async def rate(real: RealCluster, directory: Path, given: argparse.Namespace) -> tuple[bool, Record]:
    found: Record = {}
    for mode, options in (("pop", {"mode": "pop", "concurrency": 256}), ("pull", {"concurrency": 256})):
        setting = Setting(real, directory)
        await setting.create(8)
        async with Producer("p", namesrv=real.namesrv) as producer:
            for start in range(0, given.messages, 100):
                await producer.send_batch([Message(setting.topic, b"x" * 128) for _ in range(start, start + 100)])
        found[mode] = await consume(real, setting.topic, given.messages, options)
    return True, found


async def consume(real: RealCluster, topic: str, messages: int, options: dict[str, object]) -> Record:
    handled, over = 0, asyncio.Event()

    async def handle(message: MessageExt) -> None:
        nonlocal handled
        handled += 1
        if handled >= messages:
            over.set()

    consumer = Consumer(f"G_{topic}", namesrv=real.namesrv, start_from="earliest", **options)
    consumer.subscribe(topic, handle)
    began, cpu = monotonic(), process_time()
    async with consumer:
        async with asyncio.timeout(120):
            await over.wait()
        await consumer.commit()
    seconds, used = monotonic() - began, process_time() - cpu
    return {"msg/s": round(messages / seconds), "CPU us/msg": round(used / messages * 1e6, 1), "handled": handled}


RUNS: dict[str, Callable[[RealCluster, Path, argparse.Namespace], Awaitable[tuple[bool, Record]]]] = {
    "outnumber": outnumber,
    "churn": churn,
    "kill": kill,
    "broker": broker,
    "slow": slow,
    "rate": rate,
}


async def member(given: dict[str, object]) -> None:
    file = os.open(str(given["file"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    topic, options = str(given["topic"]), dict(given["options"])  # type: ignore[call-overload]
    lease = float(options.get("invisible_time", 60.0))
    consumer = Consumer(f"G_{topic}", namesrv=str(given["namesrv"]), **options)

    @consumer.handler(topic)
    async def handle(message: MessageExt) -> None:
        is_long = lease == 2.0 and int(message.body) % 1000 == 500
        await asyncio.sleep(10 * lease if is_long else random.uniform(0.0, 0.01))
        os.write(file, message.body + b"\n")

    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with consumer:
        print("pops", flush=True)
        await over.wait()


async def measure(given: argparse.Namespace) -> int:
    good = True
    with tempfile.TemporaryDirectory() as place:
        async with RealCluster(broker_conf=KV if given.kv else {}, small=False) as real:
            for what in given.what.split(","):
                try:
                    kept, record = await RUNS[what](real, Path(place), given)
                finally:
                    end_members()
                load = [round(each, 1) for each in os.getloadavg()]
                print(json.dumps({"what": what, "kept": kept, "kv": given.kv, "load": load} | record), flush=True)
                good &= kept
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--what", default=",".join(RUNS))
    parser.add_argument("--kv", action="store_true")
    parser.add_argument("--rate", type=float, default=300.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of sends, in each run")
    parser.add_argument("--messages", type=int, default=48_000, help="of rate")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.member:
        run(member(json.loads(settings.member)))
        sys.exit(0)
    sys.exit(run(measure(settings)))
