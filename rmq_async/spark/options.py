"""Reads the options of ``format("rocketmq")`` and refuses combinations that contradict each other.

This module imports no Spark and asks no server, so that mistakes which the options alone show are errors before a job starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from rmq_protocol.errors import InvalidMessageError, LocalProtocolError
from rmq_protocol.stored import parse_tags
from rmq_protocol.validation import check_group, check_topic

from ..errors import ConfigError
from .connection import Access, AccessOptions, access_of
from .kafka_names import read_column_of_kafka
from .mistakes import Mistakes
from .option_texts import DEFAULT_GROUP, DEFAULT_PRODUCER_GROUP, OPTIONS, STREAM_ONLY, OptionTexts
from .positions import EARLIEST, LAST_MOMENT, Positions, Start, parse_positions, parse_queues, parse_times
from .schema import SOURCE_COLUMNS

__all__ = [
    "OPTIONS",
    "ReadOptions",
    "WriteOptions",
    "chosen_columns",
    "group_of_query",
    "read_options",
    "read_options_of_either",
    "write_options",
]


Subject = tuple[tuple[str, ...], str | None, Mapping[str, Mapping[str, tuple[int, ...]]] | None]
"""``topics``, ``pattern`` and ``assign`` of ReadOptions."""
_NO_TOPICS: Final[Subject] = ((), None, None)
LENGTH_OF_ID: Final = 36
"""Characters of a query's id."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The checked options of a read.

    Durations are seconds, moments milliseconds since 1970. Either ``topics`` or ``pattern`` is given; ``topics`` includes those
    of ``assign``.

    Attributes:
        start_default: Start of queues that a ``start`` by queue does not name; error, earliest or latest.
        group_prefix: The tasks of a streaming query pull in the group ``group_of_query(group_prefix, id)`` instead of
            ``group``.
    """

    access: Access
    topics: tuple[str, ...]
    pattern: str | None
    assign: Mapping[str, Mapping[str, tuple[int, ...]]] | None
    start: Start
    start_default: str
    end: Start | None
    fail_on_data_loss: bool
    no_match_error: bool
    columns: tuple[str, ...]
    tags: str
    min_partitions: int | None
    max_records: int | None
    max_partitions: int | None
    max_offsets: int | None
    min_offsets: int | None
    max_delay: float
    pull_size: int
    pull_timeout: float
    fetch_retries: int
    fetch_interval: float
    replicas: bool
    group: str
    group_prefix: str | None
    commit: bool
    pushdown: bool


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The checked options of a write.

    Attributes:
        timeout: seconds.
        rate: Messages per second of each task; None for no limit.
    """

    access: Access
    topic: str | None
    confirmed_only: bool
    id_column: str | None
    group: str
    timeout: float
    retries: int
    batch_bytes: int
    rate: float | None


def read_options(options: Mapping[str, str], *, streaming: bool, mistakes: Mistakes | None = None) -> ReadOptions:
    """Return the checked options of a read.

    Args:
        mistakes: Gets them instead; the result is of no use then.

    Raises:
        ConfigError: For those that are unknown, malformed, missing or contradict others, all in one error.
    """
    found = Mistakes() if mistakes is None else mistakes
    result = _read_options(OptionTexts(options, "streaming read" if streaming else "batch read", found), streaming)
    if mistakes is None:
        found.check()
    return result


def _read_options(given: OptionTexts, streaming: bool) -> ReadOptions:
    mistakes = given.mistakes
    group = given.text("consumerGroup") or DEFAULT_GROUP
    _named(given, "consumerGroup", check_group, group)
    _check_companions(given)
    fewest, most = _offsets_per_trigger(given)
    topics, pattern, assign = mistakes.result(lambda: _topics(given), _NO_TOPICS)
    start = _bound(given, "starting", "latest" if streaming else "earliest")
    end = None if streaming else _bound(given, "ending", "latest")
    if isinstance(start, int) and isinstance(end, int) and start > end:
        mistakes.add(f"startingTimestamp {start} is after endingTimestamp {end}; give a later end")
    start_default = given.choice("startingOffsets.default", "error", "earliest", "latest")
    by_queue = "startingOffsetsByTimestamp" in given or (given.text("startingOffsets") or "").startswith("{")
    if "startingOffsets.default" in given and (not by_queue or "startingTimestamp" in given):
        mistakes.add(
            "option startingOffsets.default needs startingOffsets or startingOffsetsByTimestamp as JSON by queue; give one of "
            "them, or leave it out"
        )
    return ReadOptions(
        access=_access(given),
        topics=topics,
        pattern=pattern,
        assign=assign,
        start=start,
        start_default=start_default,
        end=end,
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        no_match_error=given.choice("startingOffsetsByTimestampStrategy", "error", "latest") == "error",
        columns=mistakes.result(lambda: chosen_columns(given.text("columns")), tuple(SOURCE_COLUMNS)),
        tags=mistakes.result(lambda: _tags(given.text("tags")), "*"),
        min_partitions=given.number("minPartitions", None, 1, 1_000_000),
        max_records=given.number("maxRecordsPerPartition", None, 1, 1 << 62),
        max_partitions=given.number("maxPartitions", None, 1, 1_000_000),
        max_offsets=most,
        min_offsets=fewest,
        max_delay=mistakes.result(lambda: _duration(given.text("maxTriggerDelay") or "15m"), 0.0),
        pull_size=given.integer("pullBatchSize", 256, 1, 1024),
        pull_timeout=given.seconds("pullTimeoutMs", 120_000),
        fetch_retries=given.integer("fetchOffset.numRetries", 30, 0, 1000),
        fetch_interval=given.seconds("fetchOffset.retryIntervalMs", 1000),
        replicas=given.flag("offsetsFromReplicas", False),
        group=group,
        group_prefix=_group_prefix(given),
        commit=given.flag("commitOffsets", False),
        pushdown=False if streaming else given.flag("filterPushdown", False),
    )


