"""Settings of a group consumer: immutable, checked when made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue
from rmq_protocol.pop_handles import MAX_POP_SIZE

from .._functions import check_arguments, check_plain, handler_name, is_generator
from ..config import ClientConfig, ClientOptions, check_int, check_seconds, check_trace, client_options, plain_fields
from ..errors import ConfigError
from ..hooks import Hook, checked_hooks
from ..options import suggests_keywords
from ..timeouts import LONG_INTERVAL, warn_of_milliseconds
from .strategies import Allocate, allocate_evenly

MAX_CONCURRENCY: Final = 65_536
MAX_PULL_SIZE: Final = 1024
MIN_INVISIBLE_TIME: Final = 1.0
MAX_INVISIBLE_TIME: Final = 7200.0
MAX_DELAY: Final = 7200.0
"""Seconds of the highest delay level of a stock broker."""

AssignmentCallback = Callable[[frozenset[MessageQueue]], Awaitable[None] | None]


class Positions(Protocol):
    """The protocol of a store for the positions of a broadcast consumer: the offset of the next message by queue.

    ``load`` is called in ``start()`` for each topic; it returns an empty mapping if none are stored, and ``start()`` raises its
    errors. ``save`` gets the positions of all topics if one has changed: in ``start()``, each ``commit_interval``, in
    ``commit()``, and when a queue is moved or leaves this member; one call at a time, each for at most 30 s. Of
    consecutive errors the first is logged; ``health()`` shows the last one, and it is called again; ``commit()`` also raises
    them.
    """

    async def load(self, topic: str) -> Mapping[MessageQueue, int]: ...
    async def save(self, positions: Mapping[MessageQueue, int], /) -> None: ...


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Retry:
    """Settings for the repeated delivery of a message whose handler raised: number and delays.

    Brokers delay by levels: the next level at or above a delay is used, 2 h for more. With ``mode="pop"`` the delay itself (2 h at
    most) and up to a tenth more passes. Ordered messages (in ``order="key"`` all except messages for which ``key`` returns None)
    and messages of broadcast members are repeated in place, after exact delays.

    Raises:
        ConfigError: A value is invalid.
        TypeError: A field is unknown, or a function does not take one argument.
    """

    limit: int | None = None
    """Attempts after the first one, 0 to 1,000,000; when the last one fails, the message is dead-lettered. None for the group's
    ``retryMaxTimes`` at the broker (16 unless set), and for 16 with ordered messages and in broadcast."""
    delays: Sequence[float] | Callable[[int], float] | None = None
    """Seconds before the second, third, ... attempt, 0 or more and below 1e9 each, the last one repeated; or a function that
    takes the number of the failed attempt, counted from 1, and returns the seconds. None for the broker's ladder (10 s, 30 s, 1
    min ... 2 h), in place for 1, 2, 5, 10, 30, 30 ... s."""
    max_hold: float | None = 900.0
    """Seconds for which attempts are repeated in place, while the message blocks its key or queue, before it is dead-lettered;
    in broadcast, which has no dead letters, the message is given up. Above 0 and below 1e9; None for no limit."""

    def __post_init__(self) -> None:
        plain_fields(self)
        if self.limit is not None:
            check_int("limit", self.limit, 0, 1_000_000)
        if self.max_hold is not None:
            check_seconds("max_hold", self.max_hold)
        if self.delays is None:
            return
        if callable(self.delays):
            check_plain("delays", self.delays, "attempt")
            return
        given: object = self.delays
        if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence) or not given:
            raise ConfigError(
                f"delays must be a list or tuple of one or more numbers of seconds, a function or None, not {shown(self.delays)}"
            )
        for delay in self.delays:
            check_seconds("delays: each", delay, zero=True)
        object.__setattr__(self, "delays", tuple(self.delays))

    def delay_after(self, attempt: int) -> float | None:
        """Return the seconds between attempt ``attempt``, counted from 1, and the next one; None for the default.

        Raise the errors of ``delays`` if that is a function, and the errors of ``float()`` for its result.
        """
        delays = self.delays
        if delays is None:
            return None
        if callable(delays):
            return float(delays(attempt))
        return float(delays[min(attempt, len(delays)) - 1])


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """Settings of a group consumer. Times are seconds, above 0 unless said otherwise and below 1e9.

    The functions of ``on_assigned`` and its siblings are plain or coroutine functions of a frozenset of queues. They are called on
    the loop in the order of the events, each when the call before has ended or was cancelled; a call of a coroutine function is
    cancelled after ``handover_timeout`` at the latest. Errors are logged, and the handover continues.

    Raises:
        ConfigError: A value is invalid, two settings exclude each other, or a setting that the mode does not use has another
            value than its default.
        TypeError: An option is unknown, or a function does not take its arguments.
    """

    mode: Literal["pull", "pop"] = "pull"
    """How messages come: "pull", or "pop", with which members share no queues: the broker gives each message to one member.
    "pop" has no order, no ``position()`` and no handover, and requires handlers and brokers of 5.3.2 or later."""
    concurrency: int = 64
    """Handler calls at a time, 1 to 65,536."""
    buffered_limit: int = 4096
    """Pulls wait while this number of messages is pulled and not settled, 1 to 2^31; single pulls may exceed it. A queue is
    also not pulled while many of its messages wait for a handler: ``concurrency``, twice ``pull_size`` or two batches,
    whichever is most."""
    buffered_bytes_limit: int = 64 * 1024 * 1024
    """Pulls wait while the bodies of these messages have this number of bytes, 1024 to 2^40; single pulls may exceed it."""
    max_span: int = 2000
    """A queue is not pulled while its next pull is this number of offsets, 1 to 2^31, or more after its first unsettled
    message. It limits the messages behind an unsettled one that are repeated after a crash."""
    pull_size: int = 32
    """Messages that one pull requests at most, 1 to 1024; with ``mode="pop"`` the size of a pop, 32 at most."""
    start_from: Literal["latest", "earliest"] | datetime = "latest"
    """Position at which a group without any committed offset for a topic starts: "latest", "earliest" or an aware datetime."""
    out_of_range: Literal["earliest", "latest", "stop"] = "earliest"
    """Position to continue at if the next message of a queue is deleted: "earliest" for the first message, "latest" for the
    end. "stop" reads the queue no further until ``seek()``, and ``health()`` reports it."""
    above_end: Literal["end", "earliest", "stop"] = "end"
    """Position to continue at if a queue has lost messages below the group's offset, because its broker's store was replaced by
    an older one, or a replica without them has become the master: "end" for the first message that this member has not read,
    or, if it has just begun to read the queue, for the lowest end that it has seen; "earliest" for the first message; "stop" as
    in ``out_of_range``."""
    commit_interval: float = 1.0
    """Seconds between two commits of changed offsets."""
    rebalance_interval: float = 20.0
    """Seconds at most between two requests for the members of the group. Notices of brokers and changes of routes cause further
    requests."""
    allocate: Allocate = allocate_evenly
    """Function that computes this member's share of the queues; all members must have the same."""
    handover_timeout: float = 10.0
    """Seconds for which a queue that moves to another member waits for its running handlers, before they are cancelled; with
    ``mode="pop"`` the time of running handlers at a stop."""
    stop_timeout: float = 25.0
    """Default timeout of ``stop()``, 0 or more."""
    broadcast: bool | Positions = False
    """True, or an object with ``load`` and ``save`` (Positions): this member handles all messages of its topics, shares nothing
    with the others, and keeps its positions in memory for this run, or in the object. It requires handlers."""
    invisible_time: float = 60.0
    """Seconds for which a broker gives a popped message to this member, 1 to 7200. The member renews the lease while it holds
    the message."""
    max_lease: float = 3600.0
    """Seconds for which a lease is renewed at most; at least ``invisible_time``."""
    on_conflict: Literal["warn", "raise"] = "warn"
    """Reaction if members of the group have different subscriptions, or another process has this member's client id: "warn"
    logs a WARNING, "raise" also raises SubscriptionConflictError from ``start()``."""
    on_assigned: AssignmentCallback | None = None
    """Called with new queues before their first pulls."""
    on_revoked: AssignmentCallback | None = None
    """Called with queues that are given up, before the wait for their handlers."""
    on_released: AssignmentCallback | None = None
    """Called after ``on_revoked``, when the queues were committed and unlocked as far as possible."""
    on_lost: AssignmentCallback | None = None
    """Called with queues whose locks another member has, or may have."""
    retry: Retry = field(default_factory=Retry)
    """Retry of subscriptions without their own."""
    hooks: Sequence[Hook] = ()
    """Functions around each handler call and request, see Hook."""
    trace: bool | str = False
    """True reports the calls of handlers to the brokers' trace topic, the name of a topic to that topic."""
    stuck_after: float = 60.0
    """Age in seconds from which ``health()`` reports a handler call, or a failed message that blocks its key or queue."""

    def __post_init__(self) -> None:
        plain_fields(self)
        check_int("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        check_int("buffered_limit", self.buffered_limit, 1, 1 << 31)
        check_int("buffered_bytes_limit", self.buffered_bytes_limit, 1024, 1 << 40)
        check_int("max_span", self.max_span, 1, 1 << 31)
        check_int("pull_size", self.pull_size, 1, MAX_PULL_SIZE)
        for name in ("commit_interval", "rebalance_interval", "handover_timeout", "invisible_time", "max_lease", "stuck_after"):
            check_seconds(name, getattr(self, name))
        check_seconds("stop_timeout", self.stop_timeout, zero=True)
        for name in ("commit_interval", "rebalance_interval", "handover_timeout", "stop_timeout"):
            warn_of_milliseconds(name, getattr(self, name), least=LONG_INTERVAL)
        object.__setattr__(self, "hooks", checked_hooks(self.hooks))
        check_trace(self.trace)
        self._check_choices()
        self._check_mode()

    def _check_choices(self) -> None:
        start = self.start_from
        if isinstance(start, datetime):
            if start.utcoffset() is None:
                raise ConfigError(
                    f"start_from must be an aware datetime, {start.isoformat()} has no time zone; give it a tzinfo such as UTC"
                )
        elif start not in ("latest", "earliest"):
            raise ConfigError(f'start_from must be "latest", "earliest" or an aware datetime, not {shown(start)}')
        if self.out_of_range not in ("earliest", "latest", "stop"):
            raise ConfigError(f'out_of_range must be "earliest", "latest" or "stop", not {shown(self.out_of_range)}')
        if self.above_end not in ("end", "earliest", "stop"):
            raise ConfigError(f'above_end must be "end", "earliest" or "stop", not {shown(self.above_end)}')
        if self.on_conflict not in ("warn", "raise"):
            raise ConfigError(f'on_conflict must be "warn" or "raise", not {shown(self.on_conflict)}')
        if self.mode not in ("pull", "pop"):
            raise ConfigError(f'mode must be "pull" or "pop", not {shown(self.mode)}')
        check_plain("allocate", self.allocate, "client_id", "queues", "client_ids")
        self._check_broadcast()
        if not isinstance(self.retry, Retry):
            raise ConfigError(f"retry must be a Retry object, not {shown(self.retry)}")
        for name in ("on_assigned", "on_revoked", "on_released", "on_lost"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigError(f"{name} must be None or a function of a frozenset of queues, not {shown(function)}")
            if function is not None and is_generator(function):
                raise ConfigError(
                    f"{name} must not be a generator function, whose calls run nothing; {handler_name(function)} has a yield"
                )
            if function is not None:
                check_arguments(name, function, "queues")

    def _check_broadcast(self) -> None:
        positions: object = self.broadcast
        if positions is False:
            return
        if isinstance(positions, type):
            raise ConfigError(f"broadcast={shown(positions)} is a class; give an object of it")
        if positions is not True and not all(callable(getattr(positions, name, None)) for name in ("load", "save")):
            raise ConfigError(f"broadcast must be True, False or an object with load() and save(), not {shown(positions)}")
        if positions is not True:
            check_arguments("load", positions.load, "topic")  # type: ignore[attr-defined]
            check_arguments("save", positions.save, "positions")  # type: ignore[attr-defined]
        if self.mode != "pull":
            raise ConfigError(
                f"broadcast and mode={self.mode!r} exclude each other: a broker gives each message of POP to one member; "
                "leave one out"
            )
        if self.allocate is not allocate_evenly:
            raise ConfigError(
                f"broadcast and allocate={shown(self.allocate)} exclude each other, because each member reads all queues; leave "
                "one out"
            )

    def _check_mode(self) -> None:
        """Raise ConfigError for settings that the mode does not use, and for values outside of its limits."""
        useless = _OF_PULL if self.mode == "pop" else _OF_POP
        for item in fields(self):
            if item.name in useless and getattr(self, item.name) != item.default:
                other = "pull" if self.mode == "pop" else "pop"
                raise ConfigError(
                    f"{item.name}={shown(getattr(self, item.name))} is for mode={other!r}; leave it out, or set that mode"
                )
        if self.mode == "pull":
            return
        if self.pull_size > MAX_POP_SIZE:
            raise ConfigError(f"pull_size={self.pull_size} is above {MAX_POP_SIZE}, the maximum of one pop; lower it")
        if not MIN_INVISIBLE_TIME <= self.invisible_time <= MAX_INVISIBLE_TIME:
            raise ConfigError(
                f"invisible_time must be {MIN_INVISIBLE_TIME:g} to {MAX_INVISIBLE_TIME:g} seconds, not {shown(self.invisible_time)}"
            )
        if self.max_lease < self.invisible_time:
            least = shown(self.invisible_time)
            raise ConfigError(f"max_lease must be at least invisible_time ({least} s), not {shown(self.max_lease)}")


_OF_POP: Final = frozenset({"invisible_time", "max_lease"})
_OF_PULL: Final = frozenset(
    {
        "max_span", "out_of_range", "above_end", "commit_interval", "rebalance_interval", "allocate",
        "on_assigned", "on_revoked", "on_released", "on_lost",
    }
)  # fmt: skip
"""Settings of pull mode only, as ``_OF_POP`` of pop mode: in the other mode, a value other than the default is refused."""


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
    above_end: Literal["end", "earliest", "stop"]
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
    """Sort keyword options into the two configs.

    Raises:
        TypeError: For an unknown option and for a config of another type.
        ConfigError: For an invalid value.
    """
    merged = client_options(owner, namesrv, client, options, _FIELDS)
    if not isinstance(config, ConsumerConfig | None):
        raise TypeError(f"config must be a ConsumerConfig object, not {shown(config)}")
    given: dict[str, Any] = {name: value for name, value in options.items() if name in _FIELDS}
    consuming = config if config is not None else ConsumerConfig()
    return merged, replace(consuming, **given) if given else consuming
