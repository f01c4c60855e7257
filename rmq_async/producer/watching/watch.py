"""Calls hooks around the attempts of sends.

Only calls of a producer with hooks or message traces have a ``Watch``.

Hooks are called before each attempt begins and after it ends, however it ends. The receiver of such an attempt is wrapped, so that
hooks get the response before the caller does. Code that ends an attempt without a response reports this to the Watch. Each hook
runs in a copy of the context (of ``contextvars``) of the call, even if an attempt begins or ends in another task. For messages that
were gathered without order, it runs in a copy of an empty context.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context, copy_context
from typing import Any, Final, NamedTuple

import msgspec

from rmq_protocol.batch import BatchRecord, decode_batch, encode_batch_message
from rmq_protocol.constants import MAX_PROPERTIES_SIZE, SysFlag
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.message import Message, check_properties
from rmq_protocol.properties import decode_properties, properties_text
from rmq_protocol.send_codec import SendReply
from rmq_protocol.trace import MessageType

from ... import machine
from ...errors import ForbiddenError
from ...hooks import SendContext, defining
from ...results import SendResult
from ...transport import report, report_hook
from ..encoding import AttemptWatch, CallWatch, Outgoing, reply_error, stored
from ..routing import Target
from .tracer import Tracer

logger = logging.getLogger("rmq_async.producer")

# An int, because each operator of an IntFlag needs three calls of Python functions.
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_SURELY_FITS: Final = MAX_PROPERTIES_SIZE // 4
"""A properties string with at most this many characters always fits the limit in bytes."""


class Sending(NamedTuple):
    """The fields of a ``SendContext`` that depend only on the producer, and the maximum bytes of a body (``max_size``)."""

    group: str
    namespace: str
    born_host: str
    name_servers: tuple[str, ...]
    unit_mode: bool
    max_size: int


class Watchers:
    """The hooks of one producer, by the methods that they define.

    Attributes:
        active: Whether at least one hook has a method for sends.
        only_trace: The Tracer if it is the only hook, else None. The Tracer needs neither a SendContext nor the caller's context.
    """

    __slots__ = ("_hooks", "active", "after", "before", "checks", "only_trace", "sending")

    def __init__(self, hooks: Iterable[Any], sending: Sending) -> None:
        self._hooks: tuple[Any, ...] = ()
        self.sending = sending
        self._set(tuple(hooks))

    def add(self, hook: Any) -> None:
        self._set((*self._hooks, hook))

    def watch(
        self,
        outgoing: Outgoing,
        message: Message | tuple[Message, ...],
        mode: str,
        read: Callable[[SendReply, Outgoing, Target, int], Any],
    ) -> None:
        """Have the hooks called for the attempts of the call that sends ``outgoing``."""
        kind = MessageType.NORMAL if isinstance(message, tuple) else message_type(message, outgoing.sys_flag)
        outgoing.watch = Watch(self, message, kind, mode, read)

    def _set(self, hooks: tuple[Any, ...]) -> None:
        self._hooks = hooks
        self.checks: tuple[Callable[[SendContext], object], ...] = defining(hooks, "check_forbidden")
        self.before: tuple[Callable[[SendContext], object], ...] = defining(hooks, "before_send")
        self.after: tuple[Callable[[SendContext], object], ...] = defining(hooks, "after_send")
        self.active = bool(self.checks or self.before or self.after)
        self.only_trace = hooks[0] if len(hooks) == 1 and isinstance(hooks[0], Tracer) else None

    def begin(self, scope: Context, context: SendContext) -> None:
        """Call the hooks before an attempt, each in a copy of ``scope``.

        Raises:
            ForbiddenError: If a hook refuses the attempt or fails to check it.
        """
        for check in self.checks:
            try:
                scope.copy().run(check, context)
            except ForbiddenError:
                raise
            except (Exception, asyncio.CancelledError) as error:
                text = f"check_forbidden {check!r} raised {type(error).__name__}: {error}"
                raise ForbiddenError(f"{text}; it may raise only ForbiddenError, to refuse a message") from error
        for before in self.before:
            inside = scope.copy()
            try:  # the same as in ``call_hook``, without the cost of its call
                inside.run(before, context)
            except BaseException as error:  # noqa: BLE001 - reported; the message is sent all the same
                inside.run(report_hook, before, error)

    def with_added(self, own: str, added: Mapping[str, str]) -> str:
        """Return the properties string of one message with the properties that hooks added. Report and leave out invalid
        properties.
        """
        try:
            return _with_properties(own, check_properties(added))
        except Exception as error:  # noqa: BLE001 - reported as any other error of a hook
            self.report_properties(error)
            return own

    def report_properties(self, error: Exception) -> None:
        """Report that properties that hooks added are left out. The report names all hooks that may have added them."""
        hooks = " or ".join([repr(hook) for hook in (*self.before, *self.checks)])
        report(f"properties that hook {hooks} added are left out", error)

    def end(self, scope: Context, context: SendContext) -> None:
        """Call the hooks after an attempt, each in a copy of ``scope``."""
        for after in self.after:
            inside = scope.copy()
            try:
                inside.run(after, context)
            except BaseException as error:  # noqa: BLE001 - reported; the caller gets the result nevertheless
                inside.run(report_hook, after, error)


class Watch(CallWatch):
    """Calls the hooks for the attempts of one call. It is also the receiver of the first attempt (``first``).

    Args:
        read: The function that makes the result from a response.

    Attributes:
        kind: The type of the message for hooks.
        plain: Whether the message has only a topic and a body.
        scope: The caller's context (of ``contextvars``).
        attempts: Number of attempts so far.
        started: Monotonic time at which the first attempt began.
    """

    __slots__ = (
        "_context", "_first_open", "_future", "_mode", "_open", "_read", "_target", "_unique_id", "attempts", "done", "kind",
        "message", "plain", "scope", "started", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        watchers: Watchers,
        message: Message | tuple[Message, ...],
        kind: MessageType,
        mode: str,
        read: Callable[[SendReply, Outgoing, Target, int], Any],
    ) -> None:
        self.watchers = watchers
        self.message: Any = message
        self.kind = kind
        self.plain = False
        self._mode = mode
        self._read = read
        self.scope = copy_context()
        self.attempts = 0
        self._first_open = False
        self._open: tuple[WatchedAttempt, ...] = ()

    # -- the first attempt of an awaited call with one message, which needs only this object and reads the response once

    def first(self, outgoing: Outgoing, target: Target, future: asyncio.Future[Any]) -> str | None:
        """Call the hooks before the first attempt, and become its receiver.

        Args:
            outgoing: A single message.
            target: The queue to which the attempt goes.
            future: Gets the result of the send, the response if no result can be made from it, or the error.

        Returns:
            The properties string with the properties that hooks added. None if the message is plain and no hook added properties.

        Raises:
            ForbiddenError: If a hook refuses the attempt or fails to check it.
        """
        watchers, text, self._context = self.watchers, None if self.plain else outgoing.properties, None
        if watchers.only_trace is not None:
            self.attempts = 1
        else:
            self._context = context = self.seen(outgoing, target)
            watchers.begin(self.scope, context)
            if context.properties:
                text = watchers.with_added(outgoing.properties, context.properties)
        self._unique_id, self._target, self._future, self.done = outgoing.unique_id, target, future, future.done
        self.started = machine.monotonic()
        self._first_open = True
        return text

    def set_result(self, reply: SendReply) -> None:
        result = stored(reply, self._unique_id, self._target, 1)
        self._end_first(result, reply_error(reply, self._target) if result is None else None)
        if not self._future.done():  # a hook may cancel the call
            self._future.set_result(reply if result is None else result)

    def set_exception(self, error: BaseException) -> None:
        if self._first_open:
            self._end_first(None, error)
        if not self._future.done():
            self._future.set_exception(error)

    def _end_first(self, result: SendResult | None, error: BaseException | None) -> None:
        self._first_open = False
        context, elapsed = self._context, machine.monotonic() - self.started
        if context is not None:
            context.elapsed, context.result, context.error = elapsed, result, error
            self.watchers.end(self.scope, context)
        elif (tracer := self.watchers.only_trace) is not None:
            try:
                tracer.attempted(self.message, self._unique_id, self._target, result, elapsed)
            except BaseException as raised:  # noqa: BLE001 - reported, as the error of any hook
                report_hook(tracer.after_send, raised)

    # -- every attempt

    def begin(self, outgoing: Outgoing, target: Target) -> WatchedAttempt:
        """Call the hooks before an attempt.

        Raises:
            ForbiddenError: If a hook refuses the attempt or fails to check it.
        """
        context = self.seen(outgoing, target)
        self.watchers.begin(self.scope, context)
        attempt = WatchedAttempt(self, context, self._read)
        self._open = (*self._open, attempt)
        return attempt

    def seen(self, outgoing: Outgoing, target: Target) -> SendContext:
        """Count an attempt, and return the SendContext for its hooks."""
        self.attempts += 1
        sending = self.watchers.sending
        return SendContext(
            message=self.message,
            msg_ids=outgoing.batch_ids or (outgoing.unique_id,),
            queue=target.queue,
            address=target.address,
            attempt=self.attempts,
            message_type=self.kind,
            group=sending.group,
            mode=self._mode,
            broker=target.broker,
            namespace=sending.namespace,
            born_host=sending.born_host,
            name_servers=sending.name_servers,
            unit_mode=sending.unit_mode,
        )

    def ended(self, attempt: WatchedAttempt) -> None:
        self._open = tuple([each for each in self._open if each is not attempt])
        self.watchers.end(self.scope, attempt.context)

    def give_up(self, error: BaseException) -> None:
        """Report ``error`` as the outcome of all attempts that are still in flight, because the call has ended."""
        if self._first_open:
            self._end_first(None, error)
        for attempt in self._open:
            attempt.failed(error)


class WatchedAttempt(AttemptWatch):
    """An attempt of one call, as hooks see it."""

    __slots__ = ("_open", "_read", "_started", "_watch", "context")

    def __init__(self, watch: Watch, context: SendContext, read: Callable[[SendReply, Outgoing, Target, int], Any]) -> None:
        self._watch = watch
        self._read = read
        self._started = machine.monotonic()
        self._open = True
        self.context = context

    def added(self, outgoing: Outgoing) -> Outgoing:
        """Return the message with the properties that hooks added. For a batch, add them to each of its messages.

        The added properties replace properties of the message with the same name. Invalid properties are reported and left out. If
        a batch has no room for the properties, they are left out and an INFO record is logged.
        """
        added = self.context.properties
        if not added:
            return outgoing
        if outgoing.batch_ids is None:
            text = self._watch.watchers.with_added(outgoing.properties, added)
            return outgoing if text is outgoing.properties else msgspec.structs.replace(outgoing, properties=text)
        try:
            added = check_properties(added)
            body = _batch_with_properties(decode_batch(outgoing.body), added)
        except Exception as error:  # noqa: BLE001 - reported as any other error of a hook
            self._watch.watchers.report_properties(error)
            return outgoing
        if len(body) > self._watch.watchers.sending.max_size:
            logger.info("a batch for topic %s has no room for the properties of hooks (max_message_size)", outgoing.topic)
            return outgoing
        return msgspec.structs.replace(outgoing, body=body)

    def answered(self, reply: SendReply, outgoing: Outgoing, target: Target) -> None:
        result = self._read(reply, outgoing, target, self.context.attempt)
        self.end(result, None if result is not None else reply_error(reply, target))

    def failed(self, error: BaseException) -> None:
        self.end(None, error)

    def queued(self) -> None:
        """End the attempt of a one-way send after its frame was queued. Such an attempt has no outcome."""
        self.end(None, None)

    def end(self, result: Any, error: BaseException | None) -> None:
        if self._open:
            self._open = False
            context = self.context
            context.elapsed = machine.monotonic() - self._started
            context.result, context.error = result, error
            self._watch.ended(self)


def message_type(message: Message, sys_flag: int) -> MessageType:
    """Return the type of a message for ``SendContext``: half, delayed, ordered (with a sharding key) or normal."""
    if sys_flag & _PREPARED:
        return MessageType.TRANSACTION_HALF
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        return MessageType.DELAY
    return MessageType.NORMAL if message.sharding_key is None else MessageType.ORDER


def _with_properties(own: str, added: Mapping[str, str]) -> str:
    """Return the properties string with ``added``, which replace the message's own properties of the same name."""
    for name in added:
        if f"{name}\x01" in own:
            own = properties_text({name: value for name, value in decode_properties(own).items() if name not in added})
            break
    text = own + properties_text(added)
    if len(text) > _SURELY_FITS and len(text.encode()) > MAX_PROPERTIES_SIZE:
        raise InvalidMessageError(
            f"the properties, including those of hooks, have {len(text.encode())} bytes, the limit is {MAX_PROPERTIES_SIZE}; "
            "shorten them"
        )
    return text


def _batch_with_properties(records: list[BatchRecord], added: Mapping[str, str]) -> bytes:
    """Return the body of a batch with the properties added to each message.

    The properties are added to each message because brokers (5.5.0) do not copy the properties of a batch to its messages.
    """
    return b"".join(
        [
            encode_batch_message(record.body, record.flag, _with_properties(record.properties.decode(), added).encode())
            for record in records
        ]
    )
