"""Receivers of the response to the first attempt of an awaited send that hooks watch: short forms of a ``Watch`` and its attempt.

They call the hooks with the response before the caller has its result, as the receiver of a ``WatchedAttempt`` does, and read
the response once for hooks and caller.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from rmq_protocol.message import Message
from rmq_protocol.send_codec import SendReply

from ... import machine
from ...hooks import SendContext
from ...results import SendResult
from ...transport import report_hook
from ..encoding import Outgoing, reply_error, stored
from ..routing import Target
from .tracer import Tracer
from .watch import Watch

__all__ = ["watch_first"]

Answer = SendResult | SendReply
"""The result of a send, or the response from which no result can be made."""


class Receiver(ABC):
    """The receiver of one attempt's answer.

    ``future`` gets the answer or the error.

    Attributes:
        started: ``time.monotonic`` at the start of the attempt.
    """

    __slots__ = ("_future", "_open", "_target", "_unique_id", "done", "started")

    def __init__(self, target: Target, unique_id: str, future: asyncio.Future[Answer]) -> None:
        self._target = target
        self._unique_id = unique_id
        self._future = future
        self.done = future.done  # saves a call for each answer
        self._open = True
        self.started = machine.monotonic()

    @abstractmethod
    def _end(self, result: SendResult | None, error: BaseException | None) -> None:
        """Call the hooks for the end of the attempt."""

    def set_result(self, reply: SendReply) -> None:
        result = stored(reply, self._unique_id, self._target, 1)
        self._open = False
        self._end(result, reply_error(reply, self._target) if result is None else None)
        if not self._future.done():  # a hook may cancel the call
            self._future.set_result(reply if result is None else result)

    def set_exception(self, error: BaseException) -> None:
        self.failed(error)
        if not self._future.done():
            self._future.set_exception(error)

    def failed(self, error: BaseException) -> None:
        """End the attempt with ``error``, unless it has ended."""
        if self._open:
            self._open = False
            self._end(None, error)


class WatchedReceiver(Receiver):
    """The receiver of an attempt that hooks watch."""

    __slots__ = ("_context", "_watch")

    def __init__(
        self, watch: Watch, context: SendContext, unique_id: str, target: Target, future: asyncio.Future[Answer]
    ) -> None:
        self._target, self._unique_id, self._future = target, unique_id, future  # what ``Receiver`` does
        self.done = future.done
        self._open, self.started = True, machine.monotonic()
        self._watch = watch
        self._context = context

    def _end(self, result: SendResult | None, error: BaseException | None) -> None:
        context = self._context
        context.elapsed = machine.monotonic() - self.started
        context.result = result
        context.error = error
        self._watch.watchers.end(self._watch.scope, context)


class TracedReceiver(Receiver):
    """The receiver of an attempt that only message traces watch."""

    __slots__ = ("_message", "_tracer")

    def __init__(
        self, tracer: Tracer, message: Message, unique_id: str, target: Target, future: asyncio.Future[Answer]
    ) -> None:
        super().__init__(target, unique_id, future)
        self._tracer = tracer
        self._message = message

    def _end(self, result: SendResult | None, error: BaseException | None) -> None:
        try:
            self._tracer.attempted(self._message, self._unique_id, self._target, result, machine.monotonic() - self.started)
        except BaseException as raised:  # noqa: BLE001 - reported, as the error of any hook
            report_hook(self._tracer.after_send, raised)


def watch_first(
    watch: Watch, outgoing: Outgoing, target: Target, future: asyncio.Future[Answer]
) -> tuple[WatchedReceiver | TracedReceiver, str]:
    """Call the hooks before the first attempt of a single message.

    Returns:
        The receiver of its answer, and the properties text with those that hooks added.

    Raises:
        ForbiddenError: As ``Watch.begin`` raises it.
    """
    watchers, text = watch.watchers, outgoing.properties
    receiver: WatchedReceiver | TracedReceiver
    if watchers.only_trace is not None:
        watch.attempts = 1
        receiver = TracedReceiver(watchers.only_trace, watch.message, outgoing.unique_id, target, future)
    else:
        context = watch.seen(outgoing, target)
        watchers.begin(watch.scope, context)
        receiver = WatchedReceiver(watch, context, outgoing.unique_id, target, future)
        if context.properties:
            text = watchers.with_added(text, context.properties)
    watch.open.append(receiver)
    return receiver, text
