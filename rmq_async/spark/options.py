"""Reads the options of ``format("rocketmq")`` and refuses combinations that contradict each other.

This module neither imports Spark nor sends requests, so that mistakes in the options themselves raise errors before a job
starts.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from rmq_protocol.errors import InvalidMessageError, LocalProtocolError
from rmq_protocol.stored import parse_tags
from rmq_protocol.validation import check_group, check_topic

from ..errors import ConfigError
from . import kafka_names
from .connection import Access, Mistakes, access_of
from .positions import EARLIEST, LAST_MOMENT, Positions, Start, parse_positions, parse_queues, parse_times
from .schema import SOURCE_COLUMNS

# The table of all options of ``format("rocketmq")``, and the parser that reads the options of one query as their types.
#
# An option that does not exist, or does not apply to the kind of read or write, raises an error that names the option; Spark
# itself would ignore it. Options that Spark's Kafka source also has mostly use the same names. ``kafka_names`` has hints about
# the other ones. Spark passes option names in lower case.

Use = Literal["batch read", "streaming read", "batch write", "streaming write"]

_READ: Final = ("batch read", "streaming read")
_STREAM: Final = ("streaming read",)
_BATCH: Final = ("batch read",)
_WRITE: Final = ("batch write", "streaming write")
_ALL: Final = _READ + _WRITE

DEFAULT_GROUP: Final = "spark-rocketmq-source"
DEFAULT_PRODUCER_GROUP: Final = "spark-rocketmq-sink"


@dataclass(frozen=True)
class Option:
    """One option of the data source.

    Attributes:
        uses: The kinds of reads and writes that accept the option.
        help: The option's line in the table in docs/spark.md.
    """

    name: str
    uses: tuple[str, ...]
    default: str
    help: str
    aliases: tuple[str, ...] = ()


OPTIONS: Final = (
    Option("nameserver", _ALL, "$NAMESRV_ADDR", "Name servers, `host:port`, separated by `;` or `,`.", ("namesrv", "namesrvAddr")),
    Option("topic", _ALL, "", "Read: the only topic. Write: the topic of every row; takes precedence over a column `topic`."),
    Option("subscribe", _READ, "", "Topics to read, separated by `,`."),
    Option("subscribePattern", _READ, "", "Topics to read, as a regular expression that matches their whole name."),
    Option("assign", _READ, "", 'Queues to read: `{"topic": {"broker-a": [0, 1]}}`.'),
    Option(
        "startingOffsets", _READ, "batch: earliest; stream: latest",
        "`earliest`, `latest` or JSON by queue, in which -2 is earliest and -1 latest.",
    ),
    Option(
        "startingOffsetsByTimestamp", _READ, "",
        "JSON of milliseconds by queue or topic; takes precedence over `startingOffsets`.",
    ),
    Option("startingTimestamp", _READ, "", "Store time for every queue, in milliseconds since 1970; takes precedence over both."),
    Option(
        "startingOffsetsByTimestampStrategy", _READ, "error",
        "If a queue has no message at or after that time: `error`, or `latest` to begin at its end.",
    ),
    Option(
        "startingOffsets.default", _READ, "error",
        "Where queues begin that exist at the start and that the JSON does not name: `error`, `earliest` or `latest`.",
    ),
    Option(
        "endingOffsets", _BATCH, "latest",
        "`latest` or JSON by queue, exclusive; -1 is latest, as for queues that the JSON does not name.",
    ),
    Option("endingOffsetsByTimestamp", _BATCH, "", "Like `startingOffsetsByTimestamp`, but the end, exclusive."),
    Option("endingTimestamp", _BATCH, "", "Like `startingTimestamp`, but the end, exclusive."),
    Option("failOnDataLoss", _READ, "true", "Whether the query fails if messages were deleted before they were read."),
    Option("columns", _READ, "all", "Only these columns are built, in this order; separated by `,`."),
    Option("tags", _READ, "*", "Read only messages with one of these tags: `a || b`."),
    Option("minPartitions", _READ, "", "Split queues into at least this many partitions."),
    Option("maxRecordsPerPartition", _READ, "", "Split queues until no partition has more offsets than this."),
    Option("maxPartitions", _READ, "", "Read several queues in one task, so that there are no more partitions than this."),
    Option("maxOffsetsPerTrigger", _STREAM, "", "Maximum number of offsets per micro-batch, divided among the queues by backlog."),
    Option(
        "minOffsetsPerTrigger", _STREAM, "",
        "A micro-batch, except the first of a run, waits for this many offsets, at most `maxTriggerDelay`.",
    ),
    Option("maxTriggerDelay", _STREAM, "15m", "See `minOffsetsPerTrigger`; for example `90s`, `15m`, `1h`."),
    Option("pullBatchSize", _READ, "256", "Messages that one pull requests, 1 to 1024; a stock broker returns 32."),
    Option("pullTimeoutMs", _READ, "120000", "How long a queue may return nothing before the task fails."),
    Option("fetchOffset.numRetries", _READ, "30", "Number of retries when queues and offsets are requested from servers."),
    Option("fetchOffset.retryIntervalMs", _READ, "1000", "Pause between two of these retries."),
    Option(
        "offsetsFromReplicas", _READ, "false",
        "If a broker has no master, plan with the offsets of a replica; the batch does not read messages that it lacks.",
    ),
    Option("consumerGroup", _READ, DEFAULT_GROUP, "Group in whose name messages are pulled and offsets are committed."),
    Option("consumerGroupPrefix", _STREAM, "", "Pull in a group of this query only: the prefix, `-` and the query's id."),
    Option("commitOffsets", _STREAM, "false", "Commit the offsets that were read, one micro-batch late; only for dashboards."),
    Option(
        "filterPushdown", _BATCH, "false",
        "Parts of a `where` limit which messages are pulled; needs `spark.sql.python.filterPushdown.enabled`.",
    ),
    Option("requireStatus", _WRITE, "SEND_OK", "`SEND_OK`, or `stored` if the flush or the replica need not be confirmed."),
    Option("idColumn", _WRITE, "", "Column with each message's `RMQ_SPARK_ID`; for plans that are not deterministic."),
    Option("producerGroup", _WRITE, DEFAULT_PRODUCER_GROUP, "Group in whose name messages are sent."),
    Option("sendTimeoutMs", _WRITE, "30000", "Time limit of a request with all attempts, also while a broker restarts."),
    Option("sendRetries", _WRITE, "5", "Retries in a row, before a short pause and further retries; 0: only one attempt."),
    Option("batchBytes", _WRITE, "131072", "Encoded size up to which rows for one queue are sent as one batch; 0: one by one."),
    Option("maxMessagesPerSecond", _WRITE, "", "Rate limit of each partition (task), not of the whole write."),
    Option("accessKey", _ALL, "$RMQ_ACCESS_KEY", "User in whose name requests are signed."),
    Option("secretKey", _ALL, "$RMQ_SECRET_KEY", "Secret of this user."),
    Option("securityToken", _ALL, "$RMQ_SECURITY_TOKEN", "Token of temporary credentials."),
    Option("credentialsFile", _ALL, "", "Instead of these: a JSON file with all three, on every machine, read at each use."),
    Option(
        "credentialsProvider", _ALL, "",
        "Instead: `module:function`, importable on every machine; returns the three, or `Credentials`, which are used for 30 s.",
    ),
    Option("tls", _ALL, "false", "Use TLS, and verify certificates."),
    Option("tlsVerify", _ALL, "true", "`false`: do not verify certificates."),
    Option("tlsCaFile", _ALL, "", "File with the authorities to trust, on every machine."),
    Option("tlsCertFile", _ALL, "", "File with the client's certificate, on every machine."),
    Option("tlsKeyFile", _ALL, "", "File with its private key, not encrypted."),
    Option("tlsServerName", _ALL, "", "Host name that certificates must have."),
    Option("namespace", _ALL, "", "Prefix of topics and groups."),
    Option("namespaceV2", _ALL, "", "Namespace that is sent in addition to the names."),
    Option("requestTimeoutMs", _ALL, "3000", "Time limit of every request that is not a send."),
    Option("vipChannel", _ALL, "false", "Send to the brokers' second port."),
)  # fmt: skip

BY_NAME: Final = {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "triggerinterval"})
"""Options that Spark itself reads."""
STREAM_ONLY: Final = frozenset(option.name.lower() for option in OPTIONS if option.uses == _STREAM) | _SPARKS_OWN
"""Names, in lower case, of the options that a streaming read has and a batch read does not have."""


class OptionTexts:
    """The values of one query's options, which are strings, by name. Each method parses a value as its type.

    Args:
        mistakes: Gets each option that is unknown, does not apply to the use, is given twice, or is invalid. For an invalid
            option, the methods return the default.
    """

    def __init__(self, options: Mapping[str, str], use: Use, mistakes: Mistakes) -> None:
        self.mistakes = mistakes
        self._values: dict[str, str] = {}
        self._meant: set[str] = set()
        for given, value in options.items():
            name = given.lower()
            if name in _SPARKS_OWN and use.startswith("streaming"):
                continue
            option = BY_NAME.get(name)
            if option is None:
                mistakes.add(self._unknown(given))
            elif use not in option.uses:
                uses = " or a ".join(option.uses)
                mistakes.add(f"option {option.name} does not apply to a {use}, only to a {uses}; leave it out")
            elif option.name in self._values:
                names = " or ".join((option.name, *option.aliases))
                mistakes.add(f"option {option.name} is given twice; give it once, as {names}")
            else:
                self._values[option.name] = value

    def is_meant(self, *names: str) -> bool:
        """Return whether the error for an unknown option suggests one of these names, so that no error is needed for a missing
        option.
        """
        return not self._meant.isdisjoint(names)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """Return the value. Return None if the option is not given or has an empty value, which is recorded as a mistake."""
        value = self._values.get(name)
        if value is not None and not value.strip():
            self.mistakes.add(f"option {name} is empty; give a value, or leave it out")
            return None
        return value.strip() if value is not None else None

    def only_one(self, names: Iterable[str]) -> None:
        given = [name for name in names if name in self._values]
        if len(given) > 1:
            self.mistakes.add(f"options {' and '.join(given)} contradict each other; give one of them")

    def flag(self, name: str, default: bool) -> bool:
        text = (self.text(name) or str(default)).lower()
        if text not in ("true", "false"):
            self.mistakes.add(f"option {name} must be true or false, not {text!r}")
            return default
        return text == "true"

    def choice(self, name: str, *choices: str) -> str:
        """Return one of ``choices``. The first one is the default."""
        text = self.text(name)
        for choice in choices:
            if text is not None and text.lower() == choice.lower():
                return choice
        if text is not None:
            self.mistakes.add(f"option {name} must be {' or '.join(choices)}, not {text!r}")
        return choices[0]

    def number(self, name: str, default: int | None, low: int, high: int) -> int | None:
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
            self.mistakes.add(f"option {name} must be a whole number from {low} to {high}, not {text[:100]!r}")
            return default
        return int(text)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self.number(name, default, low, high)
        return default if value is None else value

    def seconds(self, name: str, default_ms: int) -> float:
        return self.integer(name, default_ms, 1, 10**10) / 1000

    def decoded(self, name: str) -> Any:
        """Return the decoded JSON value. Return None if the option is not given.

        Raises:
            ConfigError: If the value is not valid JSON.
        """
        text = self.text(name)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"option {name} must be JSON ({error}), not {text[:200]!r}") from None

    def _unknown(self, given: str) -> str:
        """Return the error message for an option that does not exist."""
        if given.lower() == "path":
            self._meant.add("topic")
            return "a topic is not a path: use .option('topic', ...) with .load() and .save(), without an argument"
        if (hint := kafka_names.option_of_kafka(given)) is not None:
            self._meant.update(option.name for option in OPTIONS if option.name in hint.split())
            return f"option {given!r} is Kafka's: {hint}"
        near = difflib.get_close_matches(given.lower(), BY_NAME, 1, 0.7)
        if not near:
            return f"unknown option {given!r}; docs/spark.md lists all"
        self._meant.add(meant := BY_NAME[near[0]].name)
        return f"unknown option {given!r}; is {meant} meant?"


Subject = tuple[tuple[str, ...], str | None, Mapping[str, Mapping[str, tuple[int, ...]]] | None]
"""``topics``, ``pattern`` and ``assign`` of ReadOptions."""
_NO_TOPICS: Final[Subject] = ((), None, None)
LENGTH_OF_ID: Final = 36
"""Number of characters of a query's id."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The checked options of a read.

    Durations are in seconds, and moments are in milliseconds since 1970. Either ``topics`` or ``pattern`` is given. ``topics``
    includes the topics of ``assign``.

    Attributes:
        start_default: Start of the queues that a ``start`` by queue does not name: error, earliest or latest.
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
        timeout: Seconds for one send.
        rate: Maximum messages per second of each task. None stands for no limit.
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
        mistakes: If given, it collects the mistakes, and no error is raised. If there are mistakes, the result cannot be used.

    Raises:
        ConfigError: For options that are unknown, malformed or missing, or that contradict other options. One error reports all
            mistakes.
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
    """Find an option of a read that is given without the option it needs, and options that exclude each other."""
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
    """Return the minimum and the maximum number of offsets in a micro-batch. None stands for no limit."""
    fewest = given.number("minOffsetsPerTrigger", None, 1, 1 << 62)
    most = given.number("maxOffsetsPerTrigger", None, 1, 1 << 62)
    if fewest is not None and most is not None and fewest > most:
        given.mistakes.add(f"minOffsetsPerTrigger {fewest} is more than maxOffsetsPerTrigger {most}; lower it")
    return fewest, most


