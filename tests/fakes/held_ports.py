"""Ports of servers that have stopped, held until the test ends: connecting to them is refused.

A free port may be given at once to a server of another test process, which would accept connections and answer sends.
"""

from __future__ import annotations

import atexit
import socket

_held: dict[tuple[str, int], socket.socket] = {}


def bound(host: str, port: int) -> socket.socket:
    """Returns the held socket of this port or a new one, bound and not listening. Raises OSError if the port is taken."""
    if (held := _held.pop((host, port), None)) is not None:
        return held
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, proto=socket.IPPROTO_TCP)  # without it asyncio leaves Nagle's algorithm on
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made


def hold(host: str, port: int) -> None:
    """Binds a port on which a server has just stopped to listen."""
    if (host, port) not in _held:
        _held[host, port] = bound(host, port)


def release_all() -> None:
    while _held:
        _held.popitem()[1].close()


atexit.register(release_all)  # for programs of tests


def descriptors() -> set[int]:
    return {held.fileno() for held in _held.values()}
