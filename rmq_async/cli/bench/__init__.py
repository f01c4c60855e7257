"""The command ``rmq bench``: measures the rate at which a cluster accepts messages from this machine, and the client's CPU time
per message.
"""

from .command import bench

__all__ = ["bench"]
