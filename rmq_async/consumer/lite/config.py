"""The settings of a consumer of lite topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ...config import ClientOptions
from ...hooks import Hook
from ..config import ConsumerConfig, Retry

NO_LIMIT: Final = 9e8
"""Seconds for which leases are extended: as long as a message waits or is in hand."""


@dataclass(frozen=True, kw_only=True)
class LiteConsumerConfig:
    """Settings of a LiteConsumer. Times are in seconds, below 1e9, and above 0 unless the setting says otherwise.

    Raises:
        ConfigError: If a value is invalid.
        TypeError: If an option is unknown.
    """

    concurrency: int = 1024
    """Maximum number of lite topics whose messages are handled at a time, 1 to 65,536."""
    buffered_limit: int = 4096
    """Maximum number of messages that are held, 1 to 2^31."""
    buffered_bytes_limit: int = 64 * 1024 * 1024
    """Maximum bytes of the bodies of messages that are held, 1024 to 2^40."""
    pull_size: int = 32
    """Maximum number of messages in one pop, 1 to 32."""
    invisible_time: float = 60.0
    """Seconds for which a broker leases a message to this consumer, 1 to 7200. The lease is renewed while the message is held."""
    timeout: float | None = 900.0
    """Maximum seconds for one handler call; None for no limit."""
    retry: Retry = field(default_factory=Retry)
    """Retry settings. A failed message is handled again here, and the messages of its lite topic wait for it."""
    handover_timeout: float = 10.0
    """Seconds that running handlers have during ``stop()``."""
    stop_timeout: float = 25.0
    """Default timeout of ``stop()``, 0 or more."""
    hooks: Sequence[Hook] = ()
    """Objects with methods that are called around each handler call and each request; see Hook."""
    trace: bool | str = False
    """True sends traces of handler calls to the trace topic of the brokers; the name of a topic sends them to that topic."""
    stuck_after: float = 60.0
    """Age in seconds from which ``health()`` reports a handler call, or a failed message that blocks its lite topic."""

    def __post_init__(self) -> None:
        consumer_config(self)


def consumer_config(config: LiteConsumerConfig) -> ConsumerConfig:
    """Return the settings of the pops and handler calls."""
    given: dict[str, Any] = {each.name: getattr(config, each.name) for each in fields(config) if each.name != "timeout"}
    return ConsumerConfig(mode="pop", max_lease=NO_LIMIT, **given)


class LiteConsumerOptions(ClientOptions, total=False):
    """The options of a LiteConsumer, as keyword arguments."""

    concurrency: int
    buffered_limit: int
    buffered_bytes_limit: int
    pull_size: int
    invisible_time: float
    timeout: float | None
    retry: Retry
    handover_timeout: float
    stop_timeout: float
    hooks: Sequence[Hook]
    trace: bool | str
    stuck_after: float
