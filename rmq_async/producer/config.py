"""The settings of a producer. They are immutable, and are validated on creation."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rmq_protocol import compression
from rmq_protocol.compression import CompressionType
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, MAX_BODY_SIZE, MAX_FRAME_SIZE
from rmq_protocol.errors import shown
from rmq_protocol.validation import plain

from .._functions import check_arguments, is_generator
from .._text import type_name
from ..config import (
    LARGEST_FRAME_SIZE,
    ClientConfig,
    ClientOptions,
    check_flag,
    check_int,
    check_seconds,
    check_topic_option,
    check_trace,
    plain_fields,
    split_options,
)
from ..errors import ConfigError
from ..hooks import Hook, checked_hooks
from ..options import suggests_keywords
from ..timeouts import LONG_INTERVAL, warn_of_milliseconds
from .routing import FaultTable, Selector, select_best

BESIDE_BODY: Final = 128 * 1024
"""Bytes of a frame that are reserved for everything except the body."""

RETRY_CODES: Final = frozenset({1, 2, 14, 16, 17, 204, 205, 1500})


LANES: Final = 3
"""The default of ``lanes_per_broker``, chosen by measurements with 128-byte bodies on a stock broker (``benchmarks/send.py``). With
1, client and broker wait for each other."""


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Batching:
    """Settings for gathering single messages into batches. ``batching=True`` of a producer means ``Batching()``.

    Messages are gathered by topic and ``wait_store``. Sends whose queue is chosen (by ``queue``, ``selector``, ``key`` or a
    ``queue_selector``) are gathered by queue. Of one topic, up to ``lanes_per_broker`` requests may be in flight to each broker; of
    one queue, only one. While fewer requests are in flight, a message is sent at the end of the current loop iteration, together
    with all other messages of that iteration. Otherwise messages are gathered until one of these requests has ended, and are then
    sent together. A message with a delay, a retry topic, or a body of at least ``compress_over`` bytes is sent by itself.

    Raises:
        ConfigError: If a value is invalid.
        TypeError: If an option is unknown.
    """

    max_bytes: int = 256 * 1024
    """Maximum bytes of an encoded batch, 1 to 16,646,144. If ``max_message_size`` is smaller, it applies instead. A larger message
    is sent by itself."""
    max_messages: int = 1024
    """Maximum number of messages in a batch, 1 to 65,536. A full batch is sent without waiting for a response, unless it is
    ordered."""
    linger: float = 0.0
    """Seconds for which the first message waits for others even if no request is in flight: 0, or 0.001 to below 1e9. It waits for
    at most half of the time that any caller has left and, if the batch is not ordered, half of the producer's ``timeout``."""
    max_pending_bytes: int = 32 * 1024 * 1024
    """Maximum bytes of all bodies that are accepted and not finished, 1 to 2^40. One-way messages do not count. Further calls wait.
    If ``pending_bytes_limit`` is smaller, it applies instead. A single larger body is accepted while there are no others."""
    lanes_per_broker: int = LANES
    """Maximum number of requests of one topic in flight to one broker, 1 to 65,536. At this number, messages are
    gathered. A request that is unanswered after the producer's ``timeout`` no longer counts."""

    def __post_init__(self) -> None:
        plain_fields(self)
        check_int("max_bytes", self.max_bytes, 1, MAX_FRAME_SIZE - 128 * 1024)
        check_int("max_messages", self.max_messages, 1, 1 << 16)
        check_seconds("linger", self.linger, zero=True)
        check_int("max_pending_bytes", self.max_pending_bytes, 1, 1 << 40)
        check_int("lanes_per_broker", self.lanes_per_broker, 1, 1 << 16)


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """Settings of a producer. Times are in seconds, below 1e9 and, unless stated otherwise, above 0. Sizes are in bytes.

    Raises:
        ConfigError: If a value is invalid, the package for ``compress_type`` is not installed, or ``detector`` is True without
            ``latency_fault=True``.
        TypeError: If an option is unknown.
    """

    timeout: float = 3.0
    """Seconds for a whole send call, including the route lookup, connecting and retries."""
    retries: int = 2
    """Maximum number of attempts of ``send`` after the first one, 0 to 1000. If no broker took the request of an attempt (no
    connection, GO_AWAY, no such queue), the attempt does not count."""
    async_retries: int = 2
    """Maximum number of attempts of ``send_async`` and ``send_batch_async`` after the first one. For messages that ``batching``
    gathers, ``retries`` applies instead."""
    attempt_timeout: float | None = None
    """Seconds for one attempt while there is another untried broker. The default is the remaining time divided by the number of
    attempts left, but at least 0.2 s."""
    retry_codes: Collection[int] = RETRY_CODES
    """Response codes of brokers after which another attempt is made. Refused credentials and missing permissions are never
    retried. A missing queue is always retried, unless the caller chose the queue."""
    retry_same_queue: bool = False
    """Whether to retry a send with an explicit queue, selector or key on the same queue, up to ``retries`` times. If False, it is
    retried only if no broker took the request."""
    compress_over: int = 4096
    """Bodies of at least this many bytes are compressed, 0 to 2^31, except in ``send_batch``. The compressed body is sent only if
    it is smaller."""
    compress_type: str = "zlib"
    """The compression algorithm: "zlib", "lz4" or "zstd". The last two need the extra ``compression``."""
    compress_level: int = 5
    """The compression level: 0 to 9 for zlib, 1 to 22 for zstd. lz4 has no levels."""
    max_message_size: int = MAX_BODY_SIZE
    """Maximum bytes of an uncompressed body or an encoded batch. For more than 16,646,144, the client's ``max_frame_size`` must be
    larger by at least 131,072."""
    create_topic_key: str = AUTO_CREATE_TOPIC_KEY
    """The topic (by default TBW102) whose route is used for a topic that does not exist yet."""
    default_topic_queues: int = 4
    """Number of queues on each broker for a topic that a send creates, 1 to 65,536. It is at most the number of queues that
    ``create_topic_key`` has on that broker."""
    async_limit: int = 65535
    """Maximum number of messages that are accepted and not finished, 1 to 2^31. One-way messages do not count. Further calls
    wait."""
    oneway_limit: int = 65535
    """Maximum number of one-way messages that are accepted and not finished, 1 to 2^31. Further calls wait."""
    broker_window: int = 8192
    """Maximum number of sends in flight to one broker, 1 to 2^31. Further sends wait. On a new connection, the limit begins at 64
    and changes with the broker's responses, up to this number."""
    pending_bytes_limit: int = 100 * 1024 * 1024
    """Maximum bytes of all bodies that are accepted and not finished, 1 to 2^40. One-way messages have a limit of their own of the
    same size. A single larger call is accepted while there are no others."""
    oneway_window: int = 1024
    """At least one in this many one-way messages is sent as an ordinary request, so that the broker's responses limit the rate, 0
    to 2^31. With 0, the rate is not limited, and a stock broker may drop messages without notice."""
    stop_timeout: float = 5.0
    """Maximum seconds that ``stop()`` waits for unanswered sends, 0 or more."""
    retry_another_broker_when_not_store_ok: bool = False
    """Whether to send the message to another broker, within ``retries``, if a broker stored it without confirming its flush or
    replication. The message is then stored twice."""
    topics: Sequence[str] = ()
    """Topics whose routes ``start()`` fetches."""
    latency_fault: bool | Literal["failures"] = "failures"
    """Which brokers sends avoid. "failures" (Java: False) avoids a broker after an attempt that could not connect, timed out (after
    0.05 s or more) or lost its connection. The broker is avoided for 1 s, then gets one trial send; the time doubles after each
    failed trial, up to 30 s, until a send to it is stored. True also avoids slow brokers, for the times in ``fault_table``. False
    avoids no broker."""
    fault_table: FaultTable = FaultTable.V5
    """The times for which ``latency_fault=True`` avoids a broker."""
    detector: bool = False
    """Whether to send probe requests to brokers that did not respond. It requires ``latency_fault=True``."""
    batching: bool | Batching = False
    """Whether to gather single messages into batches while requests are in flight. A Batching turns this on with its settings."""
    queue_selector: Selector = select_best
    """The function that chooses the queue of each attempt if the call has neither a queue nor a selector. For a call with a key, it
    is called only once."""
    hooks: Sequence[Hook] = ()
    """Objects whose methods are called before and after each attempt and request; see Hook."""
    trace: bool | str = False
    """Whether to report sends as message traces: True reports to the brokers' trace topic, and a str names another topic."""
    send_smart_msg: bool = True
    """Whether to send request headers with one-letter field names (codes 310 and 320). False sends the long form (code 10), for
    servers that do not support the short form. Batches have no long form."""

    def __post_init__(self) -> None:
        plain_fields(self)
        check_seconds("timeout", self.timeout)
        check_seconds("stop_timeout", self.stop_timeout, zero=True)
        if self.attempt_timeout is not None:
            check_seconds("attempt_timeout", self.attempt_timeout)
        warn_of_milliseconds("timeout", self.timeout)
        warn_of_milliseconds("stop_timeout", self.stop_timeout, least=LONG_INTERVAL)
        warn_of_milliseconds("attempt_timeout", self.attempt_timeout or 0.0)
        for name, low, high in (
            ("retries", 0, 1000),
            ("async_retries", 0, 1000),
            ("compress_over", 0, 1 << 31),
            ("compress_level", 0, 22),
            ("max_message_size", 1, LARGEST_FRAME_SIZE - BESIDE_BODY),
            ("default_topic_queues", 1, 1 << 16),
            ("async_limit", 1, 1 << 31),
            ("oneway_limit", 1, 1 << 31),
            ("broker_window", 1, 1 << 31),
            ("pending_bytes_limit", 1, 1 << 40),
            ("oneway_window", 0, 1 << 31),
        ):
            check_int(name, getattr(self, name), low, high)
        self._check_compression()
        check_topic_option("create_topic_key", self.create_topic_key)
        if (
            isinstance(self.retry_codes, str | bytes | bytearray)
            or not isinstance(self.retry_codes, Collection)
            or not all(isinstance(code, int) and not isinstance(code, bool) for code in self.retry_codes)
        ):
            raise ConfigError(f"retry_codes must be a list or set of whole numbers, not {shown(self.retry_codes)}")
        object.__setattr__(self, "retry_codes", frozenset(map(int, self.retry_codes)))
        self._check_choosing()
        if isinstance(self.topics, str) or not isinstance(self.topics, Collection):
            raise ConfigError(f"topics must be a list or tuple of topic names, not {shown(self.topics)}")
        if not isinstance(self.batching, bool | Batching):
            raise ConfigError(f"batching must be True, False or a Batching, not {shown(self.batching)}")
        for topic in self.topics:
            check_topic_option("topics", topic)
        object.__setattr__(self, "topics", tuple(map(plain, self.topics)))
        object.__setattr__(self, "hooks", checked_hooks(self.hooks))
        check_trace(self.trace)

    def _check_compression(self) -> None:
        if self.compress_type not in ("zlib", "lz4", "zstd"):
            raise ConfigError(f'compress_type must be "zlib", "lz4" or "zstd", not {shown(self.compress_type)}')
        needed = {"lz4": compression.lz4_frame, "zstd": compression.zstandard}.get(self.compress_type, zlib)
        if needed is None:
            raise ConfigError(f'compress_type "{self.compress_type}" needs a package: pip install "rmq-async[compression]"')
        if self.compress_type == "zlib" and self.compress_level > 9:
            raise ConfigError(f"compress_level must be 0 to 9 for zlib, not {self.compress_level}")
        if self.compress_type == "zstd" and not self.compress_level:
            raise ConfigError("compress_level must be 1 to 22 for zstd, not 0")

    def _check_choosing(self) -> None:
        for name in (
            "retry_same_queue", "retry_another_broker_when_not_store_ok", "detector", "send_smart_msg"
        ):  # fmt: skip
            check_flag(name, getattr(self, name))
        if self.latency_fault != "failures" and not isinstance(self.latency_fault, bool):
            raise ConfigError(f'latency_fault must be "failures", True or False, not {shown(self.latency_fault)}')
        if not isinstance(self.fault_table, FaultTable):
            raise ConfigError(f"fault_table must be a FaultTable, not {type_name(self.fault_table)}")
        if self.detector and self.latency_fault is not True:
            raise ConfigError(
                f"detector=True needs latency_fault=True, not {shown(self.latency_fault)}; set both, or leave out detector"
            )
        if not callable(self.queue_selector) or inspect.isclass(self.queue_selector):
            raise ConfigError(f"queue_selector must be a function, not {shown(self.queue_selector)}")
        if is_generator(self.queue_selector):
            raise ConfigError(
                f"queue_selector must not be a generator function, because a call would not run it: {shown(self.queue_selector)}"
            )
        check_arguments("queue_selector", self.queue_selector, "queues", "message", "key")

    @property
    def gathers(self) -> Batching | None:
        """The settings for gathering messages into batches. None without batching."""
        if isinstance(self.batching, Batching):
            return self.batching
        return Batching() if self.batching else None

    @property
    def compression_kind(self) -> CompressionType:
        return CompressionType[self.compress_type.upper()]


