"""The common part of all pipelines' commands: arguments, the Spark session, and the output of progress and results.

Arguments are parsed by argparse, so that a pipeline also runs if only the extra ``spark`` is installed. The output is lines of
text. ``--json`` prints one object per line: ``{"event": "progress", ...}`` any number of times, and then ``{"event": "summary",
...}`` or ``{"event": "error", ...}``. An error is one sentence on stderr, without Spark's traceback. The exit code is 0 for
success, 1 for a failure or a failed check, 2 for wrong usage, and 130 for an interrupt.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Protocol

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkAttributeError, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from rmq_async.errors import ConfigError, RocketMQError
from rmq_async.spark.pipelines.session import running_or, silent_start
from rmq_async.spark.short_errors import sentence

Progress = Callable[[Mapping[str, Any]], None]
"""Called at intervals with figures about the work done so far."""

FEWEST_SHUFFLED: Final = 8
"""Minimum number of shuffle partitions on one machine."""
FAILED: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130
SEVERAL: Final[Mapping[str, Any]] = {"action": "append", "default": []}
"""The settings of an argument that may be repeated."""
FIRST_MOMENT_MS: Final = 10**11
"""A moment in 1973, in milliseconds. A smaller number is probably a number of seconds, or a date without its dashes."""


class PipelineError(RocketMQError):
    """The data prevent a pipeline from continuing."""


def no_progress(figures: Mapping[str, Any]) -> None:
    """Ignore the figures."""


class Summary(Protocol):
    """The result of a pipeline, a dataclass.

    Attributes:
        failed: Whether the command ends with exit code 1.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def failed(self) -> bool: ...


