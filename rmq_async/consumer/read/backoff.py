"""Computes the waits between the attempts of a reading that fails, and raises the error when its time is over."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from rmq_protocol.message import MessageQueue

from ... import machine
from ..._backoff import Backoff
from ..._text import printable
from ...client import ClientInstance
from ...errors import BrokerNotFoundError, NameServerError, NoPermissionError, RocketMQError, TopicNotFoundError

__all__ = ["FIRST_REST", "ReadBackoff", "has_left"]

logger = logging.getLogger(__name__)

FIRST_REST: Final = 0.05
LAST_REST: Final = 1.0
REPORT_EVERY: Final = 30.0


class ReadBackoff:
    """The waits between consecutive failures. ``patience``: seconds since the first of them after which ``rest`` raises the
    error; None for no limit."""

    __slots__ = ("_patience", "_reported", "_rests", "_since")

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._rests = Backoff(FIRST_REST, LAST_REST)
        self._since = 0.0
        self._reported = 0.0

    def rest(self, error: RocketMQError) -> float:
        """Returns the seconds until the next attempt. Raises ``error`` if another attempt cannot help, or the patience is
        over."""
        now = machine.monotonic()
        self._since = self._since or now
        if not _may_pass(error) or (self._patience is not None and now - self._since > self._patience):
            raise error
        if now - self._reported > REPORT_EVERY:
            self._reported = now
            logger.warning("a pull of the reading failed and is repeated: %s", printable(error, 1000))
        return self.longer()

    def over(self) -> None:
        self._since = 0.0

    def longer(self) -> float:
        """Returns the seconds to rest: from FIRST_REST on more each time, up to LAST_REST."""
        return self._rests.next()


async def has_left(instance: ClientInstance, queue: MessageQueue, error: RocketMQError) -> bool:
    """Returns whether ``queue`` has left the route of its topic. If the broker has refused the pull, requests the route first:
    the broker may know of the change before the name servers are asked again."""
    routes = instance.routes
    if not _may_pass(error):
        with suppress(RocketMQError):
            await routes.refresh(queue.topic)
    route = routes.cached(queue.topic)
    return route is not None and queue not in route.subscribe_queues


def _may_pass(error: RocketMQError) -> bool:
    """Returns whether the same pull may succeed later: the cause is the broker or the connection, not the request."""
    if isinstance(error, NoPermissionError | TopicNotFoundError):
        return False
    return error.retriable or isinstance(error, NameServerError | BrokerNotFoundError)
