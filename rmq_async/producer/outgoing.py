"""From a caller's Message to what every attempt of the call puts on the wire. The message itself is never touched.

Everything that can be refused is refused here, before a credit, a route or a connection is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rmq_protocol.batch import encode_batch, encode_batch_records, encode_plain_batch
from rmq_protocol.compression import CompressionType, compress
from rmq_protocol.constants import SysFlag
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.message import Message
from rmq_protocol.properties import message_properties, properties_text
from rmq_protocol.validation import check_message

from ..client.unique_ids import UniqueIds
from .config import ProducerConfig

if TYPE_CHECKING:
    from .watching import AttemptsWatch

__all__ = ["Encoder", "Outgoing", "Watched"]

COMPRESS_OFF_LOOP: Final = 64 * 1024
"""Bytes of a body from which on compressing it would hold up the loop for a millisecond or more."""

_BATCH_PROPERTIES: Final = "WAIT\x01true\x02"
_BATCH_PROPERTIES_NO_WAIT: Final = "WAIT\x01false\x02"
_NO_WAIT: Final = "\x02" + _BATCH_PROPERTIES_NO_WAIT
"""In the properties of a message: behind its unique id, which is always first."""


class Outgoing(msgspec.Struct, gc=False):
    """One message, or one batch, as its attempts send it.

    ``batch_ids``: the unique ids of a batch's messages. ``code``: request code in its short form, 0 for the usual ones.
    ``message``: where a selector is asked for each attempt, what it is shown, a batch's first; it must not lead back to here, for
    no collector looks at this. ``watch``: shows hooks the attempts, see ``Watched``.
    """

    topic: str
    unique_id: str
    properties: str
    body: bytes
    sys_flag: int = 0
    flag: int = 0
    batch_ids: tuple[str, ...] | None = None
    code: int = 0
    watch: AttemptsWatch | None = None
    message: Message | None = None


class Watched(Outgoing, gc=True):
    """One whose ``watch`` leads to what users wrote, and from there anywhere: back to here too, by an error and its traceback."""


class Encoder:
    """The parts of encoding that need the producer's settings, its ids and the clock."""

    __slots__ = ("_instance_text", "_kind", "_level", "born_ms", "compress_over", "ids", "instance", "max_size", "outgoing")

    def __init__(self, config: ProducerConfig, ids: UniqueIds, namespace: str = "") -> None:
        self.compress_over = config.compress_over
        self.max_size = config.max_message_size
        self._kind = config.compression_kind
        self._level = config.compress_level
        self.ids = ids
        self.instance = {"INSTANCE_ID": namespace} if namespace else {}
        self._instance_text = properties_text(self.instance)
        """The property that names a namespace of the first kind."""
        self.born_ms = ids.now
        self.outgoing: type[Outgoing] = Outgoing
        """``Watched`` where calls are."""

    def check(self, message: Message) -> None:
        """Raises InvalidMessageError (with the limit that is broken) for a topic or body that may not be sent."""
        if not isinstance(message, Message):
            raise TypeError(f"a Message is needed, not {type(message).__name__}")
        check_message(message.topic, message.body, self.max_size)

    def encode(
        self, message: Message, extra: Mapping[str, str] | None = None, sys_flag: int = 0, unique_id: str | None = None
    ) -> Outgoing:
        """The message under its unique id, uncompressed. ``extra``: properties that the kind of send adds.

        ``unique_id``: one that it has already been given.
        """
        unique_id = message.unique_id or unique_id or self.ids.next()
        if self.instance:
            extra = {**(extra or {}), **self.instance}
        properties = message_properties(message, unique_id, extra)
        return self.outgoing(message.topic, unique_id, properties, message.body, sys_flag, message.flag)

    def compressed(self, outgoing: Outgoing) -> Outgoing:
        """The same with its body compressed, if that makes it smaller. CPU-bound: 2 to 10 us per KiB with zlib."""
        return _smaller(outgoing, self._kind, self._level)

    def encode_batch(self, messages: Iterable[Message]) -> tuple[Outgoing, int]:
        """The batch as one body, and the bytes of its messages' bodies.

        Raises InvalidMessageError for what may not be sent, or not in one batch, and above the body limit.
        """
        batch = list(messages)
        ids = self.ids.take(len(batch))
        body = encode_batch(batch, ids, self.max_size)
        if len(body) > self.max_size:
            raise InvalidMessageError(
                f"the batch takes {len(body)} bytes encoded, the limit is {self.max_size}; send it in parts"
            )
        size = sum([len(message.body) for message in batch])
        properties = _BATCH_PROPERTIES if batch[0].wait_store else _BATCH_PROPERTIES_NO_WAIT
        outgoing = self.outgoing(batch[0].topic, ids[0], properties + self._instance_text, body, 0, 0, tuple(ids))
        return outgoing, size

    def together(self, messages: Sequence[Outgoing]) -> Outgoing:
        """A batch of messages that are encoded already, each by itself, and found good."""
        first = messages[0]
        body = encode_batch_records([(message.flag, message.body, message.properties.encode()) for message in messages])
        properties = _BATCH_PROPERTIES_NO_WAIT if _NO_WAIT in first.properties else _BATCH_PROPERTIES
        ids = tuple([message.unique_id for message in messages])
        return self.outgoing(first.topic, first.unique_id, properties + self._instance_text, body, 0, 0, ids)

    def encode_gathered(
        self, messages: Sequence[Message], ids: Sequence[str] | None = None, *, plain: bool = False
    ) -> Outgoing:
        """One message, or a batch of those that were found good each by itself.

        ``ids``: the unique ids that they have already. ``plain``: they say nothing but topic and body, of ``bytes``.
        """
        if len(messages) == 1:
            return self.encode(messages[0], unique_id=None if ids is None else ids[0])
        return self.batch_of(messages, ids, plain=plain)

    def batch_of(self, messages: Sequence[Message], ids: Sequence[str] | None, *, plain: bool) -> Outgoing:
        """The same as a batch, however many they are."""
        unique_ids = self.ids.take(len(messages)) if ids is None else list(ids)
        if plain:
            body = encode_plain_batch([message.body for message in messages], unique_ids, wait_store=messages[0].wait_store)
        else:
            body = encode_batch(messages, unique_ids, self.max_size)
        properties = _BATCH_PROPERTIES if messages[0].wait_store else _BATCH_PROPERTIES_NO_WAIT
        topic, first = messages[0].topic, unique_ids[0]
        return self.outgoing(topic, first, properties + self._instance_text, body, 0, 0, tuple(unique_ids))


def _smaller(outgoing: Outgoing, kind: CompressionType, level: int) -> Outgoing:
    body = compress(outgoing.body, kind, level)
    if len(body) >= len(outgoing.body):
        return outgoing
    sys_flag = outgoing.sys_flag | SysFlag.COMPRESSED | kind.value
    return msgspec.structs.replace(outgoing, body=body, sys_flag=int(sys_flag))
