"""Cutting the connection of one call after so many bytes, and holding what the call said against what was stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from rmq_async import ConnectionLostError, Message, Producer, RocketMQError
from rmq_async.testing import Direction, FaultProxy

from ..cluster.history import Copy, History, faults, verdict
from ..producer.support import GRACE, until
from .instances import client_of

Send = Callable[[Producer, str, str], Awaitable[Any]]


async def answered(producer: Producer) -> None:
    """Waits until nothing is under way: a real broker may answer the heartbeat of a new connection after the sends on it, and
    these bytes are not those that are to be cut."""
    connections = (await client_of(producer)).pool.open
    await until(lambda: not any(connection.requests.in_flight for connection in connections.values()))


async def length_of(direction: Direction, call: Callable[[], Awaitable[object]]) -> int:
    """Bytes that a call passes in the direction."""
    await call()
    before = direction.passed
    await call()
    return direction.passed - before


async def again(call: Callable[[], Awaitable[Any]]) -> None:
    """The call, on a connection that may be ending: the last cut came behind the last byte."""
    try:
        await call()
    except ConnectionLostError:
        await call()


class Judge:
    """What calls of ``timeout`` seconds said, and how long they took: ``grace`` more at most."""

    def __init__(self, timeout: float, grace: float = GRACE) -> None:
        self.latest = timeout + grace
        self.history = History()
        self.outcomes: Counter[str] = Counter()

    async def call(self, name: str, sending: Awaitable[Any]) -> Any:
        """The result of a call or its error; it ends by its deadline."""
        began = monotonic()
        outcome: Any
        try:
            outcome = await sending
        except RocketMQError as error:
            outcome = error
            self.history.gave_up(name, error, monotonic() - began)
        else:
            self.history.succeeded(name, outcome, monotonic() - began)
        assert self.history.seconds[name] <= self.latest
        self.outcomes[type(outcome).__name__] += 1
        return outcome

    def close(self, what: str, read: list[Copy]) -> None:
        print(f"{what}: {verdict(self.history, read)}; {dict(self.outcomes)}, slowest {self.history.slowest:.3f} s")
        assert faults(self.history, read) == []


async def send_one(producer: Producer, topic: str, name: str) -> Any:
    return await producer.send(Message(topic, name.encode()))


async def send_two(producer: Producer, topic: str, name: str) -> Any:
    """Two messages in one batch; the second one's fate is the first one's."""
    batch = await producer.send_batch([Message(topic, name.encode()), Message(topic, b"second")])
    return batch.results[0]


class CutSends:
    """Sends to a topic of one queue's broker behind ``proxy``, each cut once after so many bytes; ``way``: which direction.

    Without retries the cuts are FINs and meet a warm, idle connection, so that the first byte is the request's; with retries
    they are RSTs, and the attempt that mends one warms the connection for the next.
    """

    def __init__(self, judge: Judge, send: Send, way: str) -> None:
        self.judge = judge
        self.send = send
        self.way = way
        self.outcomes: dict[str, tuple[Any, bool]] = {}

    async def run(self, producer: Producer, proxy: FaultProxy, topic: str, points: Callable[[int], Sequence[int]]) -> None:
        """``points``: where to cut, given the length of what is cut."""
        direction: Direction = getattr(proxy, self.way)
        retries = producer.config.retries
        await self.send(producer, topic, "warm-1")
        await answered(producer)
        length = await length_of(direction, lambda: self.send(producer, topic, "warm-1"))
        chosen = points(length)
        warm = not retries
        for at in chosen:
            name = f"{at:04}-{retries}"
            if warm:
                await again(lambda: self.send(producer, topic, "warm-1"))
            await answered(producer)
            direction.cut_after(at, reset=bool(retries))
            self.outcomes[name] = await self.judge.call(name, self.send(producer, topic, name)), at >= length
            direction.clear()
            warm = not retries or at >= length  # the connection is ending, though the call needed no retry
        assert sum(at < length for at in chosen) <= direction.injected["cut"] <= len(chosen)

    def hold_against(self, stored: Iterable[Copy]) -> None:
        """All that is in the topic now."""
        read = [copy for copy in stored if copy.name in self.outcomes]
        self.judge.close(f"{self.send.__name__} cut {self.way}", read)
        copies = Counter(copy.name for copy in read)
        for name, (outcome, whole) in self.outcomes.items():
            seen = f"{name}: {outcome!r}, {copies[name]} copies"
            failed = isinstance(outcome, RocketMQError)
            lost = isinstance(outcome, ConnectionLostError) and outcome.maybe_stored and name.endswith("-0")
            assert lost or not failed, seen
            if self.way == "to_client":  # every request arrived
                assert copies[name] == (1 if failed else outcome.attempts), seen
            if not whole:
                assert failed or outcome.attempts == 2, seen
                assert self.way == "to_client" or copies[name] == (0 if failed else 1), seen
