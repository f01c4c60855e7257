"""Builds the DataFrames of ``reconcile``: rows of the table of sent messages, messages of the topic, and findings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as sql

from rmq_async.spark.pipelines.arguments import column
from rmq_async.spark.rows import ID_PROPERTY

ACKNOWLEDGED: Final = ("SEND_OK", "SENT")
"""States which mean that a broker has stored the message. They are case-insensitive."""

_SHOWN_STATES: Final = 8


@dataclass(frozen=True, kw_only=True)
class SentTable:
    """The columns of the table of sent messages, and the states that stand for acknowledged messages.

    Attributes:
        id: Column of message ids or, for a comparison by "spark-id" or "property:NAME", of the values of that property.
        key: Column of keys. None if the table has none.
        state: Column of states. None if the table has none; every row then counts as acknowledged, as with the state "*".
        time: Column of send times.
        topic: Column of target topics. Rows of topics that are not compared are left out.
        acknowledged: States of acknowledged rows. "*" stands for all states.
    """

    id: str | None = "msgId"
    key: str | None = None
    state: str | None = "state"
    time: str | None = None
    topic: str | None = None
    acknowledged: Collection[str] = ACKNOWLEDGED


OUTBOX: Final = SentTable(id="unique_id", key="keys", state="state", time="updated", topic="topic")
"""The table of ``rmq_async.outbox``, or an export of it with these columns."""


# -- the table


def table_rows(
    sent: DataFrame, by: str, table: SentTable, since: datetime | None, until: datetime | None, slack: timedelta
) -> DataFrame:
    """Return the rows grouped by ``identity`` (NULL if there is none), with the columns ``id``, ``key``, ``state``, ``rows``
    (number of rows), ``acked`` (number of acknowledged rows) and ``due`` (number of acknowledged rows in the window).
    """
    state = _state(sent, table)
    acknowledged = sql.lit(True)
    if table.state is not None and "*" not in table.acknowledged:
        wanted = [text.strip().upper() for text in table.acknowledged]
        acknowledged = sql.coalesce(sql.upper(sql.trim(state)).isin(wanted), sql.lit(False))
    due = sql.lit(True)
    if table.time is not None:
        moment = column("time column", table.time, sent.columns).cast("timestamp_ltz")
        sent = sent.where(_between(moment, since and since - slack, until and until + slack))
        due = _between(moment, since, until)
    name = table.key if by == "key" else table.id
    assert name is not None
    plain = sent.select(
        _text(column("key column" if by == "key" else "id column", name, sent.columns)).alias("identity"),
        _optional("id column", table.id, sent).alias("id"),
        _optional("key column", table.key, sent).alias("key"),
        state.alias("state"),
        acknowledged.alias("acknowledged"),
        due.alias("due"),
    )
    return plain.groupBy("identity").agg(
        sql.min("id").alias("id"),
        sql.min("key").alias("key"),
        sql.coalesce(sql.max(sql.when(sql.col("acknowledged"), sql.col("state"))), sql.max("state")).alias("state"),
        sql.count(sql.lit(1)).alias("rows"),
        sql.count_if("acknowledged").alias("acked"),
        sql.count_if(sql.col("acknowledged") & sql.col("due")).alias("due"),
    )


def _state(sent: DataFrame, table: SentTable) -> Column:
    return _optional("state column", table.state, sent)


def _optional(option: str, name: str | None, sent: DataFrame) -> Column:
    return sql.lit(None).cast("string") if name is None else column(option, name, sent.columns).cast("string")


def _text(found: Column) -> Column:
    text = sql.trim(found.cast("string"))
    return sql.when(text != "", text)


def _between(moment: Column, since: datetime | None, until: datetime | None) -> Column:
    """Return a column that tells whether a time is in the window. It contains no NULL."""
    inside = sql.lit(True)
    if since is not None:
        inside = inside & (moment >= sql.lit(since))
    if until is not None:
        inside = inside & (moment < sql.lit(until))
    return sql.coalesce(inside, sql.lit(False))


def totals_of(rows: DataFrame) -> dict[str, int]:
    """Read the rows and return their sums by name: ``sent``, ``acknowledged``, ``without_id``."""
    counts = {
        "sent": sql.sum("rows"),
        "acknowledged": sql.sum("acked"),
        "without_id": sql.sum(sql.when(sql.col("identity").isNull(), sql.col("due"))),
    }
    row = rows.agg(*(sql.coalesce(count, sql.lit(0)).alias(name) for name, count in counts.items())).first()
    assert row is not None
    return row.asDict()


def no_state(sent: DataFrame, table: SentTable) -> str:
    there = sent.select(_state(sent, table).alias("state")).distinct().limit(_SHOWN_STATES).collect()
    states = ", ".join(sorted(str(row.state) for row in there))
    meant = ", ".join(table.acknowledged)
    return (
        f"no row is acknowledged: column {table.state} holds {states}, and only {meant} would mean that; "
        "name its states in acknowledged= (--acknowledged)"
    )


# -- the topic


def topic_messages(topic: DataFrame, by: str, since: datetime | None, until: datetime | None) -> DataFrame:
    """Return the messages grouped by ``identity`` (NULL if there is none).

    ``present`` is their number, ``within`` is the number of messages stored in the window, and ``first`` and ``last`` hold the
    place and the store time of the first and the last message.
    """
    identity: Column
    match by:
        case "id":
            identity = sql.col("msgId")
        case "key":
            identity = sql.explode_outer(sql.filter(sql.split("keys", " "), lambda key: key != ""))
        case "spark-id":
            identity = sql.col("properties")[ID_PROPERTY]
        case _:
            identity = sql.col("properties")[by.partition(":")[2]]
    place = sql.concat_ws("/", "topic", "brokerName", sql.col("queueId").cast("string"), sql.col("offset").cast("string"))
    stored = sql.struct("storeTimestamp", place.alias("place"))
    plain = topic.select(
        identity.alias("identity"), "msgId", "keys", stored.alias("stored"),
        _between(sql.col("storeTimestamp"), since, until).alias("within"),
    )  # fmt: skip
    return (
        plain.withColumn("identity", _text(sql.col("identity")))
        .groupBy("identity")
        .agg(
            sql.min("msgId").alias("msgId"),
            sql.min("keys").alias("keys"),
            sql.count(sql.lit(1)).alias("present"),
            sql.count_if("within").alias("within"),
            sql.min("stored").alias("first"),
            sql.max("stored").alias("last"),
        )
    )


# -- findings


def findings_of(joined: DataFrame, seen: Observation, by: str) -> DataFrame:
    """Return a row for each finding, which consists of an identity and a kind. ``seen`` gets the counts when the DataFrame is
    computed.
    """
    numbers = joined.fillna(0, ["rows", "acked", "due", "present", "within"])
    there = sql.col("identity").isNotNull()
    many = by == "key"
    one = sql.lit(1)
    acked = sql.col("acked") if many else sql.least("acked", one)
    rows = sql.col("rows") if many else sql.least("rows", one)
    due = sql.col("due") if many else sql.least("due", one)
    present, within = sql.col("present"), sql.col("within")
    copies = sql.when(within > 0, sql.greatest(present - sql.greatest(rows, one), sql.lit(0))).otherwise(0)
    kinds = {
        "missing": (due > 0) & (present < acked),
        "unacknowledged": (within > 0) & (present > acked) & (rows > acked),
        "unknown": (within > 0) & (rows == 0),
        "duplicate": copies > 0,
    }
    counts = {
        "messages": sql.sum("within"),
        "messages_without_id": sql.sum(sql.when(~there, within)),
        "matched": sql.sum(sql.when(there, sql.least(acked, present))),
        "copies": sql.sum(sql.when(there, copies)),
        **{kind: sql.count_if(there & found) for kind, found in kinds.items()},
    }
    oldest = sql.min("first")["storeTimestamp"].alias("oldest")
    counted = numbers.observe(seen, *(sql.coalesce(count, sql.lit(0)).alias(name) for name, count in counts.items()), oldest)
    found = sql.array_compact(sql.array(*(sql.when(there & found, sql.lit(kind)) for kind, found in kinds.items())))
    first, last = sql.col("first"), sql.col("last")
    return counted.select(
        sql.explode(found).alias("kind"),
        (sql.col("identity") if by == "id" else sql.coalesce("id", "msgId") if many else sql.col("identity")).alias("id"),
        (sql.col("identity") if many else sql.coalesce("key", "keys")).alias("key"),
        "state",
        sql.col("rows").alias("sent"),
        sql.col("acked").alias("acknowledged"),
        present.alias("count"),
        sql.array_compact(sql.array(first["place"], sql.when(present > 1, last["place"]))).alias("places"),
        first["storeTimestamp"].alias("firstStored"),
        last["storeTimestamp"].alias("lastStored"),
    )
