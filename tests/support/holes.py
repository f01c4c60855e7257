"""Addresses that drop packets, as those of a machine that is gone do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["black_hole"]


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that neither accepts nor refuses: the backlog of its listener is full, and further SYNs are dropped."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for filler in fillers:
                filler.close()
