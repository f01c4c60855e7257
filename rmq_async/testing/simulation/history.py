"""The history of a run: the calls of all producers, when and how they ended, and the events of machines."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, Self
from unittest.mock import patch

from rmq_protocol.message import Message, MessageExt

from ...producer import Producer, TransactionProducer
from ...producer.transactions import Checks
from ...results import SendResult, TransactionStatus
from ...transport import Connection

_METHODS: Final = (
    (Producer, "send"), (Producer, "send_batch"), (Producer, "send_oneway"), (Producer, "request"), (Producer, "recall"),
    (TransactionProducer, "send_in_transaction"), (Producer, "send_async"), (Producer, "send_batch_async"),
)  # fmt: skip


@dataclass(slots=True)
class Event:
    """One entry of the history.

    Attributes:
        time: Seconds since the beginning of the simulation.
        machine: Name of the machine.
        what: The name of a method of a producer ("send") or of an event of the machine ("crash", "restart").
        details: For a call, "topic", "ended" (the time, or None), "results" and "error". For an event, its arguments.
    """

    time: float
    machine: str
    what: str
    details: Mapping[str, Any]


@dataclass(slots=True)
class Call:
    """One call of a producer.

    Attributes:
        ended: The time at which the call ended. None for a call that had not ended when its machine crashed or the run ended.
    """

    began: float
    machine: str
    what: str
    producer: int
    topic: str
    bodies: tuple[bytes, ...]
    """Digests of the messages' bodies."""
    budget: float
    """Maximum duration of the whole call in seconds."""
    delayed: bool = False
    retries: int = 2
    retry_codes: Collection[int] = ()
    ordered_by: str | None = None
    """The key, sharding key or queue that was passed to the call."""
    clock: float = 0.0
    """Time of the machine's monotonic clock at the beginning of the call, in seconds."""
    ended: float | None = None
    took: float | None = None
    """Duration of the call by the machine's monotonic clock, in seconds."""
    results: tuple[SendResult, ...] = ()
    error: BaseException | None = None

    @property
    def maybe_stored(self) -> bool:
        """Whether the messages may be stored although the call did not succeed."""
        if self.ended is None or isinstance(self.error, asyncio.CancelledError):
            return True
        return bool(getattr(self.error, "maybe_stored", False))


class History:
    """The record of calls and of events of machines.

    Args:
        now: A function that returns the seconds since the beginning of the simulation.
        clock: A function that returns the monotonic time, in seconds, of the machine whose code is running.
        current: A function that returns the name of the machine whose code is running.
        begun: A function that is called with the producer and the call when a call begins.
    """

    def __init__(
        self,
        now: Callable[[], float],
        clock: Callable[[], float],
        current: Callable[[], str],
        begun: Callable[[Producer, Call], None],
    ) -> None:
        self.calls: list[Call] = []
        self.happened: list[Event] = []
        self.checks = Counter[str]()
        """Number of transaction checks that clients received, by the unique id of the message, not counting checks whose COMMIT
        no broker confirmed in time."""
        self.open = True
        """Whether calls are recorded. False while the coroutines of a dead process end."""
        self._now = now
        self._clock = clock
        self._current = current
        self._begun = begun
        self._producers: dict[Producer, int] = {}

    def record(self, machine: str, what: str, **details: object) -> None:
        self.happened.append(Event(self._now(), machine, what, details))

    def events(self) -> list[Event]:
        """Return the calls and the other events in the order of their times."""
        calls = [Event(call.began, call.machine, call.what, _details(call)) for call in self.calls]
        return sorted([*self.happened, *calls], key=lambda event: event.time)

    def begin(self, producer: Producer, what: str, messages: Any, options: Mapping[str, Any]) -> Call:
        given = [each for each in _each(messages) if isinstance(each, Message)]
        first = given[0] if given else None
        by = options.get("queue") or options.get("key") or (None if first is None else first.sharding_key)
        call = Call(
            self._now(),
            self._current(),
            what,
            self._producers.setdefault(producer, len(self._producers)),
            "" if first is None else first.topic,
            tuple(digest(each.body) for each in given),
            options.get("timeout") or producer.config.timeout,
            any(_is_delayed(each) for each in given),
            producer.config.async_retries if what.endswith("_async") else producer.config.retries,
            producer.config.retry_codes,
            None if by is None else str(by),
            self._clock(),
        )
        if self.open:
            self.calls.append(call)
            self._begun(producer, call)
        return call

    def end(self, call: Call, result: Any, error: BaseException | None) -> None:
        if not self.open:
            return
        call.ended, call.error = self._now(), error
        call.took = self._clock() - call.clock
        results = getattr(result, "results", None)
        if isinstance(result, SendResult):
            call.results = (result,)
        elif results is not None:
            call.results = tuple(results)


class Recording(ExitStack):
    """A context in which the calls of producers and the transaction checks that clients receive are added to a history."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def __enter__(self) -> Self:
        for owner, name in _METHODS:
            self._replace(owner, name, self._method)
        self._replace(Checks, "take", self._check)
        self._replace(Checks, "_confirmed", self._end_of_check)
        return self

    def _replace(self, owner: type, name: str, wrapped: Callable[[str, Any], Any]) -> None:
        self.enter_context(patch.object(owner, name, wrapped(name, getattr(owner, name))))

    def _method(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that records its calls. A call that returns a future ends when the future is done."""
        history = self._history

        @wraps(method)
        async def recorded(self: Producer, *args: Any, **options: Any) -> Any:
            call = history.begin(self, name, _messages(args, options), options)
            try:
                result = await method(self, *args, **options)
            except BaseException as error:
                history.end(call, None, error)
                raise
            if isinstance(result, asyncio.Future):
                result.add_done_callback(lambda done: _end_of(history, call, done))
            else:
                history.end(call, result, None)
            return result

        return recorded

    def _check(self, _: str, method: Callable[..., None]) -> Callable[..., None]:
        history = self._history

        @wraps(method)
        def taken(self: Checks, connection: Connection, header: Any, message: MessageExt) -> None:
            history.checks[message.msg_id] += 1
            method(self, connection, header, message)

        return taken

    def _end_of_check(self, _: str, method: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
        history = self._history

        @wraps(method)
        async def confirmed(self: Checks, connection: Connection, command: Any, end: Any, status: TransactionStatus) -> bool:
            known = await method(self, connection, command, end, status)
            if not known and status is TransactionStatus.COMMIT:
                history.checks[end.msg_id] -= 1
            return known

        return confirmed


def _messages(args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Return the first positional argument of a call, or else its ``message`` or ``messages``. Return None if it has none of
    these.
    """
    return args[0] if args else options.get("message", options.get("messages"))


def digest(body: Any) -> bytes:
    return hashlib.blake2b(bytes(body), digest_size=12).digest()


def _end_of(history: History, call: Call, done: asyncio.Future[Any]) -> None:
    if done.cancelled():
        history.end(call, None, asyncio.CancelledError())
    else:
        error = done.exception()
        history.end(call, None if error is not None else done.result(), error)


def _is_delayed(message: Message) -> bool:
    return bool(message.delay_level) or message.delay is not None or message.deliver_at is not None


def _each(messages: Any) -> Iterable[Any]:
    return (messages,) if isinstance(messages, Message) else messages if isinstance(messages, list | tuple) else ()


def _details(call: Call) -> dict[str, Any]:
    return {"topic": call.topic, "ended": call.ended, "results": call.results, "error": call.error}
