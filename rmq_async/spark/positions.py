"""Parses and writes offsets by queue, in the forms that options and checkpoints use.

Offsets are written in one form, which is flat and sorted: ``{"topic/broker/3": 17}``. Three forms are read: the flat form; the
nested form of RocketMQ's former connector, ``{"topic": {"broker": {"3": 17}}}``; and ``{"topic": -2}``, which applies to all
queues of a topic that are not named themselves. -2 stands for the earliest offset, and -1 stands for the latest.

A checkpoint also holds the first offsets of a stream (``EndOffset``). After a restart before the first commit, Spark requests
the first offsets again. "latest" would then be a later offset, and the messages in between would be lost.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rmq_protocol.errors import InvalidMessageError, printable, shown
from rmq_protocol.message import MessageQueue
from rmq_protocol.validation import check_topic

from ..errors import ConfigError

EARLIEST: Final = -2
LATEST: Final = -1
LAST_MOMENT: Final = 253_402_300_799_999
"""The end of the year 9999 in milliseconds since 1970, which is the last time that Python and Spark can represent."""
_HIGHEST: Final = 1 << 62
_BROKER: Final = "broker-a"
"""The name of the broker in the examples of error messages."""


@dataclass(frozen=True)
class Positions:
    """Offsets (or EARLIEST, LATEST) by queue and, for the queues that are not named, EARLIEST or LATEST by topic."""

    queues: Mapping[MessageQueue, int]
    topics: Mapping[str, int] = field(default_factory=dict)

    def of(self, queue: MessageQueue) -> int | None:
        """Return the position of a queue. Return None if the queue has no position."""
        return self.queues.get(queue, self.topics.get(queue.topic))


@dataclass(frozen=True)
class Times(Positions):
    """Positions that are times, in milliseconds since 1970, instead of offsets."""


Start = Literal["earliest", "latest"] | int | Times | Positions
"""The beginning or the end of a read. A number is a moment in milliseconds since 1970 and applies to every queue."""


def key_of(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def named_queues(queues: Iterable[MessageQueue]) -> str:
    """Return the names of up to four queues, and the number of further queues."""
    names = [key_of(queue) for queue in sorted(queues)]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def queue_of(key: str) -> MessageQueue:
    """Return the queue for a string that ``key_of`` returned.

    Topic names contain no "/", but broker names may contain it.

    Raises:
        ValueError: For any other string.
    """
    topic, _, rest = key.partition("/")
    broker, _, number = rest.rpartition("/")
    if not topic or not broker or not number.isascii() or not number.isdigit() or len(number) > 10:
        raise ValueError(f"a queue must be topic/broker/number, not {shown(key)}; the number has 10 digits at most")
    return MessageQueue(topic, broker, int(number))


def parse_positions(option: str, data: Any) -> Positions:
    """Parse positions by queue and by topic.

    Raises:
        ConfigError: For data in another form, for an invalid topic name, for a position that is not allowed, and for data that
            name neither a queue nor a topic.
    """
    topics, rest = _by_topic(option, data)
    for topic, value in topics.items():
        if isinstance(value, bool) or value not in (EARLIEST, LATEST):
            raise ConfigError(
                f"option {option}: {topic}: for all queues of a topic -2 (earliest) or -1 (latest) can be given, not {shown(value)}"
            )
    return Positions({queue: _number(option, queue, value, EARLIEST) for queue, value in _flat(option, rest).items()}, topics)


def parse_times(option: str, data: Any) -> Times:
    """Parse times: ``{"topic": 1700000000000}`` for all queues of a topic, or by queue in either form.

    Raises:
        ConfigError: In the same cases as ``parse_positions``. Times must be from 0 to ``LAST_MOMENT``.
    """
    topics, rest = _by_topic(option, data)
    for topic, value in topics.items():
        _number(option, topic, value, 0, LAST_MOMENT)
    queues = {queue: _number(option, queue, value, 0, LAST_MOMENT) for queue, value in _flat(option, rest).items()}
    return Times(queues, topics)


def _by_topic(option: str, data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of whole topics, and the other entries."""
    if not _object(option, data):
        raise ConfigError(f"option {option} names no queue and no topic; name one or more")
    whole = {key: value for key, value in data.items() if not isinstance(value, dict) and "/" not in key}
    for topic in whole:
        _check_topic(option, topic)
    return whole, {key: value for key, value in data.items() if key not in whole}


