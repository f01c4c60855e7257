"""Which queue a message goes to, when the caller wants a say: plain functions of (queues, message, key).

A selector must return one of the queues it is given, at once or from a coroutine, and must not block.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from time import monotonic
from typing import Any, NamedTuple

from rmq_protocol.errors import shown
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.namespace import with_namespace

from ..client.offsets import check_queue
from ..errors import ConfigError, RequestTimeoutError, RocketMQError, SelectorError
from .turns import Turns

__all__ = [
    "Pick",
    "Selector",
    "Wish",
    "ask",
    "awaited",
    "checked_wish",
    "java_hash",
    "one_of",
    "picking",
    "select_at_random",
    "select_best",
    "select_by_hash",
    "select_by_machine_room",
    "wish_of",
]

Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue | Awaitable[MessageQueue]]
"""Called as ``selector(queues, message, key)``; returns one of ``queues``, or is a coroutine function. It must not block."""

Pick = Callable[[Sequence[MessageQueue]], MessageQueue]

_pick: ContextVar[Pick] = ContextVar("rmq_async select_best", default=Turns().next)


class Wish(NamedTuple):
    """How a caller wants the queue chosen."""

    queue: MessageQueue | None
    selector: Selector | None
    key: Any


def wish_of(
    message: Message, queue: MessageQueue | None, selector: Selector | None, key: Any, namespace: str = ""
) -> Wish | None:
    """None where the caller has no say in the queue."""
    if key is None:
        key = message.sharding_key
    if queue is None and selector is None and key is None:
        return None
    return checked_wish(message.topic, queue, selector, key, namespace)


def checked_wish(topic: str, queue: MessageQueue | None, selector: Selector | None, key: Any, namespace: str = "") -> Wish:
    """``namespace``: one that topics may be given with or without.

    Raises ConfigError for something that is no queue, SelectorError for a queue of another topic than the message's.
    """
    if queue is not None:
        queue = check_queue(queue)
        if queue.topic != topic and with_namespace(namespace, queue.topic) != with_namespace(namespace, topic):
            raise SelectorError(
                f"queue {queue.queue_id} of {queue.broker_name} belongs to topic {queue.topic}, the message to {topic}"
            )
    return Wish(queue, selector, key)


def select_best(queues: Sequence[MessageQueue], message: Message, key: Any = None) -> MessageQueue:
    """The default: queues take turns, per topic, from a random start; those of brokers that are left alone are passed over.

    A selector of yours may call it with some of the queues it was given: it then knows what the producer that asks knows of its
    brokers (``latency_fault``). Outside of a producer's question queues merely take turns. Raises SelectorError without queues.
    """
    if not queues:
        raise SelectorError("there are no queues to choose from")
    return _pick.get()(queues)


class picking:  # noqa: N801 - used as a function; contextlib's way takes three times as long
    """Inside, ``select_best`` is ``pick``, also in coroutines that are awaited there."""

    __slots__ = ("_pick", "_token")

    def __init__(self, pick: Pick) -> None:
        self._pick = pick

    def __enter__(self) -> None:
        self._token = _pick.set(self._pick)

    def __exit__(self, *_: object) -> None:
        _pick.reset(self._token)


def select_at_random(queues: Sequence[MessageQueue], message: Message, key: Any = None) -> MessageQueue:
    """Any queue, evenly (``SelectMessageQueueByRandom``). Raises SelectorError without queues."""
    if not queues:
        raise SelectorError("there are no queues to choose from")
    return queues[random.randrange(len(queues))]


def select_by_hash(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    """The queue Java's ``SelectMessageQueueByHash`` picks for the same ``key``, as long as the queues stay the same.

    ``key``: str, bool or int; an int of 32 bits counts as Java's Integer, else as Long. Raises SelectorError for other types,
    and where there are no queues.
    """
    if not queues:
        raise SelectorError("there are no queues to choose from")
    return queues[abs(_remainder(java_hash(key), len(queues)))]


def select_by_machine_room(rooms: Mapping[str, str]) -> Selector:
    """A selector that stays in one machine room: ``rooms`` says in which each broker stands, ``key`` which room is wanted.

    Among the queues there it chooses as ``select_best`` does, and raises SelectorError where there are none. ``rooms`` is copied;
    ConfigError if it is no mapping of broker names to rooms.
    """
    if not isinstance(rooms, Mapping) or not all(isinstance(broker, str) for broker in rooms):
        raise ConfigError(f"rooms must be a mapping of broker names to rooms, not {shown(rooms)}")
    room_of = dict(rooms)

    def select_in_machine_room(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
        here = [queue for queue in queues if key is not None and room_of.get(queue.broker_name) == key]
        if not here:
            known = ", ".join(sorted({f"{queue.broker_name} in {room_of.get(queue.broker_name)}" for queue in queues}))
            raise SelectorError(f"no queue of topic {message.topic} is in machine room {shown(key)}: {known or 'no queues'}")
        return select_best(here, message)

    return select_in_machine_room


def ask(
    selector: Selector, queues: Sequence[MessageQueue], message: Message, key: object
) -> MessageQueue | Awaitable[MessageQueue]:
    """What the selector says. Raises SelectorError when it raises."""
    try:
        return selector(queues, message, key)
    except RocketMQError:
        raise
    except (Exception, asyncio.CancelledError) as error:  # a call that does not wait cannot be cancelled
        raise _raised(selector, error) from error


async def awaited(selector: Selector, choosing: Awaitable[MessageQueue], deadline: float) -> MessageQueue:
    """What a selector that is a coroutine says in the end; RequestTimeoutError when it says nothing until ``deadline``."""
    scope = asyncio.timeout(max(0.0, deadline - monotonic()))
    try:
        async with scope:
            return await choosing
    except RocketMQError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _raised(selector, error) from error  # what it waited for was cancelled, and not the call
    except Exception as error:
        if not isinstance(error, TimeoutError) or not scope.expired():
            raise _raised(selector, error) from error
    finally:
        del scope  # it knows the task, which keeps the error, whose traceback has this frame
    # Here: as a context the TimeoutError has a frame that knows the scope, too.
    raise RequestTimeoutError(f"selector {_name(selector)} named no queue in time", maybe_stored=False)


def one_of(chosen: MessageQueue, queues: Sequence[MessageQueue], selector: Selector, deadline: float) -> MessageQueue:
    """``chosen``; raises SelectorError when it is not one of ``queues``, RequestTimeoutError at ``deadline`` and later."""
    if chosen not in queues:
        raise SelectorError(f"selector {_name(selector)} returned {shown(chosen)}, which is not one of the queues it was given")
    late = monotonic() - deadline
    if late >= 0:  # it, or another part of the program, has blocked the loop; what is written now is sent for no caller
        text = f"selector {_name(selector)} named a queue {late:.3g} s after the time of the call was over; nothing was sent"
        raise RequestTimeoutError(text, maybe_stored=False)
    return chosen


def _raised(selector: Selector, error: BaseException) -> SelectorError:
    return SelectorError(f"selector {_name(selector)} raised {type(error).__name__}: {error}")


def _name(selector: Selector) -> str:
    return getattr(selector, "__qualname__", None) or repr(selector)


def java_hash(key: str | bool | int) -> int:
    """``hashCode()`` of the Java String, Boolean, Integer or Long with this value: 32 bits, signed."""
    if isinstance(key, str):
        return _string_hash(key)
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int):
        if -0x80000000 <= key <= 0x7FFFFFFF:
            return key
        if -(1 << 63) <= key < 1 << 63:
            bits = key & 0xFFFFFFFFFFFFFFFF
            return _signed((bits ^ bits >> 32) & 0xFFFFFFFF)
        raise SelectorError(f"key {key} does not fit 64 bits")
    raise SelectorError(f"select_by_hash takes a str, bool or int as key, not {type(key).__name__}")


def _string_hash(text: str) -> int:
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return _signed(value)


def _signed(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


def _remainder(value: int, count: int) -> int:
    """Java's ``%``: the sign follows the dividend."""
    return value % count if value >= 0 else -(-value % count)