def read_options_of_either(options: Mapping[str, str]) -> ReadOptions:
    """Read the options before it is known whether the query is a batch or a stream. If one of the options is only for streams,
    all are read as options of a stream.
    """
    return read_options(options, streaming=not STREAM_ONLY.isdisjoint(name.lower() for name in options))


def write_options(options: Mapping[str, str], *, streaming: bool, mistakes: Mistakes | None = None) -> WriteOptions:
    """Return the checked options of a write. ``mistakes`` and the errors are as in ``read_options``."""
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


# -- helpers


def _named(given: OptionTexts, name: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except InvalidMessageError as error:
        given.mistakes.add(f"option {name}: {error}")


def _access(given: OptionTexts) -> Access:
    given.only_one(("credentialsFile", "credentialsProvider"))
    nameserver = given.text("nameserver")
    options = Access(
        access_key=given.text("accessKey"),
        secret_key=given.text("secretKey"),
        security_token=given.text("securityToken"),
        credentials_file=given.text("credentialsFile"),
        credentials_provider=given.text("credentialsProvider"),
        tls=given.flag("tls", False),
        tls_verify=given.flag("tlsVerify", True),
        files=(given.text("tlsCaFile"), given.text("tlsCertFile"), given.text("tlsKeyFile")),
        server_name=given.text("tlsServerName"),
        namespace=given.text("namespace"),
        namespace_v2=given.text("namespaceV2"),
        request_timeout=given.seconds("requestTimeoutMs", 3000),
        vip_channel=given.flag("vipChannel", False),
    )
    if not given.is_meant("nameserver") or "nameserver" in given:
        return given.mistakes.result(lambda: access_of(nameserver, options), Access())
    return Access()


def _group_prefix(given: OptionTexts) -> str | None:
    prefix = given.text("consumerGroupPrefix")
    if prefix is not None:
        _named(given, "consumerGroupPrefix", check_group, group_of_query(prefix, "-" * LENGTH_OF_ID))
    return prefix


def group_of_query(prefix: str, query: str) -> str:
    """Return the group in which a query pulls.

    Args:
        query: The query's id, which stays the same as long as the query has the same checkpoint.
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
    if text is None:  # the option is empty
        return _NO_TOPICS
    topics = (text,) if option == "topic" else tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for topic in topics:
        _named(given, option, check_topic, topic)
    return topics, None, None


def _bound(given: OptionTexts, side: str, default: Literal["earliest", "latest"]) -> Start:
    """Return the start of a read (``side`` is "starting") or its end ("ending"). It comes from the first of the three options
    that is given, in the order that Spark's Kafka source uses.
    """
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
        raise ConfigError(f"option {name}: -2 (earliest) cannot be an end; give -1 (latest) or an offset")
    return found


def chosen_columns(text: str | None) -> tuple[str, ...]:
    """Return the columns that the option ``columns`` names, or all columns without the option.

    Raises:
        ConfigError: For a column that does not exist or that is named twice.
    """
    if text is None:
        return tuple(SOURCE_COLUMNS)
    by_name = {name.lower(): name for name in SOURCE_COLUMNS}
    columns = []
    for part in text.split(","):
        name = by_name.get(part.strip().lower())
        if name is None:
            raise ConfigError(f"option columns: there is no column {part.strip()!r}{column_hint(part.strip())}")
        if name in columns:
            raise ConfigError(f"option columns: {name} is given twice; give it once")
        columns.append(name)
    return tuple(columns)


def column_hint(name: str) -> str:
    """Return the end of the error message about a column that the source does not have: the columns that it has instead."""
    called = kafka_names.READ_COLUMNS.get(name.lower())
    return f"; it is called {called}" if called else f", only {', '.join(SOURCE_COLUMNS)}"


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
