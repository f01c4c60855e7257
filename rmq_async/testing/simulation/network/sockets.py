"""The socket objects of transports and servers."""

from __future__ import annotations

from socket import AF_INET, IPPROTO_TCP, SOCK_STREAM

from .stream import End, Place


class SimulatedSocket:
    """The addresses and options of a stream or a listener. ``fileno`` is -1, because there is no socket of the system."""

    family = AF_INET
    type = SOCK_STREAM
    proto = IPPROTO_TCP

    def __init__(self, local: Place, end: End | None = None) -> None:
        self._local = local
        self._end = end
        self._options: dict[tuple[int, int], int | bytes] = {}

    def __repr__(self) -> str:
        return f"<SimulatedSocket {self._local[0]}:{self._local[1]}>"

    def fileno(self) -> int:
        return -1

    def getsockname(self) -> Place:
        return self._local

    def getpeername(self) -> Place:
        """Return the address and port of the other end.

        Raises:
            OSError: For a listener.
        """
        if self._end is None:
            raise OSError(107, "Transport endpoint is not connected")
        return self._end.remote

    def setsockopt(self, level: int, name: int, value: int | bytes) -> None:
        """Keep an option for ``getsockopt``; it has no effect."""
        self._options[level, name] = value

    def getsockopt(self, level: int, name: int) -> int | bytes:
        return self._options.get((level, name), 0)
