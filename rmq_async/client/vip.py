"""A broker's second port, two below the first, which takes messages and nothing else (``MixAll.brokerVIPChannel``)."""

from __future__ import annotations

from typing import Final

__all__ = ["first_port", "vip_address"]

_BELOW: Final = 2


def vip_address(address: str) -> str:
    """The address of the second port of the broker at ``address``."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - _BELOW}" if int(port) > _BELOW else address


def first_port(address: str) -> str:
    """The address of the broker whose second port is at ``address``."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + _BELOW}"
