"""The addresses of a host: one look-up of its name, then staggered connects (RFC 8305, "happy eyeballs").

Packets to the address of a removed machine are dropped, and that address alone would use up the whole timeout. So the next
address is tried after a head start, or immediately when an attempt fails, while the earlier attempts continue; the first
connection is used. Event loops try addresses one by one, and uvloop ignores ``happy_eyeballs_delay``.

A server that accepts connections and stays silent would use up the time too. So where there are several addresses a connection
counts when the server has answered on it, and the address is the first one to try from then on.

There is one look-up of a name at a time, which later connects join.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import chain, zip_longest
from math import inf
from typing import Any, Final, Generic, TypeVar

from .. import machine
from .._asyncio import SingleFlight
from .._lookups import is_ip, look_up
from ..config import canonical_host
from ..tracebacks import own_copy

HEAD_START: Final = 0.25
"""Seconds before the next address is tried; less if otherwise not all addresses would be tried in time."""
MAX_ADDRESSES: Final = 16
"""Maximum number of addresses of one name that are tried: a foreign resolver decides how many there are."""

MAX_NAMES: Final = 1024
"""Maximum number of names whose addresses are kept."""

T = TypeVar("T")


class Resolver:
    """Looks up host names on the running loop, with at most one look-up of each name at a time."""

    def __init__(self) -> None:
        self._looking: SingleFlight[list[str] | OSError | ValueError] = SingleFlight("look-up of")
        self._known: dict[str, tuple[str, ...]] = {}
        """What the newest look-up of each name has found; the oldest look-up first."""
        self._looked: dict[str, float] = {}
        """Times (monotonic) of the newest look-ups."""
        self._preferred: dict[str, str] = {}
        """The address that answered last, of names with several."""

    async def addresses(self, host: str, deadline: float) -> list[str]:
        """Return the IP addresses of ``host`` in the order to try them: the preferred one first, else in the system's order,
        but IPv4 and IPv6 in turn. At most MAX_ADDRESSES.

        Raises:
            OSError: If the look-up fails (as socket.gaierror).
            ValueError: For an invalid name.
            TimeoutError: At ``deadline`` (``time.monotonic``).
            ClientStateError: After ``close``.
        """
        if is_ip(host):
            return [host]
        found = await self._looking.join(host, lambda: self._look_up(host), deadline)
        if not isinstance(found, list):
            raise own_copy(found)
        self._known.pop(host, None)
        if len(self._known) >= MAX_NAMES:
            self._forget(next(iter(self._known)))
        self._known[host] = tuple(found)
        self._looked[host] = machine.monotonic()
        preferred = self._preferred.get(host)
        return found if preferred not in found else [preferred, *(each for each in found if each != preferred)]

    def known(self, host: str) -> tuple[str, ...]:
        """Return what the newest look-up of a name has found; nothing for an address and for an unknown name."""
        return self._known.get(host, ())

    def age(self, host: str) -> float:
        """Return the seconds since the newest look-up of a name; infinite for an address and for an unknown name."""
        return machine.monotonic() - self._looked.get(host, -inf)

    def prefer(self, host: str, address: str) -> None:
        """Put an address of a name first from now on."""
        if len(self._known.get(host, ())) > 1:
            self._preferred[host] = address

    def _forget(self, host: str) -> None:
        del self._known[host], self._looked[host]
        self._preferred.pop(host, None)

    def close(self) -> list[asyncio.Task[Any]]:
        """Cancel the look-ups; return their tasks, which need an iteration of the loop to end."""
        return [*self._looking.close()]

    async def _look_up(self, host: str) -> list[str] | OSError | ValueError:
        """Return the addresses, or the error: the loop would report a raised one if no connect waits for the look-up any more."""
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
    addresses: Sequence[str],
    connect: Callable[[str], Awaitable[T]],
    prove: Callable[[T], Awaitable[object]],
    drop: Callable[[T], None],
    time: float,
) -> T:
    """Return the result of ``connect(address)`` for the first address that connects and passes ``prove(result)``, which raises
    OSError for one that does not. A single address, and the last one that is left, need not pass.

    ``drop`` is called with the results of other addresses.

    Args:
        addresses: One or more addresses.
        time: The caller's timeout in seconds, from which the head start is derived. If no address connects, raises OSError with
            the different texts of their errors. Any other exception of ``connect`` or ``prove`` is raised as it is, unless
            another address has passed in the same turn of the loop.
    """
    if len(addresses) == 1:
        return await connect(addresses[0])
    head_start = min(HEAD_START, time / (2 * len(addresses)))
    race, left, failures = _Race(connect, prove, drop), list(reversed(addresses)), list[OSError]()
    try:
        while left or race.trying:
            if left:
                race.start(left.pop(), is_last=not left)
            failed = await race.next(head_start if left else None)
            if race.winner is not None:
                return race.winner
            failures += failed
        raise _together(failures)
    finally:
        await race.end()


class _Race(Generic[T]):
    """The attempts of ``first_of``.

    Attributes:
        trying: Their tasks. ``made``: results that are not proved yet.
        winner: The first that is.
    """

    def __init__(
        self, connect: Callable[[str], Awaitable[T]], prove: Callable[[T], Awaitable[object]], drop: Callable[[T], None]
    ) -> None:
        self._connect = connect
        self._prove = prove
        self._drop = drop
        self._is_last = False
        self._is_over = False
        self.trying: dict[asyncio.Task[T], T | None] = {}
        self.winner: T | None = None

    def start(self, address: str, *, is_last: bool) -> None:
        """Start an attempt.

        Args:
            is_last: Whether no other follows.
        """
        self._is_last = is_last
        self.trying[asyncio.ensure_future(self._attempt(address))] = None

    async def next(self, timeout: float | None) -> list[OSError]:
        """Wait until an attempt has ended, for ``timeout`` seconds at most, and return the errors of the failed ones."""
        done, _ = await asyncio.wait(self.trying, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        failures: list[OSError] = []
        other: BaseException | None = None
        for task in done:
            made = self.trying.pop(task)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None and self.winner is None:
                self.winner = task.result()
                continue
            if error is None or made is not None:
                self._drop(task.result() if made is None else made)
            if isinstance(error, OSError):
                failures.append(error)
            else:
                other = error or other
        if self.winner is None and other is not None:
            raise other
        if self.winner is None and self._is_alone():
            self.winner = next(iter(self.trying.values()))
        return failures

    async def end(self) -> None:
        """Cancel the attempts that are left, and drop what they have made or still make."""
        self._is_over = True
        for task, made in self.trying.items():
            if made is None:
                task.add_done_callback(lambda done: None if done.cancelled() or done.exception() else self._drop(done.result()))
            elif made is not self.winner:
                self._drop(made)
            task.cancel()
        if self.trying:
            try:
                await asyncio.wait(self.trying)
            except asyncio.CancelledError:
                if self.winner is not None:
                    self._drop(self.winner)
                raise

    async def _attempt(self, address: str) -> T:
        made = await self._connect(address)
        if not self._is_over and not self._is_alone():
            task = asyncio.current_task()
            assert task is not None
            self.trying[task] = made
            await self._prove(made)
        return made

    def _is_alone(self) -> bool:
        return self._is_last and len(self.trying) == 1


def _together(failures: Sequence[OSError]) -> OSError:
    if len({str(failure) for failure in failures}) == 1:
        return failures[0]
    return OSError("; ".join(str(failure) for failure in failures))


def _address(place: Any) -> str:
    """Return the host of a socket address from getaddrinfo, with the network interface that an IPv6 address may need."""
    host = str(place[0])
    return f"{host}%{place[3]}" if len(place) == 4 and place[3] and "%" not in host else host


# Limits the hosts to which a client may connect, except its name servers.
#
# A false name server can name any address as a broker's, and the client would connect there, with signatures if it has credentials.
# Hosts are compared without a look-up: an allowed name may resolve to any address, and an allowed address does not allow
# a name that resolves to it.


class AllowedHosts:
    """The hosts to which a client may connect.

    Args:
        allowed: Host names, addresses and networks in the form of ``ClientConfig.allowed_broker_hosts``.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self._hosts = frozenset(each for each in allowed if "/" not in each)
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(each) for each in allowed if "/" in each]

    def __contains__(self, host: str) -> bool:
        canonical = canonical_host(host)
        if canonical in self._hosts:
            return True
        try:
            address: IPv4Address | IPv6Address = ip_address(canonical)
        except ValueError:
            return False
        return any(address in network for network in self._networks)
