"""Which brokers are slow or failing, and for how long they are left alone (``MQFaultStrategy``, ``LatencyFaultToleranceImpl``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_protocol.errors import shown

from ..errors import ConfigError

__all__ = ["FaultTable"]


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


FaultTable.V5 = FaultTable((0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0), (0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0))
FaultTable.V4 = FaultTable(
    (0.05, 0.1, 0.55, 1.0, 2.0, 3.0, 15.0), (0.0, 0.0, 30.0, 60.0, 120.0, 180.0, 600.0), isolation=30.0, pick_one_at_least=True
)
