"""Prints the status of a table and the progress of a relay, as JSON objects or as lines of text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import click
import msgspec

from rmq_async._text import printable
from rmq_async.outbox import OutboxStatus, StuckMessage

from ..output import Output, plain_table


def message_count(number: int) -> str:
    return f"{number:,} message{'' if number == 1 else 's'}"


def print_status(output: Output, status: OutboxStatus) -> None:
    output.record(_fields(status))
    table = plain_table(pending=True, oldest=True, sent=True, failed=True)
    table.add_row(f"{status.pending:,}", _age(status), f"{status.sent:,}", f"{status.failed:,}")
    output.table(table)


def _fields(status: OutboxStatus) -> dict[str, object]:
    return {**msgspec.structs.asdict(status), "oldest_age": round(status.oldest_age, 3)}


def _age(status: OutboxStatus) -> str:
    return f"{status.oldest_age:,.1f} s" if status.pending else "-"


class Progress:
    """Prints the progress of one relay.

    Args:
        sent: Returns the number of messages that the relay has sent.
        ended: Set, together with ``error``, if a write of ``status`` or ``stuck`` fails.
    """

    def __init__(self, output: Output, sent: Callable[[], int], ended: asyncio.Event) -> None:
        self.error: OSError | None = None
        self._output = output
        self._sent = sent
        self._ended = ended
        self._began = self._last = monotonic()
        self._count = 0

    def status(self, status: OutboxStatus) -> None:
        """Print a line of progress. The outbox calls this method at its status interval."""
        now, sent = monotonic(), self._sent()
        rate = (sent - self._count) / max(now - self._last, 1e-3)
        self._count, self._last = sent, now
        self._write(self._print_status, status, sent, rate, now - self._began)

    def _print_status(self, status: OutboxStatus, sent: int, rate: float, seconds: float) -> None:
        self._output.record(_fields(status) | {"sent": sent, "rate": round(rate, 1)})
        if not self._output.as_json:
            line = f"{seconds:6.0f} s  {rate:9,.0f} messages/s  {sent:,} sent  {_waiting(status)}  {status.failed:,} failed"
            click.echo(line, err=True)

    def stuck(self, message: StuckMessage) -> None:
        self._write(self._print_stuck, message)

    def _print_stuck(self, message: StuckMessage) -> None:
        if self._output.as_json:
            self._output.record({"stuck": {**msgspec.structs.asdict(message), "age": round(message.age, 3)}})
            return
        keys = f", keys {printable(' '.join(message.keys))}" if message.keys else ""
        self._output.trouble(
            f"outbox: row {message.id} for topic {printable(message.topic)}{keys} is {message.state}, {message.age:,.0f} s old, "
            f"{message.attempts} attempts failed: {printable(message.last_error or 'none yet')}"
        )

    def totals(self, status: OutboxStatus | None) -> None:
        """Print the last line.

        Args:
            status: None if it could not be read from the database.
        """
        sent, seconds = self._sent(), monotonic() - self._began
        rate = sent / max(seconds, 1e-3)
        known = _fields(status) if status is not None else dict.fromkeys(("pending", "oldest_age", "failed"))
        self._output.record({"total": known | {"sent": sent, "seconds": round(seconds, 3), "rate": round(rate, 1)}})
        rest = f"{_waiting(status)}, {status.failed:,} failed" if status is not None else "number of pending messages unknown"
        self._output.line(f"{message_count(sent)} sent in {seconds:,.1f} s, {rest}")

    def _write(self, write: Callable[..., None], *arguments: object) -> None:
        """Call ``write``.

        An OSError, for example because the pipe is closed, ends the command. It is not raised, because the outbox only logs
        errors of callbacks.
        """
        try:
            write(*arguments)
        except OSError as error:
            self.error = error
            self._ended.set()


def _waiting(status: OutboxStatus) -> str:
    return f"{status.pending:,} pending" + (f", the oldest {_age(status)} old" if status.pending else "")
