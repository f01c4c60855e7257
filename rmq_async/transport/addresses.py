"""The addresses of a host: one look-up of its name, then all of them are tried, each with a head start before the next.

An address of a machine that is gone drops packets, and would take all the time there is. So the next address is tried after a
moment, or at once when the last one failed, while those before it go on; the first that connects is used (RFC 8305, "happy
eyeballs"). The loops themselves try addresses one by one, and uvloop ignores ``happy_eyeballs_delay``.

A resolver that hangs holds a thread until it ends. So there is one look-up of a name at a time, which later connects join.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, TypeVar

from ..errors import own_copy
from .single_flight import SingleFlight

__all__ = ["Resolver", "first_of"]

HEAD_START: Final = 0.25
"""Seconds after which the next address is tried as well; less where otherwise not all would be tried in time."""
MOST_ADDRESSES: Final = 16
"""Of one name: a resolver that is not ours says how many there are."""

T = TypeVar("T")


class Resolver:
    """Look-ups of names, on the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._looking: SingleFlight[list[str] | OSError | ValueError] = SingleFlight("look-up of")

    async def addresses(self, host: str, deadline: float) -> list[str]:
        """IP addresses of ``host``, in the order to try them: as the system gives them, the two families in turn.

        Raises OSError (socket.gaierror) for a name that is not known, ValueError for one that cannot be, TimeoutError at
        ``deadline`` (``time.monotonic``).
        """
        if _is_address(host):
            return [host]
        found = await self._looking.join(host, lambda: self._look_up(host), deadline)
        if isinstance(found, list):
            return found
        raise own_copy(found)

    def close(self) -> list[asyncio.Task[Any]]:
        """Ends the look-ups; returns their tasks, which need an iteration of the loop to end."""
        return [*self._looking.close()]

    async def _look_up(self, host: str) -> list[str] | OSError | ValueError:
        """An error is returned: with no connect left that waits for it, it is nothing to report."""
        try:
            infos = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        except (OSError, ValueError) as error:
            return error
        if not infos:
            return socket.gaierror(socket.EAI_NONAME, "the name has no addresses")
        first = [_address(info[4]) for info in infos if info[0] == infos[0][0]]
        others = [_address(info[4]) for info in infos if info[0] != infos[0][0]]
        mixed = chain.from_iterable(zip_longest(first, others))
        return [*dict.fromkeys(address for address in mixed if address is not None)][:MOST_ADDRESSES]


async def first_of(
    addresses: Sequence[str], connect: Callable[[str], Awaitable[T]], drop: Callable[[T], None], time: float
) -> T:
    """What ``connect(address)`` returns for the first address that can be connected to.

    ``drop`` gets what other addresses gave all the same. ``time``: seconds that the caller gives it, as a measure of the head
    starts. Raises OSError with what every address said; any other exception of ``connect`` at once.
    """
    if len(addresses) == 1:
        return await connect(addresses[0])
    head_start = min(HEAD_START, time / (2 * len(addresses)))
    left, trying, failures = list(reversed(addresses)), set[asyncio.Future[T]](), list[OSError]()
    try:
        while left or trying:
            if left:
                trying.add(asyncio.ensure_future(connect(left.pop())))
            await asyncio.wait(trying, timeout=head_start if left else None, return_when=asyncio.FIRST_COMPLETED)
            for future in [each for each in trying if each.done()]:
                trying.discard(future)
                try:
                    return future.result()
                except OSError as error:
                    failures.append(error)
        raise _together(failures)
    finally:
        for future in trying:
            future.add_done_callback(lambda done: None if done.cancelled() or done.exception() else drop(done.result()))
            future.cancel()
        if trying:
            await asyncio.wait(trying)


def _together(failures: Sequence[OSError]) -> OSError:
    if len({str(failure) for failure in failures}) == 1:
        return failures[0]
    return OSError("; ".join(str(failure) for failure in failures))


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except (OSError, ValueError):
            continue
        return True
    return False


def _address(place: Any) -> str:
    """Of a socket address as getaddrinfo gives it, with the network interface that an address of IPv6 may need."""
    host = str(place[0])
    return f"{host}%{place[3]}" if len(place) == 4 and place[3] and "%" not in host else host
