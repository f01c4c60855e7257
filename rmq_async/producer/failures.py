"""Brokers that do not answer, found by the attempts that failed (``latency_fault="failures"``, the default).

The success of an attempt costs nothing while nothing is held against its broker: no clock is read, no function called.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import Final

from ..errors import ConnectError, ConnectionLostError, RequestTimeoutError
from .avoidance import Avoidance, Suspect
from .faults import GivenUpError

__all__ = ["Failures", "Silent"]

FIRST: Final = 1.0
LONGEST: Final = 30.0
"""Seconds that a broker is left alone after its first failure, doubled by each attempt on trial that fails; at most."""
TRIAL: Final = 1.0
"""Seconds that an attempt on trial keeps others away before it is under way for all to see, or where its end is not reported."""
SHORTEST: Final = 0.05
"""Seconds: an attempt that was given less says nothing when it times out."""


class Silent(Suspect):
    """``wait``: seconds that the broker is left alone after a failure. ``tried_until``: when another attempt on trial may go."""

    __slots__ = ("tried_until", "wait")

    def __init__(self) -> None:
        super().__init__()
        self.wait = FIRST
        self.tried_until = 0.0


class Failures(Avoidance[Silent]):
    """A broker whose attempt timed out or lost its connection is left alone for a second, twice as long after each failed trial.

    Failures of attempts that were begun before its time was over make that last longer, and do not double it: a thousand attempts
    that are under way when a broker freezes are one failure. An attempt begun since then and stored clears the broker at once.
    """

    __slots__ = ()

    measures = False

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
        """On trial it is the only one for a moment, also where it must connect first and many are about to leave."""
        item = self.items.get(broker)
        if item is not None and now >= max(item.available_from, item.tried_until):
            item.tried_until = now + TRIAL
            self.version += 1

    def usable(self, broker: str, now: float) -> bool:
        item = self.items.get(broker)
        return item is None or (now >= item.tried_until and super().usable(broker, now))


def blamed(error: BaseException, latency: float) -> bool:
    """Whether an attempt that ended with ``error`` after ``latency`` seconds speaks against its broker.

    An answer of any kind does not, nor does a call that was given up or had hardly any time left.
    """
    match error:
        case GivenUpError() | CancelledError():
            return False
        case RequestTimeoutError():
            return latency >= SHORTEST
    return isinstance(error, ConnectError | ConnectionLostError)
