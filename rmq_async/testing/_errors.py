"""Errors of the test kit."""

from __future__ import annotations

from rmq_protocol.errors import RocketMQError

__all__ = ["ClusterError", "PortInUseError"]


class ClusterError(RocketMQError):
    """The real cluster cannot be started or controlled; says what was tried and ends with the server's own last lines."""


class PortInUseError(ClusterError):
    """A server ended because somebody else had one of its ports; whoever starts it tries again."""
