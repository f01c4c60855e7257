"""Consumers of single lite topics (RocketMQ 5.5 and later), with a handler or as streams.

``lite_subscriptions`` keeps the lite topics of a consumer at the brokers. ``lite_session`` pops their messages.
"""

from .config import LiteConsumerConfig
from .lite_consumer import LiteConsumer
from .lite_subscriptions import LiteStart, Tail
from .stream import LiteStream
