"""Limits the hosts to which a client may connect, except its name servers.

A false name server can name any address as a broker's, and the client would connect there, with signatures if it has credentials.
Hosts are compared without a look-up: an allowed name may resolve to any address, and an allowed address does not allow
a name that resolves to it.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ..config import canonical_host

__all__ = ["AllowedHosts"]


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
