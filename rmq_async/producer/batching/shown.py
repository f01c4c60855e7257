"""Hooks and the messages of an ordered batch: they see each by itself, as if it had been sent alone.

Users of a key have not asked for batches, so ``check_forbidden`` refuses one message and no batch, ``before_send`` adds properties
to one, ``after_send`` gets its result. Each message carries the Watch of its own call, and the context of that call.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import Context
from typing import Any, cast

import msgspec

from rmq_protocol.batch import encode_batch_records
from rmq_protocol.send_codec import SendReply

from ...errors import ForbiddenError, RocketMQError
from ...results import SendResult
from ...transport import Receiver, raise_soon
from ..first_attempt import broken_off
from ..lanes import Target
from ..outgoing import Outgoing
from ..replies import reply_error, stored_batch, stored_message
from ..watching import AttemptsWatch, BegunAttempt, Watch, WatchedAttempt
from .gathering import Entry

__all__ = ["BatchWatch", "ShownMember", "begin_shown"]

logger = logging.getLogger("rmq_async.producer")


class ShownMember:
    """A receiver whose message hooks are shown. ``watch``: of its call."""

    __slots__ = ("_receiver", "_watch")

    def __init__(self, receiver: Receiver, watch: AttemptsWatch) -> None:
        self._receiver = receiver
        self._watch = watch

    @property
    def context(self) -> Context | None:
        """Of the caller, where a selector may be asked for further attempts."""
        return getattr(self._receiver, "context", None)

    def done(self) -> bool:
        return self._receiver.done()

    def set_result(self, result: Any, /) -> None:
        self._receiver.set_result(result)

    def set_exception(self, exception: Any, /) -> None:
        self._watch.give_up(exception)  # of a member whose time is over while the batch is under way
        if not self._receiver.done():
            self._receiver.set_exception(exception)


def begin_shown(entry: Entry, target: Target) -> tuple[Entry, BatchWatch]:
    """Shows the hooks the first attempt with each message. What they refuse is not in the entry any more, and has its error."""
    members, begun = [], []
    for member in entry.members:
        receiver, message, _ = member
        try:
            begun.append(message.watch.begin(message, target))
        except RocketMQError as error:
            receiver.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - it leaves the loop when all others are on their way
            receiver.set_exception(broken_off(error, maybe_stored=False))
            raise_soon(error)
        else:
            members.append(member)
    messages: list[Outgoing] = [member[1] for member in members]
    watch = BatchWatch(messages)
    watch.begun = BegunBatch(messages, begun)
    return entry._replace(members=members), watch


class BatchWatch(AttemptsWatch):
    """The attempts of one batch. ``begun``: the first, which hooks were shown before the batch was encoded."""

    __slots__ = ("_messages", "_newest", "begun")

    def __init__(self, messages: list[Outgoing]) -> None:
        self._messages = messages
        self._newest: BegunBatch | None = None
        self.begun: BegunBatch | None = None

    def begin(self, outgoing: Outgoing, target: Target) -> BegunBatch:
        """Raises ForbiddenError when a hook refuses one of the messages at a further attempt."""
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
        self._newest = BegunBatch(self._messages, attempts)
        return self._newest

    def keep(self, messages: list[Outgoing]) -> None:
        """The batch has shrunk to these, before the attempt that has begun was sent."""
        self._messages = messages
        for begun in (self._newest, self.begun):
            if begun is not None:
                begun.keep(messages)

    def give_up(self, error: BaseException) -> None:
        for message in self._messages:
            cast(Watch, message.watch).give_up(error)


class BegunBatch(BegunAttempt):
    """One attempt of a batch: an attempt of each of its messages."""

    __slots__ = ("_pairs",)

    def __init__(self, messages: Sequence[Outgoing], attempts: Sequence[WatchedAttempt]) -> None:
        self._pairs = list(zip(attempts, messages, strict=True))

    def keep(self, messages: Sequence[Outgoing]) -> None:
        left = set(map(id, messages))
        self._pairs = [pair for pair in self._pairs if id(pair[1]) in left]

    def added(self, outgoing: Outgoing) -> Outgoing:
        """The batch with the properties that hooks added to its messages; what may not be sent is reported and left out."""
        if not any(attempt.context.properties for attempt, _ in self._pairs):
            return outgoing
        if outgoing.batch_ids is None:
            ((attempt, _),) = self._pairs
            return attempt.added(outgoing)
        whole = [attempt.added(message) for attempt, message in self._pairs]
        body = encode_batch_records([(each.flag, each.body, each.properties.encode()) for each in whole])
        if len(body) > cast(Watch, self._pairs[0][1].watch).sending.max_size:
            logger.info("a batch for topic %s is too full for the properties that hooks add", outgoing.topic)
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


def refused_by_hook(error: BaseException) -> bool:
    """Whether a hook refused one of the messages, at whichever attempt."""
    return isinstance(error, ForbiddenError) or isinstance(error.__cause__, ForbiddenError)
