"""Encodes a caller's Message into the form that all attempts of the call send. The message itself is not changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from rmq_protocol.batch import encode_batch, encode_batch_records, encode_batch_texts, encode_plain_batch
from rmq_protocol.compression import CompressionType, compress
from rmq_protocol.constants import SysFlag
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.message import Message
from rmq_protocol.properties import AFTER_ID_NO_WAIT, BEFORE_ID, NO_WAIT, WAIT, message_properties, properties_text
from rmq_protocol.send_codec import SendReply
from rmq_protocol.validation import check_message

from ... import machine
from ..._text import type_name
from ...client import UniqueIds
from ...errors import RequestTimeoutError
from ...transport import Receiver, Threads
from ..config import ProducerConfig
from ..routing import Target


class Outgoing(msgspec.Struct, gc=False):
    """One encoded message or batch.

    The garbage collector does not track this object (``gc=False``), so it must not be part of a cycle.

    Attributes:
        properties: The encoded properties.
        batch_ids: The unique ids of a batch's messages. None for a single message.
        code: The request code (V2). 0 stands for the usual codes.
        message: The argument for a selector that is called for each attempt. For a batch, it is the first message.
        watch: The object that calls the hooks for each attempt. Only a ``Watched`` may have one.
    """

    topic: str
    unique_id: str
    properties: str
    body: bytes
    sys_flag: int = 0
    flag: int = 0
    batch_ids: tuple[str, ...] | None = None
    code: int = 0
    watch: CallWatch | None = None
    message: Message | None = None


BatchItem = Message | Outgoing | tuple[Message, str]
"""A gathered message: a Message, an encoded message, or a Message with that part of its encoded properties which follows the unique
id."""


class Watched(Outgoing, gc=True):
    """An Outgoing with a ``watch``. The garbage collector tracks it, because user code may refer back to it, for example through
    the traceback of an error.
    """


class CallWatch(ABC):
    """Calls the hooks for the attempts of one call, or of one batch of several calls."""

    __slots__ = ()

    @abstractmethod
    def begin(self, outgoing: Outgoing, target: Target) -> AttemptWatch:
        """Call the hooks before an attempt.

        Raises:
            ForbiddenError: If a hook refuses the attempt or fails to check it.
        """

    @abstractmethod
    def give_up(self, error: BaseException) -> None:
        """End the attempts that are in flight with ``error``, because nothing waits for their responses any longer."""


class AttemptWatch(ABC):
    """One attempt for which the hooks were called at its start. The methods call the hooks once at its end."""

    __slots__ = ()

    def receiver(self, receiver: Receiver, outgoing: Outgoing, target: Target) -> Receiver:
        """Return a receiver that calls the hooks with the response and passes it on to ``receiver``."""
        return _AnsweredAttempt(self, receiver, outgoing, target)

    @abstractmethod
    def added(self, outgoing: Outgoing) -> Outgoing:
        """Return ``outgoing`` with the valid properties that hooks added, if there is room for them."""

    @abstractmethod
    def answered(self, reply: SendReply, outgoing: Outgoing, target: Target) -> None:
        """Call the hooks with the response."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """Call the hooks with the error that ended the attempt."""


class _AnsweredAttempt:
    __slots__ = ("_attempt", "_outgoing", "_receiver", "_target")

    def __init__(self, attempt: AttemptWatch, receiver: Receiver, outgoing: Outgoing, target: Target) -> None:
        self._attempt = attempt
        self._receiver = receiver
        self._outgoing = outgoing
        self._target = target

    def done(self) -> bool:
        return self._receiver.done()

    def set_result(self, result: Any, /) -> None:
        self._attempt.answered(result, self._outgoing, self._target)
        if not self._receiver.done():  # a hook may have cancelled the call
            self._receiver.set_result(result)

    def set_exception(self, exception: Any, /) -> None:
        self._attempt.failed(exception)
        if not self._receiver.done():
            self._receiver.set_exception(exception)


def notify_failed(outgoing: Outgoing, target: Target, error: BaseException) -> None:
    """Call the hooks, if any, for the start and the end of an attempt for which there was no connection.

    Raises:
        ForbiddenError: If a hook refuses the attempt (see ``CallWatch.begin``).
    """
    if outgoing.watch is not None:
        outgoing.watch.begin(outgoing, target).failed(error)


class Encoder:
    """Encodes messages with the settings, unique ids and clock of one producer.

    Attributes:
        instance: The encoded property with the client's ``namespace``. Empty if there is no namespace.
        outgoing: The class of the encoded messages, which is ``Watched`` if calls have hooks.
    """

    __slots__ = ("_instance_text", "_kind", "_level", "born_ms", "compress_over", "ids", "instance", "max_size", "outgoing")

    def __init__(self, config: ProducerConfig, ids: UniqueIds, namespace: str = "") -> None:
        self.compress_over = config.compress_over
        self.max_size = config.max_message_size
        self._kind = config.compression_kind
        self._level = config.compress_level
        self.ids = ids
        self.instance = {"INSTANCE_ID": namespace} if namespace else {}
        self._instance_text = properties_text(self.instance)
        self.born_ms = ids.now
        self.outgoing: type[Outgoing] = Outgoing

    def check(self, message: Message) -> None:
        """Check a message.

        Raises:
            InvalidMessageError: If the topic or the body is invalid.
            TypeError: If ``message`` is not a Message.
        """
        if not isinstance(message, Message):
            raise TypeError(f"the message must be a Message, not {type_name(message)}")
        check_message(message.topic, message.body, self.max_size)

    def encode(
        self, message: Message, extra: Mapping[str, str] | None = None, sys_flag: int = 0, unique_id: str | None = None
    ) -> Outgoing:
        """Return the encoded message, uncompressed.

        Args:
            extra: Additional properties, which this kind of send requires.
            unique_id: A unique id that was made earlier. If the message has its own id, that id is used instead. Without either, a
                new id is made.
        """
        unique_id = message.unique_id or unique_id or self.ids.next()
        if self.instance:
            extra = {**(extra or {}), **self.instance}
        properties = message_properties(message, unique_id, extra)
        return self.outgoing(message.topic, unique_id, properties, message.body, sys_flag, message.flag)

    def compressed(self, outgoing: Outgoing) -> Outgoing:
        """Return a copy with a compressed body. Return ``outgoing`` itself if the compressed body is not smaller."""
        return _smaller(outgoing, self._kind, self._level)

    def encode_batch(self, messages: Iterable[Message]) -> tuple[Outgoing, int]:
        """Return the encoded batch, and the total bytes of its messages' bodies.

        Raises:
            InvalidMessageError: If a message is invalid or not allowed in this batch, or if the batch is empty or its encoded size
                is above ``max_message_size``.
            TypeError: If an object is not a Message.
        """
        batch = list(messages)
        ids = self.ids.take(len(batch))
        body = encode_batch(batch, ids, self.max_size)
        if len(body) > self.max_size:
            advice = "send it in parts (split_batches)" if len(batch) > 1 else "send its only message with send()"
            raise InvalidMessageError(f"the encoded batch has {len(body)} bytes, the limit is {self.max_size}; {advice}")
        size = sum([len(message.body) for message in batch])
        properties = WAIT if batch[0].wait_store else NO_WAIT
        outgoing = self.outgoing(batch[0].topic, ids[0], properties + self._instance_text, body, 0, 0, tuple(ids))
        return outgoing, size

    def together(self, messages: Sequence[Outgoing]) -> Outgoing:
        """Return a batch of messages that are already checked and encoded."""
        first = messages[0]
        body = encode_batch_records([(message.flag, message.body, message.properties.encode()) for message in messages])
        properties = NO_WAIT if AFTER_ID_NO_WAIT in first.properties else WAIT
        ids = tuple([message.unique_id for message in messages])
        return self.outgoing(first.topic, first.unique_id, properties + self._instance_text, body, 0, 0, ids)

    def encode_gathered(
        self, messages: Sequence[BatchItem], ids: Sequence[str] | None = None, *, plain: bool = False
    ) -> Outgoing:
        """Return a batch of the messages, or the encoded message if there is only one.

        The messages are already checked, and some may be encoded.

        Args:
            ids: The unique ids of the messages, if they were made earlier.
            plain: Whether all messages have only a topic and a body, and all bodies are ``bytes``.
        """
        if len(messages) == 1:
            return self._encoded(messages[0], None if ids is None else ids[0])
        return self.batch_of(messages, ids, plain=plain)

    def _encoded(self, item: BatchItem, unique_id: str | None) -> Outgoing:
        if isinstance(item, Outgoing):
            return item
        if isinstance(item, Message):
            return self.encode(item, unique_id=unique_id)
        message, after_id = item
        unique_id = unique_id or self.ids.next()
        return self.outgoing(message.topic, unique_id, f"{BEFORE_ID}{unique_id}{after_id}", message.body, 0, message.flag)

    def batch_of(self, messages: Sequence[Any], ids: Sequence[str] | None, *, plain: bool) -> Outgoing:
        """Return the messages encoded as a batch, even if there is only one (see ``encode_gathered``)."""
        kind = None if plain else _kind(messages)
        if kind is Outgoing:
            taken: Sequence[str | None] = ids or [None] * len(messages)
            return self.together([self._encoded(each, own) for each, own in zip(messages, taken, strict=True)])
        unique_ids = self.ids.take(len(messages)) if ids is None else list(ids)
        first: Message = messages[0]
        if plain:
            body = encode_plain_batch([message.body for message in messages], unique_ids, wait_store=first.wait_store)
        elif kind is tuple:
            first = messages[0][0]
            body = encode_batch_texts(messages, unique_ids)
        else:
            body = encode_batch(messages, unique_ids, self.max_size)
        properties = WAIT if first.wait_store else NO_WAIT
        ids = tuple(unique_ids)
        return self.outgoing(first.topic, ids[0], properties + self._instance_text, body, 0, 0, ids)


def _kind(items: Sequence[BatchItem]) -> type:
    """Return the class of the items. Return Outgoing if their classes differ."""
    kinds = [item.__class__ for item in items]
    return kinds[0] if kinds.count(kinds[0]) == len(kinds) else Outgoing


def _smaller(outgoing: Outgoing, kind: CompressionType, level: int) -> Outgoing:
    body = compress(outgoing.body, kind, level)
    if len(body) >= len(outgoing.body):
        return outgoing
    sys_flag = outgoing.sys_flag | SysFlag.COMPRESSED | kind.value
    return msgspec.structs.replace(outgoing, body=body, sys_flag=int(sys_flag))


IN_THREAD: Final = 64 * 1024
"""Bodies of at least this many bytes are compressed in a thread, because the loop would be blocked for a millisecond or more."""


class Compressor:
    """Compresses the bodies of one producer's messages.

    Args:
        unless_stopped: Awaits its argument, and raises ClientStateError if the producer stops first.

    Attributes:
        above: A body of at least this many bytes is compressed (``compress_over``).
    """

    __slots__ = ("_encoder", "_threads", "_unless_stopped", "above")

    def __init__(self, encoder: Encoder, threads: Threads, unless_stopped: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        self.above = encoder.compress_over
        self._encoder = encoder
        self._threads = threads
        self._unless_stopped = unless_stopped

    async def compress(self, outgoing: Outgoing, deadline: float) -> Outgoing:
        """Return the message with a compressed body. Return it unchanged if the compressed body is not smaller.

        A body of 64 KiB or more is compressed in a thread.

        Raises:
            RequestTimeoutError: If the thread has not ended at ``deadline`` (``time.monotonic``). ``maybe_stored`` is False.
            ClientStateError: If the producer stops while the thread runs.
        """
        if len(outgoing.body) < IN_THREAD:
            return self._encoder.compressed(outgoing)
        smaller: Outgoing | None = None
        with suppress(TimeoutError):
            smaller = await self._unless_stopped(self._threads.run(partial(self._encoder.compressed, outgoing), deadline))
        if smaller is None or machine.monotonic() >= deadline:
            text = f"send to topic {outgoing.topic} timed out while {len(outgoing.body)} bytes were compressed"
            raise RequestTimeoutError(f"{text}; use a longer timeout", maybe_stored=False)
        return smaller