def _check_companions(given: OptionTexts) -> None:
    """Find an option of a read without the one it needs, and two that exclude each other."""
    if given.flag("commitOffsets", False) and "consumerGroup" not in given:
        given.mistakes.add("option commitOffsets needs consumerGroup; give the group to commit offsets for")
    given.only_one(("consumerGroup", "consumerGroupPrefix"))
    if "maxTriggerDelay" in given and "minOffsetsPerTrigger" not in given:
        given.mistakes.add("option maxTriggerDelay needs minOffsetsPerTrigger; give both, or leave it out")
    given.only_one(("minPartitions", "maxPartitions"))
    given.only_one(("maxRecordsPerPartition", "maxPartitions"))
    by_time = "startingTimestamp" in given or "startingOffsetsByTimestamp" in given
    if "startingOffsetsByTimestampStrategy" in given and not by_time:
        given.mistakes.add(
            "option startingOffsetsByTimestampStrategy needs startingTimestamp or startingOffsetsByTimestamp; give one of them"
        )


def _offsets_per_trigger(given: OptionTexts) -> tuple[int | None, int | None]:
    """Return the least and the greatest number of offsets in a micro-batch; None for no limit."""
    fewest = given.number("minOffsetsPerTrigger", None, 1, 1 << 62)
    most = given.number("maxOffsetsPerTrigger", None, 1, 1 << 62)
    if fewest is not None and most is not None and fewest > most:
        given.mistakes.add(f"minOffsetsPerTrigger {fewest} is more than maxOffsetsPerTrigger {most}; lower it")
    return fewest, most


def read_options_of_either(options: Mapping[str, str]) -> ReadOptions:
    """Read the options before it is known whether the query is a batch or a stream: as those of a stream if one of them is for
    streams only.
    """
    return read_options(options, streaming=not STREAM_ONLY.isdisjoint(name.lower() for name in options))


def write_options(options: Mapping[str, str], *, streaming: bool, mistakes: Mistakes | None = None) -> WriteOptions:
    """Return the checked options of a write. Raises ConfigError, and ``mistakes`` gets its parts, as in ``read_options``."""
    found = Mistakes() if mistakes is None else mistakes
    result = _write_options(OptionTexts(options, "streaming write" if streaming else "batch write", found))
    if mistakes is None:
        found.check()
    return result


def _write_options(given: OptionTexts) -> WriteOptions:
    topic = given.text("topic")
    if topic is not None:
        _named(given, "topic", check_topic, topic)
    group = given.text("producerGroup") or DEFAULT_PRODUCER_GROUP
    _named(given, "producerGroup", check_group, group)
    rate = given.number("maxMessagesPerSecond", None, 1, 1 << 40)
    return WriteOptions(
        access=_access(given),
        topic=topic,
        confirmed_only=given.choice("requireStatus", "SEND_OK", "stored") == "SEND_OK",
        id_column=given.text("idColumn"),
        group=group,
        timeout=given.seconds("sendTimeoutMs", 30_000),
        retries=given.integer("sendRetries", 5, 0, 1000),
        batch_bytes=given.integer("batchBytes", 131_072, 0, 4 * 1024 * 1024),
        rate=None if rate is None else float(rate),
    )


# -- inside


