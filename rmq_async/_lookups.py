"""Looks up host names in daemon threads of the library.

asyncio looks up names in the loop's default executor, which belongs to the service. While blocking calls of the service fill the
executor, no name is resolved, and ``asyncio.run`` does not return until a lookup that hangs has ended. ``uvloop.run`` also waits
for it, and uses four threads that all loops of the process share. This module uses at most ``MAX_THREADS`` threads. They exist only
while there are lookups, and neither the loop nor the process waits for them at its end. All callers of a name share one lookup,
which occupies its thread while it hangs.

If an event loop resolves names by itself (another kind of loop, or a loop whose ``getaddrinfo`` was replaced), its method is used.
"""

from __future__ import annotations

import asyncio
import codecs
import copy
import ipaddress
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ._threads import NoThreadError, ThreadPool

MAX_THREADS: Final = 16
"""Maximum number of threads in the process that look up names. Each looks up one name at a time."""
MAX_UNDER_WAY: Final = 1024
"""Maximum number of names that are being looked up or wait for a thread."""

_IN_THREADS: Final = ("asyncio", "uvloop", "winloop")
"""Packages whose event loops resolve names in threads that they share with other work."""

Infos = list[tuple[Any, ...]]


class _Name(NamedTuple):
    host: str
    port: int | None
    kind: int


class _Lookups:
    """The lookups of this process.

    Attributes:
        _under_way: Lookups that wait or run. The threads end after the last one.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set the initial state, without lookups. This is also called in a forked child, which has no threads of its parent."""
        self._lock = threading.Lock()
        self._threads = _threads()
        self._under_way: dict[_Name, Future[Infos]] = {}

    def start(self, name: _Name, done: Callable[[Future[Infos]], object]) -> None:
        """Start a lookup, or share the running lookup of the same name.

        Args:
            done: Called with the lookup's future when the lookup has ended, in the thread of the lookup.

        Raises:
            OSError: If too many names are being looked up, or no thread can be started.
        """
        with self._lock:
            future = self._under_way.get(name)
            if future is None:
                if len(self._under_way) >= MAX_UNDER_WAY:
                    raise OSError(f"{MAX_UNDER_WAY} names are already being looked up; check the resolver of this machine")
                try:
                    future = self._under_way[name] = self._threads.submit(self._find, name)
                except NoThreadError as error:
                    raise OSError(f"the host name cannot be looked up: {error}") from None
        future.add_done_callback(done)

    def _find(self, name: _Name) -> Infos:
        try:
            return [*socket.getaddrinfo(name.host, name.port, type=name.kind)]
        finally:
            with self._lock:
                del self._under_way[name]
                if not self._under_way:
                    self._threads.close()
                    self._threads = _threads()


def _threads() -> ThreadPool:
    return ThreadPool(MAX_THREADS, "rmq_async look-up")


_lookups = _Lookups()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lookups.reset)


def load() -> None:
    """Load the codec for host names, so that no lookup has to open the codec's files.

    If the codec cannot be loaded now, each lookup tries again.
    """
    with suppress(LookupError, OSError):
        codecs.lookup("idna")


async def look_up(host: str, port: int | None = None, kind: int = socket.SOCK_STREAM) -> Infos:
    """Return the result of ``socket.getaddrinfo`` for a host name and a socket type. An IP address is resolved without a thread.

    Raises:
        OSError: If the lookup fails (socket.gaierror), or no thread can be started for it.
        UnicodeError: For an invalid name.
    """
    loop = asyncio.get_running_loop()
    if _resolves(loop):
        return [*await loop.getaddrinfo(host, port, type=kind)]
    if is_ip(host):
        return [*socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)]
    answer: asyncio.Future[Infos] = loop.create_future()

    def done(future: Future[Infos]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nothing waits for the result
            loop.call_soon_threadsafe(_pass_on, future, answer)

    _lookups.start(_Name(host, port, kind), done)
    return await answer


def _pass_on(future: Future[Infos], answer: asyncio.Future[Infos]) -> None:
    if answer.done():
        return
    error = future.exception()
    if error is None:
        answer.set_result(future.result())
    else:
        answer.set_exception(copy.copy(error))  # a copy for each caller, because a shared error would collect their tracebacks


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address, with or without an IPv6 zone id."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _resolves(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the event loop resolves names by itself, without threads that it shares with other work."""
    if "getaddrinfo" in getattr(loop, "__dict__", ()):
        return True
    owner = next(each for each in type(loop).__mro__ if "getaddrinfo" in vars(each))
    return owner.__module__.partition(".")[0] not in _IN_THREADS
