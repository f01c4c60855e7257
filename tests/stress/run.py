"""One run: a cluster behind fault proxies, four producers, faults, and the account held against what is stored.

By hand: ``python benchmarks/stress.py --world embedded --seconds 1200``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from rmq_async import Batching, Hook, Producer, PullConsumer, RocketMQError, TransactionProducer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import ClusterProxy, RealCluster

from .account import Account
from .faults import EmbeddedFaults, Faults, RealFaults
from .load import PURPOSE, Load
from .stored import StoredRecord, read_topic, set_write_queues

__all__ = ["Report", "embedded_run", "real_run"]

QUEUES = 8
SETTLE = 12.0
"""Seconds for delayed messages, and for transactions that brokers ask about."""
LAG = 0.02


@dataclass
class Report:
    seed: int
    world: str
    ends: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    copies: int = 0
    broken: list[str] = field(default_factory=list)


class _Watching(Hook):
    """Hooks take the general way through the producer."""

    def __init__(self) -> None:
        self.before = self.after = 0

    def before_send(self, context: Any) -> None:
        self.before += 1

    def after_send(self, context: Any) -> None:
        self.after += 1


@contextlib.asynccontextmanager
async def _pauses_noted(account: Account) -> AsyncIterator[None]:
    """Notes when the loop came late: what ends then could not end sooner."""

    async def look() -> None:
        last = monotonic()
        while True:
            await asyncio.sleep(LAG)
            now = monotonic()
            if now - last > 3 * LAG:
                account.pauses.append((last + LAG, now))
            last = now

    task = asyncio.ensure_future(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _producers(namesrv: str, seed: int, hook: Hook) -> list[tuple[str, Producer, Load | None]]:
    def group(name: str) -> str:
        return f"stress-{name}-{seed}"

    common: dict[str, Any] = {"namesrv": namesrv, "route_poll_interval": 2.0, "stop_timeout": 1.0}
    transactions: list[Load] = []

    def execute(message: Any, arg: Any) -> Any:
        return transactions[0].execute(message, arg)

    def check(message: Any) -> Any:
        return transactions[0].check(message)

    return [
        ("plain", Producer(group("plain"), **common), None),
        ("gathering", Producer(group("gathering"), batching=True, instance_name="gathering", **common), None),
        (
            "watched",
            Producer(
                group("watched"), hooks=[hook], latency_fault=True, batching=Batching(linger=0.002), instance_name="w", **common
            ),
            None,
        ),
        (
            "transactions",
            TransactionProducer(
                group("transactions"), execute=execute, check=check, retry_same_queue=False, async_limit=300, **common
            ),
            transactions,  # type: ignore[list-item]
        ),
    ]


async def _restarts(producer: Producer, draw: random.Random, until: float) -> None:
    """Stops the producer in the middle of its calls, and starts it again."""
    while monotonic() < until:
        await asyncio.sleep(draw.uniform(2, 8))
        await producer.stop(draw.choice((0.0, 0.2, 2.0)))
        while True:
            try:
                await producer.start()
                break
            except Exception:  # noqa: BLE001 - a fault is in the way of it; the calls that fail meanwhile are in the account
                await asyncio.sleep(0.1)


async def _replies(namesrv: str, topic: str, seed: int) -> None:
    """Replies to what is asked, as well as faults let it."""
    options: dict[str, Any] = {"namesrv": namesrv, "instance_name": "replier", "stop_timeout": 0.5}
    async with (
        PullConsumer(f"stress-replier-{seed}", **options) as consumer,
        Producer(f"stress-replies-{seed}", **options) as producer,
    ):
        start: Any = "earliest"
        while True:
            try:
                async for message in consumer.read(topic, start=start, end=None):
                    start = {message.queue: message.queue_offset + 1}
                    await producer.reply(message, b"re:" + message.body.partition(b":")[0])
            except RocketMQError:  # the request ends with its own time
                await asyncio.sleep(0.05)


async def _drive(
    report: Report, account: Account, faults: Faults, topics: tuple[str, str, str], namesrv: str, seconds: float, pause: float
) -> None:
    seed = report.seed
    draw = random.Random(f"{seed} run")
    hook = _Watching()
    until = monotonic() + seconds
    async with contextlib.AsyncExitStack() as stack:
        loads, restarts = [], []
        for name, producer, made in _producers(namesrv, seed, hook):
            await stack.enter_async_context(producer)
            load = Load(account, name, producer, topics[:2], f"{seed} {name}", until)
            load.asked = topics[2]
            if isinstance(made, list):
                made.append(load)
            load.queues = await producer.fetch_publish_queues(topics[1])
            loads.append(load)
            if name != "transactions":
                restarts.append(_restarts(producer, random.Random(f"{seed} {name} restarts"), until))
        await stack.enter_async_context(_pauses_noted(account))
        replies = asyncio.ensure_future(_replies(namesrv, topics[2], seed))
        callers = [load.run(draw.randint(15, 40)) for load in loads]
        await asyncio.gather(*callers, faults.run(until, pause), faults.run(until, pause), *restarts)
        replies.cancel()
        await asyncio.wait([replies])
        faults.proxy.clear()
        report.faults = faults.met
        await asyncio.sleep(SETTLE)  # half messages are asked about while their producer runs
    if hook.before != hook.after:
        report.broken.append(f"before_send {hook.before} times, after_send {hook.after} times")


def _fill(report: Report, account: Account, records: list[tuple[str, StoredRecord]]) -> None:
    entries = account.entries.values()
    report.ends = Counter(entry.end for entry in entries)
    report.modes = Counter(entry.mode for entry in entries)
    report.errors = Counter(entry.error.partition("(")[0] for entry in entries if entry.error)
    report.stored = len(records)
    report.copies = len(records) - len({record.body.partition(b":")[0] for _, record in records})
    report.broken += account.verdict(records)


def _unasked(account: Account) -> Any:
    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if PURPOSE not in str(context.get("exception")):
            account.reports.append(f"the loop's exception handler: {context}"[:600])

    return handler


async def embedded_run(seed: int, seconds: float) -> Report:
    """Two embedded brokers; every kind of fault."""
    report, account = Report(seed, "embedded"), Account()
    asyncio.get_running_loop().set_exception_handler(_unasked(account))
    free, ordered, asked = topics = (f"free-{seed}", f"ordered-{seed}", f"asked-{seed}")
    server = EmbeddedRocketMQ(brokers=2, transaction_timeout=1.0, transaction_check_interval=2.0, max_memory=1 << 30)
    async with server, ClusterProxy(server.namesrv, seed=seed) as proxy:
        for address in server.brokers.values():
            await set_write_queues(address, free, QUEUES, QUEUES)
            await set_write_queues(address, ordered, QUEUES // 2, QUEUES // 2)
            await set_write_queues(address, asked, 1, 1)
        server.shuffle(seed)
        faults = EmbeddedFaults(server, free, proxy, account, f"{seed} faults")
        await _drive(report, account, faults, topics, proxy.namesrv, seconds, 0.25)
        server.shuffle(None)
        for name in ("namesrv", *server.brokers):
            server.resume(name)
            server.delay(0, broker=name)
        for code in (None, *range(300, 330)):
            server.fail_next(1, 0, request=code)
        records = [(topic, record) for topic in topics for record in await read_topic(server.namesrv, topic, server.brokers)]
    _fill(report, account, records)
    return report


async def real_run(seed: int, seconds: float, cluster: RealCluster) -> Report:
    """Two real brokers, killed and paused besides what happens to the network."""
    report, account = Report(seed, "real"), Account()
    asyncio.get_running_loop().set_exception_handler(_unasked(account))
    free, ordered, asked = topics = (f"free-{seed}", f"ordered-{seed}", f"asked-{seed}")
    account.repeated |= {"delayed"}  # a broker that was killed delivers once more what it has not noted as delivered
    addresses = {broker.name: broker.address for broker in cluster.brokers}
    async with ClusterProxy(cluster.namesrv, seed=seed) as proxy:
        for address in addresses.values():
            await set_write_queues(address, free, QUEUES, QUEUES)
            await set_write_queues(address, ordered, QUEUES // 2, QUEUES // 2)
            await set_write_queues(address, asked, 1, 1)
        await asyncio.sleep(1.0)  # brokers register with their name servers
        faults = RealFaults(cluster, proxy, account, f"{seed} faults")
        await _drive(report, account, faults, topics, proxy.namesrv, seconds, 0.5)
        await cluster.heal()
        records = [(topic, record) for topic in topics for record in await read_topic(cluster.nameservers[0].address, topic)]
    _fill(report, account, records)
    return report
