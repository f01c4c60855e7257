"""Subscriptions of a consumer: a topic, its handler and its options. The options are checked when the subscription is made."""

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
"""A coroutine function, or a plain function, which runs in a thread. With ``batch_size``, the function takes a Batch."""
Key = Callable[[MessageExt], Hashable]
Order = Literal["key", "queue"]
MAX_BATCH: Final = 65_536
NO_KEY: Final = ""
"""With ``order="key"``, the key that all messages of a queue without a key share."""


class Subscription:
    """A topic and its handler, made by ``Consumer.subscribe``.

    Args:
        tags: "*" or "a || b".
        sql: An SQL92 condition over properties, in place of tags.
        timeout: Maximum seconds for one call of the handler; None for no limit.
        retry: The retry settings; None for the settings of the consumer.
        dead_letter_on: Exceptions after which the message is dead-lettered at once.
        order: None, "key" or "queue".
        key: For ``order="key"``, a function that returns the key of a message without a sharding key. It returns None for a
            message that needs no order.
        batch_size: Maximum number of messages in one call (1 to 65,536). With None, the handler takes a single message, not a
            Batch.
        batch_wait: Maximum seconds for which a message waits for its batch to fill.
        concurrency: Maximum number of concurrent calls of the handler (1 to 65,536); the limit of the consumer also applies.
        rate: Maximum messages per second. ``concurrency``, ``rate`` and ``timeout`` may be set while the consumer runs;
            setting any other option raises AttributeError.

    Raises:
        ConfigError: For an invalid value.
        TypeError: For a ``timeout`` that is not a number, and for a function that does not take its arguments.
        ValueError: For a ``timeout`` that is not above 0.
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
        """The group of the consumer without the namespace, and the namespace. Both are "" until a consumer adds the
        subscription; the namespace is also "" if none is set."""
        self.topic = _checked_topic(topic)
        self._task_name = f"rmq_async {self.topic}"
        """The name of all tasks of its calls. It is made once, because making a name for each message would take as long as
        settling the message."""
        self.tags = checked_tags(tags)
        self.sql = _checked_sql(sql, self.tags)
        if not callable(handler):
            raise ConfigError(f"handler must be a function that takes a message or a batch, not {shown(handler)}")
        if is_generator(handler):
            raise ConfigError(
                f"handler must not be a generator function, because calling one does not run its body; "
                f"remove the yield from {handler_name(handler)}"
            )
        check_arguments("handler", handler, "message" if batch_size is None else "batch")
        self.handler = handler
        self.name = "by hand" if handler is by_hand else handler_name(handler)
        self.is_async = is_async(handler)
        self.order = _checked_order(order)
        self._retries_here = False
        """Whether this member itself repeats failed messages even without an order. This is so in broadcast, where no broker
        takes messages back."""
        self.key = _checked_key(key, order)
        self.timeout = timeout
        if not isinstance(retry, Retry | None):
            raise ConfigError(f"retry must be a Retry object or None, not {shown(retry)}")
        self.retry = retry
        self.dead_letter_on = _checked_errors(dead_letter_on)
        self.batch_size, self.batch_wait = _checked_batch(batch_size, batch_wait, order)
        self._changed: Callable[[], None] = _nothing
        """A function that is called when ``concurrency`` or ``rate`` changes; see ``on_change``."""
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
        """Check ``timeout``, and refuse to change a fixed option. ``timeout`` is not a property, because each handler call
        reads it and an attribute is faster.

        Raises:
            AttributeError: For a fixed option that is already set.
            TypeError: For a ``timeout`` that is not a number.
            ValueError: For a ``timeout`` that is not above 0.
        """
        if name == "timeout" and value is not None:
            value = checked_timeout(value)
        elif name in _FIXED and hasattr(self, name):
            raise AttributeError(
                f"{name} of subscription {self.topic} cannot be changed; set it in the subscription of another Consumer"
            )
        super().__setattr__(name, value)

    @property
    def concurrency(self) -> int | None:
        """Maximum number of concurrent calls of the handler; None for the limit of the consumer."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, value: int | None) -> None:
        if value is not None:
            check_int("concurrency", value, 1, MAX_CONCURRENCY)
        self._concurrency = value
        self._changed()

    @property
    def rate(self) -> float | None:
        """Maximum number of messages per second that this member starts to handle, on average; None for no limit."""
        return self._rate

    @rate.setter
    def rate(self, value: float | None) -> None:
        self._rate = _checked_rate(value)
        self._changed()


