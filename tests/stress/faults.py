"""What happens to the brokers and the network during a run: at drawn moments, for drawn times, counted by name."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import ClusterProxy, FaultProxy, RealCluster

from .account import Account
from .stored import set_write_queues

__all__ = ["KINDS", "EmbeddedFaults", "Faults", "RealFaults"]

KINDS = 9
"""Kinds that a run meets at least: on a slow machine the faults go on until as many were met."""

CODES = (1, 2, 14, 16, 17, 204, 205, 215, 10, 11, 12)
REFUSED_CODES = (4, 13)
SEND_REQUESTS = (310, 320)
SERVER_FAULTS = frozenset({"killed", "ended", "paused"})


class Faults:
    """Faults of the network, and a loop that is blocked. ``met``: how often each one happened."""

    def __init__(self, proxy: ClusterProxy, account: Account, seed: str) -> None:
        self.met: Counter[str] = Counter()
        self.draw = random.Random(seed)
        self.proxy = proxy
        self.account = account
        self.under_way: set[str] = set()
        self.deck: list[Callable[[], Awaitable[None]]] = []

    def ways(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.reset, self.close, self.cut, self.slow, self.sliced, self.stalled, self.deaf, self.narrow, self.refused,
            self.blocked,
        ]  # fmt: skip

    async def run(self, until: float, pause: float) -> None:
        """One fault after the other, at times two at once."""
        while monotonic() < until or len(self.met) < KINDS:
            await asyncio.sleep(self.draw.expovariate(1 / pause))
            if not self.deck:  # shared by all runs: no kind has a second turn before each had its first
                self.deck = self.ways()
                self.draw.shuffle(self.deck)
            chosen = [self.deck.pop()]
            if self.draw.random() < 0.2:
                chosen.append(self.draw.choice(self.ways()))
            await asyncio.gather(*[self.meet(way) for way in chosen])

    async def meet(self, way: Callable[[], Awaitable[None]]) -> None:
        """Only once at a time, so that none takes back what another one does."""
        kind = "server" if way.__name__ in SERVER_FAULTS else way.__name__
        if kind in self.under_way:
            return
        self.under_way.add(kind)
        self.met[way.__name__] += 1
        try:
            await way()
        finally:
            self.under_way.discard(kind)

    def one(self) -> FaultProxy:
        names = sorted(self.proxy.brokers)
        if self.draw.random() < 0.1:
            return self.proxy.name_servers[0]
        return self.proxy.brokers[self.draw.choice(names)]

    async def reset(self) -> None:
        self.one().reset()

    async def close(self) -> None:
        self.one().close()

    async def cut(self) -> None:
        """A connection ends after so many bytes, in the middle of a frame."""
        one = self.one()
        direction = self.draw.choice((one.to_client, one.to_server))
        direction.cut_after(self.draw.randrange(1, 20_000), reset=self.draw.random() < 0.5, times=self.draw.randint(1, 3))

    async def slow(self) -> None:
        one = self.one()
        direction = self.draw.choice((one.to_client, one.to_server))
        direction.latency(self.draw.choice((0.02, 0.1, 0.6)), jitter=0.05)
        await self.for_a_while()
        direction.latency(0)

    async def sliced(self) -> None:
        one = self.one()
        one.to_client.slice(self.draw.choice((7, 100, 1000)))
        await asyncio.sleep(0.3)
        one.to_client.slice(None)

    async def narrow(self) -> None:
        one = self.one()
        one.to_server.bandwidth(200_000)
        await self.for_a_while()
        one.to_server.bandwidth(None)

    async def stalled(self) -> None:
        one = self.one()
        one.stall()
        await self.for_a_while()
        one.resume()

    async def deaf(self) -> None:
        """Requests arrive and are served; their answers do not come."""
        one = self.one()
        one.to_client.stall()
        await self.for_a_while()
        one.to_client.resume()

    async def refused(self) -> None:
        """The port is closed for a while."""
        one = self.one()
        await one.stop()
        await self.for_a_while()
        await one.start()

    async def blocked(self) -> None:
        """Somebody's code blocks the loop."""
        since = monotonic()
        time.sleep(self.draw.choice((0.05, 0.2, 0.7)))
        self.account.pauses.append((since, monotonic()))

    async def for_a_while(self) -> None:
        await asyncio.sleep(self.draw.choice((0.1, 0.5, 1.5, 4.0)))


class EmbeddedFaults(Faults):
    """``server`` also answers with codes, holds answers back, and changes the number of queues of ``topic``."""

    def __init__(self, server: EmbeddedRocketMQ, topic: str, proxy: ClusterProxy, account: Account, seed: str) -> None:
        super().__init__(proxy, account, seed)
        self.server, self.topic = server, topic

    def ways(self) -> list[Callable[[], Awaitable[None]]]:
        own = [self.fails, self.fails, self.illegal, self.delayed, self.stopped, self.dropped, self.queues]
        return [*super().ways(), *own]

    async def fails(self) -> None:
        request = self.draw.choice((None, *SEND_REQUESTS))
        self.server.fail_next(self.draw.choice(CODES), self.draw.choice((1, 5, 40)), request=request)

    async def illegal(self) -> None:
        """A batch that is refused is sent again in parts."""
        self.server.fail_next(self.draw.choice(REFUSED_CODES), self.draw.choice((1, 2)), request=320)

    async def delayed(self) -> None:
        name = self.draw.choice(sorted(self.server.brokers))
        self.server.delay(self.draw.choice((0.01, 0.2, 1.0)), broker=name)
        await self.for_a_while()
        self.server.delay(0, broker=name)

    async def stopped(self) -> None:
        name = self.draw.choice([*sorted(self.server.brokers), "namesrv"])
        self.server.stall(name)
        await self.for_a_while()
        self.server.resume(name)

    async def dropped(self) -> None:
        self.server.drop_connections(self.draw.choice(sorted(self.server.brokers)))

    async def queues(self) -> None:
        """An operator takes away queues to write to, or gives them back."""
        for address in self.server.brokers.values():
            with contextlib.suppress(LookupError, OSError, EOFError):  # another fault has met this request
                await set_write_queues(address, self.topic, self.draw.choice((2, 4, 8)), 8)


class RealFaults(Faults):
    """Brokers that are killed, ended and paused besides."""

    def __init__(self, cluster: RealCluster, proxy: ClusterProxy, account: Account, seed: str) -> None:
        super().__init__(proxy, account, seed)
        self.cluster = cluster

    def ways(self) -> list[Callable[[], Awaitable[None]]]:
        return [self.killed, self.paused, *super().ways(), self.ended]

    async def killed(self) -> None:
        broker = self.draw.choice(self.cluster.brokers)
        await broker.kill()
        await self.for_a_while()
        await broker.start()

    async def ended(self) -> None:
        broker = self.draw.choice(self.cluster.brokers)
        await broker.stop()
        await broker.start()

    async def paused(self) -> None:
        server = self.draw.choice(self.cluster.servers)
        server.pause()
        await self.for_a_while()
        server.resume()
