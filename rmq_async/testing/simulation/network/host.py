"""The machines of a network: their addresses, ports and streams."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from errno import EADDRINUSE, EADDRNOTAVAIL, ENETUNREACH
from random import Random
from typing import Any, Final, Protocol

from ..errors import SimulationError
from ..loop import Network, SimulatedLoop
from .handshake import Attempt, Directory
from .link import system_error
from .listener import Listener, SimulatedServer
from .stream import End, Place, Wakes
from .transport import SimulatedTransport

ANY: Final = "0.0.0.0"  # noqa: S104 - of a machine that does not exist
LOCAL: Final = "127.0.0.1"
FIRST_PORT: Final = 32768
"""The first port that a kernel chooses itself (Linux's ``ip_local_port_range``)."""
LAST_PORT: Final = 60999
"""The last port that a kernel chooses itself."""
LONGEST_LOOK_UP: Final = 0.002
"""Maximum duration of a look-up of a name in seconds."""

Factory = Callable[[], asyncio.BaseProtocol]


class Names(Directory, Protocol):
    """A network, as seen by its machines."""

    def addresses_of(self, name: str) -> tuple[str, ...]:
        """Return the addresses to which a name resolves. Return no addresses for an unknown name."""

    def check_free(self, host: Host, address: str) -> None:
        """Raise SimulationError for an address that another machine has."""

    def move(self, host: Host, address: str) -> None:
        """Give a machine another address. The address must be free."""


class Host(Network):
    """The kernel of one machine. On all machines, ``name`` resolves to its ``address``; ``localhost`` resolves to the machine
    itself.
    """

    def __init__(self, name: str, address: str, names: Names, chance: Random) -> None:
        self.name = name
        self.address = address
        self.off = False
        """Whether the machine has no power."""
        self.wakes = Wakes()
        self.ends: dict[int, End] = {}
        self.ports: dict[Place, Listener] = {}
        self._names = names
        self._chance = chance
        self._attempts: dict[Attempt, None] = {}
        self._dead: list[End] = []
        """Ends of streams that a loss of power has destroyed, while their peers may still send to them."""
        self._next_port = FIRST_PORT

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"

    # -- as the loop uses it

    async def connect(
        self, loop: SimulatedLoop, factory: Factory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to the address of ``host``.

        Raises:
            OSError: As connect() of a socket raises it.
        """
        address = (await self.resolve(loop, host, port))[0][4][0]
        if ":" in address:
            raise system_error(ENETUNREACH)
        local = LOCAL if is_local(address) else self.address
        end = await self._connected(loop, (local, self._free_port()), (address, port))
        protocol = factory()
        made: asyncio.Future[None] = loop.create_future()
        transport = SimulatedTransport(loop, end, protocol, made=made)
        try:
            await made
        except BaseException:
            transport.abort()
            raise
        return transport, protocol

    async def _connected(self, loop: SimulatedLoop, local: Place, remote: Place) -> End:
        future: asyncio.Future[End] = loop.create_future()
        attempt = Attempt(self._names, self, local, remote, future)
        self._attempts[attempt] = None
        try:
            attempt.start()
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().reset()
            raise
        finally:
            attempt.end()
            self._attempts.pop(attempt, None)
            del attempt, future  # else an error would be in a cycle: error, traceback, frame, future

    def listen(self, loop: SimulatedLoop, factory: Factory, host: str | None, port: int) -> asyncio.AbstractServer:
        """Return a server that listens on one address, or on all addresses for None, "" and "0.0.0.0". Port 0 means a free
        port.

        A listener on one address cannot be reached at an address that the machine gets later.

        Raises:
            OSError: For an address that the machine does not have, and for a port that is taken.
            OverflowError: For a port outside 0-65535.
        """
        address = ANY if host in (None, "", ANY) else self._own(str(host))
        if not 0 <= port <= 65535:
            raise OverflowError(f"port must be 0-65535, not {port}")
        if port == 0:
            port = self._free_port()
        elif any(place[1] == port and (ANY in (place[0], address) or place[0] == address) for place in self.ports):
            raise system_error(
                EADDRINUSE, f"error while attempting to bind on address {(address, port)!r}: address already in use"
            )
        return SimulatedServer(loop, factory, (address, port), self.wakes, self.ports)

    async def resolve(self, loop: SimulatedLoop, host: str, port: int) -> list[tuple[Any, ...]]:
        """Resolve a name, as ``getaddrinfo`` does, after a drawn delay. An address is returned without a delay.

        Raises:
            socket.gaierror: For an unknown name.
        """
        try:
            ip = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            await asyncio.sleep(LONGEST_LOOK_UP * self._chance.random())
            addresses = (LOCAL,) if host == "localhost" else self._names.addresses_of(host)
            if not addresses:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
        else:
            addresses = (str(ip),)
            if ip.version == 6:
                return [(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(ip), port, 0, 0))]
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)) for address in addresses]

    # -- as other machines see it

    def listener(self, place: Place) -> Listener | None:
        """Return the listener at an address and port of this machine. Return None if there is no listener."""
        address, port = place
        return self.ports.get((ANY, port)) or self.ports.get((address, port))

    # -- faults

    def crash(self) -> None:
        """End the process. The kernel closes each of its streams, at random with a reset or in order, and ends its listeners."""
        self._end_process()
        for end in list(self.ends.values()):
            if not end.closed:
                if end.out.way.flip():
                    end.reset()
                else:
                    end.close()

    def power_off(self) -> None:
        """End the process and the kernel. The machine does not respond, and peers notice this only through their timeouts."""
        self._end_process()
        self.off = True
        for end in list(self.ends.values()):
            end.vanish()
            self._dead.append(end)

    def power_on(self) -> None:
        """Start the kernel. It responds with a reset to segments of earlier streams."""
        self.off = False
        dead, self._dead = self._dead, []
        for end in dead:
            end.attached = True
            end.peer.heal()

    def pause(self) -> None:
        """Stop the process. The kernel still completes handshakes and keeps bytes, up to its limits."""
        self.wakes.pause()

    def resume(self) -> None:
        """Wake the process for data that arrived during the pause. Call this method before the timers run, as an event loop
        would do.
        """
        self.wakes.resume()

    def check_move(self, address: str) -> str:
        """Check an address to which the machine is to move. Return it as a string.

        Raises:
            SimulationError: For an address to which the machine cannot move.
        """
        try:
            address = str(ipaddress.IPv4Address(str(address)))
        except ValueError:
            raise SimulationError(f"{self.name} cannot move to {address!r}: give an IPv4 address, such as 10.1.0.1") from None
        if is_local(address) or address == ANY:
            raise SimulationError(
                f"{self.name} cannot move to {address}, which no other machine can reach: give an address such as 10.1.0.1"
            )
        self._names.check_free(self, address)
        return address

    def move(self, address: str) -> None:
        """Give the machine another IPv4 address. Segments of streams at the old address are lost.

        Raises:
            SimulationError: For an address to which the machine cannot move.
        """
        address = self.check_move(address)
        self._names.move(self, address)
        self.address = address
        for end in list(self.ends.values()):
            attached = end.local[0] in (address, LOCAL)
            if attached and not end.attached:
                end.attached = True
                end.heal()
                end.peer.heal()
            end.attached = attached

    def _end_process(self) -> None:
        for attempt in self._attempts:
            attempt.end()
        self._attempts.clear()
        self.wakes.forget()
        for listener in self.ports.values():
            listener.close()
        self.ports.clear()

    # -- addresses and ports

    def _own(self, host: str) -> str:
        address = LOCAL if host == "localhost" else self.address if host == self.name else host
        if address != self.address and not is_local(address):
            raise system_error(
                EADDRNOTAVAIL, f"error while attempting to bind on address {host!r}: cannot assign requested address"
            )
        return address

    def _free_port(self) -> int:
        taken = {place[1] for place in self.ports} | {end.local[1] for end in self.ends.values()}
        for _ in range(FIRST_PORT, LAST_PORT + 1):
            port = self._next_port
            self._next_port = FIRST_PORT if port == LAST_PORT else port + 1
            if port not in taken:
                return port
        raise system_error(EADDRNOTAVAIL)


def is_local(address: str) -> bool:
    """Return whether an address is a loopback address, at which each machine reaches itself."""
    return address.startswith("127.")