def _named(given: OptionTexts, name: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except InvalidMessageError as error:
        given.mistakes.add(f"option {name}: {error}")


def _access(given: OptionTexts) -> Access:
    given.only_one(("credentialsFile", "credentialsProvider"))
    options = AccessOptions(
        nameserver=given.text("nameserver"),
        access_key=given.text("accessKey"),
        secret_key=given.text("secretKey"),
        security_token=given.text("securityToken"),
        credentials_file=given.text("credentialsFile"),
        credentials_provider=given.text("credentialsProvider"),
        tls=given.flag("tls", False),
        tls_verify=given.flag("tlsVerify", True),
        tls_files=(given.text("tlsCaFile"), given.text("tlsCertFile"), given.text("tlsKeyFile")),
        server_name=given.text("tlsServerName"),
        namespace=given.text("namespace"),
        namespace_v2=given.text("namespaceV2"),
        request_timeout=given.seconds("requestTimeoutMs", 3000),
        vip_channel=given.flag("vipChannel", False),
    )
    access = Access(name_servers=())
    if not given.is_meant("nameserver") or "nameserver" in given:
        return given.mistakes.result(lambda: access_of(options), access)
    return access


def _group_prefix(given: OptionTexts) -> str | None:
    prefix = given.text("consumerGroupPrefix")
    if prefix is not None:
        _named(given, "consumerGroupPrefix", check_group, group_of_query(prefix, "-" * LENGTH_OF_ID))
    return prefix


def group_of_query(prefix: str, query: str) -> str:
    """Return the group that a query pulls in.

    Args:
        query: The query's id, which stays the same as long as its checkpoint.
    """
    return f"{prefix}-{query}"


def _topics(given: OptionTexts) -> Subject:
    names = ("topic", "subscribe", "subscribePattern", "assign")
    given.only_one(names)
    if not any(name in given for name in names):
        if given.is_meant(*names):
            return _NO_TOPICS
        raise ConfigError(f"nothing says what to read: give one of the options {', '.join(names)}")
    if (pattern := given.text("subscribePattern")) is not None:
        try:
            re.compile(pattern)
        except (re.error, RecursionError) as error:
            raise ConfigError(
                f"option subscribePattern must be a regular expression ({error}), not {pattern[:200]!r}"
            ) from None
        return (), pattern, None
    if given.text("assign") is not None:
        assign = parse_queues("assign", given.decoded("assign"))
        return tuple(assign), None, assign
    option = "topic" if "topic" in given else "subscribe"
    text = given.text(option)
    if text is None:  # it is empty
        return _NO_TOPICS
    topics = (text,) if option == "topic" else tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for topic in topics:
        _named(given, option, check_topic, topic)
    return topics, None, None


def _bound(given: OptionTexts, side: str, default: Literal["earliest", "latest"]) -> Start:
    """Return the bound of one side, from the first of its three options that is given, in the order of Spark's Kafka source."""
    moment = given.number(f"{side}Timestamp", None, 0, LAST_MOMENT)
    if moment is not None:
        return moment
    return given.mistakes.result(lambda: _bound_by_queue(given, side, default), default)


def _bound_by_queue(given: OptionTexts, side: str, default: Literal["earliest", "latest"]) -> Start:
    name = f"{side}OffsetsByTimestamp"
    if given.text(name) is not None:
        return parse_times(name, given.decoded(name))
    name = f"{side}Offsets"
    text = given.text(name)
    words = ("earliest", "latest") if side == "starting" else ("latest",)
    if text is None or text.lower() in words:
        return default if text is None else ("earliest" if text.lower() == "earliest" else "latest")
    if not text.startswith("{"):
        raise ConfigError(f"option {name} must be {', '.join(words)} or JSON by queue, not {text[:200]!r}")
    found: Positions = parse_positions(name, given.decoded(name))
    if side == "ending" and EARLIEST in (*found.queues.values(), *found.topics.values()):
        raise ConfigError(f"option {name}: -2 (earliest) is no end; give -1 (latest) or an offset")
    return found


def chosen_columns(text: str | None) -> tuple[str, ...]:
    """Return the columns that the option names; all without it.

    Raises:
        ConfigError: For one that does not exist or is named twice.
    """
    if text is None:
        return tuple(SOURCE_COLUMNS)
    by_name = {name.lower(): name for name in SOURCE_COLUMNS}
    columns = []
    for part in text.split(","):
        name = by_name.get(part.strip().lower())
        if name is None:
            called = read_column_of_kafka(part.strip())
            hint = f"; it is called {called}" if called else f", only {', '.join(SOURCE_COLUMNS)}"
            raise ConfigError(f"option columns: there is no column {part.strip()!r}{hint}")
        if name in columns:
            raise ConfigError(f"option columns names {name} twice; name it once")
        columns.append(name)
    return tuple(columns)


def _tags(text: str | None) -> str:
    if text is None:
        return "*"
    try:
        parse_tags(text)
    except LocalProtocolError as error:
        raise ConfigError(f"option tags: {error}") from None
    return text


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|h|d)", text.strip(), re.ASCII)
    if match is None:
        raise ConfigError(
            f"option maxTriggerDelay must be a number of at most 9 digits and ms, s, m, h or d, such as 90s, not {text[:100]!r}"
        )
    return int(match[1]) * _UNITS[match[2]]
