"""Calls hooks for each message of an ordered batch, as if the message had been sent alone.

The callers did not ask for a batch. Therefore ``check_forbidden`` refuses a single message and not the batch, ``before_send`` adds
properties to a single message, and ``after_send`` gets the result of that message. Each message has the Watch (the calls of hooks)
and the context of its own call.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import Context
from typing import Any, cast

import msgspec

from rmq_protocol.batch import encode_batch_records
from rmq_protocol.send_codec import SendReply

from ...errors import RocketMQError
from ...results import SendResult
from ...transport import Receiver, raise_soon
from ..calls import broken_off
from ..encoding import AttemptWatch, CallWatch, Outgoing, reply_error, stored_batch, stored_message
from ..routing import Target
from ..watching import Watch, WatchedAttempt
from .batch_request import Entry

logger = logging.getLogger("rmq_async.producer")


class WatchedMember:
    """Receives a message's result if hooks watch its attempts.

    Args:
        receiver: The receiver to which the result is passed on.
        watch: The Watch of the message's call.
    """

    __slots__ = ("_receiver", "_watch")

    def __init__(self, receiver: Receiver, watch: CallWatch) -> None:
        self._receiver = receiver
        self._watch = watch

    @property
    def context(self) -> Context | None:
        """The caller's context, in which a selector chooses the queue of further attempts. None if there is no such context."""
        return getattr(self._receiver, "context", None)

    def done(self) -> bool:
        return self._receiver.done()

    def set_result(self, result: Any, /) -> None:
        self._receiver.set_result(result)

    def set_exception(self, exception: Any, /) -> None:
        self._watch.give_up(exception)  # the deadline of a member may pass while the batch is in flight
        if not self._receiver.done():
            self._receiver.set_exception(exception)


def begin_watched(entry: Entry, target: Target) -> tuple[Entry, BatchWatch]:
    """Call the hooks for an attempt of each message. Fail each message for which a hook raises an error.

    Returns:
        The entry with the remaining messages, and the watch of their batch.
    """
    members, begun = [], []
    for member in entry.members:
        receiver, message, _ = member
        try:
            begun.append(message.watch.begin(message, target))
        except RocketMQError as error:
            receiver.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - raised in the loop after the other messages have been sent
            receiver.set_exception(broken_off(error, maybe_stored=False))
            raise_soon(error)
        else:
            members.append(member)
    messages: list[Outgoing] = [member[1] for member in members]
    watch = BatchWatch(messages)
    watch.begun = BatchAttempt(messages, begun)
    return msgspec.structs.replace(entry, members=members), watch


class BatchWatch(CallWatch):
    """The attempts of one batch.

    Attributes:
        begun: The first attempt, which hooks saw before the batch was encoded. ``begin`` returns it.
    """

    __slots__ = ("_messages", "_newest", "begun")

    def __init__(self, messages: list[Outgoing]) -> None:
        self._messages = messages
        self._newest: BatchAttempt | None = None
        self.begun: BatchAttempt | None = None

    def begin(self, outgoing: Outgoing, target: Target) -> BatchAttempt:
        """Call the hooks for each message, unless they were already called for this attempt (``begun``).

        If ``Watch.begin`` raises an error for one of the messages, raise this error.
        """
        if self.begun is not None:
            self._newest, self.begun = self.begun, None
            return self._newest
        attempts: list[WatchedAttempt] = []
        for message in self._messages:
            try:
                attempts.append(cast(Watch, message.watch).begin(message, target))
            except BaseException as error:
                for attempt in attempts:
                    attempt.failed(error)
                raise
        self._newest = BatchAttempt(self._messages, attempts)
        return self._newest

    def keep(self, messages: list[Outgoing]) -> None:
        """Keep only these messages, before the attempt that has begun is sent."""
        self._messages = messages
        for begun in (self._newest, self.begun):
            if begun is not None:
                begun.keep(messages)

    def give_up(self, error: BaseException) -> None:
        for message in self._messages:
            cast(Watch, message.watch).give_up(error)


class BatchAttempt(AttemptWatch):
    """One attempt of a batch. It consists of an attempt for each message of the batch."""

    __slots__ = ("_pairs",)

    def __init__(self, messages: Sequence[Outgoing], attempts: Sequence[WatchedAttempt]) -> None:
        self._pairs = list(zip(attempts, messages, strict=True))

    def keep(self, messages: Sequence[Outgoing]) -> None:
        left = set(map(id, messages))
        self._pairs = [pair for pair in self._pairs if id(pair[1]) in left]

    def added(self, outgoing: Outgoing) -> Outgoing:
        """Return the batch with the properties that hooks added to its messages.

        Invalid properties of a message are reported and left out. If the batch has no room for the properties, all are left out.
        """
        if not any(attempt.context.properties for attempt, _ in self._pairs):
            return outgoing
        if outgoing.batch_ids is None:
            ((attempt, _),) = self._pairs
            return attempt.added(outgoing)
        whole = [attempt.added(message) for attempt, message in self._pairs]
        body = encode_batch_records([(each.flag, each.body, each.properties.encode()) for each in whole])
        if len(body) > cast(Watch, self._pairs[0][1].watch).watchers.sending.max_size:
            logger.info("a batch for topic %s has no room for the properties of hooks (max_message_size)", outgoing.topic)
            return outgoing
        return msgspec.structs.replace(outgoing, body=body)

    def answered(self, reply: SendReply, outgoing: Outgoing, target: Target) -> None:
        number = self._pairs[0][0].context.attempt
        results: Sequence[SendResult] = ()
        if outgoing.batch_ids is None:
            alone = stored_message(reply, outgoing, target, number)
            results = () if alone is None else (alone,)
        elif (batch := stored_batch(reply, outgoing, target, number)) is not None:
            results = batch.results
        if not results:
            self.failed(reply_error(reply, target))
            return
        for (attempt, _), result in zip(self._pairs, results, strict=True):
            attempt.end(result, None)

    def failed(self, error: BaseException) -> None:
        for attempt, _ in self._pairs:
            attempt.failed(error)
