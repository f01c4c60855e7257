"""Errors of the test kit."""

from rmq_protocol.errors import RocketMQError


class ClusterError(RocketMQError):
    """Raised if a cluster or one of its servers cannot be started, controlled or reached, or if an argument is invalid.

    The message names the failed step. If a server ended or was late, the message ends with the last lines of that server's log.
    """


class PortInUseError(ClusterError):
    """Raised if a server ended and its log reports that one of its ports was in use. A start with other ports may succeed."""
