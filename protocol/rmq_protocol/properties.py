r"""Builds and reads encoded properties: ``name \x01 value \x02`` for each entry, with nothing escaped (``MessageDecoder``).

The properties of a plain message are built by one f-string, because every send builds them. Decoding splits at ``\x02`` and
partitions at ``\x01``. It takes linear time and accepts any input.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from .constants import MAX_PROPERTIES_SIZE, RESERVED_NAMES
from .errors import InvalidMessageError
from .message import GeneralKeys, Keys, LiteKeys, Message, PriorityKeys

__all__ = ["RESERVED_NAMES", "decode_properties", "encode_properties", "message_properties", "properties_text"]

WAIT: Final = "WAIT\x01true\x02"
NO_WAIT: Final = "WAIT\x01false\x02"
"""The entries for ``wait_store`` in the properties of messages and batches."""
BEFORE_ID: Final = "UNIQ_KEY\x01"
AFTER_ID: Final = f"\x02{WAIT}"
AFTER_ID_NO_WAIT: Final = f"\x02{NO_WAIT}"
"""The strings before and after the unique id, at the beginning of each message's properties."""


def message_properties(message: Message, unique_id: str, extra: Mapping[str, str] | None = None) -> str:
    """Return the properties of one send as a string.

    Args:
        message: The message to send.
        unique_id: Value of UNIQ_KEY.
        extra: Further properties, for example those of a half message or a request.

    Raises:
        InvalidMessageError: If the properties take more than 32767 bytes, because the store keeps their length as a signed 16-bit
            number (code 13).
    """
    tags, keys = message.tags, message.keys
    own = f"TAGS\x01{tags}\x02" if tags else ""
    if keys:
        own = f"{own}KEYS\x01{keys[0] if len(keys) == 1 else ' '.join(keys)}\x02"
    if keys.__class__ is not tuple and keys.__class__ is not Keys:
        if keys.__class__ is GeneralKeys:
            own += _delay_text(message)
        if message.sharding_key:
            own = f"{own}__SHARDINGKEY\x01{message.sharding_key}\x02"
        elif keys.__class__ is LiteKeys:
            own = f"{own}__LITE_TOPIC\x01{message.lite_topic}\x02"
        elif keys.__class__ is PriorityKeys:
            own = f"{own}_SYS_MSG_PRIORITY_\x01{message.priority}\x02"
    if properties := message.properties:
        for name, value in properties.items():
            own = f"{own}{name}\x01{value}\x02"
    text = f"{BEFORE_ID}{unique_id}{AFTER_ID if message.wait_store else AFTER_ID_NO_WAIT}{own}"
    if extra:
        text += properties_text(extra)
    if len(text) > _SURELY_FITS:
        _check_size(text)
    return text


def _delay_text(message: Message) -> str:
    if message.delay_level:
        return f"DELAY\x01{message.delay_level}\x02"
    if message.delay is not None:
        return f"TIMER_DELAY_MS\x01{round(message.delay * 1000)}\x02"
    if message.deliver_at is None:
        return ""
    when = message.deliver_at
    seconds = when.timestamp() if isinstance(when, datetime) else when
    return f"TIMER_DELIVER_MS\x01{round(seconds * 1000)}\x02"


_SURELY_FITS: Final = MAX_PROPERTIES_SIZE // 4


def _check_size(text: str) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_PROPERTIES_SIZE:
        raise InvalidMessageError(f"the properties take {size} bytes, the limit is {MAX_PROPERTIES_SIZE}; shorten them")


def properties_text(properties: Mapping[str, str | None]) -> str:
    """Return properties as a string, in the order of the mapping.

    Each entry ends with a separator. Entries with the value None are left out, as in ``messageProperties2String``. The string is
    empty if no entries are left.
    """
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items() if value is not None])


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """Return properties as UTF-8.

    Raises:
        InvalidMessageError: If the properties take more than 32767 bytes or have a lone surrogate in them (code 13).
    """
    try:
        encoded = properties_text(properties).encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"the properties have no UTF-8 form: {error}; remove the lone surrogate") from None
    if len(encoded) > MAX_PROPERTIES_SIZE:
        raise InvalidMessageError(f"the properties take {len(encoded)} bytes, the limit is {MAX_PROPERTIES_SIZE}; shorten them")
    return encoded


def decode_properties(data: bytes | str) -> dict[str, str]:
    """Return the entries of encoded properties, read as ``string2messageProperties`` reads them.

    The last separator may be missing. If a name occurs twice, the last entry counts. Entries without a separator, without a name
    or without a value are dropped. Bytes that are not UTF-8 become U+FFFD.
    """
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    properties: dict[str, str] = {}
    for entry in text.split("\x02"):
        name, _, value = entry.partition("\x01")
        if value and name:
            properties[name] = value
    return properties
