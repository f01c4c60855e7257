"""The options of ``rmq consume``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import click

from ..options import ClientOptions

__all__ = ["ConsumeOptions"]


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions(ClientOptions):
    topic: str
    group: str
    start: str | int | datetime
    tags: str
    sql: str | None
    count: int | None
    command: str | None
    concurrency: int
    exec_timeout: float
    verbose: bool

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        if self.sql is not None and self.tags != "*":
            raise click.UsageError("give --tags or --sql, not both: a condition may ask for TAGS = 'a'")
        if isinstance(self.start, int):
            raise click.UsageError(
                f"--from {self.start} is an offset; give earliest, latest or a time, where a group can begin"
            )
        if self.command is not None and not self.command.strip():
            raise click.UsageError(
                "--exec is blank: the shell would run nothing, and each message would be done; give a command"
            )
        if self.verbose and (self.command is not None or self.as_json):
            raise click.UsageError("--verbose is for printed bodies; leave it out with --exec and --json")

    @property
    def start_from(self) -> Literal["earliest", "latest"] | datetime:
        assert not isinstance(self.start, int)
        return self.start  # type: ignore[return-value]  # MOMENT accepts these words only
