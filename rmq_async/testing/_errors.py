"""Errors of the test kit."""

from __future__ import annotations

from rmq_protocol.errors import RocketMQError

__all__ = ["ClusterError", "PortInUseError"]


class ClusterError(RocketMQError):
    """The real cluster cannot be started or controlled; the text names the failed step and ends with the server's last output."""


class PortInUseError(ClusterError):
    """A server ended because another process had one of its ports; a start with other ports may succeed."""
