"""rmq-async: the asyncio client for Apache RocketMQ's remoting protocol.

    async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        result = await producer.send(Message("OrderTopic", b"paid", tags="eu", keys="order-17"))

Everything is loaded when it is asked for, ``embedded`` (a name server and brokers in this process), ``testing`` and ``cli`` too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq_protocol.message import Message, MessageExt, MessageQueue

    from . import embedded as embedded
    from ._loops import run
    from .admin import Admin
    from .config import ClientConfig
    from .consumer import (
        Batch,
        Consumer,
        ConsumerConfig,
        ConsumerHealth,
        ConsumerStats,
        DeadLetter,
        Delivery,
        Lag,
        Outcome,
        PullConsumer,
        Retry,
        RetryLater,
        Settled,
        Subscription,
        allocate_by_circle,
        allocate_by_hash,
        allocate_by_room,
        allocate_evenly,
        allocate_near_rooms,
        current_delivery,
    )
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
        ForbiddenError,
        ForkedError,
        HandlerTimeoutError,
        InvalidMessageError,
        NameServerError,
        OffsetRangeError,
        PermissionDeniedError,
        ProtocolError,
        QueueLostError,
        ReplyTimeoutError,
        RequestTimeoutError,
        RocketMQError,
        SelectorError,
        SendError,
        SubscriptionConflictError,
        SystemBusyError,
        TopicNotFoundError,
        TransactionError,
        WrongLoopError,
    )
    from .health import BrokerHealth, Problem, ProblemCode
    from .producer import (
        Batching,
        FaultTable,
        Hook,
        Producer,
        ProducerConfig,
        ProducerHealth,
        ProducerState,
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

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AuthenticationError",
    "BackpressureError",
    "Batch",
    "BatchSendResult",
    "Batching",
    "BrokerError",
    "BrokerHealth",
    "BrokerNotFoundError",
    "ClientConfig",
    "ClientStateError",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerHealth",
    "ConsumerStats",
    "CorruptMessageError",
    "Credentials",
    "DeadLetter",
    "Delivery",
    "FaultTable",
    "ForbiddenError",
    "ForkedError",
    "HandlerTimeoutError",
    "Hook",
    "InvalidMessageError",
    "Lag",
    "Message",
    "MessageExt",
    "MessageQueue",
    "NameServerError",
    "OffsetRangeError",
    "Outcome",
    "PermissionDeniedError",
    "Problem",
    "ProblemCode",
    "Producer",
    "ProducerConfig",
    "ProducerHealth",
    "ProducerState",
    "ProtocolError",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "QueueLostError",
    "ReplyTimeoutError",
    "RequestTimeoutError",
    "Retry",
    "RetryLater",
    "RocketMQError",
    "Selector",
    "SelectorError",
    "SendContext",
    "SendError",
    "SendResult",
    "SendStatus",
    "Settled",
    "Subscription",
    "SubscriptionConflictError",
    "SystemBusyError",
    "TopicNotFoundError",
    "TransactionError",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionStatus",
    "WrongLoopError",
    "allocate_by_circle",
    "allocate_by_hash",
    "allocate_by_room",
    "allocate_evenly",
    "allocate_near_rooms",
    "current_delivery",
    "run",
    "select_at_random",
    "select_best",
    "select_by_hash",
    "select_by_machine_room",
    "split_batches",
]

_PLACES: Final = {
    "rmq_protocol.message": "Message MessageExt MessageQueue",
    ".admin": "Admin",
    ".config": "ClientConfig",
    ".consumer": (
        "Batch Consumer ConsumerConfig ConsumerHealth ConsumerStats DeadLetter Delivery Lag Outcome PullConsumer Retry RetryLater "
        "Settled Subscription allocate_by_circle allocate_by_hash allocate_by_room allocate_evenly allocate_near_rooms "
        "current_delivery"
    ),
    ".credentials": "Credentials",
    ".errors": (
        "AuthenticationError BackpressureError BrokerError BrokerNotFoundError ClientStateError ConfigError "
        "ConnectError ConnectionLostError CorruptMessageError ForbiddenError ForkedError HandlerTimeoutError "
        "InvalidMessageError NameServerError OffsetRangeError PermissionDeniedError ProtocolError QueueLostError "
        "ReplyTimeoutError RequestTimeoutError RocketMQError SelectorError SendError SubscriptionConflictError "
        "SystemBusyError TopicNotFoundError TransactionError WrongLoopError"
    ),
    ".health": "BrokerHealth Problem ProblemCode",
    ".producer": (
        "Batching FaultTable Hook Producer ProducerConfig ProducerHealth ProducerState Selector SendContext TransactionProducer "
        "select_at_random select_best select_by_hash select_by_machine_room split_batches"
    ),
    ".results": "BatchSendResult PullResult PullStatus SendResult SendStatus TransactionSendResult TransactionStatus",
    "._loops": "run",
}
"""Public names by module. They load lazily: loading all takes 0.2 s, too long for processes that need one, like Spark's planner."""

_MODULES: Final = frozenset({"cli", "embedded", "inbox", "otel", "outbox", "testing"})
_places: Final = {name: module for module, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_places[name], __name__), name)
    return found


def __dir__() -> list[str]:
    """Return the names for users: the names in ``__all__``, the modules that load lazily, and names such as ``__version__``."""
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
