"""``rmq outbox``: the relay of an outbox as a process of its own, and its table looked after from outside.

SQLAlchemy is imported once a command runs.
"""

from .command import outbox

__all__ = ["outbox"]
