"""Options and rows of a task's sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from rmq_async.spark.options import WriteOptions, write_options  # noqa: E402
from rmq_async.spark.sending import Sending  # noqa: E402

Write = Callable[..., Sending]


def options_of(namesrv: str, topic: str | None, given: dict[str, object]) -> WriteOptions:
    options = {"nameserver": namesrv, **({} if topic is None else {"topic": topic})}
    return write_options(options | {name: str(value) for name, value in given.items()}, streaming=False)


def rows(count: int, first: int = 0, **columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict({"body": [str(first + row) for row in range(count)], **columns})