class ProducerOptions(ClientOptions, total=False):
    """The fields of ProducerConfig and ClientConfig as keyword arguments of producers."""

    timeout: float
    retries: int
    async_retries: int
    attempt_timeout: float | None
    retry_codes: Collection[int]
    retry_same_queue: bool
    compress_over: int
    compress_type: str
    compress_level: int
    max_message_size: int
    create_topic_key: str
    default_topic_queues: int
    async_limit: int
    oneway_limit: int
    broker_window: int
    pending_bytes_limit: int
    oneway_window: int
    stop_timeout: float
    retry_another_broker_when_not_store_ok: bool
    topics: Sequence[str]
    latency_fault: bool | Literal["failures"]
    fault_table: FaultTable
    detector: bool
    batching: bool | Batching
    queue_selector: Selector
    hooks: Sequence[Hook]
    trace: bool | str
    send_smart_msg: bool


def split_producer_options(
    owner: str,
    namesrv: str | Sequence[str] | None,
    client: ClientConfig | None,
    config: ProducerConfig | None,
    options: Mapping[str, object],
) -> tuple[ClientConfig, ProducerConfig]:
    """Return the two configs, as ``split_options`` does.

    Raises:
        ConfigError: If ``max_message_size`` does not fit into ``max_frame_size``. The errors of ``split_options`` propagate.
    """
    merged, sending = split_options(owner, ProducerConfig, namesrv, client, config, options)
    room = max(merged.max_frame_size, MAX_FRAME_SIZE) - BESIDE_BODY
    if sending.max_message_size > room:
        raise ConfigError(
            f"max_message_size must be at most {room} for frames of {room + BESIDE_BODY} bytes, not {sending.max_message_size}; "
            f"also set max_frame_size={sending.max_message_size + BESIDE_BODY} or more, and configure the brokers to accept frames "
            "of that size"
        )
    return merged, sending
