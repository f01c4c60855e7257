"""Settings of a group consumer. They are immutable and checked when they are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Final, Literal, Protocol

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue
from rmq_protocol.pop_handles import MAX_POP_SIZE

from .._functions import check_arguments, check_plain, handler_name, is_generator
from ..config import ClientOptions, check_int, check_seconds, check_trace, plain_fields
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
"""The highest delay level of a broker with default settings, in seconds."""

AssignmentCallback = Callable[[frozenset[MessageQueue]], Awaitable[None] | None]


class Positions(Protocol):
    """The protocol of a store for the positions of a broadcast consumer. A position is the offset of the next message of a queue.

    ``start()`` calls ``load`` for each topic and raises its errors. ``load`` returns an empty mapping if no positions are stored.

    ``save`` is called with the positions of all topics if one of them has changed: in ``start()``, every ``commit_interval``, in
    ``commit()``, and when a queue is moved or leaves this member. Calls do not overlap, and each may take at most 30 s. If
    ``save`` raises, it is called again. The first of consecutive errors is logged, ``health()`` reports the last one, and
    ``commit()`` raises the error of its own call.
    """

    async def load(self, topic: str) -> Mapping[MessageQueue, int]: ...
    async def save(self, positions: Mapping[MessageQueue, int], /) -> None: ...


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Retry:
    """Settings for the repeated delivery of a message whose handler raised: the number of attempts and the delays between them.

    Brokers delay by levels: a delay is rounded up to the next level, and 2 h is the maximum. With ``mode="pop"``, the actual delay
    is between the given delay (2 h at most) and a tenth more. Ordered messages (with ``order="key"``, all except messages for which
    ``key`` returns None) and messages of broadcast members are repeated in place, after exact delays.

    Raises:
        ConfigError: If a value is invalid.
        TypeError: If a field is unknown, or a function does not take one argument.
    """

    limit: int | None = None
    """Maximum number of attempts after the first one, 0 to 1,000,000. When the last attempt fails, the message is dead-lettered.
    None means the group's ``retryMaxTimes`` at the broker (16 by default); for ordered messages and in broadcast, it means 16."""
    delays: Sequence[float] | Callable[[int], float] | None = None
    """Seconds before the second, third, ... attempt, each 0 or more and below 1e9; the last value is used for all further
    attempts. Alternatively, a function that takes the number of the failed attempt, counted from 1, and returns the seconds. None
    means the delay levels of the broker (10 s, 30 s, 1 min ... 2 h); for messages that are repeated in place, it means 1, 2, 5, 10,
    30, 30 ... s."""
    max_hold: float | None = 900.0
    """Maximum seconds for which attempts are repeated in place, while the message blocks its key or queue. After that, the message
    is dead-lettered; in broadcast, which has no dead letters, it is given up. Above 0 and below 1e9; None for no limit."""

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
        """Return the seconds between attempt ``attempt``, counted from 1, and the next attempt. Return None for the default delay.

        If ``delays`` is a function, its errors propagate, and so does the error of ``float()`` if its result is not a number.
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
    """Settings of a group consumer. Times are in seconds, below 1e9, and above 0 unless the setting says otherwise.

    ``on_assigned``, ``on_revoked``, ``on_released`` and ``on_lost`` are plain or coroutine functions that take a frozenset of
    queues. They are called on the event loop in the order of the events; each call begins after the previous call has ended or was
    cancelled. A call of a coroutine function is cancelled after ``handover_timeout`` at the latest. Errors are logged, and the
    handover continues.

    Raises:
        ConfigError: If a value is invalid, two settings exclude each other, or a setting that the mode does not use differs from
            its default.
        TypeError: If an option is unknown, or a function does not take its arguments.
    """

    mode: Literal["pull", "pop"] = "pull"
    """How the member receives messages. With "pull", members share the queues. With "pop", they share no queues, and the broker
    gives each message to one member. "pop" has no order, no ``position()`` and no handover; it requires handlers, and brokers of
    version 5.3.2 or later."""
    concurrency: int = 64
    """Maximum number of concurrent handler calls, 1 to 65,536."""
    buffered_limit: int = 4096
    """Number of unsettled messages, 1 to 2^31, at which pulls wait; a single pull may exceed it. A queue is also not pulled while
    too many of its messages wait for a handler: the limit is the largest of ``concurrency``, twice ``pull_size``, and two
    batches."""
    buffered_bytes_limit: int = 64 * 1024 * 1024
    """Size of the bodies of unsettled messages in bytes, 1024 to 2^40, at which pulls wait; a single pull may exceed it."""
    max_span: int = 2000
    """Maximum distance in offsets, 1 to 2^31, from the first unsettled message of a queue to the next pull of the queue. This
    limits how many messages after an unsettled one are repeated after a crash."""
    pull_size: int = 32
    """Maximum number of messages in one pull, 1 to 1024. With ``mode="pop"``, the maximum number of messages in one pop, 1 to
    32."""
    start_from: Literal["latest", "earliest"] | datetime = "latest"
    """Position at which a group without any committed offset for a topic starts: "latest", "earliest" or an aware datetime."""
    out_of_range: Literal["earliest", "latest", "stop"] = "earliest"
    """Position to continue at if the next message of a queue has been deleted: "earliest" for the first message, "latest" for the
    end of the queue. With "stop", the member stops reading the queue until ``seek()`` is called, and ``health()`` reports it."""
    above_end: Literal["end", "earliest", "stop"] = "end"
    """Position to continue at if a queue has lost messages below the group's offset, because the store of its broker was replaced
    by an older copy, or a replica without these messages became the master. "end" means the first message that this member has not
    read; for a member that has just begun to read the queue, it means the lowest end that the member has seen. "earliest" means the
    first message. "stop" is the same as for ``out_of_range``."""
    commit_interval: float = 1.0
    """Seconds between two commits of changed offsets."""
    rebalance_interval: float = 20.0
    """Maximum seconds between two requests for the members of the group. Notifications of brokers and changes of routes cause
    further requests."""
    allocate: Allocate = allocate_evenly
    """Function that computes this member's share of the queues; all members must use the same function."""
    handover_timeout: float = 10.0
    """Maximum seconds for which a queue that moves to another member waits for its running handlers; after that, they are
    cancelled. With ``mode="pop"``, the time that running handlers have during ``stop()``."""
    stop_timeout: float = 25.0
    """Default timeout of ``stop()``, 0 or more."""
    broadcast: bool | Positions = False
    """True, or an object with ``load`` and ``save`` (Positions), makes this member handle all messages of its topics and share
    nothing with other members. With True, positions are kept in memory for this run; with an object, they are kept in the object.
    Broadcast requires handlers."""
    invisible_time: float = 60.0
    """Seconds for which a broker leases a popped message to this member, 1 to 7200. The member renews the lease while it holds the
    message."""
    max_lease: float = 3600.0
    """Maximum seconds that a lease lasts, including its renewals; at least ``invisible_time``."""
    on_conflict: Literal["warn", "raise"] = "warn"
    """Reaction if members of the group have different subscriptions, or another process has this member's client id. "warn" logs
    a WARNING. "raise" also makes ``start()`` raise SubscriptionConflictError."""
    on_assigned: AssignmentCallback | None = None
    """Called with new queues before their first pulls."""
    on_revoked: AssignmentCallback | None = None
    """Called with queues that are being given up, before the wait for their handlers."""
    on_released: AssignmentCallback | None = None
    """Called after ``on_revoked``, when the offsets of the queues are committed and their locks released, or these attempts have
    failed."""
    on_lost: AssignmentCallback | None = None
    """Called with queues whose locks another member holds, or may hold."""
    retry: Retry = field(default_factory=Retry)
    """Retry settings of subscriptions that have no ``retry`` of their own."""
    hooks: Sequence[Hook] = ()
    """Objects with methods that are called around each handler call and each request; see Hook."""
    trace: bool | str = False
    """True sends traces of handler calls to the trace topic of the brokers; the name of a topic sends them to that topic."""
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
                    f"start_from must be an aware datetime, and {start.isoformat()} has no time zone; give it a tzinfo such as UTC"
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
                raise ConfigError(f"{name} must be None or a function that takes a frozenset of queues, not {shown(function)}")
            if function is not None and is_generator(function):
                raise ConfigError(
                    f"{name} must not be a generator function, because calling one does not run its body; "
                    f"remove the yield from {handler_name(function)}"
                )
            if function is not None:
                check_arguments(name, function, "queues")

    def _check_broadcast(self) -> None:
        positions: object = self.broadcast
        if positions is False:
            return
        if isinstance(positions, type):
            raise ConfigError(f"broadcast={shown(positions)} is a class; pass an instance of it")
        if positions is not True and not all(callable(getattr(positions, name, None)) for name in ("load", "save")):
            raise ConfigError(f"broadcast must be True, False or an object with load() and save(), not {shown(positions)}")
        if positions is not True:
            check_arguments("load", positions.load, "topic")  # type: ignore[attr-defined]
            check_arguments("save", positions.save, "positions")  # type: ignore[attr-defined]
        if self.mode != "pull":
            raise ConfigError(
                f"broadcast and mode={self.mode!r} exclude each other, because with pop a broker gives each message to one member; "
                "leave one out"
            )
        if self.allocate is not allocate_evenly:
            raise ConfigError(
                f"broadcast and allocate={shown(self.allocate)} exclude each other, because each member reads all queues; leave "
                "one out"
            )

    def _check_mode(self) -> None:
        """Raise ConfigError for settings that the mode does not use, and for values outside the limits of the mode."""
        useless = _OF_PULL if self.mode == "pop" else _OF_POP
        for item in fields(self):
            if item.name in useless and getattr(self, item.name) != item.default:
                other = "pull" if self.mode == "pop" else "pop"
                raise ConfigError(
                    f"{item.name}={shown(getattr(self, item.name))} requires mode={other!r}; leave it out, or set that mode"
                )
        if self.mode == "pull":
            return
        if self.pull_size > MAX_POP_SIZE:
            raise ConfigError(f"pull_size={self.pull_size} is above {MAX_POP_SIZE}, the maximum for one pop; lower it")
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
"""Settings that only pull mode uses; ``_OF_POP`` has the settings that only pop mode uses. In the other mode, a value other than
the default is refused."""


class ConsumerOptions(ClientOptions, total=False):
    """The fields of ConsumerConfig and ClientConfig as keyword arguments of consumers."""

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
