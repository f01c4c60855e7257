"""Reading messages by queue and offset. ``__all__`` are the public names; the others are for the Spark source."""

from __future__ import annotations

from .continuity import SkippedOffsets as SkippedOffsets
from .continuity import deleted_among as deleted_among
from .pull_consumer import PullConsumer
from .pulling import PulledBody as PulledBody
from .pulling import PullRequest as PullRequest
from .pulling import pull_body as pull_body

__all__ = ["PullConsumer"]
