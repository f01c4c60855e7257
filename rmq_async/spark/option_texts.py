"""The table of all options of ``format("rocketmq")``, and the texts of one query's options, each read as its type.

An option that does not exist, or does not belong to the use, raises an error that names it; Spark itself would ignore it. Most
options that Spark's Kafka source has too have its names; ``kafka_names`` has hints about others. Spark passes option names in
lower case.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..errors import ConfigError
from .kafka_names import option_of_kafka
from .mistakes import Mistakes

__all__ = ["DEFAULT_GROUP", "DEFAULT_PRODUCER_GROUP", "OPTIONS", "STREAM_ONLY", "Option", "OptionTexts", "Use"]

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
        uses: Reads and writes that accept it.
        help: One line for the table in docs/spark.md.
    """

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
        "`earliest`, `latest` or JSON by queue; -2 is earliest, -1 latest.",
    ),
    Option("startingOffsetsByTimestamp", _READ, "", "JSON of milliseconds by queue, or by topic; wins over `startingOffsets`."),
    Option("startingTimestamp", _READ, "", "Milliseconds since 1970, by store time, for every queue; wins over both."),
    Option(
        "startingOffsetsByTimestampStrategy", _READ, "error",
        "If a queue has no message at or after that time: `error`, or `latest`, from its end.",
    ),
    Option(
        "startingOffsets.default", _READ, "error",
        "For queues that are there at the start and that the JSON of these two does not name: `error`, `earliest` or `latest`.",
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
    Option("minPartitions", _READ, "", "Split queues into at least this many partitions."),
    Option("maxRecordsPerPartition", _READ, "", "Split queues until no partition has more offsets than this."),
    Option("maxPartitions", _READ, "", "Read several queues in one task, so that there are no more partitions than this."),
    Option("maxOffsetsPerTrigger", _STREAM, "", "At most so many offsets in a micro-batch, shared out by backlog."),
    Option(
        "minOffsetsPerTrigger", _STREAM, "",
        "No micro-batch, but the first of a run, before so many offsets are there or `maxTriggerDelay` has passed.",
    ),
    Option("maxTriggerDelay", _STREAM, "15m", "See `minOffsetsPerTrigger`: `90s`, `15m`, `1h`."),
    Option("pullBatchSize", _READ, "256", "Messages that one pull asks for, 1 to 1024; a stock broker gives 32."),
    Option("pullTimeoutMs", _READ, "120000", "How long a queue may give nothing before the task fails."),
    Option("fetchOffset.numRetries", _READ, "30", "Further tries when servers are asked for queues and offsets."),
    Option("fetchOffset.retryIntervalMs", _READ, "1000", "Between two of them."),
    Option(
        "offsetsFromReplicas", _READ, "false",
        "Where a broker has no master, plan with the offsets of a replica; what it lacks is not read by that batch.",
    ),
    Option("consumerGroup", _READ, DEFAULT_GROUP, "The group that pulls are made in and offsets are committed for."),
    Option("consumerGroupPrefix", _STREAM, "", "Pull in a group of this query alone: the prefix, `-` and the query's id."),
    Option("commitOffsets", _STREAM, "false", "Commit the offsets that were read, one micro-batch late; for dashboards only."),
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
    Option("credentialsFile", _ALL, "", "Instead of these: JSON of all three, a file on every machine that is read at each use."),
    Option(
        "credentialsProvider", _ALL, "",
        "Instead: `module:function`, to import on every machine; it returns the three, or `Credentials`, which are used for 30 s.",
    ),
    Option("tls", _ALL, "false", "Speak TLS; certificates are verified."),
    Option("tlsVerify", _ALL, "true", "`false`: certificates are not verified."),
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
"""Options that Spark itself reads."""
STREAM_ONLY: Final = frozenset(option.name.lower() for option in OPTIONS if option.uses == _STREAM) | _SPARKS_OWN
"""Options, in lower case, that a streaming read has and a batch read has not."""


class OptionTexts:
    """The texts of one use's options, by name; each method reads one as its type.

    Args:
        mistakes: Gets each option that is unknown, not one of the use, given twice or invalid; the methods return the default
            of an invalid one.
    """

    def __init__(self, options: Mapping[str, str], use: Use, mistakes: Mistakes) -> None:
        self.mistakes = mistakes
        self._values: dict[str, str] = {}
        self._meant: set[str] = set()
        for given, value in options.items():
            name = given.lower()
            if name in _SPARKS_OWN and use.startswith("streaming"):
                continue
            option = _BY_NAME.get(name)
            if option is None:
                mistakes.add(self._unknown(given))
            elif use not in option.uses:
                uses = " or a ".join(option.uses)
                mistakes.add(f"option {option.name} is not one of a {use}, only of a {uses}; leave it out")
            elif option.name in self._values:
                names = " or ".join((option.name, *option.aliases))
                mistakes.add(f"option {option.name} is given twice; give it once, as {names}")
            else:
                self._values[option.name] = value

    def is_meant(self, *names: str) -> bool:
        """Return whether the error of an unknown option names one of these instead, so that they need no other error."""
        return not self._meant.isdisjoint(names)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """Return the text; None if it is not given or empty, which is a mistake."""
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
        """Return one of ``choices``; the first one is the default."""
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
        """Return the decoded JSON; None if it is not given.

        Raises:
            ConfigError: For another text.
        """
        text = self.text(name)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"option {name} must be JSON ({error}), not {text[:200]!r}") from None

    def _unknown(self, given: str) -> str:
        """Return the error text for an option that there is not."""
        if given.lower() == "path":
            self._meant.add("topic")
            return "a topic is not a path: use .option('topic', ...) with .load() and .save(), without an argument"
        if (hint := option_of_kafka(given)) is not None:
            self._meant.update(option.name for option in OPTIONS if option.name in hint.split())
            return f"option {given!r} is Kafka's: {hint}"
        near = difflib.get_close_matches(given.lower(), _BY_NAME, 1, 0.7)
        if not near:
            return f"unknown option {given!r}; docs/spark.md lists all"
        self._meant.add(meant := _BY_NAME[near[0]].name)
        return f"unknown option {given!r}; is {meant} meant?"
