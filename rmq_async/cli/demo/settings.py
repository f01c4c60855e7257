"""Settings of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["MAX_MESSAGES", "MAX_SIZE", "MIN_SIZE", "MODE_MESSAGES", "SPARK_MESSAGES", "DemoSettings", "spark_too_much"]

MODE_MESSAGES: Final = 5_000
SPARK_MESSAGES: Final = 20_000

MAX_MESSAGES: Final = 100_000
MIN_SIZE: Final = 32
MAX_SIZE: Final = 1024 * 1024
MAX_MEMORY: Final = 192 * 1024 * 1024
"""Maximum bytes of all messages: the embedded broker keeps 256 MiB and must drop none of them."""
RECORD_SIZE: Final = 640
"""Bytes that a broker adds to a body: record, properties, book-keeping, measured 560 at most."""
MODES: Final = 4


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Settings of a run. ``namesrv``: None starts the embedded broker. ``security``: further fields of ClientConfig for a
    cluster.

    ``timeout``: seconds for each call. ``messages``: number in each mode. ``time_limit``: seconds for everything except the
    start of the interpreter and an orderly end.
    """

    namesrv: str | None = None
    security: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 3.0
    messages: int = MODE_MESSAGES
    size: int = 128
    keep_topic: bool = False
    time_limit: float = 8.5

    def too_much(self) -> str | None:
        """Returns the reason why these messages exceed the limits of the demo, or None."""
        return _above_memory(MODES, self.messages, self.size, "in each mode")


def spark_too_much(messages: int, size: int) -> str | None:
    """Returns the reason why the demo on Spark does not send so many messages, or None. Each message is stored in two
    topics."""
    return _above_memory(2, messages, size, "twice")


def _above_memory(times: int, messages: int, size: int, how: str) -> str | None:
    needed = times * messages * (size + RECORD_SIZE)
    if needed <= MAX_MEMORY:
        return None
    taken = f"{messages} messages of {size} bytes {how} take {-(-needed >> 20)} MiB"
    return f"{taken}, the limit is {MAX_MEMORY >> 20} MiB; lower --messages or --size"
