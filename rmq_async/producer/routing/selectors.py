"""Queue selectors: functions that choose the queue for a message, called as ``selector(queues, message, key)``.

A selector must return one of the queues that it is given, directly or from a coroutine, and must not block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from rmq_protocol.errors import InvalidMessageError, shown
from rmq_protocol.java_types import string_hash
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.namespace import with_namespace

from ... import machine
from ...client import check_queue
from ...errors import ConfigError, RequestTimeoutError, RocketMQError, SelectorError

TOPICS_KEPT: Final = 1024
"""Maximum number of topics whose queues are remembered. The oldest topic is dropped for a new one."""
QUEUES_KEPT: Final = 4096
"""Maximum number of queues of one topic that are remembered in addition to the current list."""


class _Topic:
    __slots__ = ("count", "start", "used")

    def __init__(self) -> None:
        self.start = machine.random.randrange(1 << 16)
        self.count = 0
        self.used: dict[MessageQueue, int] = {}


class RoundRobin:
    """Takes the queues of each topic in turn, from a random start. The number of remembered topics and queues is limited."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def next(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Return the least recently used of ``queues``, which must not be empty and must belong to one topic."""
        name = queues[0].topic
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= TOPICS_KEPT:
                self._topics.pop(next(iter(self._topics)), None)
            topic = self._topics[name] = _Topic()
        used, start = topic.used, topic.start % len(queues)
        chosen = min((*queues[start:], *queues[:start]), key=lambda queue: used.get(queue, 0))
        if len(used) >= QUEUES_KEPT + len(queues):
            topic.used = used = {queue: used[queue] for queue in queues if queue in used}
        topic.count += 1
        used[chosen] = topic.count
        return chosen


Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue | Awaitable[MessageQueue]]
"""A function that chooses a queue. It is called as ``selector(queues, message, key)``, returns one of ``queues`` or an awaitable of
one, and must not block."""

Pick = Callable[[Sequence[MessageQueue]], MessageQueue]
"""The function that ``select_best`` calls. It returns the next of the queues in turn."""

_NO_QUEUES: Final = "there are no queues to choose from; pass at least one to the selector"

_pick: ContextVar[Pick] = ContextVar("rmq_async select_best", default=RoundRobin().next)


class QueueChoice(msgspec.Struct, frozen=True):
    """The caller's choice of a queue: either the queue itself, or a selector, a key, or both."""

    queue: MessageQueue | None
    selector: Selector | None
    key: Any


def choice_of(
    message: Message, queue: MessageQueue | None, selector: Selector | None, key: Any, namespace: str = ""
) -> QueueChoice | None:
    """Return the caller's choice, or None. The default key is the message's sharding key.

    Raises:
        InvalidMessageError: If the message has a lite topic or a priority, and the caller chooses a queue.
        ConfigError, SelectorError: The errors of ``checked_choice``.
    """
    if key is None:
        key = message.sharding_key
    if queue is None and selector is None and key is None:
        return None
    if message.lite_topic is not None or message.priority is not None:
        given = "queue" if queue is not None else "selector" if selector is not None else "key"
        what = "priority" if message.lite_topic is None else "lite_topic"
        raise InvalidMessageError(f"the {what} of a message determines its queue; leave out {given}, or {what}")
    return checked_choice(message.topic, queue, selector, key, namespace)


def checked_choice(
    topic: str, queue: MessageQueue | None, selector: Selector | None, key: Any, namespace: str = ""
) -> QueueChoice:
    """Return the caller's choice.

    Args:
        namespace: The namespace. Topics are accepted with and without its prefix.

    Raises:
        ConfigError: If ``check_queue`` refuses ``queue``.
        SelectorError: If ``queue`` belongs to another topic.
    """
    if queue is not None:
        queue = check_queue(queue)
        if queue.topic != topic and with_namespace(namespace, queue.topic) != with_namespace(namespace, topic):
            raise SelectorError(
                f"queue {queue.queue_id} of {shown(queue.broker_name)} belongs to topic {shown(queue.topic)}, but the message is "
                f"for topic {shown(topic)}; pass a queue of that topic"
            )
    return QueueChoice(queue, selector, key)


