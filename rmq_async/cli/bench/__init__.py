"""``rmq bench``: measures the rate at which a cluster takes messages from this machine, and what that costs the client."""

from __future__ import annotations

from .command import bench

__all__ = ["bench"]
