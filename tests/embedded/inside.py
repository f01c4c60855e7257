"""Behind the public face of an embedded server: for tests of its parts, and the clock that they go by."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_async.embedded.broker import Broker
from rmq_async.embedded.clock import Timer
from rmq_async.embedded.nameserver import NameServer
from rmq_async.embedded.server import Connection
from rmq_async.embedded.store import CommitLog

__all__ = ["START", "WatchedClock", "broker_of", "congested", "log_of", "name_server_of"]

START = 1_700_000_000_000
"""Milliseconds since 1970, when the clocks of tests begin."""


def broker_of(server: EmbeddedRocketMQ, name: str = "broker-a") -> Broker:
    (broker,) = [each for each in server._brokers if each.name == name]
    return broker


def log_of(server: EmbeddedRocketMQ) -> CommitLog:
    """What all brokers of the server have stored."""
    return server._log


def name_server_of(server: EmbeddedRocketMQ) -> NameServer:
    return server._name_server


def congested(server: EmbeddedRocketMQ) -> Collection[Connection]:
    """Connections of broker-a to clients that do not read."""
    return broker_of(server).listener.congested


class WatchedClock(ManualClock):
    """``before`` and ``after``: called around each timer that comes due. ``held``: where it is a list, what comes due is kept
    there instead of being called."""

    def __init__(self, start_ms: int | None = None) -> None:
        super().__init__(start_ms)
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None
        self.held: list[Callable[[], object]] | None = None
        self.waiting: set[WatchedTimer] = set()
        """Timers that are set."""

    def call_at(self, when_ms: int, call: Callable[[], object]) -> Timer:
        timer = WatchedTimer(self, call)
        self.waiting.add(timer)
        timer.inner = super().call_at(when_ms, timer.due)
        return timer


class WatchedTimer:
    inner: Timer

    def __init__(self, clock: WatchedClock, call: Callable[[], object]) -> None:
        self.clock = clock
        self.call = call

    def cancel(self) -> None:
        self.clock.waiting.discard(self)
        self.inner.cancel()

    def due(self) -> None:
        clock = self.clock
        clock.waiting.discard(self)
        if clock.held is not None:
            clock.held.append(self.call)
            return
        if clock.before is not None:
            clock.before()
        self.call()
        if clock.after is not None:
            clock.after()
