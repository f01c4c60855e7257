"""The command ``rmq outbox``: runs the relay of an outbox as a separate process, and inspects and maintains its table.

SQLAlchemy is imported only when a command runs.
"""

from .command import outbox

__all__ = ["outbox"]
