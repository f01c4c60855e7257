"""Errors of the test kit."""

from rmq_protocol.errors import RocketMQError


class ClusterError(RocketMQError):
    """A cluster or one of its servers cannot be started, controlled or reached, or an argument is invalid.

    The text names the failed step; where a server ended or was late, it ends with the last lines of that server's log.
    """


class PortInUseError(ClusterError):
    """A server ended, and its log says that one of its ports was in use; a start with other ports may succeed."""
