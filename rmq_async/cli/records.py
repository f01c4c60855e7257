"""Formats a stored message: as a JSON object, as its body, or with all of its fields."""

from __future__ import annotations

import base64
import sys
from datetime import UTC, datetime

from rmq_async import MessageExt

__all__ = ["body_bytes", "described", "fields_of", "headline", "moment", "visible"]


def fields_of(message: MessageExt) -> dict[str, object]:
    """Return the fields for ``--json``. The body is text if it is UTF-8, else ``body_base64``."""
    fields: dict[str, object] = {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "flag": message.flag,
        "born_time_ms": message.born_time_ms,
        "store_time_ms": message.store_time_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
    }
    try:
        return {**fields, "body": message.body.decode()}
    except UnicodeDecodeError:
        return {**fields, "body_base64": base64.b64encode(message.body).decode()}


def body_bytes(message: MessageExt) -> bytes:
    """Return the body; for a terminal as text, with escapes for invalid UTF-8 and control characters except newline and tab."""
    return visible(message.body.decode(errors="backslashreplace")).encode() if sys.stdout.isatty() else message.body


def headline(message: MessageExt) -> str:
    """Return queue, offset, time, id, tags and keys of a message on one line."""
    queue = message.queue
    parts = [f"{queue.broker_name}:{queue.queue_id}", str(message.queue_offset), moment(message.store_time_ms), message.msg_id]
    if message.tags is not None:
        parts.append(f"tags={message.tags}")
    if message.keys:
        parts.append(f"keys={' '.join(message.keys)}")
    return visible(" ".join(parts), kept="")


def described(message: MessageExt) -> list[str]:
    """Return the lines that describe a message: a line for each field and each property, the body's size, the body."""
    lines = [f"{name + ':':<16}{_shown(value)}" for name, value in fields_of(message).items() if name not in _APART]
    lines += [f"property {name}: {value}" for name, value in message.properties.items()]
    body = message.body.decode(errors="backslashreplace")
    return [*(visible(line, kept="") for line in lines), f"body ({len(message.body)} bytes):", visible(body)]


def moment(time_ms: int) -> str:
    """Return epoch milliseconds as an ISO time in UTC; "-" for 0 and less, and from the year 10000 on."""
    if not 0 < time_ms < 253_402_300_800_000:  # the year 10000
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_APART = frozenset({"properties", "body", "body_base64"})


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return "" if value is None else str(value)


def visible(text: str, *, kept: str = "\n\t") -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)
