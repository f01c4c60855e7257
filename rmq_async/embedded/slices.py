"""Answers that are written in slices, as a network may deliver them."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from .faults import Gate

__all__ = ["SlicedWriter"]

PAUSE: Final = 0.001
"""Seconds between two slices, so that the peer can read them one by one."""
SMALL: Final = 9
"""Maximum number of bytes of about half of the slices: the two lengths at the start of a frame are eight bytes."""


class SlicedWriter:
    """Writes to one connection in slices, whose sizes the gate's random source draws.

    When the gate has none any more, the bytes that wait are written in one piece.
    """

    def __init__(self, transport: asyncio.Transport, gate: Gate) -> None:
        self._transport = transport
        self._gate = gate
        self._pending = b""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of bytes that wait."""
        return len(self._pending)

    def write(self, data: bytes) -> None:
        self._pending += data
        if self._timer is None:
            self.resume()

    def resume(self) -> None:
        """Write the next slice, and further ones after pauses, unless the server is stalled."""
        self.cancel()
        if not self._pending or self._gate.stalled or self._transport.is_closing():
            return
        chance = self._gate.slices
        size = len(self._pending) if chance is None else _size(len(self._pending), chance)
        data, self._pending = self._pending[:size], self._pending[size:]
        self._transport.write(data)
        if self._pending:
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self.resume)

    def flush(self) -> None:
        """Write the waiting slices, because the connection is about to be closed."""
        self.cancel()
        if self._pending:
            self._transport.write(self._pending)
            self._pending = b""

    def cancel(self) -> None:
        """Stop writing; bytes that wait stay here until ``resume`` or ``flush``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _size(most: int, chance: random.Random) -> int:
    return chance.randrange(min(most, SMALL) if chance.random() < 0.5 else most) + 1
