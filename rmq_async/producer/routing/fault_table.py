"""Latency fault tolerance (``latency_fault=True``; Java: ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``).

The latency of an attempt determines for how long its broker is avoided. If the attempt failed because of the broker, ``isolation``
counts as its latency. The two states of a broker, "avoided" and "unreachable", expire by themselves. A broker that is in neither
state is also avoided while an attempt on it has been in flight for longer than ``FaultTable.patience``.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from rmq_protocol.errors import shown

from ...errors import (
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


@dataclass(frozen=True)
class FaultTable:
    """A table that maps the latency of an attempt to the time for which its broker is avoided. All numbers are seconds.

    ``FaultTable.V5`` is the table of Java since 5.1.4, and ``FaultTable.V4`` is the earlier one.

    Attributes:
        latencies: Rising thresholds.
        durations: For each threshold, the time for which a broker is avoided after an attempt that took at least as long as this
            threshold and less than the next one.
        isolation: The latency that is assumed for an attempt that failed because of its broker.
        pick_one_at_least: If every broker is avoided, True uses the better half of them (as 4.x does). False uses all reachable
            brokers, or all brokers if none is reachable.

    Raises:
        ConfigError: If there are no latencies, or not as many durations as latencies; if a value is not from 0 to below 1e9; if the
            latencies do not rise; or if ``isolation`` is not above 0 and below 1e9.
    """

    latencies: tuple[float, ...]
    durations: tuple[float, ...]
    isolation: float = 10.0
    pick_one_at_least: bool = False

    V5: ClassVar[FaultTable]
    V4: ClassVar[FaultTable]

    def __post_init__(self) -> None:
        for name in ("latencies", "durations"):
            given = getattr(self, name)
            try:
                values = tuple(float(value) for value in given)
            except (TypeError, ValueError, OverflowError):
                raise ConfigError(_not_seconds(name, given)) from None
            if not values or not all(0 <= value < 1e9 for value in values):
                raise ConfigError(_not_seconds(name, values))
            object.__setattr__(self, name, values)
        if len(self.latencies) != len(self.durations):
            raise ConfigError(
                f"durations must have as many values as latencies, {len(self.latencies)}, not {len(self.durations)}"
            )
        if any(low >= high for low, high in zip(self.latencies, self.latencies[1:], strict=False)):
            raise ConfigError(f"latencies must be in strictly ascending order, not {shown(self.latencies)}")
        if not isinstance(self.isolation, int | float) or not 0 < self.isolation < 1e9:
            raise ConfigError(f"isolation must be a number of seconds above 0 and below 1e9, not {shown(self.isolation)}")

    def duration(self, latency: float) -> float:
        """Return the seconds for which a broker is avoided after an attempt that took ``latency`` seconds.

        Return 0.0 below the lowest threshold.
        """
        for threshold, duration in zip(reversed(self.latencies), reversed(self.durations), strict=True):
            if latency >= threshold:
                return duration
        return 0.0

    @property
    def patience(self) -> float:
        """The seconds that an attempt may take before its broker is avoided. Infinity if no duration is above 0."""
        return next((latency for latency, wait in zip(self.latencies, self.durations, strict=True) if wait > 0), float("inf"))


FaultTable.V5 = FaultTable((0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0), (0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0))
FaultTable.V4 = FaultTable(
    (0.05, 0.1, 0.55, 1.0, 2.0, 3.0, 15.0), (0.0, 0.0, 30.0, 60.0, 120.0, 180.0, 600.0), isolation=30.0, pick_one_at_least=True
)


def _not_seconds(name: str, values: object) -> str:
    return f"{name} must be a sequence of one or more numbers of seconds, from 0 to below 1e9, not {shown(values)}"


class Blame(Enum):
    """The verdict on a broker after one attempt."""

    NONE = "nothing"
    SLOW = "too slow"
    ANSWERED = "responds with errors"
    SILENT = "unreachable"


def blame(error: BaseException, elapsed: float, table: FaultTable) -> Blame:
    """Return the verdict on the broker of an attempt that ended with ``error`` after ``elapsed`` seconds.

    NONE: a rejected message, missing permissions of the user, a queue that the broker does not have, or a timeout that is shorter
    than the table's lowest threshold. ANSWERED: a retriable or "too busy" error response, or one that cannot be read. SILENT: a
    failed or lost connection, or any other timeout. An abandoned or cancelled attempt is SLOW if it ran for at least ``patience``,
    else NONE.
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
    """The error of an attempt that was abandoned because its call ended before a response arrived."""