def select_best(queues: Sequence[MessageQueue], message: Message, key: Any = None) -> MessageQueue:
    """Select queues by round robin for each topic, from a random start. This is the default ``queue_selector``.

    Skip queues of brokers that the sending producer avoids (``latency_fault``) if there are others. A user's selector may call this
    function with some of its queues. Outside of a send, it is a plain round robin.

    Raises:
        SelectorError: If ``queues`` is empty.
    """
    if not queues:
        raise SelectorError(_NO_QUEUES)
    return _pick.get()(queues)


class picking:  # noqa: N801 - used as a function; contextlib.contextmanager takes three times as long
    """A context manager during which ``select_best`` calls ``pick``, even in coroutines that are awaited inside it."""

    __slots__ = ("_pick", "_token")

    def __init__(self, pick: Pick) -> None:
        self._pick = pick

    def __enter__(self) -> None:
        self._token = _pick.set(self._pick)

    def __exit__(self, *_: object) -> None:
        _pick.reset(self._token)


def select_at_random(queues: Sequence[MessageQueue], message: Message, key: Any = None) -> MessageQueue:
    """Select a queue uniformly at random (Java's ``SelectMessageQueueByRandom``).

    Raises:
        SelectorError: If ``queues`` is empty.
    """
    if not queues:
        raise SelectorError(_NO_QUEUES)
    return queues[machine.random.randrange(len(queues))]


_MAX_HASHES: Final = 4096
_MAX_CACHED_KEY: Final = 128
_hashes: dict[str, int] = {}
"""Cached hashes of short keys."""


