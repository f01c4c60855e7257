"""Settings and faults of the pops of a broker: an administrator sets the former, a test the latter."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from .arguments import check_delay, check_one_of

PopStore = Literal["log", "kv"]

LOG_DELAY: Final = 2.0
"""Seconds from the end of an invisible time to the redelivery with check points in the revive log; the minimum at a real broker."""
KV_DELAY: Final = 0.5
"""Seconds from the end of an invisible time to the redelivery with the key-value store (``PopConsumerService``)."""
NO_POPS: Final = "4.9.7"
"""The version of ``EmbeddedRocketMQ`` whose brokers have no pops."""


class PopSettings(NamedTuple):
    """The settings of pops.

    Attributes:
        store: "kv" keeps check points as with ``popConsumerKVServiceEnable``.
        retry_v2: Retry topics have their newer name (``enableRetryTopicV2``).
        revive_delay: Seconds from the end of an invisible time to the redelivery; None: ``LOG_DELAY`` or ``KV_DELAY``, by the
            store.
    """

    store: PopStore = "log"
    retry_v2: bool = False
    revive_delay: float | None = None

    @property
    def delay_ms(self) -> int:
        """Milliseconds from the end of an invisible time to the redelivery."""
        usual = KV_DELAY if self.store == "kv" else LOG_DELAY
        return round(1000 * (usual if self.revive_delay is None else self.revive_delay))


def checked_settings(store: PopStore, revive_delay: float | None, *, retry_v2: bool) -> PopSettings:
    """Return the settings.

    Raises:
        TypeError: For a delay that is not a number.
        ValueError: For another store and for a delay out of range.
    """
    check_one_of("pop_store", store, get_args(PopStore))
    if revive_delay is not None:
        check_delay("pop_revive_delay", revive_delay)
    return PopSettings(store, retry_v2, revive_delay)


class PopFaults:
    """The faults of the next pops.

    Attributes:
        empty: Number of pops that get no messages even if there are some.
        lost_acks: Number of acknowledging requests that are answered but have no effect.
        late_ms: Additional ms before messages are delivered again.
        copies: Number of copies of each such message.
    """

    def __init__(self) -> None:
        self.empty = 0
        self.lost_acks = 0
        self.late_ms = 0
        self.copies = 1

    def take_empty(self) -> bool:
        """Return whether this pop gets no messages, and count it."""
        taken = self.empty > 0
        self.empty -= taken
        return taken

    def take_lost_ack(self) -> bool:
        """Return whether this request to acknowledge has no effect, and count it."""
        taken = self.lost_acks > 0
        self.lost_acks -= taken
        return taken
