"""What every pipeline's command shares: its arguments, its Spark session, how it tells progress and what came of it.

Arguments are read by argparse, so that a pipeline runs where only the extra ``spark`` is installed. People get lines,
``--json`` gives one object a line: ``{"event": "progress", ...}`` any number of times, then ``{"event": "summary", ...}``. Exit
codes: 0; 1 for failure, also of what was checked; 2 for wrong use.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_async.errors import ConfigError, RocketMQError
from rmq_async.spark.plain import sentence

__all__ = ["Job", "Progress", "connection_options", "parser", "run_job", "whole_number"]

Progress = Callable[[Mapping[str, Any]], None]
"""Called now and then with figures of what was done so far."""

FAILED: Final = 1
WRONG_USE: Final = 2


class Summary(Protocol):
    """A dataclass. ``failed``: whether the command ends with 1."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def failed(self) -> bool: ...


class Job(Protocol):
    """``arguments`` adds to a parser what the pipeline takes; ``run`` does it."""

    DESCRIPTION: str

    def arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> Summary: ...


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """With the arguments that all pipelines take."""
    made = argparse.ArgumentParser(prog=f"rmq spark {name}", description=description, allow_abbrev=False)
    made.add_argument("--namesrv", metavar="HOST:PORT[;...]", help="name servers of the cluster; default: $NAMESRV_ADDR")
    made.add_argument("--access-key", metavar="NAME", help="user to sign requests as; the secret is taken from $RMQ_SECRET_KEY")
    made.add_argument("--tls", action="store_true", help="speak TLS; certificates are verified")
    made.add_argument("--ca", metavar="FILE", help="authorities to trust, not the system's; implies --tls")
    made.add_argument("--namespace", metavar="NAME", help="prefix of topics and groups")
    made.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="any option of format rocketmq; may be repeated"
    )
    made.add_argument("--master", metavar="URL", help="Spark master where spark-submit does not say; default: local[*]")
    made.add_argument("--json", action="store_true", help="print one JSON object a line")
    return made


def connection_options(given: argparse.Namespace) -> dict[str, str]:
    """Options of format rocketmq for what the shared arguments say. Raises ConfigError for an ``--option`` without "="."""
    options = {
        "nameserver": given.namesrv,
        "accessKey": given.access_key,
        "tls": "true" if given.tls or given.ca else None,
        "tlsCaFile": given.ca,
        "namespace": given.namespace,
    }
    found = {name: value for name, value in options.items() if value is not None}
    for text in given.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--option must be NAME=VALUE, not {text}")
        found[name] = value
    return found


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """A type for argparse."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, not {text}")
        return int(text)

    return number


def run_job(name: str, job: Job, arguments: Sequence[str] | None = None) -> int:
    """Reads the arguments, runs the job in a session that it ends again if it made it; the exit code."""
    made = parser(name, job.DESCRIPTION)
    job.arguments(made)
    try:
        given = made.parse_args(arguments)
    except SystemExit as ending:  # argparse has told why
        return ending.code if isinstance(ending.code, int) else WRONG_USE
    told = _Told(as_json=given.json)
    running = SparkSession.getActiveSession()
    spark: SparkSession | None = None
    try:
        connection_options(given)
        spark = running or _session(name, given.master)
        summary = job.run(spark, given, told.progress)
    except ConfigError as error:
        return told.trouble(name, str(error), WRONG_USE)
    except (RocketMQError, PySparkException, OSError) as error:
        return told.trouble(name, _sentence(error), FAILED)
    except KeyboardInterrupt:
        return told.trouble(name, "interrupted", 130)
    finally:
        if spark is not None and running is None:
            spark.stop()
    told.summary(summary)
    return FAILED if summary.failed else 0


def _session(name: str, master: str | None) -> SparkSession:
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.appName(f"rmq spark {name}").config("spark.sql.session.timeZone", "UTC")
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_ENV_LOADED" not in os.environ and "MASTER" not in os.environ:
        builder = builder.master("local[*]").config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _sentence(error: BaseException) -> str:
    """What is wrong, in a line: what the data source said, else the first line."""
    return sentence(error) or next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class _Told:
    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def progress(self, figures: Mapping[str, Any]) -> None:
        self._print("progress", figures)

    def summary(self, summary: Summary) -> None:
        figures = {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}
        self._print("summary", figures | {"failed": summary.failed})

    def trouble(self, name: str, text: str, code: int) -> int:
        sys.stderr.write(f"rmq spark {name}: {' '.join(text.split())}\n")
        return code

    def _print(self, event: str, figures: Mapping[str, Any]) -> None:
        if self._as_json:
            line = json.dumps({"event": event, **figures}, default=_plain)
        else:
            line = f"{event:<9}" + ", ".join(f"{key} {_plain(value)}" for key, value in figures.items())
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value if isinstance(value, int | float | str) else str(value)
