"""The options of ``format("rocketmq")``: their names, their defaults, where each one may stand, and what contradicts what.

Pure: nothing here imports Spark or speaks to anybody, so that every mistake is an error before a job starts. An option that does
not exist, or not for what is being done, is an error that names it; Spark itself would ignore it in silence.
Names are those of Spark's Kafka source where it has the thing. Spark hands options over with names in lower case.
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
from .connection import Access, access_of
from .positions import EARLIEST, LAST_MOMENT, Positions, Start, parse_positions, parse_queues, parse_times
from .schema import SOURCE_COLUMNS

__all__ = [
    "OPTIONS",
    "ReadOptions",
    "WriteOptions",
    "chosen_columns",
    "read_options",
    "read_options_of_either",
    "write_options",
]

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
    """``uses``: where it may stand. ``help``: one line for the table in docs/spark.md."""

    name: str
    uses: tuple[str, ...]
    default: str
    help: str
    aliases: tuple[str, ...] = ()


OPTIONS: Final = (
    Option("nameserver", _ALL, "$NAMESRV_ADDR", "Name servers, `host:port`, several with `;` or `,`.", ("namesrv", "namesrvAddr")),
    Option("topic", _ALL, "", "Read: the one topic. Write: the topic of every row; wins over a column `topic`."),
    Option("subscribe", _READ, "", "Topics to read, with `,`."),
    Option("subscribePattern", _READ, "", "Topics to read, as a regular expression that matches their whole name."),
    Option("assign", _READ, "", 'Queues to read: `{"topic": {"broker-a": [0, 1]}}`.'),
    Option(
        "startingOffsets", _READ, "batch: earliest; stream: latest",
        "`earliest`, `latest` or JSON by queue; -2 is earliest, -1 latest; a queue that is not named: earliest.",
    ),
    Option("startingOffsetsByTimestamp", _READ, "", "JSON of milliseconds by queue, or by topic; wins over `startingOffsets`."),
    Option("startingTimestamp", _READ, "", "Milliseconds since 1970, by store time, for every queue; wins over both."),
    Option(
        "startingOffsetsByTimestampStrategy", _READ, "error",
        "Where a queue holds nothing that young: `error`, or `latest`, from its end.",
    ),
    Option(
        "endingOffsets", _BATCH, "latest",
        "`latest` or JSON by queue, exclusive; -1 is latest; a queue that is not named: latest.",
    ),
    Option("endingOffsetsByTimestamp", _BATCH, "", "As `startingOffsetsByTimestamp`; exclusive."),
    Option("endingTimestamp", _BATCH, "", "As `startingTimestamp`; exclusive."),
    Option("failOnDataLoss", _READ, "true", "Whether messages that are gone before they were read fail the query."),
    Option("columns", _READ, "all", "Names with `,`: only these are built, in this order."),
    Option("tags", _READ, "*", "Only messages with one of the tags: `a || b`."),
    Option("minPartitions", _READ, "", "Cut queues further, until there are at least so many partitions."),
    Option("maxRecordsPerPartition", _READ, "", "Cut queues further, until no partition has more offsets than this."),
    Option("maxPartitions", _READ, "", "Read several queues in one task, so that there are no more partitions than this."),
    Option("maxOffsetsPerTrigger", _STREAM, "", "At most so many offsets in a micro-batch, shared out by backlog."),
    Option("minOffsetsPerTrigger", _STREAM, "", "No micro-batch before so many offsets are there or `maxTriggerDelay` has passed."),
    Option("maxTriggerDelay", _STREAM, "15m", "See `minOffsetsPerTrigger`: `90s`, `15m`, `1h`."),
    Option("pullBatchSize", _READ, "32", "Messages that one pull asks for, 1 to 1024; brokers give 32 unless told otherwise."),
    Option("pullTimeoutMs", _READ, "120000", "How long a queue may give nothing before the task fails."),
    Option("fetchOffset.numRetries", _READ, "30", "Further tries when servers are asked for queues and offsets."),
    Option("fetchOffset.retryIntervalMs", _READ, "1000", "Between two of them."),
    Option(
        "offsetsFromReplicas", _READ, "false",
        "Where a broker has no master, plan with the offsets of a replica; what it lacks is not read by that batch.",
    ),
    Option("consumerGroup", _READ, DEFAULT_GROUP, "The group that pulls are made in and offsets are committed for."),
    Option("commitOffsets", _STREAM, "false", "Tell brokers what was read, one micro-batch late; for dashboards only."),
    Option(
        "filterPushdown", _BATCH, "false",
        "Parts of a `where` decide what is pulled at all; needs `spark.sql.python.filterPushdown.enabled`.",
    ),
    Option("requireStatus", _WRITE, "SEND_OK", "`SEND_OK`, or `stored`: the flush or the replica need not be confirmed."),
    Option("idColumn", _WRITE, "", "Column whose text is each message's `RMQ_SPARK_ID`; for plans that are not deterministic."),
    Option("producerGroup", _WRITE, DEFAULT_PRODUCER_GROUP, "The group that messages are sent in."),
    Option("sendTimeoutMs", _WRITE, "30000", "Time of a request with all attempts; a broker that restarts is waited for."),
    Option("sendRetries", _WRITE, "5", "Further attempts in a row, before the next ones wait a moment; 0: one attempt in all."),
    Option("batchBytes", _WRITE, "131072", "Encoded size up to which rows for one queue travel as one batch; 0: one by one."),
    Option("maxMessagesPerSecond", _WRITE, "", "Rate of each partition (task), not of the whole write."),
    Option("accessKey", _ALL, "$RMQ_ACCESS_KEY", "User to sign requests as."),
    Option("secretKey", _ALL, "$RMQ_SECRET_KEY", "Its secret."),
    Option("securityToken", _ALL, "$RMQ_SECURITY_TOKEN", "Of temporary credentials."),
    Option("tls", _ALL, "false", "Speak TLS; certificates are verified."),
    Option("tlsVerify", _ALL, "true", "`false`: with any server, whatever certificate it shows."),
    Option("tlsCaFile", _ALL, "", "Authorities to trust, a file on every machine."),
    Option("tlsCertFile", _ALL, "", "Certificate to show, a file on every machine."),
    Option("tlsKeyFile", _ALL, "", "Its private key, not encrypted."),
    Option("tlsServerName", _ALL, "", "The name to look for in certificates."),
    Option("namespace", _ALL, "", "Prefix of topics and groups."),
    Option("namespaceV2", _ALL, "", "Namespace that is sent beside the names."),
    Option("requestTimeoutMs", _ALL, "3000", "Of every request that is not a send."),
    Option("vipChannel", _ALL, "false", "Send to the brokers' second port."),
)  # fmt: skip

_BY_NAME: Final = {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "triggerinterval"})
"""What Spark itself reads from the same options."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a read was told, checked. Times are seconds. Exactly one of ``topics``, ``pattern`` and ``assign`` is given."""

    access: Access
    topics: tuple[str, ...]
    pattern: str | None
    assign: Mapping[str, Mapping[str, tuple[int, ...]]] | None
    start: Start
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
    commit: bool
    pushdown: bool


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What a write was told, checked. Times are seconds."""

    access: Access
    topic: str | None
    confirmed_only: bool
    id_column: str | None
    group: str
    timeout: float
    retries: int
    batch_bytes: int
    rate: float | None


class _Given:
    """The options of one use, by lower-case name; each is read as what it must be."""

    def __init__(self, options: Mapping[str, str], use: Use) -> None:
        self._values: dict[str, str] = {}
        for given, value in options.items():
            name = given.lower()
            if name in _SPARKS_OWN and use.startswith("streaming"):
                continue
            option = _BY_NAME.get(name)
            if option is None:
                raise ConfigError(_unknown(given))
            if use not in option.uses:
                raise ConfigError(f"option {option.name} is not one of a {use}, only of a {' or a '.join(option.uses)}")
            if option.name in self._values:
                raise ConfigError(f"option {option.name} is given twice, also as {' or '.join(option.aliases)}")
            self._values[option.name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """None where it is not given; raises ConfigError for an empty one."""
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise ConfigError(f"option {name} is empty")
        return value.strip() if value is not None else None

    def only_one(self, names: Iterable[str]) -> None:
        given = [name for name in names if name in self._values]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(given)} contradict each other; give one of them")

    def flag(self, name: str, default: bool) -> bool:
        text = (self.text(name) or str(default)).lower()
        if text not in ("true", "false"):
            raise ConfigError(f"option {name} must be true or false, not {text!r}")
        return text == "true"

    def choice(self, name: str, *choices: str) -> str:
        """The first one is the default."""
        text = self.text(name)
        for choice in choices:
            if text is not None and text.lower() == choice.lower():
                return choice
        if text is not None:
            raise ConfigError(f"option {name} must be {' or '.join(choices)}, not {text!r}")
        return choices[0]

    def number(self, name: str, default: int | None, low: int, high: int) -> int | None:
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
            raise ConfigError(f"option {name} must be a whole number from {low} to {high}, not {text[:100]!r}")
        return int(text)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self.number(name, default, low, high)
        return default if value is None else value

    def seconds(self, name: str, default_ms: int) -> float:
        return self.integer(name, default_ms, 1, 10**10) / 1000

    def decoded(self, name: str) -> Any:
        """JSON; None where it is not given."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"option {name} is no JSON ({error}): {text[:200]}") from None


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Raises ConfigError for whatever cannot be meant."""
    given = _Given(options, "streaming read" if streaming else "batch read")
    group = given.text("consumerGroup") or DEFAULT_GROUP
    _named("consumerGroup", check_group, group)
    if given.flag("commitOffsets", False) and "consumerGroup" not in given:
        raise ConfigError("option commitOffsets needs consumerGroup: whose offsets to commit")
    if "maxTriggerDelay" in given and "minOffsetsPerTrigger" not in given:
        raise ConfigError("option maxTriggerDelay needs minOffsetsPerTrigger")
    given.only_one(("minPartitions", "maxPartitions"))
    given.only_one(("maxRecordsPerPartition", "maxPartitions"))
    fewest, most = (
        given.number("minOffsetsPerTrigger", None, 1, 1 << 62),
        given.number("maxOffsetsPerTrigger", None, 1, 1 << 62),
    )
    if fewest is not None and most is not None and fewest > most:
        raise ConfigError(f"minOffsetsPerTrigger {fewest} is more than maxOffsetsPerTrigger {most}")
    by_time = "startingTimestamp" in given or "startingOffsetsByTimestamp" in given
    if "startingOffsetsByTimestampStrategy" in given and not by_time:
        raise ConfigError("option startingOffsetsByTimestampStrategy needs startingTimestamp or startingOffsetsByTimestamp")
    topics, pattern, assign = _topics(given)
    start = _bound(given, "starting", "latest" if streaming else "earliest")
    end = None if streaming else _bound(given, "ending", "latest")
    if isinstance(start, int) and isinstance(end, int) and start > end:
        raise ConfigError(f"startingTimestamp {start} is after endingTimestamp {end}")
    return ReadOptions(
        access=_access(given),
        topics=topics,
        pattern=pattern,
        assign=assign,
        start=start,
        end=end,
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        no_match_error=given.choice("startingOffsetsByTimestampStrategy", "error", "latest") == "error",
        columns=chosen_columns(given.text("columns")),
        tags=_tags(given.text("tags")),
        min_partitions=given.number("minPartitions", None, 1, 1_000_000),
        max_records=given.number("maxRecordsPerPartition", None, 1, 1 << 62),
        max_partitions=given.number("maxPartitions", None, 1, 1_000_000),
        max_offsets=most,
        min_offsets=fewest,
        max_delay=_duration(given.text("maxTriggerDelay") or "15m"),
        pull_size=given.integer("pullBatchSize", 32, 1, 1024),
        pull_timeout=given.seconds("pullTimeoutMs", 120_000),
        fetch_retries=given.integer("fetchOffset.numRetries", 30, 0, 1000),
        fetch_interval=given.seconds("fetchOffset.retryIntervalMs", 1000),
        replicas=given.flag("offsetsFromReplicas", False),
        group=group,
        commit=given.flag("commitOffsets", False),
        pushdown=False if streaming else given.flag("filterPushdown", False),
    )


def read_options_of_either(options: Mapping[str, str]) -> ReadOptions:
    """Where nobody knows yet whether it is a batch or a stream: as a batch, unless something says stream."""
    given = {name.lower() for name in options}
    only_streams = {option.name.lower() for option in OPTIONS if option.uses == _STREAM} | _SPARKS_OWN
    return read_options(options, streaming=not given.isdisjoint(only_streams))


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Raises ConfigError for whatever cannot be meant."""
    given = _Given(options, "streaming write" if streaming else "batch write")
    topic = given.text("topic")
    if topic is not None:
        _named("topic", check_topic, topic)
    group = given.text("producerGroup") or DEFAULT_PRODUCER_GROUP
    _named("producerGroup", check_group, group)
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