_FIXED: Final = frozenset(
    {"batch_size", "batch_wait", "dead_letter_on", "handler", "key", "order", "retry", "sql", "tags", "topic"}
)


# ruff: noqa: SLF001 - the functions below use private attributes, which users of a subscription do not see


def on_change(subscription: Subscription, function: Callable[[], None] | None) -> None:
    """Set the function that is called when ``concurrency`` or ``rate`` changes; None removes it."""
    subscription._changed = _nothing if function is None else function


def task_name(subscription: Subscription) -> str:
    """Return the name of all tasks of the subscription's calls."""
    return subscription._task_name


def set_retries_here(subscription: Subscription, here: bool) -> None:
    """Set whether this member itself repeats failed messages."""
    subscription._retries_here = here


def retries_here(subscription: Subscription) -> bool:
    return subscription._retries_here


def has_lines(subscription: Subscription) -> bool:
    """Return whether messages of the subscription wait in lines (``handling.lines``). They do with an order, and in broadcast."""
    return subscription.order is not None or subscription._retries_here


def subscription_data(subscription: Subscription, topic: str, version: int) -> SubscriptionData:
    """Return the entry of a subscription in heartbeats (Java's ``SubscriptionData``).

    Args:
        topic: The name of the topic on the wire.
        version: The version of the subscription, in milliseconds since the epoch.
    """
    if subscription.sql is not None:
        return build_subscription(topic, subscription.sql, SQL92, sub_version=version)
    return build_subscription(topic, subscription.tags, sub_version=version)


def key_of(subscription: Subscription, message: MessageExt) -> Hashable | None:
    """Return the key of a message: its sharding key, or else the result of ``key``.

    Return None for a message that needs no order. Return "" for a message without a key; such messages of one queue are handled one
    after the other.

    Raises:
        TypeError: For a key that cannot be hashed, and for a key that is never equal to another key. Errors of ``key`` also
            propagate.
    """
    if message.sharding_key or subscription.key is None:
        return message.sharding_key or NO_KEY
    key = subscription.key(message)
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"key of subscription {subscription.topic} returned a value of type {type(key).__name__}, which cannot be hashed; "
            "return a str, a number or a tuple of these"
        ) from None
    if isinstance(key, Awaitable | Iterator) or key != key:
        if isinstance(key, Coroutine):
            key.close()  # else "was never awaited" would be reported in addition to the error below
        raise TypeError(
            f"key of subscription {subscription.topic} returned {shown(key)}, which is not equal to any other key, so messages "
            "would not be ordered; return a str, a number or a tuple of these"
        )
    return NO_KEY if isinstance(key, str) and not key else key


async def by_hand(_: MessageExt) -> None:
    """Stand in for the handler of a topic that is read by hand. It is never called."""


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
            f"tags={shown(tags)} and sql={shown(sql)} exclude each other; leave out tags, and add TAGS = 'a' to the condition"
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
                f'batch_size={size} cannot be used with order="key", where each call takes one message; leave out batch_size'
            )
    check_seconds("batch_wait", wait, zero=True)
    if wait and size is None:
        raise ConfigError(f"batch_wait={shown(wait)} requires batch_size; set batch_size, or leave out batch_wait")
    return size, float(wait)


def _checked_order(order: object) -> Order | None:
    if order is None or order == "key" or order == "queue":
        return order
    raise ConfigError(f'order must be "key", "queue" or None, not {shown(order)}')


def _checked_key(key: Key | None, order: object) -> Key | None:
    if key is None:
        return None
    if order != "key":
        raise ConfigError(f'key={shown(key)} requires order="key"; set order="key", or leave out key')
    check_plain("key", key, "message")
    return key


def _checked_rate(rate: object) -> float | None:
    if rate is None:
        return None
    if not isinstance(rate, bool) and isinstance(rate, Real):
        with suppress(OverflowError):  # an int that is too large for a float
            number = float(rate)
            if 0 < number < inf:
                return number
    raise ConfigError(f"rate must be a finite number of messages per second above 0, or None, not {shown(rate)}")


def _nothing() -> None:
    """Do nothing. It is the ``_changed`` function while the consumer does not run."""
