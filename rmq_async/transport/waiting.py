"""Waiting for a shared future with a deadline of one's own.

``asyncio.wait_for`` cancels what it waits for and judges by a timer alone. Here the future belongs to several callers, so it is
never cancelled, and when the loop was blocked past the deadline one round of I/O passes before the wait is called late: the
answer may already be in the socket.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, Final

__all__ = ["wait_until"]

_BLOCKED_AFTER: Final = 0.1
_GRACE: Final = 0.02


async def wait_until(future: asyncio.Future[Any], deadline: float) -> bool:
    """Waits until ``future`` is done or ``deadline`` (``time.monotonic``) has come; returns whether it is done.

    The future's own result or exception is left to the caller. Cancelling the wait leaves the future alone.
    """
    if future.done():
        return True
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def late() -> None:
        nonlocal timer
        if monotonic() - deadline > _BLOCKED_AFTER and not waiter.done():
            timer = loop.call_later(_GRACE, wake)
        else:
            wake()

    timer = loop.call_later(max(deadline - monotonic(), 0.0), late)
    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    return future.done()
