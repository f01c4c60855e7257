"""Detects forks, because a child process must not use its parent's sockets.

``generation()`` returns a number that changes in a forked child. Comparing this number costs only a read of a global variable;
``os.getpid()`` would cost a system call for each message.
"""

from __future__ import annotations

import os

from ..errors import ForkedError

_generation = 0


def generation() -> int:
    return _generation


def check_not_forked(since: int) -> None:
    """Raise ForkedError in a process that was forked after ``generation()`` returned ``since``."""
    if since != _generation:
        raise ForkedError("this client was started before os.fork(); make and start a new one in the child process")


def _after_fork_in_child() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