def parse_queues(option: str, data: Any) -> dict[str, dict[str, tuple[int, ...]]]:
    """Parse queues: ``{"topic": {"broker": [0, 1]}}``.

    Raises:
        ConfigError: For data of another form, for an invalid topic name, for a queue number outside 0 to 2^31 - 1, and for data
            that name no queue.
    """
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, brokers in _object(option, data).items():
        _check_topic(option, topic)
        if isinstance(brokers, list) and brokers and all(_is_queue_id(number) for number in brokers):
            raise _kafkas(option, topic, {topic: {_BROKER: brokers}})
        if not isinstance(brokers, dict) or not brokers:
            raise ConfigError(f'option {option}: {topic} must be an object such as {{"broker": [0, 1]}}, not {shown(brokers)}')
        for broker, numbers in brokers.items():
            if not isinstance(numbers, list) or not numbers or not all(_is_queue_id(number) for number in numbers):
                raise ConfigError(
                    f"option {option}: {topic}, {broker} must be a list of queue numbers, not {shown(numbers)}; give one or more "
                    "whole numbers from 0 to 2147483647"
                )
            found.setdefault(topic, {})[broker] = tuple(dict.fromkeys(numbers))
    if not found:
        raise ConfigError(f"option {option} names no queue; name one or more")
    return found


def _flat(option: str, data: Any) -> dict[MessageQueue, Any]:
    found: dict[MessageQueue, Any] = {}
    for key, value in _object(option, data).items():
        if isinstance(value, dict):
            _check_topic(option, key)
            if value and all(name.isdecimal() and isinstance(offset, int) for name, offset in value.items()):
                raise _kafkas(option, key, {f"{key}/{_BROKER}/{number}": offset for number, offset in value.items()})
            for broker, numbers in value.items():
                if not isinstance(numbers, dict):
                    raise ConfigError(f'option {option}: {key}, {broker} must be {{"queue": offset}}, not {shown(numbers)}')
                found.update({_queue(option, f"{key}/{broker}/{number}"): offset for number, offset in numbers.items()})
        else:
            found[_queue(option, key)] = value
    return found


def _kafkas(option: str, topic: str, example: Mapping[str, Any]) -> ConfigError:
    """Return the error for an option that names queues of ``topic`` like Kafka's partitions, only by number."""
    given = dict(itertools.islice(example.items(), 3))
    text = f"option {option}: {printable(topic)}: a queue is named by its broker too, as each broker numbers its own; write"
    return ConfigError(f"{text} {printable(json.dumps(given))} with the names of your brokers")


def _object(option: str, data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ConfigError(f"option {option} must be a JSON object by queue, not {shown(json.dumps(data))}")
    return data


def _queue(option: str, key: str) -> MessageQueue:
    try:
        queue = queue_of(key)
    except ValueError as error:
        raise ConfigError(f"option {option}: {error}") from None
    _check_topic(option, queue.topic)
    return queue


def _check_topic(option: str, topic: str) -> None:
    try:
        check_topic(topic)
    except InvalidMessageError as error:
        raise ConfigError(f"option {option}: {error}") from None


def _number(option: str, what: object, value: Any, low: int, high: int = _HIGHEST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        name = key_of(what) if isinstance(what, MessageQueue) else what
        raise ConfigError(f"option {option}: {name} must be a whole number from {low} to {high}, not {shown(value)}")
    return value


def _is_queue_id(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 31
