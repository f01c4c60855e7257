"""The queue of sends of a stock broker, in its effect on clients: sends wait in order, and those that would wait too long
are refused with SYSTEM_BUSY (``BrokerFastFailure``).
"""

from __future__ import annotations

from typing import Final

from rmq_protocol.constants import RequestCode

from .arguments import check_number

__all__ = ["LONGEST_WAIT", "THROTTLED", "SendQueue"]

LONGEST_WAIT: Final = 0.2
"""Seconds in the queue after which a send is refused (``waitTimeMillsInSendQueue``)."""
THROTTLED: Final = frozenset(
    {
        int(RequestCode.SEND_MESSAGE),
        int(RequestCode.SEND_MESSAGE_V2),
        int(RequestCode.SEND_BATCH_MESSAGE),
        int(RequestCode.CONSUMER_SEND_MSG_BACK),
    }
)
"""Requests that wait in the queue of sends."""


WARMING: Final = 2.0
"""Sends per second by which each send that is served raises the rate of a cold broker. At this figure, one that begins with 1,000 a
second and ends with 20,000 serves 20,000 sends within some 2 s, as a broker of 5.5.0 on two cores does after its start."""


class SendQueue:
    """A queue of sends that are served at a rate.

    Args:
        rate: Sends that the broker serves in a second, one after the other.
        warm: The rate that it comes to, if it begins cold. ``refused`` counts those that would have waited too long.
    """

    def __init__(self, rate: float, warm: float | None = None) -> None:
        for name, value in (("rate", rate), ("warm", rate if warm is None else warm)):
            check_number(name, value)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive, finite number of sends per second, not {value}")
        if warm is not None and warm < rate:
            raise ValueError(f"warm must not be below rate, {rate}, it is {warm}")
        self._rate = rate
        self._warm = rate if warm is None else warm
        self._free = 0.0
        self.refused = 0

    def take(self, now: float) -> float | None:
        """Add a send; return the seconds until its answer, None if it is refused."""
        begins = max(self._free, now)
        if begins - now > LONGEST_WAIT:
            self.refused += 1
            return None
        self._free = begins + 1 / self._rate
        self._rate = min(self._rate + WARMING, self._warm)
        return self._free - now

    def refusal(self, now: float) -> str:
        """Return the remark to a send that is refused, in the words of a real broker."""
        waiting = int((self._free - now) * self._rate)
        return (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {int(LONGEST_WAIT * 1000)}ms, size of queue: {waiting}"
        )
