"""Limits the rate of one-way sends, because a stock broker silently drops messages that wait too long in its queue.

Messages are counted in windows. The last message of each window is sent as an ordinary request, whose response shows that the
broker has processed the window; until that response, the window is open. At most two windows are open: the last message of a third
window waits. Therefore up to three windows are in the broker's queue.

Each connection to a broker has its own pacing, which all producers on the connection share. Each producer ends a window after its
own ``oneway_window`` messages at the latest. Three windows together have at most as many messages as the connection's
``SendWindow`` allows sends, and their responses adjust it like the responses to other sends. The first window has two messages, and
each answered window doubles the size of the next one: messages that a broker drops before its first response are lost, and are not
retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rmq_protocol.send_codec import SendReply

from ... import machine
from ..._asyncio import wait_until
from ..._text import is_power_of_two, printable
from ...errors import BackpressureError
from ...transport import Connection, RequestTable

logger = logging.getLogger("rmq_async.producer")

STORED: Final = frozenset({0, 10, 11, 12})
"""The response codes for a stored message, with or without confirmed flush and replication."""
FIRST_WINDOW: Final = 2
MAX_OPEN: Final = 2
"""Maximum number of open windows of a connection."""
SHARE: Final = 3
"""One window may use at most the fraction 1 / SHARE of the ``SendWindow``, because there are ``MAX_OPEN`` open windows and one that
is being filled."""


class OnewayPacing:
    """The windows of one-way messages on one connection (see the docstring of the module).

    Args:
        requests: The request table of the connection.

    Attributes:
        size: Number of messages in a window.
        sent: Number of messages that were sent in the window that is being filled.
        open: Number of windows that were sent and whose ordinary request is not answered yet.
        errors: Number of windows whose ordinary request failed or was refused.
    """

    __slots__ = ("_progress", "_requests", "errors", "open", "sent", "size")

    def __init__(self, requests: RequestTable) -> None:
        self._requests = requests
        self.size = FIRST_WINDOW
        self.sent = 0
        self.open = 0
        self.errors = 0
        self._progress: asyncio.Future[None] | None = None

    def due(self, window: int) -> bool:
        """Return whether the next message is the last of its window.

        Args:
            window: The maximum size of a window in the producer's configuration.
        """
        return self.sent + 1 >= min(self.size, window)

    def opened(self) -> None:
        """Record that the last message of a window was sent."""
        self.sent = 0
        self.open += 1

    def closed(self, answers: int, seconds: float | None) -> None:
        """Record that the ordinary request of a window has ended.

        Args:
            answers: Number of messages in the window if it had its full size, else 0.
            seconds: Seconds until the broker had stored the last message of the window. None if it did not store the message.
        """
        self.open -= 1
        if seconds is not None:
            self._requests.adjust(answers, seconds)
            self.size *= 2
        self.size = min(self.size, max(FIRST_WINDOW, self._requests.limit // SHARE))
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def wait(self, deadline: float, address: str) -> None:
        """Wait until the ordinary request of an open window has ended.

        Raises:
            BackpressureError: If none has ended at ``deadline`` (monotonic).
        """
        if self._progress is None or self._progress.done():
            self._progress = asyncio.get_running_loop().create_future()
        began = machine.monotonic()
        if not await wait_until(self._progress, deadline):
            raise BackpressureError(
                f"{address} did not respond to {MAX_OPEN} windows of one-way messages (oneway_window) within "
                f"{machine.monotonic() - began:.3g} s; send more slowly or use a longer timeout",
                address=address,
            )


class WindowReceiver:
    """Receives the response to the ordinary request that ends a window.

    Errors are counted, but not raised and not retried. A WARNING is logged when their number is a power of two.

    Args:
        finished: Called when the request has ended, to give the credits back.
        learn: Called with the response or the error, and the seconds until then, so that later messages can avoid the broker.
    """

    __slots__ = ("_answers", "_connection", "_done", "_finished", "_learn", "_opened_at", "_pacing")

    def __init__(
        self,
        pacing: OnewayPacing,
        connection: Connection,
        finished: Callable[[], None],
        learn: Callable[[SendReply | BaseException, float], None],
    ) -> None:
        self._pacing = pacing
        self._answers = pacing.sent + 1 if pacing.sent + 1 >= pacing.size else 0
        self._connection = connection
        self._finished = finished
        self._learn = learn
        self._opened_at = machine.monotonic()
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, reply: SendReply) -> None:
        seconds, stored = machine.monotonic() - self._opened_at, reply.code in STORED
        if not stored:
            self._count(f"code {reply.code}: {reply.remark}")
        self._learn(reply, seconds)
        self._end(seconds if stored else None)

    def set_exception(self, error: BaseException) -> None:
        self._count(str(error))
        self._learn(error, machine.monotonic() - self._opened_at)
        self._end(None)

    def _count(self, why: str) -> None:
        self._pacing.errors += 1
        if is_power_of_two(self._pacing.errors):
            address, count = self._connection.address, self._pacing.errors
            logger.warning(
                "%s: %d windows of one-way messages ended with an error, and their messages may be lost; use send() for messages "
                "that must not be lost; last error: %s",
                address, count, printable(why, 300),
            )  # fmt: skip

    def _end(self, seconds: float | None) -> None:
        self._done = True
        self._pacing.closed(self._answers, seconds)
        self._finished()


def pacing_of(connection: Connection) -> OnewayPacing:
    """Return the OnewayPacing of the connection. Create it if it does not exist."""
    pacing: OnewayPacing | None = connection.attributes.get(OnewayPacing)
    if pacing is None:
        connection.attributes[OnewayPacing] = pacing = OnewayPacing(connection.requests)
    return pacing
