"""The settings of an outbox, which are checked when the object is created."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import check_int, check_seconds, plain_fields

_MAX_BATCH = 10_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The numeric arguments of ``Outbox``, whose docstring explains them."""

    lease: float
    poll_interval: float
    batch_size: int
    stuck_after: float
    stuck_attempts: int
    stuck_period: float
    status_interval: float

    def __post_init__(self) -> None:
        plain_fields(self)
        for name in ("lease", "poll_interval", "stuck_after", "stuck_period", "status_interval"):
            check_seconds(name, getattr(self, name))
        check_int("batch_size", self.batch_size, 1, _MAX_BATCH)
        check_int("stuck_attempts", self.stuck_attempts, 1, 1 << 31)
