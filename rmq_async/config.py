"""Settings. Immutable, checked when made, with Java's defaults unless a docstring says otherwise."""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from rmq_protocol import compression
from rmq_protocol.compression import CompressionType
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, MAX_BODY_SIZE, MAX_DECOMPRESSED_SIZE, MAX_FRAME_SIZE, SerializeType
from rmq_protocol.errors import shown

from .errors import ConfigError

__all__ = ["ClientConfig", "ProducerConfig", "split_options"]

NAMESRV_ENVIRONMENT: Final = "NAMESRV_ADDR"
LONGEST: Final = 1e9
"""Seconds, 31 years; every time in a setting is shorter."""
RETRY_CODES: Final = frozenset({1, 2, 14, 16, 17, 204, 205, 1500})

_instance_name = ""


def _process_instance_name() -> str:
    """``<pid>#<8 hex>``, drawn once per process, so that clients of one process share and those of two do not."""
    global _instance_name
    if not _instance_name:
        _instance_name = f"{os.getpid()}#{secrets.token_hex(4)}"
    return _instance_name


def _forget_instance_name() -> None:
    global _instance_name
    _instance_name = ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_instance_name)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """How one client instance reaches a cluster. Producers, consumers and admins whose whole config is equal share one.

    ``namesrv``: "host:port;host:port" or a sequence of them; default: the environment's NAMESRV_ADDR. Times are seconds,
    sizes bytes. ``client_ip``: what brokers list this client as; default: the local address used towards the name server.
    ``serialize_type``: form of request headers, "json" or "rocketmq" (binary); answers are read in either form.

    Raises ConfigError for a value that cannot work.
    """

    namesrv: str | Sequence[str] | None = None
    instance_name: str = field(default_factory=_process_instance_name)
    client_ip: str | None = None
    route_poll_interval: float = 30.0
    heartbeat_interval: float = 30.0
    connect_timeout: float = 3.0
    request_timeout: float = 3.0
    idle_timeout: float = 120.0
    max_frame_size: int = MAX_FRAME_SIZE
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE
    serialize_type: str = "json"

    def __post_init__(self) -> None:
        for name in ("route_poll_interval", "heartbeat_interval", "connect_timeout", "request_timeout", "idle_timeout"):
            _check_seconds(name, getattr(self, name))
        _check_int("max_frame_size", self.max_frame_size, 1024, MAX_FRAME_SIZE * 8)
        _check_int("max_decompressed_size", self.max_decompressed_size, 1024, 1 << 31)
        if self.serialize_type not in ("json", "rocketmq"):
            raise ConfigError(f'serialize_type must be "json" or "rocketmq", not {shown(self.serialize_type)}')
        if not self.instance_name or not isinstance(self.instance_name, str):
            raise ConfigError(f"instance_name must be a non-empty text, not {shown(self.instance_name)}")
        if self.client_ip is not None and (not isinstance(self.client_ip, str) or not self.client_ip):
            raise ConfigError(f"client_ip must be a non-empty text, not {shown(self.client_ip)}")
        name_servers(self.namesrv)

    def resolved(self) -> ClientConfig:
        """The same settings with the name servers taken from the environment where none are given, as a sorted tuple."""
        given = self.namesrv if self.namesrv else os.environ.get(NAMESRV_ENVIRONMENT)
        return replace(self, namesrv=tuple(sorted(set(name_servers(given)))))

    @property
    def header_type(self) -> SerializeType:
        return SerializeType.JSON if self.serialize_type == "json" else SerializeType.ROCKETMQ


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """How a producer sends. Times are seconds, sizes bytes.

    ``timeout``: budget of a whole send call, route look-up, connecting and retries included. ``retries`` and
    ``async_retries``: further attempts after the first. ``attempt_timeout``: cap of one attempt while another broker is left
    to try; default: the remaining budget divided by the attempts left, at least 0.2 s. ``retry_codes``: broker response codes
    that another attempt may cure. ``retry_same_queue``: a send with an explicit queue, selector or key may be repeated on
    that queue (by default it gets one attempt).
    ``compress_over``: bodies of at least this many bytes are compressed and stay so if the result is smaller.
    ``async_limit``, ``oneway_limit``: messages accepted and not finished; ``pending_bytes_limit``: bytes of their bodies;
    ``broker_window``: requests per broker on the wire. ``oneway_window``: every so many one-way messages one goes as an
    ordinary request, which paces the flow; 0 turns that off and lets a stock broker drop messages without a word.
    ``stop_timeout``: how long ``stop()`` waits for unanswered sends.
    """

    timeout: float = 3.0
    retries: int = 2
    async_retries: int = 2
    attempt_timeout: float | None = None
    retry_codes: Collection[int] = RETRY_CODES
    retry_same_queue: bool = False
    compress_over: int = 4096
    compress_type: str = "zlib"
    compress_level: int = 5
    max_message_size: int = MAX_BODY_SIZE
    create_topic_key: str = AUTO_CREATE_TOPIC_KEY
    default_topic_queues: int = 4
    async_limit: int = 65535
    oneway_limit: int = 65535
    broker_window: int = 8192
    pending_bytes_limit: int = 100 * 1024 * 1024
    oneway_window: int = 1024
    stop_timeout: float = 5.0

    def __post_init__(self) -> None:
        _check_seconds("timeout", self.timeout)
        _check_seconds("stop_timeout", self.stop_timeout, zero=True)
        if self.attempt_timeout is not None:
            _check_seconds("attempt_timeout", self.attempt_timeout)
        for name, low, high in (
            ("retries", 0, 1000),
            ("async_retries", 0, 1000),
            ("compress_over", 0, 1 << 31),
            ("compress_level", 0, 22),
            ("max_message_size", 1, MAX_FRAME_SIZE - 128 * 1024),
            ("default_topic_queues", 1, 1 << 16),
            ("async_limit", 1, 1 << 31),
            ("oneway_limit", 1, 1 << 31),
            ("broker_window", 1, 1 << 31),
            ("pending_bytes_limit", 1, 1 << 40),
            ("oneway_window", 0, 1 << 31),
        ):
            _check_int(name, getattr(self, name), low, high)
        if self.compress_type not in ("zlib", "lz4", "zstd"):
            raise ConfigError(f'compress_type must be "zlib", "lz4" or "zstd", not {shown(self.compress_type)}')
        needed = {"lz4": compression.lz4_frame, "zstd": compression.zstandard}.get(self.compress_type, zlib)
        if needed is None:
            raise ConfigError(f'compress_type "{self.compress_type}" needs a package: pip install "rmq-async[compression]"')
        if self.compress_type == "zlib" and self.compress_level > 9:
            raise ConfigError(f"compress_level {self.compress_level} is above zlib's highest, 9")
        if not isinstance(self.create_topic_key, str) or not self.create_topic_key:
            raise ConfigError(f"create_topic_key must be the name of a topic, not {shown(self.create_topic_key)}")
        if not isinstance(self.retry_codes, Collection) or not all(isinstance(code, int) for code in self.retry_codes):
            raise ConfigError(f"retry_codes must be whole numbers, not {shown(self.retry_codes)}")
        object.__setattr__(self, "retry_codes", frozenset(self.retry_codes))

    @property
    def compression_kind(self) -> CompressionType:
        return CompressionType[self.compress_type.upper()]


