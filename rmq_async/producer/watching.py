"""Hooks around the attempts of sends: a call whose producer has any carries a ``Watch``, and all others cost nothing.

Hooks see each attempt twice, before and after, however it ends. The receiver of a watched attempt is wrapped, so that hooks see
the answer before it is passed on; the code that ends an attempt without an answer reports that to them. Hooks run in the context
(of ``contextvars``) that the call was made in, each in a copy, also where an attempt begins or ends in another Task.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from rmq_protocol.batch import BatchRecord, decode_batch, encode_batch_message
from rmq_protocol.constants import MAX_PROPERTIES_SIZE, SysFlag
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.message import Message, check_properties
from rmq_protocol.properties import decode_properties, properties_text
from rmq_protocol.send_codec import SendReply
from rmq_protocol.trace import MessageType

from ..errors import ForbiddenError
from ..transport import Receiver, guarded
from .hooks import SendContext, defining
from .lanes import Target
from .outgoing import Outgoing
from .replies import reply_error

__all__ = ["AttemptsWatch", "BegunAttempt", "Sending", "Watch", "WatchedAttempt", "Watchers", "message_type", "tell_failed"]

logger = logging.getLogger("rmq_async.producer")


class Watchers:
    """The hooks of one producer, by what they define. ``active``: there is at least one that watches sends."""

    __slots__ = ("_hooks", "active", "after", "before", "checks")

    def __init__(self, hooks: Iterable[Any] = ()) -> None:
        self._hooks: tuple[Any, ...] = ()
        self._set(tuple(hooks))

    def add(self, hook: Any) -> None:
        self._set((*self._hooks, hook))

    def _set(self, hooks: tuple[Any, ...]) -> None:
        self._hooks = hooks
        self.checks: tuple[Callable[[SendContext], object], ...] = defining(hooks, "check_forbidden")
        self.before: tuple[Callable[[SendContext], object], ...] = defining(hooks, "before_send")
        self.after: tuple[Callable[[SendContext], object], ...] = defining(hooks, "after_send")
        self.active = bool(self.checks or self.before or self.after)


class AttemptsWatch(ABC):
    """Shows hooks the attempts of one call, or of one batch of several calls."""

    __slots__ = ()

    @abstractmethod
    def begin(self, outgoing: Outgoing, target: Target) -> BegunAttempt:
        """An attempt begins. Raises ForbiddenError when a hook refuses it."""

    @abstractmethod
    def give_up(self, error: BaseException) -> None:
        """It is over: attempts of which no more will be heard ended with ``error``."""


class BegunAttempt(ABC):
    """One attempt that hooks were shown, until they are shown its end."""

    __slots__ = ()

    def receiver(self, receiver: Receiver, outgoing: Outgoing, target: Target) -> Receiver:
        """Shows the hooks the answer and passes it on."""
        return _AnsweredAttempt(self, receiver, outgoing, target)

    @abstractmethod
    def added(self, outgoing: Outgoing) -> Outgoing:
        """What is sent, with the properties that hooks added."""

    @abstractmethod
    def answered(self, reply: SendReply, outgoing: Outgoing, target: Target) -> None: ...

    @abstractmethod
    def failed(self, error: BaseException) -> None: ...


class Sending(NamedTuple):
    """What hooks learn of the producer. ``max_size``: bytes of a body; the rest as in ``SendContext``."""

    group: str
    namespace: str
    born_host: str
    name_servers: tuple[str, ...]
    unit_mode: bool
    max_size: int


class Watch(AttemptsWatch):
    """The attempts of one call. ``read``: makes the result of a reply."""

    __slots__ = ("_context", "_message", "_mode", "_number", "_open", "_read", "_type", "sending", "watchers")

    def __init__(
        self,
        watchers: Watchers,
        message: Message | tuple[Message, ...],
        kind: MessageType,
        mode: str,
        read: Callable[[SendReply, Outgoing, Target, int], Any],
        sending: Sending,
    ) -> None:
        self.watchers = watchers
        self.sending = sending
        self._message = message
        self._type = kind
        self._mode = mode
        self._read = read
        self._context = copy_context()
        self._number = 0
        self._open: list[WatchedAttempt] = []

    def begin(self, outgoing: Outgoing, target: Target) -> WatchedAttempt:
        """Shows the hooks that an attempt begins. Raises ForbiddenError when one of them refuses it."""
        self._number += 1
        sending = self.sending
        context = SendContext(
            message=self._message,
            msg_ids=outgoing.batch_ids or (outgoing.unique_id,),
            queue=target.queue,
            address=target.address,
            attempt=self._number,
            message_type=self._type,
            group=sending.group,
            mode=self._mode,
            broker=target.broker,
            namespace=sending.namespace,
            born_host=sending.born_host,
            name_servers=sending.name_servers,
            unit_mode=sending.unit_mode,
        )
        for check in self.watchers.checks:
            try:
                self._context.copy().run(check, context)
            except ForbiddenError:
                raise
            except (Exception, asyncio.CancelledError) as error:
                raise ForbiddenError(f"check_forbidden {check!r} raised {type(error).__name__}: {error}") from error
        for before in self.watchers.before:
            self._context.copy().run(guarded, before, context)
        attempt = WatchedAttempt(self, context, self._read)
        self._open.append(attempt)
        return attempt

    def ended(self, attempt: WatchedAttempt) -> None:
        self._open.remove(attempt)
        for after in self.watchers.after:
            self._context.copy().run(guarded, after, attempt.context)

    def give_up(self, error: BaseException) -> None:
        """The call is over: attempts whose end is not known yet ended with ``error``."""
        for attempt in tuple(self._open):
            attempt.failed(error)


class WatchedAttempt(BegunAttempt):
    """An attempt of one call."""

    __slots__ = ("_open", "_read", "_started", "_watch", "context")

    def __init__(self, watch: Watch, context: SendContext, read: Callable[[SendReply, Outgoing, Target, int], Any]) -> None:
        self._watch = watch
        self._read = read
        self._started = monotonic()
        self._open = True
        self.context = context

    def added(self, outgoing: Outgoing) -> Outgoing:
        """The message with the properties that hooks added, a batch with them in each of its messages.

        They replace the message's own of the same name. What may not be sent is reported and left out.
        """
        added = self.context.properties
        if not added:
            return outgoing
        try:
            added = check_properties(added)
            if outgoing.batch_ids is None:
                return msgspec.structs.replace(outgoing, properties=_with_properties(outgoing.properties, added))
            body = _batch_with_properties(decode_batch(outgoing.body), added)
        except Exception as error:  # noqa: BLE001 - reported like everything else that a hook does wrong
            guarded(_raise, error)
            return outgoing
        if len(body) > self._watch.sending.max_size:
            logger.info("a batch for topic %s is too full for the properties that hooks add", outgoing.topic)
            return outgoing
        return msgspec.structs.replace(outgoing, body=body)

    def answered(self, reply: SendReply, outgoing: Outgoing, target: Target) -> None:
        result = self._read(reply, outgoing, target, self.context.attempt)
        self.end(result, None if result is not None else reply_error(reply, target))

    def failed(self, error: BaseException) -> None:
        self.end(None, error)

    def queued(self) -> None:
        """A one-way send is on its way: there is nothing more to know."""
        self.end(None, None)

    def end(self, result: Any, error: BaseException | None) -> None:
        if self._open:
            self._open = False
            context = self.context
            context.elapsed = monotonic() - self._started
            context.result, context.error = result, error
            self._watch.ended(self)


class _AnsweredAttempt:
    __slots__ = ("_attempt", "_outgoing", "_receiver", "_target")

    def __init__(self, attempt: BegunAttempt, receiver: Receiver, outgoing: Outgoing, target: Target) -> None:
        self._attempt = attempt
        self._receiver = receiver
        self._outgoing = outgoing
        self._target = target

    def done(self) -> bool:
        return self._receiver.done()

    def set_result(self, result: Any, /) -> None:
        self._attempt.answered(result, self._outgoing, self._target)
        self._receiver.set_result(result)

    def set_exception(self, exception: Any, /) -> None:
        self._attempt.failed(exception)
        self._receiver.set_exception(exception)


def message_type(message: Message, sys_flag: int) -> MessageType:
    """What Java's hooks and traces call the message."""
    if sys_flag & SysFlag.TRANSACTION_PREPARED:
        return MessageType.TRANSACTION_HALF
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        return MessageType.DELAY
    return MessageType.NORMAL if message.sharding_key is None else MessageType.ORDER


def tell_failed(outgoing: Outgoing, target: Target, error: BaseException) -> None:
    """Shows the hooks, where the call has any, an attempt that found no connection. Raises ForbiddenError as ``begin`` does."""
    if outgoing.watch is not None:
        outgoing.watch.begin(outgoing, target).failed(error)


def _with_properties(own: str, added: Mapping[str, str]) -> str:
    """The text with those of ``added``, which replace the message's own of the same name."""
    if any(f"{name}\x01" in own for name in added):
        own = properties_text({name: value for name, value in decode_properties(own).items() if name not in added})
    text = own + properties_text(added)
    if len(text.encode()) > MAX_PROPERTIES_SIZE:
        raise InvalidMessageError(f"the properties with those of hooks take over {MAX_PROPERTIES_SIZE} bytes")
    return text


def _batch_with_properties(records: list[BatchRecord], added: Mapping[str, str]) -> bytes:
    """Brokers of 5.x leave the properties beside a batch out of its messages, so each message gets its own."""
    return b"".join(
        [
            encode_batch_message(record.body, record.flag, _with_properties(record.properties.decode(), added).encode())
            for record in records
        ]
    )


def _raise(error: Exception) -> None:
    raise error
