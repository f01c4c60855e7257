"""Waits of a task for a queue without messages, or for a broker that does not respond."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Final

from .._backoff import Backoff
from .._text import printable
from ..consumer import may_pass
from ..errors import OffsetRangeError, RocketMQError, TopicNotFoundError

__all__ = ["Patience"]

logger = logging.getLogger(__name__)

FIRST_REST: Final = 0.05
LAST_REST: Final = 1.0


class Patience:
    """Waits with growing pauses.

    Args:
        seconds: Time since the last ``renew`` after which ``rest`` raises the error that it is given.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    @property
    def waited(self) -> float:
        return monotonic() - self._since

    def renew(self) -> None:
        self._since = monotonic()
        self._rests: Backoff | None = None

    async def rest(self, error: RocketMQError | None = None) -> None:
        """Wait for the next pause; raise ``error``, if one is given, where waiting cannot help or the time is over."""
        if self._rests is None:
            self._rests = Backoff(FIRST_REST, LAST_REST)
        rest = self._rests.next()
        if error is not None:
            # A planned topic existed: name servers forget the topics of brokers that are down.
            passes = may_pass(error) or isinstance(error, TopicNotFoundError)
            if not passes or isinstance(error, OffsetRangeError) or self.waited > self._seconds:
                raise error
            logger.info("pulling again in %.3g s: %s", rest, printable(error))
        await asyncio.sleep(rest)
