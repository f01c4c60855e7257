"""docs/spark.md is correct: its snippets run in their order against the real broker, its tables are those of the code.

So are those of docs/spark-kafka.md, after them.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from sqlalchemy import MetaData, create_engine

from rmq_async.cli.spark import PIPELINES
from rmq_async.outbox import outbox_table
from rmq_async.spark import SINK_COLUMNS, SOURCE_COLUMNS
from rmq_async.spark.kafka_names import option_of_kafka
from rmq_async.spark.options import OPTIONS
from rmq_async.spark.pipelines import job
from rmq_async.testing import ThreadedRocketMQ

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
OF_KAFKA = PAGE.with_name("spark-kafka.md")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_options_are_those_of_the_code() -> None:
    program = PAGE.parents[1] / "tools" / "spark_options.py"
    checked = subprocess.run([sys.executable, str(program), str(PAGE), "--check"], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert len(rows(PAGE.read_text(), "\n## Options")) == len(OPTIONS)


def test_names_of_kafka_page_are_ours() -> None:
    """Of its tables of options; where ours is the same, it is a name here."""
    page = OF_KAFKA.read_text()
    known = {option.name for option in OPTIONS} | {"tls..."}
    for after in ("\n## Options of a read", "\n## Options of a write"):
        for theirs, ours, _ in rows(page, after):
            meant = re.findall(r"`([\w.]+)`", theirs if ours.startswith("the same") else ours)
            assert set(meant) <= known, (theirs, ours)
            for name in re.findall(r"`(kafka[\w.]+|includeHeaders|groupIdPrefix)`", theirs):
                assert option_of_kafka(name) is not None, name
    for theirs, ours, sink, written in rows(page, "\n## Columns"):
        for name in re.findall(r"`(\w+)`", ours):
            assert name in SOURCE_COLUMNS, (theirs, name)
        for name in re.findall(r"`(\w+)`", written):
            assert name in SINK_COLUMNS, (sink, name)


def rows(page: str, after: str) -> list[list[str]]:
    """The cells of the first table after a text."""
    lines = page.partition(after)[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.split("|")[1:-1]])
    return found


@pytest.mark.parametrize(
    ("after", "columns"),
    [
        ("\nA read returns these columns:", {name: (kind,) for name, kind in SOURCE_COLUMNS.items()}),
        ("\nA write takes these columns.", dict(SINK_COLUMNS)),
    ],
    ids=["read", "written"],
)
def test_the_columns_are_those_of_the_code(after: str, columns: dict[str, tuple[str, ...]]) -> None:
    documented: dict[str, tuple[str, ...]] = {}
    for names, kinds, _ in rows(PAGE.read_text(), after):
        parts = [part.strip("` ") for part in names.split(",")]
        types = [tuple(re.split(r", (?!string>)| or ", kind)) for kind in kinds.split("; ")]
        documented |= dict(zip(parts, types if len(types) > 1 else types * len(parts), strict=True))
    assert documented == columns


def test_the_pipelines_are_those_of_the_command() -> None:
    assert [name.strip("`") for name, _ in rows(PAGE.read_text(), "\n## Pipelines")] == list(PIPELINES)


def pipelines(*names: str) -> list[Any]:
    found = []
    for name in names or PIPELINES:
        module = import_module(f"rmq_async.spark.pipelines.{name.replace('-', '_')}")
        (kind,) = [one for one in vars(module).values() if isinstance(one, type) and "DESCRIPTION" in vars(one)]
        found.append(kind())
    return found


def test_the_commands_are_understood() -> None:
    """Each ``rmq spark ...`` of the page and of the helps, by the pipeline's own parser; nothing is run."""
    lines = [line for _, text in BLOCK.findall(PAGE.read_text()) for line in text.splitlines() if line.startswith("rmq spark ")]
    lines += [line.strip() for pipeline in pipelines() for line in pipeline.EXAMPLES.splitlines() if line.strip()]
    assert {line.split()[2] for line in lines} == set(PIPELINES)
    for line in lines:
        name, *arguments = shlex.split(line, comments=True)[2:]
        (pipeline,) = pipelines(name)
        job.parser(name, pipeline).parse_args(arguments)


def test_the_snippets_run(spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where ``127.0.0.1:9876`` is the cluster, ``./`` a directory, and the two topics have names of their own."""
    stands_for = {"127.0.0.1:9876": topics.namesrv, '"./': f'"{tmp_path}/'}
    stands_for |= {"OrderCopies": topics.make(2), "BadOrders": topics.make(1), '"Orders"': f'"{topics.make(2)}"'}
    names: dict[str, Any] = {"__name__": "page"}
    blocks = [
        (page, text.count("\n", 0, found.start(2)), found[2])
        for page in (PAGE, OF_KAFKA)
        for text in [page.read_text()]
        for found in BLOCK.finditer(text)
        if found[1] == "python"
    ]
    assert len(blocks) >= 10
    _make_outbox(tmp_path / "orders.db")
    for page, line, source in blocks:
        for written, meant in stands_for.items():
            source = source.replace(written, meant)
        tree = ast.parse(source)
        ast.increment_lineno(tree, line)
        exec(compile(tree, str(page), "exec"), names)
    assert names["spark"] is spark
    shown = capsys.readouterr().out
    assert '{"id": 17, "amount": 5.0}' in shown


QUIET = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""On the command line, as a directory of settings would keep Java from using the classes of ``class_data``."""


def test_quick_start_needs_no_activated_environment(spark: SparkSession, tmp_path: Path) -> None:
    """As an IDE or cron starts it: the python3 of the PATH is of no use."""
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin{os.pathsep}{os.environ['PATH']}")
    assert java is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\necho the python3 of the PATH was started >&2\nexit 1\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    settings = QUIET | {"spark.sql.warehouse.dir": f"{tmp_path}/warehouse", "spark.local.dir": str(tmp_path)}
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    environment = {
        "PATH": os.pathsep.join((str(tmp_path / "bin"), str(Path(java).parent), os.defpath)),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]),
        "SPARK_LOCAL_HOSTNAME": "localhost",
        "HOME": str(tmp_path),
    } | {name: os.environ[name] for name in ("JAVA_HOME", "SPARK_SUBMIT_OPTS") if name in os.environ}
    source = next(text for kind, text in BLOCK.findall(PAGE.read_text()) if kind == "python" and "SparkSession.builder" in text)
    with ThreadedRocketMQ() as server:
        source = source.replace("127.0.0.1:9876", server.namesrv)
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert '{"id": 17, "amount": 5.0}' in done.stdout


def _make_outbox(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    metadata = MetaData()
    outbox_table(metadata)
    metadata.create_all(engine)
    engine.dispose()