class Job(Protocol):
    """A pipeline's command.

    ``arguments`` adds the command's arguments to a parser. ``check`` raises the errors that can be found in the arguments and
    at the brokers without Spark, which takes seconds to start. ``run`` runs the pipeline.

    Attributes:
        EXAMPLES: Command lines for the command's help.
    """

    DESCRIPTION: str
    EXAMPLES: str

    def arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def check(self, given: argparse.Namespace) -> None: ...

    def run(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> Summary: ...


_WORD: Final = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")


class _HelpFormatter(argparse.HelpFormatter):
    """Keeps the line breaks of a text. A line that is too long is wrapped. Examples, which are indented, are wrapped with
    backslashes.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(_wrapped(line, width) for line in text.splitlines())


def _wrapped(line: str, width: int) -> str:
    if not line.startswith(" ") or len(line) <= width:
        return textwrap.fill(line, width)
    lines = [" "]
    for word in _WORD.findall(line):
        if len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def parser(name: str, job: Job) -> argparse.ArgumentParser:
    """Return a parser with the arguments of the job, followed by the arguments of all pipelines.

    A job's ``arguments`` may set the parser's ``epilog``, which keeps its line breaks. The examples are printed before it.
    """
    made = argparse.ArgumentParser(
        prog=f"rmq spark {name}",
        description=job.DESCRIPTION,
        allow_abbrev=False,
        formatter_class=_HelpFormatter,
    )
    job.arguments(made)
    examples = "examples:\n" + textwrap.indent(textwrap.dedent(job.EXAMPLES).strip(), "  ")
    made.epilog = f"{examples}\n\n{made.epilog}" if made.epilog else examples
    made.add_argument("--json", action="store_true", help="print one JSON object per line")
    cluster = made.add_argument_group("cluster")
    cluster.add_argument("--namesrv", metavar="HOST:PORT[;...]", help="name servers of the cluster; default: $NAMESRV_ADDR")
    cluster.add_argument(
        "--access-key", metavar="NAME", help="user to sign requests as; the secret is taken from $RMQ_SECRET_KEY"
    )
    cluster.add_argument("--tls", action="store_true", help="use TLS, and verify certificates")
    cluster.add_argument("--ca", metavar="FILE", help="authorities to trust instead of the system's; implies --tls")
    cluster.add_argument("--namespace", metavar="NAME", help="prefix of topics and groups")
    cluster.add_argument("--option", **SEVERAL, metavar="NAME=VALUE", help="any option of format rocketmq; may be repeated")
    sparks = made.add_argument_group("Spark", "With spark-submit, use the arguments of spark-submit instead.")
    sparks.add_argument("--master", metavar="URL", help="where to run; default: local[*], all cores of this machine")
    sparks.add_argument("--conf", **SEVERAL, metavar="NAME=VALUE", help="any setting of Spark; may be repeated")
    sparks.add_argument(
        "--log-level",
        default="OFF",
        choices=("OFF", "ERROR", "WARN", "INFO", "DEBUG"),
        help="log level of Spark on stderr; default: OFF, a failure is one sentence",
    )
    return made


def connection_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of the ``rocketmq`` format that the common arguments set.

    Raises:
        ConfigError: For an ``--option`` that is not NAME=VALUE.
    """
    options = {
        "nameserver": given.namesrv,
        "accessKey": given.access_key,
        "tls": "true" if given.tls or given.ca else None,
        "tlsCaFile": given.ca,
        "namespace": given.namespace,
    }
    found = {name: value for name, value in options.items() if value is not None}
    return found | named_values("--option", given.option)


def named_values(argument: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the values of a repeated argument by name.

    Raises:
        ConfigError: For a value that is not NAME=VALUE.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{argument} must be NAME=VALUE, not {text!r}")
        found[name] = value
    return found


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a type for argparse that accepts an integer from ``low`` to ``high`` and raises ArgumentTypeError for any other
    string.
    """

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, not {text!r}")
        return int(text)

    return number


def moment(text: str) -> datetime:
    """Parse a time, as a type for argparse. A time is in ISO 8601 (UTC if it names no zone) or is a number of milliseconds
    since 1970, at least 10^11. argparse reports any other string as an error.
    """
    try:
        if text.isascii() and text.isdigit() and len(text) < 16:
            if int(text) < FIRST_MOMENT_MS:
                raise argparse.ArgumentTypeError(
                    f"{text} is too small for milliseconds since 1970; write a date with dashes, such as 2026-11-22"
                )
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # OverflowError: in UTC, the time is before the year 1 or after 9999
        raise argparse.ArgumentTypeError(
            f"must be a time such as 2026-11-22T08:30:00Z, or milliseconds since 1970, from year 1 to 9999, not {text!r}"
        ) from None


def run_job(name: str, job: Job, arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments (default: the arguments of the process), run the job, and return the exit code.

    The job runs in the existing session. If there is none, create a session and stop it at the end. If the reader of the output
    has closed the pipe, end without a message.
    """
    try:
        return _run_job(name, job, arguments)
    except _ReaderGoneError:
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # the rest of the buffer is written at the end of the process
        return FAILED


def _run_job(name: str, job: Job, arguments: Sequence[str] | None) -> int:
    made = parser(name, job)
    try:
        given = made.parse_args(arguments)
    except SystemExit as ending:  # argparse has printed the reason
        return ending.code if isinstance(ending.code, int) else WRONG_USE
    report = _Report(name, as_json=given.json)
    try:
        connection_options(given)
        named_values("--conf", given.conf)
        job.check(given)

        def begin() -> SparkSession:
            report.progress({"step": "starting Spark"})
            with silent_start(given.log_level == "OFF"):
                return _session(name, given)

        with _quiet(), running_or(begin) as spark:
            summary = job.run(spark, given, report.progress)
    except (RocketMQError, PySparkException, Py4JError, OSError) as error:
        return report.error(*explained(error))
    except KeyboardInterrupt:
        return report.error("interrupted", INTERRUPTED)
    report.summary(summary)
    return FAILED if summary.failed else 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PySpark's logs of errors that it also raises, and warnings about pandas."""
    names = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
    loggers = [logging.getLogger("py4j"), *map(PySparkLogger.getLogger, names)]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pandas.*")
            yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _session(name: str, given: argparse.Namespace) -> SparkSession:
    settings: dict[str, Any] = {"spark.sql.session.timeZone": "UTC"}
    settings["spark.sql.parquet.outputTimestampType"] = "TIMESTAMP_MICROS"
    if given.master is not None:
        settings["spark.master"] = given.master
    elif "SPARK_ENV_LOADED" not in os.environ and "MASTER" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the python3 of the PATH
        settings |= {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        # The default is 200. With a million rows, each of 200 tasks would take longer to start than to run.
        settings["spark.sql.shuffle.partitions"] = str(max(2 * (os.cpu_count() or 1), FEWEST_SHUFFLED))
    settings |= named_values("--conf", given.conf)
    spark = SparkSession.builder.appName(f"rmq spark {name}").config(map=settings).getOrCreate()
    with suppress(PySparkAttributeError):  # raised with Spark Connect (SPARK_REMOTE), whose server has its own log levels
        spark.sparkContext.setLogLevel(given.log_level)
    return spark


_PYTHON: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)
_JAVA: Final = re.compile(r"^(?:: |Caused by: )?(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): ")
_CLASS: Final = re.compile(r"^\[[A-Z_]+(?:\.[A-Z_]+)*\] ")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w{5}.*$")


def explained(error: BaseException) -> tuple[str, int]:
    """Return the sentence of an error that names the cause, and the error's exit code.

    Spark puts an error of a Python data source at the end of a traceback, and puts that traceback into its own.
    """
    if isinstance(error, RocketMQError):
        return str(error), WRONG_USE if isinstance(error, ConfigError) else FAILED
    text = str(error)
    ours = sentence(error)
    if ours is not None:
        return _STATE.sub("", ours), WRONG_USE if f"{ConfigError.__name__}: {ours}" in text else FAILED
    if raised := _PYTHON.findall(text):
        return _STATE.sub("", raised[-1]), FAILED
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("SQLSTATE", "An error occurred while calling"))]
    if not lines:
        return type(error).__name__, FAILED
    return _STATE.sub("", _CLASS.sub("", _JAVA.sub("", lines[0]))), FAILED


class _ReaderGoneError(Exception):
    """The reader of standard output has closed it."""


class _Report:
    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name = name
        self._as_json = as_json

    def progress(self, figures: Mapping[str, Any]) -> None:
        self._print("progress", figures)

    def summary(self, summary: Summary) -> None:
        figures = {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}
        self._print("summary", figures | {"failed": summary.failed})

    def error(self, text: str, code: int) -> int:
        line = " ".join(text.split())
        if self._as_json:
            self._print("error", {"error": line, "code": code})
        sys.stderr.write(f"rmq spark {self._name}: {line}\n")
        return code

    def _print(self, event: str, figures: Mapping[str, Any]) -> None:
        if self._as_json:
            text = json.dumps({"event": event, **figures}, default=_plain)
        else:
            flat = {
                key: value for key, value in figures.items() if not isinstance(value, Mapping) and value not in (None, (), [])
            }
            text = f"{event:<9}" + ", ".join(f"{key} {_plain(value)}" for key, value in flat.items())
            for key, value in figures.items():
                if isinstance(value, Mapping) and value:
                    text += f"\n{'':9}{key}:" + "".join(f"\n{'':11}{name} {_pair(each)}" for name, each in value.items())
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            raise _ReaderGoneError from None


def _pair(value: object) -> str:
    return " to ".join(str(_plain(each)) for each in value) if isinstance(value, tuple) else str(_plain(value))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple | set | frozenset):
        return " ".join(str(_plain(each)) for each in value)
    return value if isinstance(value, int | float | str) else str(value)
