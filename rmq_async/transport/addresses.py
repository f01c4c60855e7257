"""Looks up the addresses of a host and connects to them in overlapping attempts (RFC 8305, "happy eyeballs").

Packets to the address of a removed machine are dropped, so an attempt to connect to it would take the whole timeout. Therefore the
next address is tried a short time (HEAD_START) later, or immediately when an attempt fails, while the earlier attempts continue;
the first connection is used. asyncio tries addresses one by one by default, and uvloop ignores ``happy_eyeballs_delay``.

A server that accepts connections but never responds would also take the whole timeout. Therefore, if a name has several addresses,
a connection is used only after the server has responded on it. Later attempts to connect to the name try that address first.

At most one lookup of a name runs at a time; callers that need the same name share it.
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
"""Seconds from one attempt to the next; shorter if the timeout would not allow all addresses to be tried."""
MAX_ADDRESSES: Final = 16
"""Maximum number of addresses that are tried for one name. The name's resolver may return any number."""

MAX_NAMES: Final = 1024
"""Maximum number of names whose addresses are kept."""

T = TypeVar("T")


class Resolver:
    """Looks up host names on the running event loop, with at most one lookup of each name at a time."""

    def __init__(self) -> None:
        self._looking: SingleFlight[list[str] | OSError | ValueError] = SingleFlight("look-up of")
        self._known: dict[str, tuple[str, ...]] = {}
        """The addresses from the newest lookup of each name, in the order of these lookups (oldest first)."""
        self._looked: dict[str, float] = {}
        """Times (monotonic) of the newest lookups, by name."""
        self._preferred: dict[str, str] = {}
        """For names with several addresses, the address at which the server responded last, by name."""

    async def addresses(self, host: str, deadline: float) -> list[str]:
        """Return at most MAX_ADDRESSES IP addresses of ``host`` in the order in which to try them.

        The address passed to ``prefer`` comes first. The others follow in the system's order, with IPv4 and IPv6 addresses
        alternating.

        Raises:
            OSError: If the lookup fails, usually as socket.gaierror.
            ValueError: If the name is invalid.
            TimeoutError: If the lookup has not ended at ``deadline`` (``time.monotonic``).
            ClientStateError: If ``close`` was called.
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
        """Return the addresses from the newest lookup of ``host``. Return () for an IP address or an unknown name."""
        return self._known.get(host, ())

    def age(self, host: str) -> float:
        """Return the seconds since the newest lookup of ``host``. Return infinity for an IP address or an unknown name."""
        return machine.monotonic() - self._looked.get(host, -inf)

    def prefer(self, host: str, address: str) -> None:
        """Make ``addresses`` return ``address`` first for ``host`` from now on, if the name has several addresses."""
        if len(self._known.get(host, ())) > 1:
            self._preferred[host] = address

    def _forget(self, host: str) -> None:
        del self._known[host], self._looked[host]
        self._preferred.pop(host, None)

    def close(self) -> list[asyncio.Task[Any]]:
        """Cancel the lookups and return their tasks, which need one more iteration of the loop to end."""
        return [*self._looking.close()]

    async def _look_up(self, host: str) -> list[str] | OSError | ValueError:
        """Return the addresses of ``host``, or the error of the lookup. The error is not raised, because the event loop would
        report it if no caller waits for the lookup any longer.
        """
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
    """Return the result of ``connect(address)`` for the first address that connects and passes the check ``prove(result)``.

    ``prove`` raises OSError for a connection that does not pass. The check is omitted for a single address, and for the last
    address if all other attempts have failed. The other results are passed to ``drop``.

    Args:
        addresses: One or more addresses.
        time: The caller's timeout in seconds, which limits the seconds between two attempts.

    Raises:
        OSError: If no address connects; the text joins the distinct messages of all failures.
        BaseException: Any other exception of ``connect`` or ``prove`` is raised unchanged, unless another address has passed in the
            same iteration of the loop.
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
    """The running attempts of ``first_of``.

    Attributes:
        trying: The task of each running attempt, with the result of ``connect`` while ``prove`` checks it, and None before.
        winner: The result that ``first_of`` returns; None until there is one.
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
            is_last: Whether no other attempt follows.
        """
        self._is_last = is_last
        self.trying[asyncio.ensure_future(self._attempt(address))] = None

    async def next(self, timeout: float | None) -> list[OSError]:
        """Wait at most ``timeout`` seconds for an attempt to end. Return the errors of the attempts that have failed."""
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
        """Cancel the remaining attempts, and pass to ``drop`` the results that they have produced or still produce."""
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
    """Return the host of a socket address from ``getaddrinfo``. For an IPv6 address, append its scope id (network interface), if
    any.
    """
    host = str(place[0])
    return f"{host}%{place[3]}" if len(place) == 4 and place[3] and "%" not in host else host


# Limits the hosts to which a client may connect, except its name servers.
#
# A malicious name server can return any address as a broker's address, and the client would connect to it and, with credentials,
# send it signed requests. Hosts are compared without a lookup: an allowed name may resolve to any address, and allowing an address
# does not allow a name that resolves to it.


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
