"""Topics in Spark's SQL: views that read and write, on a real broker, and what Spark refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.errors import PySparkException

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

View = Callable[..., str]


@pytest.fixture
def view(spark: SparkSession, topics: Topics) -> Iterator[View]:
    """``view("topic", "(columns)", option="value")``: the name of a view of SQL of a topic."""
    made: list[str] = []

    def make(topic: str, columns: str = "", **options: str) -> str:
        name = f"view_{len(made)}"
        given = {"nameserver": topics.namesrv, "topic": topic, **options}
        texts = ", ".join(f"{option} '{value}'" for option, value in given.items())
        spark.sql(f"CREATE TEMPORARY VIEW {name} {columns} USING rocketmq OPTIONS ({texts})")
        made.append(name)
        return name

    yield make
    for name in made:
        spark.sql(f"DROP VIEW {name}")


def test_view_writes_and_reads_a_topic(spark: SparkSession, topics: Topics, view: View) -> None:
    topic = topics.make(2)
    target = view(topic, "(body string, tags string, keys array<string>, shardingKey string)")
    spark.sql(f"INSERT INTO {target} VALUES ('one', 'paid', array('1', 'a'), 'x')")
    spark.sql(f"INSERT INTO {target} (keys, body) SELECT array('2'), 'two'")
    found = {message.body: (message.tags, message.keys) for message in topics.read(topic)}
    assert found == {b"one": ("paid", ("1", "a")), b"two": (None, ("2",))}
    source = view(topic, columns="", tags="paid")
    rows = spark.sql(f"SELECT tags, keys, CAST(body AS string) AS text FROM {source}").collect()
    assert [tuple(row) for row in rows] == [("paid", "1 a", "one")]


def test_view_keeps_the_end_of_its_first_read_until_it_is_made_anew(spark: SparkSession, topics: Topics, view: View) -> None:
    """Spark keeps the partitions of a view; ours are offsets. It has only the columns that it names."""
    topic = topics.make(1)
    both = view(topic, "(tags string, body binary)")
    spark.sql(f"INSERT INTO {both} VALUES ('paid', CAST('one' AS binary))")
    spark.sql(f"INSERT INTO {both} SELECT 'again', body FROM {both}")

    def rows(name: str) -> list[tuple[str, bytes]]:
        return sorted((row.tags, bytes(row.body)) for row in spark.sql(f"SELECT * FROM {name}").collect())

    assert rows(both) == [("paid", b"one")]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {both} (tags string, body binary) USING rocketmq "
        f"OPTIONS (nameserver '{topics.namesrv}', topic '{topic}')"
    )
    assert rows(both) == [("again", b"one"), ("paid", b"one")]


def test_statements_that_are_not_allowed_say_why(spark: SparkSession, topics: Topics, view: View) -> None:
    topic = topics.make(1)
    everything, target = view(topic), view(topic, "(body string, tags string)")
    options = f"OPTIONS (nameserver '{topics.namesrv}', topic '{topic}')"
    for statement, reason in (
        (f"INSERT INTO {everything} (body) SELECT CAST('x' AS binary)", "there are no columns offset, msgId, "),
        (f"INSERT OVERWRITE {target} VALUES ('x', 'y')", "a topic cannot be overwritten"),
        (f"INSERT INTO {target} (tags) VALUES ('y')", "has no body: column body is NULL"),
        (f"SELECT * FROM {target}", "column body must be binary, not string"),
        (f"DELETE FROM {target}", "Table does not support deletes: rocketmq"),
        ("CREATE TEMPORARY VIEW wrong USING rocketmq OPTIONS (topik 'T')", "unknown option 'topik'; is topic meant?"),
        (f"CREATE TABLE wrong USING rocketmq {options}", "unknown option '"),
        (f"CREATE TABLE wrong USING rocketmq {options} AS SELECT 'x' AS body", "no name server is known|topic"),
    ):
        with pytest.raises(PySparkException) as raised:
            spark.sql(statement).collect()
        assert re.search(reason, str(raised.value)), statement
    assert topics.read(topic) == []


def test_table_of_the_catalog_keeps_its_columns_and_not_its_options(spark: SparkSession, topics: Topics) -> None:
    """Spark does not hand them to a source in Python; those of a statement it does."""
    topic = topics.make(1)
    options = f"OPTIONS (nameserver '{topics.namesrv}', topic '{topic}')"
    spark.sql(f"CREATE TABLE kept (body binary, tags string) USING rocketmq {options}")
    try:
        with pytest.raises(PySparkException, match="nothing says what to read"):
            spark.sql("SELECT * FROM kept").collect()
        with pytest.raises(PySparkException, match=r"no name server is known|topic"):
            spark.sql("INSERT INTO kept VALUES (CAST('x' AS binary), 'y')")
        assert topics.read(topic) == []
        given = f"WITH ('nameserver' = '{topics.namesrv}', 'topic' = '{topic}')"
        spark.sql(f"INSERT INTO kept {given} VALUES (CAST('x' AS binary), 'y')")
        for count in (1, 2):  # each statement reads to the end of then
            rows = spark.sql(f"SELECT * FROM kept {given}").collect()
            assert [(bytes(row.body), row.tags) for row in rows] == [(b"x", "y")] * count
            spark.sql(f"INSERT INTO kept {given} VALUES (CAST('x' AS binary), 'y')")
    finally:
        spark.sql("DROP TABLE kept")
