"""A topic that a consumer subscribes to, its handler and its options. All are checked when the subscription is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import suppress
from math import inf
from numbers import Real
from typing import Any, Final, Literal

from rmq_protocol.errors import InvalidMessageError, shown
from rmq_protocol.heartbeat import SubscriptionData
from rmq_protocol.message import MessageExt
from rmq_protocol.subscription import SQL92, build_subscription
from rmq_protocol.validation import check_topic

from .._functions import check_arguments, check_plain, handler_name, is_async, is_generator
from ..config import check_int, check_seconds, checked_tags, plain_text
from ..errors import ConfigError
from ..timeouts import checked_timeout
from .config import MAX_CONCURRENCY, Retry
from .outcome import Batch

Handler = Callable[[MessageExt], Awaitable[object] | object] | Callable[[Batch], Awaitable[object] | object]
"""A coroutine function, or a plain function, which runs in a thread. With ``batch_size`` it takes a Batch."""
Key = Callable[[MessageExt], Hashable]
Order = Literal["key", "queue"]
MAX_BATCH: Final = 65_536
NO_KEY: Final = ""
"""The key of all messages of a queue that have none, in ``order="key"``."""


class Subscription:
    """A topic and its handler, made by ``Consumer.subscribe``.

    Args:
        tags: "*" or "a || b".
        sql: A condition over properties instead.
        timeout: Seconds for one call of the handler; None for no limit.
        retry: None for the consumer's.
        dead_letter_on: Exceptions after which the message is dead-lettered at once.
        order: None, "key" or "queue".
        key: For ``order="key"``, a function that returns the key of a message without a sharding key, None for one that needs
            no order.
        batch_size: Maximum messages of one call (1 to 65,536); None for one message instead of a Batch.
        batch_wait: Maximum seconds for which a message waits until its batch is full.
        concurrency: Maximum number of calls of the handler at a time (1 to 65,536), within that of the consumer.
        rate: Maximum messages per second. ``concurrency``, ``rate`` and ``timeout`` may be set while the consumer runs, the
            others not at all (AttributeError). An invalid value raises ConfigError; a ``timeout`` that is not a number, and a
            function that does not take its arguments, raise TypeError, a ``timeout`` that is not above 0 ValueError.
    """

    __slots__ = (
        "_changed", "_concurrency", "_rate", "_retries_here", "_task_name", "batch_size", "batch_wait", "dead_letter_on", "group",
        "handler", "is_async", "key", "name", "namespace", "order", "retry", "sql", "tags", "timeout", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        handler: Handler,
        *,
        tags: str = "*",
        sql: str | None = None,
        order: Order | None = None,
        key: Key | None = None,
        concurrency: int | None = None,
        timeout: float | None = 900.0,
        retry: Retry | None = None,
        dead_letter_on: tuple[type[Exception], ...] = (),
        batch_size: int | None = None,
        batch_wait: float = 0.0,
        rate: float | None = None,
    ) -> None:
        self.group = self.namespace = ""
        """The group of the consumer without the namespace, and the namespace, "" for none."""
        self.topic = _checked_topic(topic)
        self._task_name = f"rmq_async {self.topic}"
        """Name of all tasks of its calls: making a name for each message would take as long as settling the message."""
        self.tags = checked_tags(tags)
        self.sql = _checked_sql(sql, self.tags)
        if not callable(handler):
            raise ConfigError(f"handler must be a function of one message, or of a batch, not {shown(handler)}")
        if is_generator(handler):
            raise ConfigError(
                f"handler must not be a generator function, whose calls run nothing; {handler_name(handler)} has a yield"
            )
        check_arguments("handler", handler, "message" if batch_size is None else "batch")
        self.handler = handler
        self.name = "by hand" if handler is by_hand else handler_name(handler)
        self.is_async = is_async(handler)
        self.order = _checked_order(order)
        self._retries_here = False
        """Whether this member itself repeats failed messages, those without an order too: in broadcast, no broker takes them
        back."""
        self.key = _checked_key(key, order)
        self.timeout = timeout
        if not isinstance(retry, Retry | None):
            raise ConfigError(f"retry must be a Retry object or None, not {shown(retry)}")
        self.retry = retry
        self.dead_letter_on = _checked_errors(dead_letter_on)
        self.batch_size, self.batch_wait = _checked_batch(batch_size, batch_wait, order)
        self._changed: Callable[[], None] = _nothing
        """A function that is called when ``concurrency`` or ``rate`` changes (``on_change``)."""
        self._concurrency: int | None = None
        self.concurrency = concurrency
        self._rate: float | None = None
        self.rate = rate

    def __repr__(self) -> str:
        return f"<Subscription {self.topic} {self.sql or self.tags!r} to {self.name}>"

    @property
    def is_by_hand(self) -> bool:
        """Whether the topic is read by hand, without a handler."""
        return self.handler is by_hand

    def __setattr__(self, name: str, value: Any) -> None:
        """Check ``timeout``, which is not a property because each call of a handler reads it.

        Raises:
            AttributeError: For what is set already and may not change.
        """
        if name == "timeout" and value is not None:
            value = checked_timeout(value)
        elif name in _FIXED and hasattr(self, name):
            raise AttributeError(f"{name} of subscription {self.topic} cannot change; make another Consumer with it")
        super().__setattr__(name, value)

    @property
    def concurrency(self) -> int | None:
        """Maximum number of calls of the handler at a time; None for the consumer's limit."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, value: int | None) -> None:
        if value is not None:
            check_int("concurrency", value, 1, MAX_CONCURRENCY)
        self._concurrency = value
        self._changed()

    @property
    def rate(self) -> float | None:
        """Maximum messages per second whose calls begin in this member, on average; None for no limit."""
        return self._rate

    @rate.setter
    def rate(self, value: float | None) -> None:
        self._rate = _checked_rate(value)
        self._changed()


