"""Settings of a group consumer: immutable, checked when made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue
from rmq_protocol.pop_handles import MAX_POP_SIZE

from ..config import ClientConfig, ClientOptions, check_int, check_seconds, check_trace, client_options
from ..errors import ConfigError
from ..hooks import Hook, checked_hooks
from ..options import suggests_keywords
from .strategies import Allocate, allocate_evenly

__all__ = [
    "AssignmentCallback",
    "ConsumerConfig",
    "ConsumerOptions",
    "Positions",
    "Retry",
    "split_options",
]

MAX_CONCURRENCY: Final = 65_536
MAX_PULL_SIZE: Final = 1024
MIN_INVISIBLE_TIME: Final = 1.0
MAX_INVISIBLE_TIME: Final = 7200.0
MAX_DELAY: Final = 7200.0
"""Seconds: the highest delay level of a stock broker."""

AssignmentCallback = Callable[[frozenset[MessageQueue]], Awaitable[None] | None]


class Positions(Protocol):
    """Where a broadcast consumer keeps its positions: the offset of the next message by queue.

    ``load`` is called in ``start()`` for each topic; an empty mapping where nothing is stored. ``save`` gets the positions of all
    topics whenever one has changed, at most each ``commit_interval``, one call at a time, and at the end. What it raises is logged,
    shown in ``health()``, and followed by another call.
    """

    async def load(self, topic: str) -> Mapping[MessageQueue, int]: ...
    async def save(self, positions: Mapping[MessageQueue, int], /) -> None: ...


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and when a message whose handler raised is delivered again.

    ``limit``: attempts after the first one; then the message is dead-lettered. None: the group's ``retryMaxTimes`` at the broker
    (16 unless set), 16 for ordered messages. ``delays``: seconds before the second, third, ... attempt, the last one repeated, or a
    function of the attempt that failed, counted from 1; None: the broker's ladder, 10 s, 30 s, 1 min ... 2 h. Brokers delay by
    levels: the next level at or above a delay is used. An ordered subscription repeats attempts in place, after exact delays; None
    is 1, 2, 5, 10, 30, 30 ... s. ``max_hold``: seconds for which it holds a key or queue for one message, which is dead-lettered
    then; None for no limit.

    Raises ConfigError for values out of range.
    """

    limit: int | None = None
    delays: Sequence[float] | Callable[[int], float] | None = None
    max_hold: float | None = 900.0

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_int("limit", self.limit, 0, 1_000_000)
        if self.max_hold is not None:
            check_seconds("max_hold", self.max_hold)
        if self.delays is None or callable(self.delays):
            return
        given: object = self.delays
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise ConfigError(f"delays must be one or more numbers of seconds, a function or None, not {shown(self.delays)}")
        for delay in self.delays:
            check_seconds("delays: each", delay, zero=True)
        object.__setattr__(self, "delays", tuple(self.delays))

    def delay_after(self, attempt: int) -> float | None:
        """Returns seconds before the attempt after ``attempt``, counted from 1; None for the broker's ladder."""
        delays = self.delays
        if delays is None:
            return None
        if callable(delays):
            return float(delays(attempt))
        return float(delays[min(attempt, len(delays)) - 1])


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """How a group consumer works. Times are seconds, sizes bytes.

    ``concurrency``: handler calls at a time, of the whole consumer. ``buffered_limit``, ``buffered_bytes_limit``: messages and
    bytes of bodies that are pulled and not settled, for the whole consumer; no queue is pulled while so many of its messages wait
    for a slot as two pulls bring, or two batches, or as there are slots. ``max_span``: offsets from the first unsettled message of
    a queue to the last one pulled; it bounds what a crash repeats. ``pull_size``: messages that one pull asks for.

    ``start_from``: where a group without any committed offset for a topic starts: "latest", "earliest" or an aware datetime.
    ``out_of_range``: what to do about an offset whose message is deleted: go on with the first ("earliest") or after the last
    message ("latest"), or "stop" the queue.

    ``commit_interval``: between two commits of changed offsets. ``rebalance_interval``: between two looks at the members of the
    group, which also happen at every notice of a broker. ``allocate``: a function that computes this member's share; it must be the
    same in all members. ``handover_timeout``: for which a queue that goes to another member waits for its running handlers.
    ``stop_timeout``: default of ``stop()``. ``on_conflict``: log a WARNING, or raise SubscriptionConflictError from ``start()``,
    where members of the group have different subscriptions. ``retry``: of subscriptions without their own. ``stuck_after``: age
    of a handler call from which ``health()`` names it.

    ``on_assigned``, ``on_revoked``, ``on_released``, ``on_lost``: plain or coroutine functions of a frozenset of queues, called on
    the loop, one at a time and in the order of the events, each for at most ``handover_timeout``: before the first pulls; when
    queues are given up, before the wait for their handlers; when they are committed and unlocked; when another member has their
    locks. Errors are logged, and the handover goes on.

    ``broadcast``: True, or an object with ``load`` and ``save`` (Positions): this member handles all messages of its topics, shares
    nothing with the others, and keeps its positions for this run, or in the object. It needs handlers.

    ``hooks``: see Hook. ``trace``: True reports the calls of handlers to the brokers' trace topic, a name to that topic.

    ``mode``: "pull", or "pop", with which members share no queues: the broker gives each message to one member for
    ``invisible_time`` seconds, which this member renews for as long as it holds the message, up to ``max_lease`` seconds. No order,
    no positions, no handover. ``pull_size``, then 32 at most, is that of a pop; ``handover_timeout`` is for what runs at a stop. It
    needs brokers of 5.3.2 or later, and handlers.

    Raises ConfigError for values out of range, and for settings that the mode has no use for.
    """

    mode: Literal["pull", "pop"] = "pull"
    concurrency: int = 64
    buffered_limit: int = 4096
    buffered_bytes_limit: int = 64 * 1024 * 1024
    max_span: int = 2000
    pull_size: int = 32
    start_from: Literal["latest", "earliest"] | datetime = "latest"
    out_of_range: Literal["earliest", "latest", "stop"] = "earliest"
    commit_interval: float = 1.0
    rebalance_interval: float = 20.0
    allocate: Allocate = allocate_evenly
    handover_timeout: float = 10.0
    stop_timeout: float = 25.0
    broadcast: bool | Positions = False
    invisible_time: float = 60.0
    max_lease: float = 3600.0
    on_conflict: Literal["warn", "raise"] = "warn"
    on_assigned: AssignmentCallback | None = None
    on_revoked: AssignmentCallback | None = None
    on_released: AssignmentCallback | None = None
    on_lost: AssignmentCallback | None = None
    retry: Retry = field(default_factory=Retry)
    hooks: Sequence[Hook] = ()
    trace: bool | str = False
    stuck_after: float = 60.0

    def __post_init__(self) -> None:
        check_int("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        check_int("buffered_limit", self.buffered_limit, 1, 1 << 31)
        check_int("buffered_bytes_limit", self.buffered_bytes_limit, 1024, 1 << 40)
        check_int("max_span", self.max_span, 1, 1 << 31)
        check_int("pull_size", self.pull_size, 1, MAX_PULL_SIZE)
        for name in ("commit_interval", "rebalance_interval", "handover_timeout", "invisible_time", "max_lease", "stuck_after"):
            check_seconds(name, getattr(self, name))
        check_seconds("stop_timeout", self.stop_timeout, zero=True)
        object.__setattr__(self, "hooks", checked_hooks(self.hooks))
        check_trace(self.trace)
        self._check_choices()
        self._check_mode()

    def _check_choices(self) -> None:
        start = self.start_from
        if isinstance(start, datetime):
            if start.utcoffset() is None:
                raise ConfigError(f"start_from must be an aware datetime, {start.isoformat()} has no time zone")
        elif start not in ("latest", "earliest"):
            raise ConfigError(f'start_from must be "latest", "earliest" or a datetime, not {shown(start)}')
        if self.out_of_range not in ("earliest", "latest", "stop"):
            raise ConfigError(f'out_of_range must be "earliest", "latest" or "stop", not {shown(self.out_of_range)}')
        if self.on_conflict not in ("warn", "raise"):
            raise ConfigError(f'on_conflict must be "warn" or "raise", not {shown(self.on_conflict)}')
        if self.mode not in ("pull", "pop"):
            raise ConfigError(f'mode must be "pull" or "pop", not {shown(self.mode)}')
        if not callable(self.allocate):
            raise ConfigError(f"allocate must be a function, not {shown(self.allocate)}")
        self._check_broadcast()
        if not isinstance(self.retry, Retry):
            raise ConfigError(f"retry must be a Retry, not {shown(self.retry)}")
        for name in ("on_assigned", "on_revoked", "on_released", "on_lost"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigError(f"{name} must be a function of a frozenset of queues or None, not {shown(function)}")

    def _check_broadcast(self) -> None:
        positions: object = self.broadcast
        if positions is False:
            return
        if positions is not True and not all(callable(getattr(positions, name, None)) for name in ("load", "save")):
            raise ConfigError(f"broadcast must be True, False or an object with load() and save(), not {shown(positions)}")
        if self.mode != "pull":
            raise ConfigError(
                f"broadcast and mode={self.mode!r} exclude each other: a broker gives each message of POP to one member"
            )
        if self.allocate is not allocate_evenly:
            raise ConfigError("broadcast and allocate exclude each other: each member reads all queues")

    def _check_mode(self) -> None:
        """Refuses settings that the mode has no use for."""
        useless = _OF_PULL if self.mode == "pop" else _OF_POP
        for item in fields(self):
            if item.name in useless and getattr(self, item.name) != item.default:
                other = "pull" if self.mode == "pop" else "pop"
                raise ConfigError(f"{item.name}={shown(getattr(self, item.name))} is for mode={other!r}")
        if self.mode == "pull":
            return
        if self.pull_size > MAX_POP_SIZE:
            raise ConfigError(f"pull_size={self.pull_size} is above {MAX_POP_SIZE}, the most that brokers take for one pop")
        if not MIN_INVISIBLE_TIME <= self.invisible_time <= MAX_INVISIBLE_TIME:
            raise ConfigError(
                f"invisible_time={self.invisible_time:g} is not in {MIN_INVISIBLE_TIME:g} to {MAX_INVISIBLE_TIME:g} seconds"
            )
        if self.max_lease < self.invisible_time:
            raise ConfigError(f"max_lease={self.max_lease:g} is below invisible_time={self.invisible_time:g}")


_OF_POP: Final = frozenset({"invisible_time", "max_lease"})
_OF_PULL: Final = frozenset(
    {
        "max_span", "out_of_range", "commit_interval", "rebalance_interval", "allocate",
        "on_assigned", "on_revoked", "on_released", "on_lost",
    }
)  # fmt: skip
"""Settings of one mode only: with the other one, a value other than the default is refused."""


class ConsumerOptions(ClientOptions, total=False):
    """The fields of ConsumerConfig and ClientConfig as keywords of consumers."""

    mode: Literal["pull", "pop"]
    concurrency: int
    buffered_limit: int
    buffered_bytes_limit: int
    max_span: int
    pull_size: int
    start_from: Literal["latest", "earliest"] | datetime
    out_of_range: Literal["earliest", "latest", "stop"]
    commit_interval: float
    rebalance_interval: float
    allocate: Allocate
    handover_timeout: float
    stop_timeout: float
    broadcast: bool | Positions
    invisible_time: float
    max_lease: float
    on_conflict: Literal["warn", "raise"]
    on_assigned: AssignmentCallback | None
    on_revoked: AssignmentCallback | None
    on_released: AssignmentCallback | None
    on_lost: AssignmentCallback | None
    retry: Retry
    hooks: Sequence[Hook]
    trace: bool | str
    stuck_after: float


_FIELDS: Final = frozenset(item.name for item in fields(ConsumerConfig))


def split_options(
    owner: str,
    namesrv: str | Sequence[str] | None,
    client: ClientConfig | None,
    config: ConsumerConfig | None,
    options: Mapping[str, object],
) -> tuple[ClientConfig, ConsumerConfig]:
    """Sorts keyword options into the two configs. Raises TypeError for an unknown option and for a config of another type."""
    merged = client_options(owner, namesrv, client, options, _FIELDS)
    if not isinstance(config, ConsumerConfig | None):
        raise TypeError(f"config must be a ConsumerConfig, not {type(config).__name__}")
    given: dict[str, Any] = {name: value for name, value in options.items() if name in _FIELDS}
    consuming = config if config is not None else ConsumerConfig()
    return merged, replace(consuming, **given) if given else consuming