def _unknown(given: str) -> str:
    if given.lower() == "path":
        return "a topic is not a path: use .option('topic', ...) with .load() and .save(), without an argument"
    near = difflib.get_close_matches(given.lower(), _BY_NAME, 1, 0.7)
    return f"unknown option {given}" + (f"; is {_BY_NAME[near[0]].name} meant?" if near else "")


def _named(name: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except InvalidMessageError as error:
        raise ConfigError(f"option {name}: {error}") from None


def _access(given: _Given) -> Access:
    return access_of(
        nameserver=given.text("nameserver"),
        access_key=given.text("accessKey"),
        secret_key=given.text("secretKey"),
        security_token=given.text("securityToken"),
        tls=given.flag("tls", False),
        tls_verify=given.flag("tlsVerify", True),
        tls_files=(given.text("tlsCaFile"), given.text("tlsCertFile"), given.text("tlsKeyFile")),
        server_name=given.text("tlsServerName"),
        namespace=given.text("namespace"),
        namespace_v2=given.text("namespaceV2"),
        request_timeout=given.seconds("requestTimeoutMs", 3000),
        vip_channel=given.flag("vipChannel", False),
    )


def _topics(given: _Given) -> tuple[tuple[str, ...], str | None, Mapping[str, Mapping[str, tuple[int, ...]]] | None]:
    names = ("topic", "subscribe", "subscribePattern", "assign")
    given.only_one(names)
    if not any(name in given for name in names):
        raise ConfigError(f"nothing says what to read: give one of the options {', '.join(names)}")
    if (pattern := given.text("subscribePattern")) is not None:
        try:
            re.compile(pattern)
        except (re.error, RecursionError) as error:
            raise ConfigError(f"option subscribePattern is no regular expression ({error}): {pattern[:200]}") from None
        return (), pattern, None
    if "assign" in given:
        assign = parse_queues("assign", given.decoded("assign"))
        return tuple(assign), None, assign
    option = "topic" if "topic" in given else "subscribe"
    text = given.text(option) or ""
    topics = (text,) if option == "topic" else tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for topic in topics:
        _named(option, check_topic, topic)
    return topics, None, None


def _bound(given: _Given, side: str, default: Literal["earliest", "latest"]) -> Start:
    """The three ways to say it, the strongest first, as Spark's Kafka source orders them."""
    moment = given.number(f"{side}Timestamp", None, 0, LAST_MOMENT)
    if moment is not None:
        return moment
    name = f"{side}OffsetsByTimestamp"
    if name in given:
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
        raise ConfigError(f"option {name}: -2 (earliest) is no end")
    return found


def chosen_columns(text: str | None) -> tuple[str, ...]:
    """The columns that the option means. Raises ConfigError for one that does not exist."""
    if text is None:
        return tuple(SOURCE_COLUMNS)
    by_name = {name.lower(): name for name in SOURCE_COLUMNS}
    columns = []
    for part in text.split(","):
        name = by_name.get(part.strip().lower())
        if name is None:
            raise ConfigError(f"option columns: there is no column {part.strip()!r}, only {', '.join(SOURCE_COLUMNS)}")
        if name in columns:
            raise ConfigError(f"option columns names {name} twice")
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
        raise ConfigError(f"option maxTriggerDelay must be a number and ms, s, m, h or d, not {text[:100]!r}")
    return int(match[1]) * _UNITS[match[2]]
