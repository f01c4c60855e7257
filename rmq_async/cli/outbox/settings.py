"""The options of ``rmq outbox relay``. They are separate from ``relay``, which imports SQLAlchemy, because the help must not
need it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import ClientOptions


@dataclass(frozen=True, kw_only=True)
class RelayOptions(ClientOptions):
    """The options of ``rmq outbox relay``.

    Fields that are settings of ``rmq_async.outbox.Outbox`` have the names of its arguments.

    Attributes:
        every: Seconds between two lines of progress.
    """

    drain: bool
    every: float
    group: str
    batch_size: int
    lease: float
    poll_interval: float
    stuck_after: float
    database: str | None
    table: str
