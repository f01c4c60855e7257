"""The attributes of topics and groups: which keys a broker knows, which values it accepts, and how a request changes them
(``AttributeUtil``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rmq_protocol.constants import ResponseCode

from .service import Refused

_SHOWN: Final = 60
"""Maximum number of characters of a key or value that a remark shows."""
_LONG: Final = 2**63 - 1
MAX_EXPIRATION: Final = 30 * 24 * 60
"""Maximum of ``lite.topic.expiration`` in minutes."""


class Attribute(NamedTuple):
    """An attribute that a broker knows.

    Attributes:
        refusal: A function that returns the remark for an invalid value, or None for a valid value.
        changeable: Whether the attribute can be set after the topic or group was created.
    """

    refusal: Callable[[str], str | None]
    changeable: bool = True


def _one_of(*values: str) -> Callable[[str], str | None]:
    return lambda value: None if value in values else f"value is not in set: [{', '.join(values)}]"


def _whole(least: int, most: int) -> Callable[[str], str | None]:
    def refusal(value: str) -> str | None:
        digits = value[1:] if value[:1] in ("-", "+") else value
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(_LONG))):
            return f'For input string: "{value[:_SHOWN]}"'
        return None if least <= int(value) <= most else f"value is not in range({least}, {most})"

    return refusal


def _boolean(value: str) -> str | None:
    return None if value.lower() in ("true", "false") else "boolean attribute format is wrong."


def _any(value: str) -> str | None:
    return None


OF_TOPICS: Final = {
    "message.type": Attribute(_one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE")),
    "queue.type": Attribute(_one_of("SimpleCQ"), changeable=False),
    "cleanup.policy": Attribute(_one_of("DELETE"), changeable=False),
    "lite.topic.expiration": Attribute(_whole(-1, MAX_EXPIRATION)),
}
OF_GROUPS: Final = {
    "priority.factor": Attribute(_whole(0, 100)),
    "lite.bind.topic": Attribute(_any),
    "lite.sub.model": Attribute(_one_of("Shared", "Exclusive")),
    "lite.sub.reset.offset.exclusive": Attribute(_boolean),
    "lite.sub.reset.offset.unsubscribe": Attribute(_boolean),
    "lite.sub.client.quota": Attribute(_whole(-1, _LONG)),
    "lite.sub.client.max.event.cnt": Attribute(_whole(10, _LONG)),
}
"""Attributes of groups. A real broker also knows ``lite.sub.wildcard``, with which a group reads all lite topics of a topic."""


def parse_changes(text: str) -> dict[str, str]:
    """Return the changes in a text such as ``+key=value,-key``, by key with its sign.

    Raises:
        Refused: With code 1 for a malformed text.
    """
    changes: dict[str, str] = {}
    for item in text.split(",") if text else ():
        key, equals, value = item.partition("=")
        if not item.startswith("+" if equals else "-") or len(key) < 2:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"attribute format is wrong: {item[:_SHOWN]}")
        changes[key] = value
    return changes


def changed_attributes(
    known: Mapping[str, Attribute], old: Mapping[str, str], changes: Mapping[str, str], *, is_new: bool
) -> dict[str, str]:
    """Return the attributes after changes.

    Args:
        changes: Values by key. A key begins with ``+`` for a value to set and with ``-`` for an attribute to remove.
        is_new: Whether the topic or group is being created.

    Raises:
        Refused: With code 1 for a key without a sign, an unknown key, an invalid value, a removal of an attribute that is not set,
            and a change of an attribute that can be set only when a topic is created.
    """
    attributes = dict(old)
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if is_new and sign != "+":
            remark = f"only add attribute is supported while creating topic. key: {key[:_SHOWN]}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        if sign not in ("+", "-"):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"wrong format key: {key[:_SHOWN]}")
        if sign == "-" and key not in old:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"attempt to delete a nonexistent key: {key[:_SHOWN]}")
        attribute = known.get(key)
        if attribute is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"unsupported key: {key[:_SHOWN]}")
        if not is_new and not attribute.changeable:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            attributes.pop(key, None)
            continue
        refusal = attribute.refusal(value)
        if refusal is not None:
            raise Refused(ResponseCode.SYSTEM_ERROR, refusal)
        attributes[key] = value
    return attributes
