"""Computes the pauses before failed pulls of ``PullConsumer.read`` are repeated, and raises the error when the time for that has
passed.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from rmq_protocol.message import MessageQueue

from .. import machine
from .._backoff import Backoff
from .._text import printable
from ..client import ClientInstance
from ..errors import BrokerError, FlowControlError, NameServerError, NoPermissionError, RocketMQError, TopicNotFoundError

logger = logging.getLogger(__name__)

FIRST_REST: Final = 0.05
LAST_REST: Final = 1.0
REPORT_EVERY: Final = 30.0
ROUTE_LAG: Final = 40.0
"""Seconds for which a name server may return settings of a topic that its broker no longer has. A broker registers all topics every
30 s, and such a registration may overtake the registration of a change."""
_NO_LONGER_READABLE: Final = ("pulling message is forbidden", "queueId[")
"""Parts of the remarks with which a broker refuses to read a topic or a queue (``PullMessageProcessor``)."""


class ReadBackoff:
    """The pauses between consecutive failed pulls of a read (one iteration of ``PullConsumer.read``).

    Args:
        patience: Seconds after the first failure from which ``rest`` raises the error. None, for a read without an end, means no
            limit; if the broker refuses a queue that is still in the route, the limit is ROUTE_LAG.
    """

    __slots__ = ("_patience", "_refused_since", "_reported", "_rests", "_since")

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._rests = Backoff(FIRST_REST, LAST_REST)
        self._since = self._refused_since = 0.0
        self._reported = 0.0

    def rest(self, error: RocketMQError) -> float:
        """Return the seconds until the next attempt. Raise ``error`` if another attempt cannot help, or the time for attempts is
        over.
        """
        now = machine.monotonic()
        self._since = self._since or now
        if not _may_pass_in_a_read(error):
            self._refused_since = self._refused_since or now
            if self._patience is not None or not _may_leave(error) or now - self._refused_since > ROUTE_LAG:
                raise error
        elif self._patience is not None and now - self._since > self._patience:
            raise error
        if now - self._reported > REPORT_EVERY:
            self._reported = now
            logger.warning("a pull of PullConsumer.read() failed and is repeated: %s", printable(error, 1000))
        return self.longer()

    def over(self) -> None:
        self._since = self._refused_since = 0.0

    def longer(self) -> float:
        """Return the next pause in seconds. It grows from FIRST_REST to LAST_REST."""
        return self._rests.next()


async def has_left(instance: ClientInstance, queue: MessageQueue, error: RocketMQError) -> bool:
    """Return whether ``queue`` is no longer in the route of its topic.

    If the broker has refused the pull, request the route first, because the broker may know of a change earlier than this client.
    """
    routes = instance.routes
    if not _may_pass_in_a_read(error):
        with suppress(RocketMQError):
            await routes.refresh(queue.topic)
    route = routes.cached(queue.topic)
    return route is not None and queue not in route.subscribe_queues


def may_pass(error: RocketMQError) -> bool:
    """Return whether the same request to the same broker may succeed later, because the cause is the broker, the connection or the
    name servers, not the request.
    """
    if isinstance(error, NameServerError):
        return not error.permanent
    return (error.retriable or isinstance(error, FlowControlError)) and not isinstance(error, NoPermissionError)


def _may_pass_in_a_read(error: RocketMQError) -> bool:
    return may_pass(error) and not isinstance(error, TopicNotFoundError)


def _may_leave(error: RocketMQError) -> bool:
    """Return whether the broker refused a read of the topic or the queue, so that the queue may disappear from the route later."""
    return isinstance(error, BrokerError) and any(part in error.remark for part in _NO_LONGER_READABLE)
