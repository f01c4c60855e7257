"""Paces one-way sends, because a stock broker silently drops messages that wait too long in its queue.

Pacing is per broker connection, and all producers on it share it; each producer ends a window after its own ``oneway_window``
messages at the latest. The last message of each window is sent as an ordinary request, whose response shows that the broker has
processed the window; until that response the window is open. At most two windows are open: the last message of a third one
waits. So up to three windows are in the broker's queue, which drops requests after 200 ms, and a broker that shares its cores
pauses for 50 to 100 ms at times. The size of the windows, adjusted by the response times, keeps the queue short: it starts at
two messages, since a cold broker needs 50 to 200 ms for the first one; it doubles up to ``STEADY`` while responses take less
than ``GOOD`` seconds, and up to the configured size while they take less than ``FAST``; a slower response cuts it to ``STEADY``,
one slower than ``SLOW`` halves it.
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
from ...transport import Connection

__all__ = ["MAX_OPEN", "STORED", "OnewayPacing", "WindowReceiver", "pacing_of"]

logger = logging.getLogger("rmq_async.producer")

STORED: Final = frozenset({0, 10, 11, 12})
"""Response codes for a stored message, with or without confirmed flush and replication."""
FIRST_WINDOW: Final = 2
MAX_OPEN: Final = 2
"""Maximum number of open windows of a connection."""
STEADY: Final = 640
"""Maximum window size, in messages, unless responses are fast."""
FAST: Final = 0.02
GOOD: Final = 0.05
SLOW: Final = 0.1
"""Seconds from a window's last message to its response; a stock broker drops a message after 0.2 s
(``waitTimeMillsInSendQueue``)."""


class OnewayPacing:
    """The windows of one connection. ``errors``: number of windows whose ordinary request failed or was refused."""

    __slots__ = ("_halved_at", "_progress", "errors", "open", "sent", "size")

    def __init__(self, window: int) -> None:
        self.size = min(FIRST_WINDOW, window)
        self.sent = 0
        self.open = 0
        self.errors = 0
        self._halved_at = 0.0
        self._progress: asyncio.Future[None] | None = None

    def due(self, window: int) -> bool:
        """Returns whether the next message is the last of its window. ``window``: the producer's configured size, the maximum."""
        return self.sent + 1 >= min(self.size, window)

    def opened(self) -> None:
        """Records that the last message of a window was sent."""
        self.sent = 0
        self.open += 1

    def closed(self, window: int, opened_at: float, *, answered: bool) -> None:
        """Closes a window that was ``opened_at`` (monotonic). ``window``: the producer's configured size, the maximum."""
        self.open -= 1
        if answered:
            self._resize(window, opened_at, machine.monotonic())
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    def _resize(self, window: int, opened_at: float, now: float) -> None:
        seconds = now - opened_at
        if seconds > SLOW:
            if opened_at > self._halved_at:  # once for all windows that one pause of the broker delayed
                self._halved_at = now
                self.size = max(self.size // 2, min(FIRST_WINDOW, window))
        elif seconds < FAST:
            self.size = max(self.size, min(self.size * 2, window))
        elif seconds < GOOD:
            self.size = min(max(self.size, min(self.size * 2, window)), STEADY)
        else:
            self.size = min(self.size, STEADY)

    async def wait(self, deadline: float, address: str) -> None:
        """Waits until a window closes. Raises BackpressureError at ``deadline`` (monotonic)."""
        if self._progress is None or self._progress.done():
            self._progress = asyncio.get_running_loop().create_future()
        began = machine.monotonic()
        if not await wait_until(self._progress, deadline):
            raise BackpressureError(
                f"{address} did not answer {MAX_OPEN} windows of one-way messages (oneway_window) within "
                f"{machine.monotonic() - began:.3g} s; send more slowly or use a longer timeout",
                address=address,
            )


class WindowReceiver:
    """Receiver of the response to a window's ordinary request. Errors are counted, neither raised nor retried.

    The first one is logged, and each one that doubles the count.

    ``learn``: called with the response or the error, and the seconds that it took, so that later messages can avoid the broker.
    """

    __slots__ = ("_connection", "_done", "_finished", "_learn", "_opened_at", "_pacing", "_window")

    def __init__(
        self,
        pacing: OnewayPacing,
        window: int,
        connection: Connection,
        finished: Callable[[], None],
        learn: Callable[[SendReply | BaseException, float], None],
    ) -> None:
        self._pacing = pacing
        self._window = window
        self._connection = connection
        self._finished = finished
        self._learn = learn
        self._opened_at = machine.monotonic()
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, reply: SendReply) -> None:
        if reply.code not in STORED:
            self._count(f"code {reply.code}: {reply.remark}")
        self._learn(reply, machine.monotonic() - self._opened_at)
        self._end(True)

    def set_exception(self, error: BaseException) -> None:
        self._count(str(error))
        self._learn(error, machine.monotonic() - self._opened_at)
        self._end(False)

    def _count(self, why: str) -> None:
        self._pacing.errors += 1
        if is_power_of_two(self._pacing.errors):
            address, count = self._connection.address, self._pacing.errors
            logger.warning(
                "%s: %d windows of one-way messages ended with an error; messages in them may be lost, use send() for those that "
                "must not be; the last error: %s",
                address, count, printable(why, 300),
            )  # fmt: skip

    def _end(self, answered: bool) -> None:
        self._done = True
        self._pacing.closed(self._window, self._opened_at, answered=answered)
        self._finished()


def pacing_of(connection: Connection, window: int) -> OnewayPacing:
    """Returns the connection's pacing; makes it on first use."""
    pacing: OnewayPacing | None = connection.attributes.get(OnewayPacing)
    if pacing is None:
        connection.attributes[OnewayPacing] = pacing = OnewayPacing(window)
    return pacing
