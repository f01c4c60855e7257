"""rmq-async: the asyncio client for Apache RocketMQ's remoting protocol.

    async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        result = await producer.send(Message("OrderTopic", b"paid", tags="eu", keys="order-17"))

``embedded`` (a name server and brokers in this process), ``testing`` and ``cli`` are loaded when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rmq_protocol.message import Message, MessageExt, MessageQueue

from .admin import Admin
from .config import ClientConfig
from .consumer import PullConsumer
from .credentials import Credentials
from .errors import (
    AuthenticationError,
    BackpressureError,
    BrokerError,
    BrokerNotFoundError,
    ClientStateError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    CorruptMessageError,
    ForkedError,
    InvalidMessageError,
    NameServerError,
    OffsetRangeError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
    RocketMQError,
    SelectorError,
    SendError,
    SystemBusyError,
    TopicNotFoundError,
    TransactionError,
    WrongLoopError,
)
from .producer import (
    FaultTable,
    Hook,
    Producer,
    ProducerConfig,
    Selector,
    SendContext,
    TransactionProducer,
    select_at_random,
    select_best,
    select_by_hash,
    select_by_machine_room,
    split_batches,
)
from .results import (
    BatchSendResult,
    PullResult,
    PullStatus,
    SendResult,
    SendStatus,
    TransactionSendResult,
    TransactionStatus,
)
from .runner import run

if TYPE_CHECKING:
    from . import embedded as embedded

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AuthenticationError",
    "BackpressureError",
    "BatchSendResult",
    "BrokerError",
    "BrokerNotFoundError",
    "ClientConfig",
    "ClientStateError",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "CorruptMessageError",
    "Credentials",
    "FaultTable",
    "ForkedError",
    "Hook",
    "InvalidMessageError",
    "Message",
    "MessageExt",
    "MessageQueue",
    "NameServerError",
    "OffsetRangeError",
    "PermissionDeniedError",
    "Producer",
    "ProducerConfig",
    "ProtocolError",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "RequestTimeoutError",
    "RocketMQError",
    "Selector",
    "SelectorError",
    "SendContext",
    "SendError",
    "SendResult",
    "SendStatus",
    "SystemBusyError",
    "TopicNotFoundError",
    "TransactionError",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionStatus",
    "WrongLoopError",
    "run",
    "select_at_random",
    "select_best",
    "select_by_hash",
    "select_by_machine_room",
    "split_batches",
]

_LAZY = frozenset({"cli", "embedded", "otel", "testing"})


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