_CLIENT_FIELDS = frozenset(item.name for item in fields(ClientConfig))
_PRODUCER_FIELDS = frozenset(item.name for item in fields(ProducerConfig))


def split_options(
    owner: str,
    namesrv: str | Sequence[str] | None,
    client: ClientConfig | None,
    options: Mapping[str, Any],
    config: ProducerConfig | None = None,
    *,
    producer: bool = False,
) -> tuple[ClientConfig, ProducerConfig]:
    """Sorts keyword options into the two configs. An unknown one, or a config of another type, is a TypeError that says so."""
    if not isinstance(client, ClientConfig | None):
        raise TypeError(f"client must be a ClientConfig, not {type(client).__name__}")
    if not isinstance(config, ProducerConfig | None):
        raise TypeError(f"config must be a ProducerConfig, not {type(config).__name__}")
    for name in options:
        if name not in _CLIENT_FIELDS and not (producer and name in _PRODUCER_FIELDS):
            raise TypeError(f"{owner}() got an unexpected keyword argument {shown(name)}")
    client_options = {name: value for name, value in options.items() if name in _CLIENT_FIELDS}
    if namesrv is not None:
        client_options["namesrv"] = namesrv
    base = client if client is not None else ClientConfig()
    merged = replace(base, **client_options) if client_options else base
    producer_options = {name: value for name, value in options.items() if name in _PRODUCER_FIELDS} if producer else {}
    sending = config if config is not None else ProducerConfig()
    return merged, replace(sending, **producer_options) if producer_options else sending


def name_servers(given: str | Sequence[str] | None) -> list[str]:
    """Addresses out of "a:1;b:2" (or commas) or a sequence of such texts; raises ConfigError for one without a port."""
    if given is None:
        return []
    if not isinstance(given, Sequence):
        raise ConfigError(f"namesrv must be a text or a sequence of texts, not {shown(given)}")
    texts = [given] if isinstance(given, str) else list(given)
    found = []
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"a name server address must be a text, not {shown(text)}")
        for part in text.replace(",", ";").split(";"):
            address = part.strip()
            if address:
                _check_address(address)
                found.append(address)
    return found


def host_and_port(address: str) -> tuple[str, int] | None:
    """Of "host:port" or "[v6]:port"; None for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65536:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def _check_address(address: str) -> None:
    if host_and_port(address) is None:
        raise ConfigError(f"name server address {shown(address)} is not host:port")


def _check_seconds(name: str, value: float, *, zero: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < LONGEST:  # NaN is neither
        raise ConfigError(f"{name} must be a number of seconds, not {shown(value)}")
    if value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{name} must be {'0 or ' if zero else ''}above 0 seconds, not {shown(value)}")


def _check_int(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, not {shown(value)}")
