"""Avoidance of brokers that do not respond, judged by failed attempts (``latency_fault="failures"``, the default).

While no broker is suspected, successful attempts read no clock for it and call no function.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import Final

from ...errors import ConnectError, ConnectionLostError, RequestTimeoutError
from .avoidance import Avoidance, Suspect
from .fault_table import GivenUpError

FIRST: Final = 1.0
LONGEST: Final = 30.0
"""Seconds for which a broker is avoided: FIRST after the first failure, doubled by each failed trial up to LONGEST."""
TRIAL: Final = 1.0
"""Seconds for which a trial keeps other attempts away while it is not in flight yet, or if its end is not reported."""
SHORTEST: Final = 0.05
"""Seconds; the timeout of an attempt that had less is not a fault of the broker."""


class Silent(Suspect):
    """The entry of one broker.

    Attributes:
        wait: Seconds to avoid it after a failure.
        tried_until: Earliest next trial.
    """

    __slots__ = ("tried_until", "wait")

    def __init__(self) -> None:
        super().__init__()
        self.wait = FIRST
        self.tried_until = 0.0


class FailureTable(Avoidance[Silent]):
    """Avoids a broker for a second after a timeout, a failed connect or a lost connection, up to 30 s after failed trials.

    Failures of attempts that began before the end of that time prolong it without doubling it: a thousand attempts in flight to
    a broker that freezes are one failure. A stored attempt that began after the newest failure removes the broker from the
    table.
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
        """Reserve a broker on trial for this attempt, also before it is in flight: it may have to connect first."""
        item = self.items.get(broker)
        if item is not None and now >= max(item.available_from, item.tried_until):
            item.tried_until = now + TRIAL
            self.version += 1

    def usable(self, broker: str, now: float) -> bool:
        item = self.items.get(broker)
        return item is None or (now >= item.tried_until and super().usable(broker, now))


def blamed(error: BaseException, latency: float) -> bool:
    """Return whether an attempt that ended with ``error`` after ``latency`` seconds is a fault of its broker.

    A response of any kind is not, nor is an abandoned or cancelled attempt, nor a timeout shorter than ``SHORTEST``.
    """
    match error:
        case GivenUpError() | CancelledError():
            return False
        case RequestTimeoutError():
            return latency >= SHORTEST
    return isinstance(error, ConnectError | ConnectionLostError)