def select_by_hash(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    """Select the queue that Java's ``SelectMessageQueueByHash`` selects for the same ``key`` and the same queues.

    Args:
        key: A str, bool or int. A 32-bit int has the hash of Java's Integer, and a larger int has the hash of Long.

    Raises:
        SelectorError: If the key has another type or is an int outside the signed 64-bit range, or if ``queues`` is empty.
    """
    if not queues:
        raise SelectorError(_NO_QUEUES)
    value = hash_of(key) if key.__class__ is str else java_hash(key)
    return queues[abs(value) % len(queues)]  # Java has abs(value % n), where % truncates


def hash_of(key: str) -> int:
    """Return ``java_hash`` of a string. Hashes of short strings are cached."""
    value = _hashes.get(key)
    if value is None:
        value = string_hash(key)
        if len(key) <= _MAX_CACHED_KEY:
            if len(_hashes) >= _MAX_HASHES:
                _hashes.clear()
            _hashes[key] = value
    return value


def select_by_machine_room(rooms: Mapping[str, str]) -> Selector:
    """Return a selector that uses only the queues of one machine room. The ``key`` of a send is the room to use.

    The selector chooses among the queues of that room as ``select_best`` does. It raises SelectorError if the room has no queues.

    Args:
        rooms: The room of each broker, by broker name. The mapping is copied.

    Raises:
        ConfigError: If ``rooms`` is not a mapping, or has a key that is not a str.
    """
    if not isinstance(rooms, Mapping) or not all(isinstance(broker, str) for broker in rooms):
        raise ConfigError(f"rooms must be a mapping of broker names to rooms, not {shown(rooms)}")
    room_of = dict(rooms)

    def select_in_machine_room(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
        here = [queue for queue in queues if key is not None and room_of.get(queue.broker_name) == key]
        if not here:
            known = ", ".join(
                sorted({f"{queue.broker_name} in {room_of.get(queue.broker_name, 'no room')}" for queue in queues})
            )
            raise SelectorError(
                f"no queue of topic {message.topic} is in machine room {shown(key)}; the key must be the room "
                f"of one of its brokers: {known or 'no queues'}"
            )
        return select_best(here, message)

    return select_in_machine_room


def ask(
    selector: Selector, queues: Sequence[MessageQueue], message: Message, key: object
) -> MessageQueue | Awaitable[MessageQueue]:
    """Call the selector and return its queue or awaitable.

    Raises:
        SelectorError: If the selector raises an error. A RocketMQError of the selector is raised unchanged.
    """
    try:
        return selector(queues, message, key)
    except RocketMQError:
        raise
    except (Exception, asyncio.CancelledError) as error:  # without an await, a CancelledError is the selector's own
        raise _raised(selector, error) from error


async def awaited(selector: Selector, choosing: Awaitable[MessageQueue], deadline: float) -> MessageQueue:
    """Await the queue that a selector chooses.

    Raises:
        SelectorError: If the selector raises an error. A RocketMQError of the selector is raised unchanged.
        RequestTimeoutError: If the selector has not returned at ``deadline``.
    """
    scope = asyncio.timeout(max(0.0, deadline - machine.monotonic()))
    try:
        async with scope:
            return await choosing
    except RocketMQError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _raised(selector, error) from error  # something that the selector awaited was cancelled, not this call
    except Exception as error:
        if not isinstance(error, TimeoutError) or not scope.expired():
            raise _raised(selector, error) from error
    finally:
        del scope  # breaks a cycle: scope, task, its error, and the traceback with this frame
    # Raised outside of the handler, because a TimeoutError as __context__ would keep the scope alive as well.
    raise RequestTimeoutError(
        f"selector {_name(selector)} returned no queue before the call's deadline; make it faster or use a longer timeout",
        maybe_stored=False,
    )


def one_of(chosen: MessageQueue, queues: Sequence[MessageQueue], selector: Selector, deadline: float) -> MessageQueue:
    """Return ``chosen`` if it is valid.

    Raises:
        SelectorError: If ``chosen`` is not one of ``queues``.
        RequestTimeoutError: If ``deadline`` has passed.
    """
    if chosen not in queues:
        raise SelectorError(
            f"selector {_name(selector)} returned {shown(chosen)}, which is not one of the queues that it was given; "
            "return one of these"
        )
    late = machine.monotonic() - deadline
    if late >= 0:  # a message that is written now would be stored after the caller got an error
        text = (
            f"selector {_name(selector)} returned a queue {late:.3g} s after the call's deadline, so this attempt was not sent"
        )
        raise RequestTimeoutError(f"{text}; make the selector faster or use a longer timeout", maybe_stored=False)
    return chosen


def _raised(selector: Selector, error: BaseException) -> SelectorError:
    text = f"selector {_name(selector)} raised {type(error).__name__}: {error}"
    return SelectorError(f"{text}; it must return one of the queues that it is given")


def _name(selector: Selector) -> str:
    return getattr(selector, "__qualname__", None) or repr(selector)


def java_hash(key: str | bool | int) -> int:
    """Return the ``hashCode()`` of the Java String, Boolean, Integer or Long with this value, a signed 32-bit number.

    Raises:
        SelectorError: If the key has another type or is an int outside the signed 64-bit range.
    """
    if isinstance(key, str):
        return string_hash(key)
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int):
        if -0x80000000 <= key <= 0x7FFFFFFF:
            return key
        if -(1 << 63) <= key < 1 << 63:
            bits = key & 0xFFFFFFFFFFFFFFFF
            value = (bits ^ bits >> 32) & 0xFFFFFFFF
            return value - (1 << 32) if value & 0x80000000 else value
        raise SelectorError(f"an int key must be from -2^63 to 2^63 - 1, not {shown(key)}; use a str for larger numbers")
    raise SelectorError(f"the key of select_by_hash must be a str, bool or int, not {type(key).__name__}")
