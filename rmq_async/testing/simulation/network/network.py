"""The network of a simulation: its machines, and the links between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from random import Random
from typing import Final

from ..errors import SimulationError
from ..scheduler import Scheduler
from .handshake import Target
from .host import ANY, Host, is_local
from .link import Link
from .stream import Observer, Side

FIRST_ADDRESS: Final = IPv4Address("10.0.0.1")
FIRST_MOVED: Final = IPv4Address("10.1.0.1")
"""The first address for machines that move."""


class SimulatedNetwork:
    """The network between the machines of a simulation.

    Args:
        generator: A function that returns a new random generator, seeded with the seed of the run and a name. Each direction of
            a link and each machine has its own generator.
        observe: A function that is called with the bytes that arrive in each direction of each stream, and at the end of a
            stream.
    """

    def __init__(self, scheduler: Scheduler, generator: Callable[[str], Random], observe: Observer | None = None) -> None:
        self.scheduler = scheduler
        self.observe = observe
        self._generator = generator
        self._hosts: dict[str, Host] = {}
        self._addresses: dict[str, Host] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._leads: dict[str, tuple[str, ...]] = {}
        self.look_ups: Counter[str] = Counter()
        """Number of look-ups of each name."""
        self._streams = 0
        self._moves = 0

    @property
    def links(self) -> tuple[Link, ...]:
        """The links that were used to send segments or that ``link`` has returned, in the order of their first use."""
        return tuple(self._links.values())

    def host(self, name: str) -> Host:
        """Return a new machine. It gets the next address from 10.0.0.1 on.

        Raises:
            SimulationError: For a name that is empty or taken ("localhost" is always taken), and if another machine has moved
                to the next address.
        """
        if not name or name in self._hosts or name == "localhost":
            text = f"there is a machine {name!r}; choose another name" if name else "the name of a machine must not be empty"
            raise SimulationError(text)
        address = str(FIRST_ADDRESS + len(self._hosts))
        if address in self._addresses:
            raise SimulationError(
                f"{name} would get {address}, to which another machine has moved; move that one to another address"
            )
        host = self._hosts[name] = self._addresses[address] = Host(name, address, self, self._generator(f"host {name}"))
        return host

    def link(self, a: str, b: str) -> Link:
        """Return the link between two machines, or from a machine to itself.

        Raises:
            SimulationError: For an unknown machine.
        """
        first, second = sorted((a, b))
        link = self._links.get((first, second))
        if link is None:
            for name in (a, b):
                if name not in self._hosts:
                    raise SimulationError(f"there is no machine {name!r}; there are {', '.join(self._hosts) or 'none'}")
            link = self._links[first, second] = Link(first, second, self.scheduler, self._generator)
        return link

    def free_address(self) -> str:
        """Return an address for a machine that moves. No machine has this address, and no earlier call has returned it."""
        while True:
            address = str(FIRST_MOVED + self._moves)
            self._moves += 1
            if address not in self._addresses:
                return address

    # -- as its machines use it

    def at(self, caller: Side, address: str) -> Target | None:
        """Return the machine that currently has an address, as seen by ``caller``. Return None if no machine has the address."""
        if is_local(address) or address == ANY:
            return self._hosts[caller.name]
        return self._addresses.get(address)

    def addresses_of(self, name: str) -> tuple[str, ...]:
        """Return the addresses to which a name resolves: the address of its machine, unless ``lead`` has set other addresses.

        Return no addresses for an unknown name. The look-up is counted.
        """
        self.look_ups[name] += 1
        host = self._hosts.get(name)
        return self._leads.get(name) or (() if host is None else (host.address,))

    def lead(self, name: str, addresses: Sequence[str]) -> None:
        """Make a machine's name resolve to these addresses, in this order. Without addresses, the name resolves to the
        machine's own address again.
        """
        self._leads[name] = tuple(addresses)

    def next_stream(self) -> int:
        self._streams += 1
        return self._streams

    def check_free(self, host: Host, address: str) -> None:
        """Raise SimulationError for an address that another machine has."""
        other = self._addresses.get(address)
        if other is not None and other is not host:
            raise SimulationError(f"{host.name} cannot move to {address}: {other.name} has it; choose another address")

    def move(self, host: Host, address: str) -> None:
        """Give a machine another address. The address must be free."""
        del self._addresses[host.address]
        self._addresses[address] = host