_FIXED: Final = frozenset(
    {"batch_size", "batch_wait", "dead_letter_on", "handler", "key", "order", "retry", "sql", "tags", "topic"}
)


# ruff: noqa: SLF001 - the functions below read what users of a subscription do not see


def on_change(subscription: Subscription, function: Callable[[], None] | None) -> None:
    """Have ``function`` called when ``concurrency`` or ``rate`` changes; None for no function."""
    subscription._changed = _nothing if function is None else function


def task_name(subscription: Subscription) -> str:
    """Return the name of all tasks of its calls."""
    return subscription._task_name


def set_retries_here(subscription: Subscription, here: bool) -> None:
    """Set whether this member itself repeats failed messages."""
    subscription._retries_here = here


def retries_here(subscription: Subscription) -> bool:
    return subscription._retries_here


def has_lines(subscription: Subscription) -> bool:
    """Return whether messages wait in lines (``Lines``): with an order, and in broadcast."""
    return subscription.order is not None or subscription._retries_here


def subscription_data(subscription: Subscription, topic: str, version: int) -> SubscriptionData:
    """Return the entry of a subscription in heartbeats (Java's ``SubscriptionData``).

    Args:
        topic: Its name on the wire.
        version: Version of the subscription, epoch ms.
    """
    if subscription.sql is not None:
        return build_subscription(topic, subscription.sql, SQL92, sub_version=version)
    return build_subscription(topic, subscription.tags, sub_version=version)


def key_of(subscription: Subscription, message: MessageExt) -> Hashable | None:
    """Return the sharding key of a message, else what ``key`` returns for it: None for a message without an order.

    Return "" for a message without a key: such messages of a queue share one line.

    Raises what ``key`` raises, and TypeError for a key that cannot be hashed, and for a key that is never equal to another one.
    """
    if message.sharding_key or subscription.key is None:
        return message.sharding_key or NO_KEY
    key = subscription.key(message)
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"key of subscription {subscription.topic} returned {type(key).__name__}, which cannot be hashed; "
            "return a str, a number or a tuple of such"
        ) from None
    if isinstance(key, Awaitable | Iterator) or key != key:
        if isinstance(key, Coroutine):
            key.close()  # it will not run, and a warning would say so once more
        raise TypeError(
            f"key of subscription {subscription.topic} returned {shown(key)}, which is equal to no other key, so that no message "
            "would wait for another one; return a str, a number or a tuple of such"
        )
    return NO_KEY if isinstance(key, str) and not key else key


async def by_hand(_: MessageExt) -> None:
    """Stand for the handler of topics that are read by hand; never called."""


def _checked_topic(topic: str) -> str:
    try:
        check_topic(topic)
    except InvalidMessageError as error:
        raise ConfigError(str(error)) from None
    return str.__str__(topic)


def _checked_sql(sql: str | None, tags: str) -> str | None:
    if sql is None:
        return None
    if not isinstance(sql, str) or not sql.strip():
        raise ConfigError(f"sql must be a condition over properties, such as \"a > 5 AND region = 'eu'\", not {shown(sql)}")
    if tags != "*":
        raise ConfigError(
            f"tags={shown(tags)} and sql={shown(sql)} exclude each other; leave tags out, and add TAGS = 'a' to the condition"
        )
    return plain_text("sql", sql)


def _checked_errors(errors: object) -> tuple[type[Exception], ...]:
    given = (errors,) if isinstance(errors, type) else errors
    if not isinstance(given, tuple) or not all(isinstance(each, type) and issubclass(each, Exception) for each in given):
        raise ConfigError(f"dead_letter_on must be a tuple of exception classes derived from Exception, not {shown(errors)}")
    return given


def _checked_batch(size: int | None, wait: float, order: str | None) -> tuple[int | None, float]:
    if size is not None:
        check_int("batch_size", size, 1, MAX_BATCH)
        if order == "key":
            raise ConfigError(
                f'batch_size={size} is not for order="key": a call takes one message of a key; leave batch_size out'
            )
    check_seconds("batch_wait", wait, zero=True)
    if wait and size is None:
        raise ConfigError(f"batch_wait={shown(wait)} needs batch_size, the maximum of a batch; set it, or leave batch_wait out")
    return size, float(wait)


def _checked_order(order: object) -> Order | None:
    if order is None or order == "key" or order == "queue":
        return order
    raise ConfigError(f'order must be "key", "queue" or None, not {shown(order)}')


def _checked_key(key: Key | None, order: object) -> Key | None:
    if key is None:
        return None
    if order != "key":
        raise ConfigError(f'key={shown(key)} is for order="key" only; set that, or leave key out')
    check_plain("key", key, "message")
    return key


def _checked_rate(rate: object) -> float | None:
    if rate is None:
        return None
    if not isinstance(rate, bool) and isinstance(rate, Real):
        with suppress(OverflowError):  # of an int that no float can hold
            number = float(rate)
            if 0 < number < inf:
                return number
    raise ConfigError(f"rate must be messages per second, a finite float above 0, or None, not {shown(rate)}")


def _nothing() -> None:
    """Do nothing: the consumer does not run."""
