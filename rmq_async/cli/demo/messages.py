"""The demo's messages: each carries its mode and index, and a checksum over all that is its own.

The checksum covers body, tags, keys and properties, and is zlib's own CRC32 rather than the codec's, so that a message which
was cut, mixed up with another or decoded wrongly is seen even where every layer below agrees with itself.
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
    """Which message of a run; in text the key that brokers index it by."""

    mode: str
    number: int

    def __str__(self) -> str:
        return f"{self.mode}-{self.number}"


class DamagedError(ValueError):
    """A message is not what was sent; says what is wrong with it."""


class Messages:
    """Makes and checks the messages of one run. Two runs share no message, one run's are the same whenever they are made."""

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
        """Which message this is. Raises DamagedError unless every part of it is as it was made."""
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
