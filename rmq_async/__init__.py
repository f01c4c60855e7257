"""rmq-async: the asyncio client for Apache RocketMQ's remoting protocol.

    async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        result = await producer.send(Message("OrderTopic", b"paid", tags="eu", keys="order-17"))

All names load lazily, including the modules ``embedded`` (a name server and brokers in this process), ``testing`` and ``cli``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq_protocol.message import Message as Message
    from rmq_protocol.message import MessageExt as MessageExt
    from rmq_protocol.message import MessageQueue as MessageQueue

    from . import embedded as embedded
    from ._loops import run as run
    from .admin import Admin as Admin
    from .config import ClientConfig as ClientConfig
    from .consumer import Batch as Batch
    from .consumer import Consumer as Consumer
    from .consumer import ConsumerConfig as ConsumerConfig
    from .consumer import ConsumerHealth as ConsumerHealth
    from .consumer import ConsumerStats as ConsumerStats
    from .consumer import DeadLetter as DeadLetter
    from .consumer import Delivery as Delivery
    from .consumer import Lag as Lag
    from .consumer import LiteConsumer as LiteConsumer
    from .consumer import LiteConsumerConfig as LiteConsumerConfig
    from .consumer import LiteStart as LiteStart
    from .consumer import LiteStream as LiteStream
    from .consumer import Outcome as Outcome
    from .consumer import PullConsumer as PullConsumer
    from .consumer import Retry as Retry
    from .consumer import RetryLater as RetryLater
    from .consumer import Settled as Settled
    from .consumer import Subscription as Subscription
    from .consumer import Tail as Tail
    from .consumer import allocate_by_circle as allocate_by_circle
    from .consumer import allocate_by_hash as allocate_by_hash
    from .consumer import allocate_by_room as allocate_by_room
    from .consumer import allocate_evenly as allocate_evenly
    from .consumer import allocate_near_rooms as allocate_near_rooms
    from .consumer import current_delivery as current_delivery
    from .credentials import Credentials as Credentials
    from .errors import AuthenticationError as AuthenticationError
    from .errors import BackpressureError as BackpressureError
    from .errors import BrokerError as BrokerError
    from .errors import BrokerNotFoundError as BrokerNotFoundError
    from .errors import ClientStateError as ClientStateError
    from .errors import ConfigError as ConfigError
    from .errors import ConnectError as ConnectError
    from .errors import ConnectionLostError as ConnectionLostError
    from .errors import CorruptMessageError as CorruptMessageError
    from .errors import ForbiddenError as ForbiddenError
    from .errors import ForkedError as ForkedError
    from .errors import HandlerTimeoutError as HandlerTimeoutError
    from .errors import InvalidMessageError as InvalidMessageError
    from .errors import LiteQuotaError as LiteQuotaError
    from .errors import LiteSubscriptionLostError as LiteSubscriptionLostError
    from .errors import LiteSubscriptionQuotaError as LiteSubscriptionQuotaError
    from .errors import LiteTopicQuotaError as LiteTopicQuotaError
    from .errors import NameServerError as NameServerError
    from .errors import OffsetRangeError as OffsetRangeError
    from .errors import PermissionDeniedError as PermissionDeniedError
    from .errors import ProtocolError as ProtocolError
    from .errors import QueueLostError as QueueLostError
    from .errors import ReplyTimeoutError as ReplyTimeoutError
    from .errors import RequestTimeoutError as RequestTimeoutError
    from .errors import RocketMQError as RocketMQError
    from .errors import SelectorError as SelectorError
    from .errors import SendError as SendError
    from .errors import SubscriptionConflictError as SubscriptionConflictError
    from .errors import SystemBusyError as SystemBusyError
    from .errors import TopicNotFoundError as TopicNotFoundError
    from .errors import TransactionError as TransactionError
    from .errors import WrongLoopError as WrongLoopError
    from .health import BrokerHealth as BrokerHealth
    from .health import Problem as Problem
    from .health import ProblemCode as ProblemCode
    from .producer import Batching as Batching
    from .producer import FaultTable as FaultTable
    from .producer import Hook as Hook
    from .producer import Producer as Producer
    from .producer import ProducerConfig as ProducerConfig
    from .producer import ProducerHealth as ProducerHealth
    from .producer import ProducerState as ProducerState
    from .producer import Selector as Selector
    from .producer import SendContext as SendContext
    from .producer import TransactionProducer as TransactionProducer
    from .producer import select_at_random as select_at_random
    from .producer import select_best as select_best
    from .producer import select_by_hash as select_by_hash
    from .producer import select_by_machine_room as select_by_machine_room
    from .producer import split_batches as split_batches
    from .results import BatchSendResult as BatchSendResult
    from .results import PullResult as PullResult
    from .results import PullStatus as PullStatus
    from .results import SendResult as SendResult
    from .results import SendStatus as SendStatus
    from .results import TransactionSendResult as TransactionSendResult
    from .results import TransactionStatus as TransactionStatus

__version__ = "0.1.0"

_PLACES: Final = {
    "rmq_protocol.message": "Message MessageExt MessageQueue",
    ".admin": "Admin",
    ".config": "ClientConfig",
    ".consumer": (
        "Batch Consumer ConsumerConfig ConsumerHealth ConsumerStats DeadLetter Delivery Lag LiteConsumer LiteConsumerConfig "
        "LiteStart LiteStream Outcome PullConsumer Retry RetryLater Settled Subscription Tail allocate_by_circle allocate_by_hash "
        "allocate_by_room allocate_evenly allocate_near_rooms current_delivery"
    ),
    ".credentials": "Credentials",
    ".errors": (
        "AuthenticationError BackpressureError BrokerError BrokerNotFoundError ClientStateError ConfigError "
        "ConnectError ConnectionLostError CorruptMessageError ForbiddenError ForkedError HandlerTimeoutError "
        "InvalidMessageError LiteQuotaError LiteSubscriptionLostError LiteSubscriptionQuotaError "
        "LiteTopicQuotaError NameServerError OffsetRangeError PermissionDeniedError ProtocolError QueueLostError "
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
"""Public names by module. They load lazily, because loading all of them takes 0.2 s, which is too long for processes that need only
one, such as Spark's planner."""

_MODULES: Final = frozenset({"cli", "embedded", "inbox", "otel", "outbox", "testing"})
_places: Final = {name: module for module, names in _PLACES.items() for name in names.split()}
__all__ = sorted(_places)


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