class FaultItem(Suspect):
    """The table entry of one broker.

    Attributes:
        latency: Seconds of the last attempt that counted as a fault.
        reachable_from: The end of the time for which the broker is considered unreachable. 0 if the last recorded attempt got a
            response.
    """

    __slots__ = ("latency", "reachable_from")

    def __init__(self) -> None:
        super().__init__()
        self.latency = 0.0
        self.reachable_from = 0.0


class LatencyTable(Avoidance[FaultItem]):
    """The brokers that one producer avoids because of the latency or the failure of an attempt.

    Attributes:
        late: Brokers with an attempt that has been in flight for longer than ``patience``.
    """

    __slots__ = ("late", "table")

    def __init__(
        self,
        table: FaultTable,
        busy: Callable[[str], bool] = lambda _: False,
        address_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        super().__init__(busy, address_of)
        self.table = table
        self.measures = True
        self.patience = table.patience
        self.late: frozenset[str] = frozenset()

    # -- reports of attempts

    def succeeded(self, broker: str, latency: float, now: float) -> None:
        self.update(broker, latency, isolated=False, reachable=True, now=now)

    def failed(self, broker: str, error: BaseException, latency: float, now: float) -> None:
        why = blame(error, latency, self.table)
        if why is not Blame.NONE:
            self.update(broker, latency, isolated=why is not Blame.SLOW, reachable=why is not Blame.SILENT, now=now)

    def update(self, broker: str, latency: float, *, isolated: bool, reachable: bool, now: float) -> None:
        """Record an attempt that ended at ``now``.

        Args:
            isolated: Whether the attempt counts as ``isolation`` seconds instead of ``latency``.
            reachable: Whether the broker responded.
        """
        duration = self.table.duration(self.table.isolation if isolated else latency)
        self.note(broker, latency, duration, reachable=reachable, now=now)

    def note(self, broker: str, latency: float, duration: float, *, reachable: bool, now: float) -> None:
        """Avoid the broker for ``duration`` seconds from ``now``, or until the recorded time if that is later.

        A reachable broker with a duration of 0 is removed if the attempt began after the broker's last fault was recorded.
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

    # -- queries of queue selection

    def reachable(self, broker: str, now: float) -> bool:
        """Return whether the broker is not considered unreachable at ``now``."""
        item = self.items.get(broker)
        return item is None or now >= item.reachable_from

    def usable(self, broker: str, now: float) -> bool:
        """Return whether the broker is usable. A broker in ``late`` without an entry is not usable either."""
        return super().usable(broker, now) and (broker in self.items or broker not in self.late)

    def avoided(self, brokers: Collection[str], now: float) -> frozenset[str]:
        avoided = super().avoided(brokers, now)
        return avoided.union([broker for broker in self.late.intersection(brokers) if not self.usable(broker, now)])

    def _of_none(self, brokers: Collection[str], now: float) -> Collection[str]:
        """Return the reachable brokers, or all brokers if none is reachable.

        With ``pick_one_at_least``, return the better half, by availability and latency.
        """
        if self.table.pick_one_at_least:
            ranked = sorted(brokers, key=lambda broker: (self._rank(broker, now), broker))
            return frozenset(ranked[: max(1, len(ranked) // 2)])
        return frozenset(broker for broker in brokers if self.reachable(broker, now)) or brokers

    def silent(self) -> tuple[str, ...]:
        """Return the brokers for which the last recorded attempt got no response. These brokers are probed."""
        return tuple(broker for broker, item in self.items.items() if item.reachable_from)

    def _rank(self, broker: str, now: float) -> tuple[bool, float, float]:
        item = self.items.get(broker)
        return (False, 0.0, 0.0) if item is None else (now < item.available_from, item.latency, item.available_from)
