"""The command ``rmq top``: a live view of topics, groups and brokers."""

from .command import top

__all__ = ["top"]
