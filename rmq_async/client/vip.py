"""The second port of a broker, two below the first (``MixAll.brokerVIPChannel``).

It takes sends, queries and heartbeats, but no pulls (``BrokerController.registerProcessor``).
"""

from __future__ import annotations

from typing import Final

__all__ = ["first_port", "vip_address"]

_BELOW: Final = 2


def vip_address(address: str) -> str:
    """Return the second port's address of the broker at ``address``; ``address`` itself if its port is 1 or 2."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - _BELOW}" if int(port) > _BELOW else address


def first_port(address: str) -> str:
    """Return the first port's address of the broker whose second port is at ``address``."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + _BELOW}"
