"""Filters of pulls and pops. A filter selects messages by tags, whose hash codes are in consume queues, or by an SQL92
condition over the properties.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq_protocol.constants import ResponseCode
from rmq_protocol.errors import LocalProtocolError
from rmq_protocol.subscription import SQL92, TAG, split_tags

from .records import properties_of
from .service import Refused
from .sql92 import Condition, ConditionError, compile_condition
from .store import tag_code

MIN_SCAN: Final = 800
"""Maximum number of records that one pull examines (16,000 bytes of consume queue at 20 bytes per entry)."""
_LEAST_SCAN: Final = 32
"""Maximum number of records that a pull with the longest conditions examines."""
_PARTS_PER_PULL: Final = 40_000
"""Approximate number of parts of conditions that one pull evaluates. The longer the condition, the fewer records the pull
examines."""


class Filter(NamedTuple):
    """A filter of messages.

    Attributes:
        codes: Hash codes of the requested tags. None means all tags.
        condition: The SQL92 condition. None if there is no condition.
    """

    codes: frozenset[int] | None = None
    condition: Condition | None = None

    @property
    def scan(self) -> int:
        """Maximum number of records that one pull examines."""
        if self.condition is None:
            return MIN_SCAN
        return max(_LEAST_SCAN, min(MIN_SCAN, _PARTS_PER_PULL // self.condition.size))

    def accepts(self, record: bytes) -> bool:
        """Return whether the condition is true for a record. Return True if there is no condition. Tags are not compared."""
        return self.condition is None or self.condition.matches(properties_of(record))


def filter_of(expression: str, kind: str, *, property_filter: bool, brought: bool) -> Filter:
    """Return the filter of a pull.

    Args:
        brought: Whether the pull contains its subscription. If so, a pull with an invalid condition gets every message, as on a
            real broker.

    Raises:
        Refused: With code 23 for invalid tags, and for an empty condition in the pull itself; with code 27 for an invalid
            condition from a heartbeat; with code 1 for any other condition if the broker does not filter by conditions.
    """
    if kind in ("", TAG):
        if expression in ("", "*"):
            return Filter()
        try:
            return Filter(frozenset(tag_code(tag) for tag in split_tags(expression)))
        except LocalProtocolError:
            raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed", {}) from None
    if brought and not expression:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed", {})
    condition = None
    try:
        condition = _compiled(expression, kind)
    except ConditionError:
        if not brought:
            remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            raise Refused(ResponseCode.FILTER_DATA_NOT_EXIST, remark, {}) from None
    if not property_filter:
        raise Refused(ResponseCode.SYSTEM_ERROR, _unsupported(kind), {})
    return Filter(condition=condition)


def check_condition(expression: str, kind: str, *, property_filter: bool) -> None:
    """Check the condition of a CHECK_CLIENT_CONFIG request (46) or of a pop.

    Raises:
        Refused: With code 1 for any condition if the broker does not filter by conditions; with code 23 for an invalid
            condition.
    """
    if kind in ("", TAG):
        return
    if not property_filter:
        raise Refused(ResponseCode.SYSTEM_ERROR, _unsupported(kind))
    try:
        _compiled(expression, kind)
    except ConditionError as error:
        remark = f"org.apache.rocketmq.filter.parser.ParseException: {error}"
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None


def _compiled(expression: str, kind: str) -> Condition:
    if kind != SQL92:
        raise ConditionError(f"there are no conditions of type {kind[:60]!r}; use {SQL92}")
    return compile_condition(expression)


def _unsupported(kind: str) -> str:
    return f"The broker does not support consumer to filter message by {kind[:60]}"
