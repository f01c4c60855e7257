"""Makes the demo's messages: each carries its mode, its index, and a checksum over all of its parts.

The checksum covers body, tags, keys and properties. It is zlib's CRC32, not the codec's, so it shows a message that was cut,
mixed up with another or decoded wrongly, even if the encoder has the same fault as the decoder.
"""

from __future__ import annotations

import random
import secrets
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from rmq_async import Message, MessageExt

__all__ = ["DamagedError", "Key", "Messages"]

RUN: Final = "demo_run"
INDEX: Final = "demo_index"
CRC: Final = "demo_crc"
_FILLING: Final = 64 * 1024


class Key(NamedTuple):
    """Identifies a message of a run; its text is the key that brokers index the message by."""

    mode: str
    number: int

    def __str__(self) -> str:
        return f"{self.mode}-{self.number}"


class DamagedError(ValueError):
    """A message differs from the one that was sent; the text names the difference."""


class Messages:
    """Makes and checks the messages of one run. Messages of two runs differ; those of one run are the same each time they are
    made."""

    def __init__(self, topic: str, size: int, run: str | None = None) -> None:
        self.topic = topic
        self.run = run if run is not None else secrets.token_hex(4)
        self._size = size
        self._filling = random.Random(self.run).randbytes(size + _FILLING)

    def make(self, key: Key) -> Message:
        head = b"%b %d " % (key.mode.encode(), key.number)
        at = key.number * 31 % _FILLING
        body = (head + self._filling[at : at + self._size])[: self._size]
        own = {RUN: self.run, INDEX: str(key.number)}
        keys = (str(key), self.run)
        return Message(
            self.topic, body, tags=key.mode, keys=keys, properties={**own, CRC: _checksum(body, key.mode, keys, own)}
        )

    def check(self, message: MessageExt) -> Key:
        """Returns the key of a message. Raises DamagedError if its checksum does not fit, and for a message of another run."""
        own = {name: message.properties.get(name, "") for name in (RUN, INDEX)}
        expected = message.properties.get(CRC, "none")
        found = _checksum(message.body, message.tags or "", message.keys, own)
        if expected != found:
            raise DamagedError(f"message {message.msg_id} at {_place(message)} carries CRC {expected}, its content has {found}")
        if own[RUN] != self.run:
            raise DamagedError(f"message {message.msg_id} at {_place(message)} is of run {own[RUN]}, not of {self.run}")
        return Key(message.tags or "", int(own[INDEX]))


def _checksum(body: bytes, tags: str, keys: tuple[str, ...], own: Mapping[str, str]) -> str:
    text = "\0".join([tags, " ".join(keys), *(f"{name}={own[name]}" for name in sorted(own))])
    return f"{zlib.crc32(text.encode(), zlib.crc32(body)):08x}"


def _place(message: MessageExt) -> str:
    queue = message.queue
    return f"offset {message.queue_offset} of queue {queue.queue_id} on {queue.broker_name}"
