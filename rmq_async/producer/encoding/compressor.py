"""Compression of message bodies: small ones in the event loop, large ones in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ... import machine
from ...errors import RequestTimeoutError
from ...transport import Threads
from .outgoing import Encoder, Outgoing

IN_THREAD: Final = 64 * 1024
"""Minimum size in bytes of a body that is compressed in a thread: in the loop it would take a millisecond or more."""


class Compressor:
    """The compressor of one producer.

    Args:
        unless_stopped: Awaits its argument, and raises ClientStateError if the producer stops first.

    Attributes:
        above: Bytes from which on a body is compressed (``compress_over``).
    """

    def __init__(self, encoder: Encoder, threads: Threads, unless_stopped: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        self.above = encoder.compress_over
        self._encoder = encoder
        self._threads = threads
        self._unless_stopped = unless_stopped

    async def compress(self, outgoing: Outgoing, deadline: float) -> Outgoing:
        """Return the message with its body compressed, or unchanged if that is not smaller.

        A body of 64 KiB or more is compressed in a thread: raises RequestTimeoutError, with ``maybe_stored=False``, if that has
        not ended at ``deadline`` (``time.monotonic``), and ClientStateError when the producer stops.
        """
        if len(outgoing.body) < IN_THREAD:
            return self._encoder.compressed(outgoing)
        smaller: Outgoing | None = None
        with suppress(TimeoutError):
            smaller = await self._unless_stopped(self._threads.run(partial(self._encoder.compressed, outgoing), deadline))
        if smaller is None or machine.monotonic() >= deadline:
            text = f"send to topic {outgoing.topic} timed out while {len(outgoing.body)} bytes were compressed"
            raise RequestTimeoutError(f"{text}; use a longer timeout", maybe_stored=False)
        return smaller
