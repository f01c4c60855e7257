"""Defines options that several commands share, and parses times, ages, queues and properties."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_async import ClientConfig, ConfigError
from rmq_async.config import LONGEST, NAMESRV_ENVIRONMENT, name_servers

from .security import security_options, security_settings

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic since click 8.4 only

Command = TypeVar("Command", bound=Callable[..., Any])
Options = TypeVar("Options")

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_ago = re.compile(r"(\d{1,9})([smhd])", re.ASCII).fullmatch
_epoch = re.compile(r"@(\d{1,12}(?:\.\d{1,6})?)", re.ASCII).fullmatch

time_help: Final = "an ISO time, @EPOCH or 15m (ago; s m h d)"
moment_help: Final = f"earliest, latest, {time_help}; with one --queue an offset"


class Seconds(click.FloatRange):
    """A range of seconds that excludes "nan", which comparisons alone would not exclude."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not a number", param, ctx)
        return seconds


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")(command)


def namesrv_option(help_text: str) -> Callable[[Command], Command]:
    return click.option("--namesrv", metavar="HOST:PORT[;...]", callback=_namesrv, help=help_text)


def number_option(*names: str, least: int = 1, most: int | None = None, **settings: Any) -> Callable[[Command], Command]:
    """Return an option that takes an integer."""
    return click.option(*names, type=click.IntRange(least, most), show_default=True, **{"metavar": "N", **settings})


def seconds_option(
    *names: str, least: float = 0.0, most: float | None = None, min_open: bool = False, **settings: Any
) -> Callable[[Command], Command]:
    """Return an option that takes a number of seconds. With ``min_open``, the number must be above ``least``."""
    kind = Seconds(least, most, min_open=min_open)
    return click.option(*names, type=kind, show_default=True, **{"metavar": "SECONDS", **settings})


def timeout_option(command: Command) -> Command:
    return seconds_option("--timeout", most=3600.0, min_open=True, default=3.0, help="Time limit of each call.")(command)


def client_options(command: Command) -> Command:
    """Add the options of a command that connects to a cluster: the fields of ClientOptions, and those of ``security``."""
    named = namesrv_option(f"Name servers of the cluster; default: ${NAMESRV_ENVIRONMENT}.")
    return named(timeout_option(json_option(security_options(command))))


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """The values of ``client_options``. A command with further options adds them as fields of a subclass."""

    namesrv: str | None
    timeout: float
    as_json: bool


def pass_options(record: Callable[..., Options]) -> Callable[[Callable[[Options], int]], Callable[..., int]]:
    """Return a decorator that lets the command take one ``record``, whose fields are its options and arguments by name."""

    def decorate(command: Callable[[Options], int]) -> Callable[..., int]:
        @wraps(command)
        def call(**options: Any) -> int:
            return command(record(**options))

        return call

    return decorate


def client_config(namesrv: str | None, timeout: float) -> ClientConfig:
    """Return the settings of a command's client.

    Limit the library's log to errors, because warnings would add lines to the one line that reports the command's error.

    Raise the errors of ``security_settings``, too.

    Raises:
        UsageError: If no name server is known.
        ConfigError: For an invalid address in NAMESRV_ADDR.
    """
    logging.getLogger("rmq_async").setLevel(logging.ERROR)
    if namesrv is None and not name_servers(os.environ.get(NAMESRV_ENVIRONMENT)):
        raise click.UsageError(f"no name server is known: give --namesrv or set {NAMESRV_ENVIRONMENT}")
    return ClientConfig(namesrv=namesrv, request_timeout=timeout, connect_timeout=timeout, **security_settings())


def _namesrv(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    if given is not None:
        try:
            named = name_servers(given)
        except ConfigError as error:
            raise click.BadParameter(str(error), context, parameter) from None
        if not named:
            raise click.BadParameter(f"{given!r} names no server; give HOST:PORT", context, parameter)
    return given


class _Property(ParamType):
    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


class _Queue(ParamType):
    """A queue of the command's topic, BROKER:ID."""

    name = "BROKER:ID"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        broker, _, number = str(value).rpartition(":")
        if not broker or not number.isascii() or not number.isdigit() or len(number) > 9:
            self.fail(f"{value!r} is not BROKER:ID, such as broker-a:0; ID has 9 digits at most", param, ctx)
        return broker, int(number)


class _Moment(ParamType):
    """A position in a queue: "earliest", "latest", a time or an offset."""

    name = "WHEN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int | datetime:
        if not isinstance(value, str) or value in ("earliest", "latest"):
            return value  # type: ignore[no-any-return]  # or converted before
        if value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
        moment = _time(value)
        if moment is None:
            self.fail(f"{value!r} is not one of earliest, latest, {time_help}, an offset of at most 19 digits", param, ctx)
        return moment


class _Time(ParamType):
    name = "WHEN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        moment = _time(value)
        if moment is None:
            self.fail(f"{value!r} is not one of {time_help}", param, ctx)
        return moment


class _Age(ParamType):
    """An age such as 90s or 2h, as seconds."""

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _ago(value)
        seconds = float(found[1]) * _UNITS[found[2]] if found else LONGEST + 1
        if seconds > LONGEST:
            self.fail(f"{value!r} is not an age of at most 1e9 s, such as 7d, 12h, 30m or 90s", param, ctx)
        return seconds


def _time(value: Any) -> datetime | None:
    """Parse a time. A time without a zone is local time. Return None for a string that is not a time or that a datetime cannot
    hold.
    """
    if isinstance(value, datetime):
        return value
    try:
        if found := _ago(value):
            return datetime.now(UTC) - timedelta(seconds=int(found[1]) * _UNITS[found[2]])
        if found := _epoch(value):
            return datetime.fromtimestamp(float(found[1]), UTC)
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError, OSError):
        return None


AGE: Final = _Age()
PROPERTY: Final = _Property()
QUEUE: Final = _Queue()
MOMENT: Final = _Moment()
TIME: Final = _Time()
