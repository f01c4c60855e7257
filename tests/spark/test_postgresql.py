"""examples/spark_postgresql.py: each message counts once, also where a step of a micro-batch fails."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_async.testing.threaded import ThreadedRocketMQ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

PROGRAM = Path(__file__).parents[2] / "examples" / "spark_postgresql.py"


@pytest.fixture
def parts(postgres_driver: None) -> dict[str, Any]:
    return runpy.run_path(str(PROGRAM), run_name="example")


def dying(totals: type[Any]) -> type[Any]:
    """Returns a sink that dies once before and once after the transaction of each micro-batch, and whose tasks write twice."""

    class Dying(totals):  # type: ignore[misc]
        def __init__(self, *arguments: str) -> None:
            super().__init__(*arguments)
            self.died: list[tuple[int, str]] = []

        def stage(self, rows: DataFrame, query: str, run: str) -> None:
            for each in (run, run, f"a run that died before {run}"):
                super().stage(rows, query, each)

        async def move(self, query: str, batch: int, run: str) -> None:
            self.die(batch, "before")
            await super().move(query, batch, run)
            self.die(batch, "after")

        def die(self, batch: int, where: str) -> None:
            if (batch, where) not in self.died:
                self.died.append((batch, where))
                raise RuntimeError(f"died {where} the transaction of {batch}")

    return Dying


@pytest.mark.deep
def test_a_sink_that_dies_around_its_transactions_counts_each_payment_once(
    spark: SparkSession,
    parts: dict[str, Any],
    postgres_url: str,
    tmp_path: Path,
    active: None,
) -> None:
    run: Callable[..., None] = parts["run"]
    asynchronous = parts["rmq_async"].run
    totals = dying(parts["Totals"])(postgres_url.partition("@")[2], "postgres", "")
    asynchronous(totals.create_tables())
    with ThreadedRocketMQ() as server:
        asynchronous(parts["create_topic"](server.namesrv))
        parts["send"](spark, server.namesrv, 0, 600)
        for place in ("before the transaction of 0", "after", "before the transaction of 1", "after"):
            with pytest.raises(StreamingQueryException, match=f"died {place}"):
                run(spark, server.namesrv, totals, str(tmp_path))
        run(spark, server.namesrv, totals, str(tmp_path))
    assert totals.died == [(0, "before"), (0, "after"), (1, "before"), (1, "after")]
    assert asynchronous(totals.read()) == [
        (f"customer-{number}", 200, sum(range(number, 600, 3))) for number in range(3)
    ]  # fmt: skip
