"""How long a reading waits out what goes wrong on its way."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Final

from ..client.text import printable
from ..errors import BrokerNotFoundError, NameServerError, NoPermissionError, RocketMQError, TopicNotFoundError

__all__ = ["FIRST_REST", "Trouble"]

logger = logging.getLogger(__name__)

FIRST_REST: Final = 0.05
LAST_REST: Final = 1.0
REPORT_EVERY: Final = 30.0


class Trouble:
    """``patience``: seconds, None for ever."""

    __slots__ = ("_patience", "_reported", "_rest", "_since")

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._rest = 0.0
        self._since = 0.0
        self._reported = 0.0

    def rest(self, error: RocketMQError) -> float:
        """Seconds until the next try; raises ``error`` where another one is pointless or there were enough."""
        now = monotonic()
        self._since = self._since or now
        if not _may_pass(error) or (self._patience is not None and now - self._since > self._patience):
            raise error
        if now - self._reported > REPORT_EVERY:
            self._reported = now
            logger.warning("reading goes on when this is over: %s", printable(error, 1000))
        return self.longer()

    def over(self) -> None:
        self._since = 0.0

    def longer(self) -> float:
        """Seconds to rest, more each time."""
        self._rest = min(LAST_REST, self._rest * 2 or FIRST_REST)
        return self._rest


def _may_pass(error: RocketMQError) -> bool:
    """Whether the same pull may succeed later: the broker or the way to it is in trouble, not the request."""
    if isinstance(error, NoPermissionError | TopicNotFoundError):
        return False
    return error.retriable or isinstance(error, NameServerError | BrokerNotFoundError)
