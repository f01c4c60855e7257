"""Free ports for servers on this machine.

Ports are drawn at random below (or above) the kernel's range for outgoing connections, if enough ports are outside of that
range. Inside the range, any client's connection may take the port of a broker that is down for a moment, and a client that
keeps connecting to a closed port of the range can even connect to itself. A port may still be taken between this check and the
server's bind, so starts are repeated.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ._errors import ClusterError

BROKER_OFFSETS: Final = (0, -2, 1)
"""Offsets of a broker's ports. A broker with port p also listens on p - 2 (VIP channel) and p + 1 (HA, always on all
interfaces)."""

_random = random.SystemRandom()  # forked or equally seeded processes must not draw the same ports


def find_ports(offsets: Sequence[Sequence[int]]) -> list[int]:
    """Return one port for each entry of ``offsets``.

    An entry lists the offsets of a server's ports from the returned port. All these ports are free at this moment, and no port
    belongs to two entries.

    Raises:
        ClusterError: After 1000 tries without such a port.
    """
    candidates = _candidates()
    taken: set[int] = set()
    ports: list[int] = []
    for wanted in offsets:
        for _ in range(1000):
            port = _random.choice(candidates)
            numbers = {port + offset for offset in wanted}
            if not numbers & taken and all(map(_is_free, numbers)):
                break
        else:
            raise ClusterError(
                f"no port p was found in 1000 tries for which p + each of {tuple(wanted)} is free; end processes that use ports"
            )
        taken |= numbers
        ports.append(port)
    return ports


def listens(pid: int, port: int) -> bool:
    """Return whether the process ``pid`` listens on the port. Without /proc, return whether any process listens on the port of
    127.0.0.1.

    A connection attempt alone could reach another process that has taken the port.
    """
    try:
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        inodes = {f"socket:[{inode}]" for table in tables for inode in _listeners(table, port)}
        return bool(inodes) and any(_link(pid, entry) in inodes for entry in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        if Path("/proc/self/net").exists():
            return False  # the process has just ended
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _listeners(table: str, port: int) -> Iterator[str]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            yield fields[9]


def _link(pid: int, entry: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{entry}")
    except OSError:  # closed in the meantime
        return ""


def _candidates() -> range:
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    return range(10_000, low - 2) if low >= 12_000 else range(high + 3, 65_534) if high < 64_000 else range(10_000, 65_534)


def _is_free(port: int) -> bool:
    """Return whether a socket can bind as the servers do (SO_REUSEADDR, all interfaces) and listen. The check includes
    listening because two sockets that only bind do not collide.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True
