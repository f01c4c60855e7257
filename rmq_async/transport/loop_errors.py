"""Reports errors of users' callbacks and hooks, so that they do not interrupt the library's own work.

A callback or a hook runs between the members of a batch, or between the frames of one read. An ordinary exception is passed to
the loop's exception handler. KeyboardInterrupt and SystemExit are raised out of the loop by a callback of their own, after that
work has ended.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn


def report(text: str, error: BaseException) -> None:
    """Pass an Exception or a CancelledError to the loop's exception handler.

    Any other error, such as KeyboardInterrupt, is raised out of the loop in its next iteration.
    """
    if not isinstance(error, Exception | asyncio.CancelledError):
        raise_soon(error)
        return
    try:
        asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})
    except BaseException as raised:  # noqa: BLE001 - raised by an exception handler that the user set
        raise_soon(raised)


def raise_soon(error: BaseException) -> None:
    """Raise ``error`` out of the running loop in its next iteration. If no loop runs, raise it immediately."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    loop.call_soon(_raise, error)


def _raise(error: BaseException) -> NoReturn:
    raise error
