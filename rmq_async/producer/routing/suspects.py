"""Avoids brokers that do not respond, judged by failed attempts (``latency_fault="failures"``, the default).

While no broker is suspected, a successful attempt reads no clock and calls no function for this.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import Final

from ...errors import ConnectError, ConnectionLostError, RequestTimeoutError
from .avoidance import Avoidance, Suspect
from .fault_table import GivenUpError

FIRST: Final = 1.0
LONGEST: Final = 30.0
"""Maximum seconds for which a broker is avoided. The time is FIRST after the first failure, and doubles with each failed trial."""
TRIAL: Final = 1.0
"""Seconds for which a trial keeps other attempts away from a broker while it is not in flight yet, or if it never reports its
result."""
SHORTEST: Final = 0.05
"""If an attempt had less than this many seconds, its timeout is not considered a fault of the broker."""


class Silent(Suspect):
    """The table entry of one broker.

    Attributes:
        wait: Seconds for which the broker is avoided after a failure.
        tried_until: The earliest time of the next trial.
    """

    __slots__ = ("tried_until", "wait")

    def __init__(self) -> None:
        super().__init__()
        self.wait = FIRST
        self.tried_until = 0.0


class FailureTable(Avoidance[Silent]):
    """Avoids a broker for a second after a timeout, a failed connection attempt or a lost connection, and for up to 30 s after
    failed trials.

    If an attempt that began before the broker's trial fails, the time is extended but not doubled: a thousand attempts in flight to
    a broker that freezes count as one failure. If an attempt that began after the last failure stores its message, the broker is
    removed from the table.
    """

    __slots__ = ()

    def succeeded(self, broker: str, latency: float, now: float) -> None:
        item = self.items.get(broker)
        if item is not None and now - latency > item.noted:
            self.proved(broker)

    def failed(self, broker: str, error: BaseException, latency: float, now: float) -> None:
        if not blamed(error, latency):
            return
        item = self.items.get(broker)
        if item is None:
            item = self._enter(broker, Silent(), now)
        elif now - latency >= item.available_from:
            item.wait = min(2 * item.wait, LONGEST)
            self.version += 1
        item.noted, item.tried_until = now, 0.0
        item.available_from = max(item.available_from, now + item.wait)

    def chosen(self, broker: str, now: float) -> None:
        """Reserve a broker on trial for an attempt that is not in flight yet, because the attempt may have to connect first."""
        item = self.items.get(broker)
        if item is not None and now >= max(item.available_from, item.tried_until):
            item.tried_until = now + TRIAL
            self.version += 1

    def usable(self, broker: str, now: float) -> bool:
        item = self.items.get(broker)
        return item is None or (now >= item.tried_until and super().usable(broker, now))


def blamed(error: BaseException, latency: float) -> bool:
    """Return whether the failure of an attempt with ``error`` after ``latency`` seconds is considered a fault of its broker.

    A response of any kind, an abandoned or cancelled attempt, and a timeout shorter than ``SHORTEST`` are not faults.
    """
    match error:
        case GivenUpError() | CancelledError():
            return False
        case RequestTimeoutError():
            return latency >= SHORTEST
    return isinstance(error, ConnectError | ConnectionLostError)
