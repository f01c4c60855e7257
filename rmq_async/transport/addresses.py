"""The addresses of a host: one look-up of its name, then staggered connects (RFC 8305, "happy eyeballs").

Packets to the address of a removed machine are dropped, and that address alone would use up the whole timeout. So the next
address is tried after a head start, or immediately when an attempt fails, while the earlier attempts continue; the first
connection is used. Event loops try addresses one by one, and uvloop ignores ``happy_eyeballs_delay``.

There is one look-up of a name at a time, which later connects join.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, TypeVar

from .._asyncio import SingleFlight
from .._lookups import is_ip, look_up
from ..tracebacks import own_copy

__all__ = ["Resolver", "first_of"]

HEAD_START: Final = 0.25
"""Seconds before the next address is tried; less if otherwise not all addresses would be tried in time."""
MAX_ADDRESSES: Final = 16
"""Maximum number of addresses of one name that are tried: a foreign resolver decides how many there are."""

T = TypeVar("T")


class Resolver:
    """Looks up host names on the running loop, with at most one look-up of each name at a time."""

    def __init__(self) -> None:
        self._looking: SingleFlight[list[str] | OSError | ValueError] = SingleFlight("look-up of")

    async def addresses(self, host: str, deadline: float) -> list[str]:
        """Returns the IP addresses of ``host`` in the order to try them: the system's order, but IPv4 and IPv6 in turn; at most
        MAX_ADDRESSES.

        Raises OSError (socket.gaierror) if the look-up fails, ValueError for an invalid name, TimeoutError at ``deadline``
        (``time.monotonic``), ClientStateError after ``close``.
        """
        if is_ip(host):
            return [host]
        found = await self._looking.join(host, lambda: self._look_up(host), deadline)
        if isinstance(found, list):
            return found
        raise own_copy(found)

    def close(self) -> list[asyncio.Task[Any]]:
        """Cancels the look-ups; returns their tasks, which need an iteration of the loop to end."""
        return [*self._looking.close()]

    async def _look_up(self, host: str) -> list[str] | OSError | ValueError:
        """Returns the addresses, or the error: the loop would report a raised one if no connect waits for the look-up any more."""
        try:
            infos = await look_up(host)
        except (OSError, ValueError) as error:
            return error
        if not infos:
            return socket.gaierror(socket.EAI_NONAME, "the name has no addresses")
        first = [_address(info[4]) for info in infos if info[0] == infos[0][0]]
        others = [_address(info[4]) for info in infos if info[0] != infos[0][0]]
        mixed = chain.from_iterable(zip_longest(first, others))
        return [*dict.fromkeys(address for address in mixed if address is not None)][:MAX_ADDRESSES]


async def first_of(
    addresses: Sequence[str], connect: Callable[[str], Awaitable[T]], drop: Callable[[T], None], time: float
) -> T:
    """Returns the result of ``connect(address)`` for the first address that connects. ``addresses``: at least one.

    ``drop`` is called with the results of other addresses. ``time``: the caller's timeout in seconds, from which the head start is
    derived. If no address connects, raises OSError with the different texts of their errors. Any other exception of ``connect`` is
    raised as it is.
    """
    if len(addresses) == 1:
        return await connect(addresses[0])
    head_start = min(HEAD_START, time / (2 * len(addresses)))
    left, trying, failures = list(reversed(addresses)), set[asyncio.Future[T]](), list[OSError]()
    found: asyncio.Future[T] | None = None
    try:
        while left or trying:
            if left:
                trying.add(asyncio.ensure_future(connect(left.pop())))
            await asyncio.wait(trying, timeout=head_start if left else None, return_when=asyncio.FIRST_COMPLETED)
            for future in [each for each in trying if each.done()]:
                trying.discard(future)
                try:
                    result = future.result()
                except OSError as error:
                    failures.append(error)
                else:
                    found = future
                    return result
        raise _together(failures)
    finally:
        for future in trying:
            future.add_done_callback(lambda done: None if done.cancelled() or done.exception() else drop(done.result()))
            future.cancel()
        if trying:
            try:
                await asyncio.wait(trying)
            except asyncio.CancelledError:
                if found is not None:
                    drop(found.result())
                raise


def _together(failures: Sequence[OSError]) -> OSError:
    if len({str(failure) for failure in failures}) == 1:
        return failures[0]
    return OSError("; ".join(str(failure) for failure in failures))


def _address(place: Any) -> str:
    """Returns the host of a socket address from getaddrinfo, with the network interface that an IPv6 address may need."""
    host = str(place[0])
    return f"{host}%{place[3]}" if len(place) == 4 and place[3] and "%" not in host else host
