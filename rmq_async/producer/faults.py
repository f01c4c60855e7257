"""Which brokers are slow or failing, and for how long they are left alone (``MQFaultStrategy``, ``LatencyFaultToleranceImpl``).

This is ``latency_fault=True``, which judges by the time of each attempt. Both marks of a broker, "left alone" and "unreachable",
end by themselves. Attempts under way count too: one that takes longer than a healthy broker would need speaks against the broker
before it has failed.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from rmq_protocol.errors import shown

from ..errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    PermissionDeniedError,
    QueueNotExistError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from .avoidance import Avoidance, Suspect

__all__ = ["Blame", "FaultItem", "FaultTable", "Faults", "GivenUpError", "blame"]


@dataclass(frozen=True)
class FaultTable:
    """How long a broker is left alone after an attempt of a given length. All numbers are seconds.

    ``latencies``: rising thresholds; ``durations``: for each, how long a broker is left alone whose attempt took at least that
    long. ``isolation``: the latency that a failed attempt counts as. ``pick_one_at_least``: with every broker left alone, choose
    among the better half (4.x) instead of all that are reachable. Raises ConfigError for tables that do not fit together.

    ``FaultTable.V5`` is the table of Java's 5.1.4 and later, ``FaultTable.V4`` the one before.
    """

    latencies: tuple[float, ...]
    durations: tuple[float, ...]
    isolation: float = 10.0
    pick_one_at_least: bool = False

    V5: ClassVar[FaultTable]
    V4: ClassVar[FaultTable]

    def __post_init__(self) -> None:
        for name in ("latencies", "durations"):
            values = getattr(self, name)
            try:
                values = tuple(float(value) for value in values)
            except (TypeError, ValueError):
                raise ConfigError(f"{name} must be numbers of seconds, not {shown(values)}") from None
            if not values or not all(0 <= value < 1e9 for value in values):
                raise ConfigError(f"{name} must be one or more numbers of seconds, 0 or above, not {shown(values)}")
            object.__setattr__(self, name, values)
        if len(self.latencies) != len(self.durations):
            raise ConfigError(f"{len(self.latencies)} latencies need as many durations, not {len(self.durations)}")
        if any(low >= high for low, high in zip(self.latencies, self.latencies[1:], strict=False)):
            raise ConfigError(f"latencies must rise, not {shown(self.latencies)}")
        if not isinstance(self.isolation, int | float) or not 0 < self.isolation < 1e9:
            raise ConfigError(f"isolation must be a number of seconds above 0, not {shown(self.isolation)}")

    def duration(self, latency: float) -> float:
        """Seconds that a broker is left alone after an attempt of ``latency`` seconds."""
        for threshold, duration in zip(reversed(self.latencies), reversed(self.durations), strict=True):
            if latency >= threshold:
                return duration
        return 0.0

    @property
    def patience(self) -> float:
        """Seconds that an attempt may take without a broker being left alone for it."""
        return next((latency for latency, wait in zip(self.latencies, self.durations, strict=True) if wait > 0), float("inf"))


FaultTable.V5 = FaultTable((0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0), (0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0))
FaultTable.V4 = FaultTable(
    (0.05, 0.1, 0.55, 1.0, 2.0, 3.0, 15.0), (0.0, 0.0, 30.0, 60.0, 120.0, 180.0, 600.0), isolation=30.0, pick_one_at_least=True
)


class Blame(Enum):
    """What an attempt says about its broker."""

    NONE = "nothing"
    SLOW = "it takes too long"
    ANSWERED = "it answers, and cannot do its work"
    SILENT = "it cannot be reached"


def blame(error: BaseException, elapsed: float, table: FaultTable) -> Blame:
    """What an attempt that ended with ``error`` after ``elapsed`` seconds says about its broker.

    A message that is refused for what it is, for who sends it, or for a queue that is gone, and a call that gave its broker less
    time than the table's lowest threshold, say nothing. Any code that another attempt might cure does, and so does one that says
    "too much". An attempt that was given up before any answer came is only as bad as the time it had.
    """
    match error:
        case AuthenticationError() | PermissionDeniedError() | QueueNotExistError():
            return Blame.NONE
        case BrokerError():
            return Blame.ANSWERED if error.retriable or error.backs_off else Blame.NONE
        case RemoteProtocolError():
            return Blame.ANSWERED
        case GivenUpError() | CancelledError():
            return Blame.SLOW if elapsed >= table.patience else Blame.NONE
        case RequestTimeoutError():
            return Blame.SILENT if elapsed >= table.latencies[0] else Blame.NONE
        case ConnectError() | ConnectionLostError():
            return Blame.SILENT
    return Blame.NONE


class GivenUpError(RequestTimeoutError):
    """Why an attempt ended whose call was over before its answer came."""


class FaultItem(Suspect):
    """``latency``: of the newest attempt that was held against the broker. ``reachable_from``: 0 if it answers."""

    __slots__ = ("latency", "reachable_from")

    def __init__(self) -> None:
        super().__init__()
        self.latency = 0.0
        self.reachable_from = 0.0


class Faults(Avoidance[FaultItem]):
    """``late``: brokers that have kept one waiting for longer than ``patience``, set by the task that watches."""

    __slots__ = ("late", "table")

    measures = True

    def __init__(
        self,
        table: FaultTable,
        busy: Callable[[str], bool] = lambda _: False,
        address_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        super().__init__(busy, address_of)
        self.table = table
        self.patience = table.patience
        self.late: frozenset[str] = frozenset()

    # -- what attempts report

    def succeeded(self, broker: str, latency: float, now: float) -> None:
        self.update(broker, latency, isolated=False, reachable=True, now=now)

    def failed(self, broker: str, error: BaseException, latency: float, now: float) -> None:
        why = blame(error, latency, self.table)
        if why is not Blame.NONE:
            self.update(broker, latency, isolated=why is not Blame.SLOW, reachable=why is not Blame.SILENT, now=now)

    def update(self, broker: str, latency: float, *, isolated: bool, reachable: bool, now: float) -> None:
        """An attempt of ``latency`` seconds ended at ``now``. ``isolated``: it failed, and counts as the table's ``isolation``."""
        duration = self.table.duration(self.table.isolation if isolated else latency)
        self.note(broker, latency, duration, reachable=reachable, now=now)

    def note(self, broker: str, latency: float, duration: float, *, reachable: bool, now: float) -> None:
        """Leaves the broker alone for ``duration`` seconds, or as long as before if that is longer.

        With nothing against it the broker is forgotten, unless the attempt began before the newest fault did.
        """
        item = self.items.get(broker)
        if duration <= 0 and reachable:
            if item is not None:
                item.reachable_from = 0.0
                self.version += 1
                if now - latency > item.noted:
                    del self.items[broker]
            return
        self.version += 1
        if item is None:
            item = self._enter(broker, FaultItem(), now)
        item.latency, item.noted = latency, now
        item.available_from = max(item.available_from, now + duration)
        if reachable:
            item.reachable_from = 0.0
        else:
            item.reachable_from = max(item.reachable_from, now + max(duration, self.table.duration(self.table.isolation)))

    # -- what selecting asks

    def reachable(self, broker: str, now: float) -> bool:
        item = self.items.get(broker)
        return item is None or now >= item.reachable_from

    def usable(self, broker: str, now: float) -> bool:
        """Also whether no attempt on it takes too long already."""
        return super().usable(broker, now) and (broker in self.items or broker not in self.late)

    def avoided(self, brokers: Collection[str], now: float) -> frozenset[str]:
        avoided = super().avoided(brokers, now)
        return avoided.union([broker for broker in self.late.intersection(brokers) if not self.usable(broker, now)])

    def _of_none(self, brokers: Collection[str], now: float) -> Collection[str]:
        """Those that can be reached, else all. A table with ``pick_one_at_least``: the better half by what is held against them."""
        if self.table.pick_one_at_least:
            ranked = sorted(brokers, key=lambda broker: self._rank(broker, now))
            return frozenset(ranked[: max(1, len(ranked) // 2)])
        return frozenset(broker for broker in brokers if self.reachable(broker, now)) or brokers

    def silent(self) -> tuple[str, ...]:
        """Brokers that the newest attempt could not reach: those worth asking whether they are back."""
        return tuple(broker for broker, item in self.items.items() if item.reachable_from)

    def _rank(self, broker: str, now: float) -> tuple[bool, float, float]:
        item = self.items.get(broker)
        return (False, 0.0, 0.0) if item is None else (now < item.available_from, item.latency, item.available_from)
