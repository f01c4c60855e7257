"""The command ``rmq consume``: a member of a consumer group that prints messages or runs a command for each."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Final, Literal

import click
import msgspec

from rmq_async import ClientConfig, Consumer, DeadLetter, Delivery, MessageExt, RetryLater, RocketMQError, current_delivery

from .._backoff import Backoff
from .options import MOMENT, ClientOptions, client_config, client_options, number_option, pass_options, seconds_option
from .output import Output, Printer
from .records import body_bytes, fields_of, headline
from .running import run
from .signals import exit_code_of, signals_handled

# The options of ``rmq consume``.


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
                f"--from {self.start} is an offset, at which a group cannot begin; give earliest, latest or a time"
            )
        if self.command is not None and not self.command.strip():
            raise click.UsageError(
                "--exec is blank: the shell would run nothing, and each message would count as handled; give a command"
            )
        if self.verbose and (self.command is not None or self.as_json):
            raise click.UsageError("--verbose is for printed bodies; leave it out with --exec and --json")

    @property
    def start_from(self) -> Literal["earliest", "latest"] | datetime:
        assert not isinstance(self.start, int)
        return self.start  # type: ignore[return-value]  # MOMENT accepts these words only


# Runs the command of ``--exec`` for one message. The command reads the body from its standard input, and its exit code is the
# outcome.

DEAD_LETTER: Final = 65
"""EX_DATAERR of sysexits.h. It means that the input is wrong, so another attempt would also fail."""
CANNOT_RUN: Final = frozenset({126, 127})
"""Exit codes with which a shell reports that it cannot run the command or has not found it."""
STDERR: Final = 2
LAST_WORDS: Final = 1.0
"""Seconds from SIGTERM to SIGKILL for a command that is to end."""


class Commands:
    """Runs the command of --exec for each message, and can end the commands that are running.

    Args:
        stdout_to_stderr: True sends the command's standard output to stderr, since standard output is for JSON objects only.
    """

    def __init__(self, command: str, *, stdout_to_stderr: bool) -> None:
        self._command = command
        self._stdout = STDERR if stdout_to_stderr else None
        self._running: set[asyncio.subprocess.Process] = set()

    async def run(self, message: MessageExt, delivery: Delivery) -> int:
        """Run the command with the shell, in a separate process group. Return its exit code, or 128 + N if signal N ended it.

        If this call is cancelled, it ends the command as ``end`` does.

        Raises:
            OSError: If no process can be started.
        """
        # The start runs in a separate task, because a cancelled start may leave behind a process that no one ends.
        starting = asyncio.ensure_future(self._start(message, delivery))
        try:
            process = await asyncio.shield(starting)
            await process.wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(starting))
            raise
        self._running.discard(process)
        assert process.returncode is not None
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    async def _start(self, message: MessageExt, delivery: Delivery) -> asyncio.subprocess.Process:
        with _file_of(message.body) as body:
            process = await asyncio.create_subprocess_shell(
                self._command,
                stdin=body,
                stdout=self._stdout,
                env={**os.environ, **facts_of(message, delivery)},
                start_new_session=True,  # so that Ctrl-C on the terminal does not interrupt the command during a message
            )
        self._running.add(process)
        return process

    async def _abandon(self, starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
        try:
            process = await starting
        except OSError:
            return
        await _end(process)
        self._running.discard(process)

    async def end(self) -> None:
        """End all running commands: send SIGTERM to their process groups, and SIGKILL to a group whose shell still runs 1 s
        later.
        """
        await asyncio.gather(*map(_end, self._running))


def facts_of(message: MessageExt, delivery: Delivery) -> Mapping[str, str]:
    """Return the environment variables that describe the message.

    A field without a value becomes an empty string. U+FFFD replaces NUL, which the environment cannot hold.
    """
    facts = {
        "RMQ_TOPIC": message.topic,
        "RMQ_GROUP": delivery.group,
        "RMQ_BROKER": message.queue.broker_name,
        "RMQ_QUEUE_ID": str(message.queue.queue_id),
        "RMQ_QUEUE_OFFSET": str(message.queue_offset),
        "RMQ_MSG_ID": message.msg_id,
        "RMQ_TAGS": message.tags or "",
        "RMQ_KEYS": " ".join(message.keys),
        "RMQ_SHARDING_KEY": message.sharding_key or "",
        "RMQ_PROPERTIES": msgspec.json.encode(message.user_properties).decode(),
        "RMQ_ATTEMPT": str(delivery.attempt),
        "RMQ_BORN_TIME_MS": str(message.born_time_ms),
        "RMQ_STORE_TIME_MS": str(message.store_time_ms),
    }
    return {name: text.replace("\0", "\N{REPLACEMENT CHARACTER}") for name, text in facts.items()}


def _file_of(body: bytes) -> IO[bytes]:
    """Return a file with the body, in memory or in the temporary directory.

    Unlike a pipe, a file needs no task that writes it, and the command does not have to read it.
    """
    in_memory = hasattr(os, "memfd_create")
    file = os.fdopen(os.memfd_create("message"), "w+b") if in_memory else tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
    try:
        file.write(body)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), LAST_WORDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


# The member of the group: the calls of its handler, their outcomes, and the end of the command.
#
# A message is printed, or its command has ended, before it is settled. At the end, the consumer is paused, which drops the
# messages whose handling has not begun, and it stops when no handler runs. A message whose call is cancelled by a second
# signal, or whose output has no reader, is not settled. It is delivered again, and this does not count as an attempt.

SHORTAGES: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})
"""System errors which mean that no process can be started now. The message waits, and no attempt is counted."""
OF_MESSAGE: Final = frozenset({errno.E2BIG, errno.EFBIG})
"""System errors which mean that no process can be started for this message, because it is too large for the environment or for
a file.
"""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
LAST_COMMITS: Final = 1.0
"""Timeout, in seconds, of a stop that cancels the handlers at once."""


async def consume_messages(options: ConsumeOptions, config: ClientConfig) -> int:
    """Consume until --count is reached, a signal arrives, or a failure occurs. Return the exit code, or raise the failure."""
    loop, work = asyncio.get_running_loop(), _Work(options)

    def received(number: int) -> None:
        loop.call_soon_threadsafe(work.interrupt, number)

    with signals_handled(received, received):
        await _consume(options, config, work)
    if work.failure is not None:
        raise work.failure
    work.summarize()
    return 0 if work.aborted is None else exit_code_of(work.aborted)


async def _consume(options: ConsumeOptions, config: ClientConfig, work: _Work) -> None:
    async def handle(message: MessageExt) -> None:
        await work.handle(message)

    handle.__module__, handle.__qualname__ = "rmq", "consume"  # in the log
    consumer = Consumer(options.group, client=config, start_from=options.start_from, concurrency=options.concurrency)
    consumer.subscribe(
        options.topic,
        handle,
        tags=options.tags,
        sql=options.sql,
        concurrency=work.concurrency,
        timeout=options.exec_timeout if options.command is not None else None,
    )
    work.consumer = consumer
    try:
        if await _started(consumer, work.over):
            await work.over.wait()
            await work.drained()
    finally:
        await consumer.stop(LAST_COMMITS if work.leaving or work.cut.is_set() else None)
        work.printer.close()


async def _started(consumer: Consumer, over: asyncio.Event) -> bool:
    """Start the consumer.

    Returns:
        False if a signal ends the start.
    """
    starting, waiting = asyncio.create_task(consumer.start()), asyncio.create_task(over.wait())
    try:
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await consumer.stop()
            await asyncio.wait([starting])
    finally:
        waiting.cancel()
    error = starting.exception()
    if error is not None and not over.is_set():
        raise error
    return error is None


class _FailedError(RetryLater):
    """The command has failed, or no process could be started (``code`` is None). The consumer logs this error without a
    traceback.
    """

    def __init__(self, code: int | None) -> None:
        super().__init__()
        self.code = code

    def __repr__(self) -> str:
        return "no process" if self.code is None else f"exit code {self.code}"


class _EndedError(Exception):
    """The work ended before a process could be started for a message."""


class _Work:
    """The handler of messages, and the counts of their outcomes.

    Attributes:
        consumer: The consumer, which is set before the handler is called.
    """

    consumer: Consumer

    def __init__(self, options: ConsumeOptions) -> None:
        self.over = asyncio.Event()
        """Set when no further message is to be handled."""
        self.cut = asyncio.Event()
        """Set when running handlers must be ended instead of awaited."""
        self.leaving = False
        """Whether a call of the handler waits until the consumer, when it stops, cancels it."""
        self.aborted: int | None = None
        """Number of the signal that ended the running calls. None until such a signal arrives."""
        self.failure: Exception | None = None
        self.printer = Printer()
        self._options = options
        self._output = Output(as_json=options.as_json)
        self._commands = None if options.command is None else Commands(options.command, stdout_to_stderr=options.as_json)
        self._outcomes: Counter[str] = Counter()
        self._begun = self._running = 0
        self._lacks_processes = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def concurrency(self) -> int:
        """Maximum number of concurrent calls. Near the end of --count, it is lower, so that no additional call begins. The stop
        would have to cancel such a call, which would leave little time for the last commits.
        """
        most, count = self._options.concurrency, self._options.count
        return most if count is None else max(min(most, self._running + count - self._begun), 1)

    def _set_concurrency(self) -> None:
        (subscription,) = self.consumer.subscriptions
        if subscription.concurrency != self.concurrency:
            subscription.concurrency = self.concurrency

    def interrupt(self, number: int) -> None:
        """Handle a signal: take no further messages or, if that is already so, end the running calls too."""
        if self.over.is_set() and self.aborted is None:
            self.aborted = number
            self.cut.set()
        elif self._running and self._commands is not None:
            self._output.trouble(f"waits for {self._running} running commands; a second signal ends them")
        self._end()

    async def drained(self) -> None:
        """Wait until no handler runs or, if ``cut`` is set first, end the running commands."""
        waits = [asyncio.create_task(each.wait()) for each in (self._idle, self.cut)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if self._commands is not None:
            await self._commands.end()

    async def handle(self, message: MessageExt) -> None:
        if self.over.is_set() or self._begun == self._options.count:
            await self._leave()
        self._begun += 1
        if self._begun == self._options.count:
            self._pause()
        self._running += 1
        self._set_concurrency()
        self._idle.clear()
        is_left = False
        try:
            await self._handle(message)
        except _EndedError:
            is_left = True
        finally:
            self._running -= 1
            self._set_concurrency()
            if not self._running:
                self._idle.set()
                if self._begun == self._options.count:
                    self._end()
        if is_left:
            await self._leave()

    def _end(self, failure: Exception | None = None) -> None:
        self.failure = self.failure or failure
        self._pause()
        self.over.set()

    def _pause(self) -> None:
        with suppress(RocketMQError):  # the consumer is starting, in which case ``handle`` leaves each call, or is stopping
            self.consumer.pause()

    async def _handle(self, message: MessageExt) -> None:
        if self._commands is None:
            await self._print(self._shown(message))
            self._outcomes["done"] += 1
            return
        outcome, code = await self._execute(message)
        self._outcomes[outcome] += 1
        if outcome == "dead-letter":
            raise DeadLetter(f"the command ended with exit code {DEAD_LETTER}")
        if outcome == "retry":
            raise _FailedError(code)

    def _shown(self, message: MessageExt) -> bytes:
        if self._options.as_json:
            return msgspec.json.encode(fields_of(message)) + b"\n"
        line = f"{headline(message)}\n".encode() if self._options.verbose else b""
        return line + body_bytes(message) + b"\n"

    async def _execute(self, message: MessageExt) -> tuple[str, int | None]:
        """Return the outcome of the message and the exit code. The exit code is None if no process can be started."""
        assert self._commands is not None
        delivery = current_delivery()
        code: int | None = None
        error: str | None = None
        try:
            code = await self._run(self._commands, message, delivery)
        except asyncio.CancelledError:
            if delivery.timed_out and not self.cut.is_set():
                self._outcomes["retry"] += 1
                error = f"the command did not end within {self._options.exec_timeout:g} s"
                await self._tell(message, delivery, {"exit_code": None, "error": error, "outcome": "retry"})
            raise
        except OSError as raised:
            error = f"no process can be started: {raised}"
            self._output.trouble(f"message {message.msg_id}: {error}")
        if self.cut.is_set():
            await self._leave()
        if code in CANNOT_RUN:
            why = f"the shell cannot run the command (exit code {code}); check its path and its permissions"
            self._end(click.ClickException(f"{why}: {self._options.command}"))
        outcome = "done" if code == 0 else "dead-letter" if code == DEAD_LETTER else "retry"
        await self._tell(message, delivery, {"exit_code": code, "error": error, "outcome": outcome})
        return outcome, code

    async def _run(self, commands: Commands, message: MessageExt, delivery: Delivery) -> int:
        """Run the command. Wait while the machine lacks the resources to start a process.

        Raises:
            OSError: If the message is too large.
            _EndedError: If the work ends before a process could be started. The work also ends if the machine starts no process
                at all.
        """
        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                code = await commands.run(message, delivery)
            except OSError as error:
                if error.errno in OF_MESSAGE:
                    raise
                if error.errno not in SHORTAGES:
                    what = f"no process can be started: {error}; check that /bin/sh is there and may be run"
                    self._end(click.ClickException(what))
                    raise _EndedError from None
                if not self._lacks_processes:
                    self._lacks_processes = True
                    self._output.trouble(
                        f"no process can be started: {error}; messages wait; raise the limit of processes (pids.max of the "
                        "container, ulimit -u) or of open files (ulimit -n)"
                    )
            else:
                self._lacks_processes = False
                return code
            with suppress(TimeoutError):
                async with asyncio.timeout(pauses.next()):
                    await self.over.wait()
            if self.over.is_set():
                raise _EndedError
            delivery.extend(self._options.exec_timeout)

    async def _tell(self, message: MessageExt, delivery: Delivery, ended: dict[str, object]) -> None:
        """Print the outcome of a command as a JSON object. Print nothing without --json."""
        if self._options.as_json:
            facts = {"topic": message.topic, "broker": message.queue.broker_name, "queue_id": message.queue.queue_id}
            facts |= {"queue_offset": message.queue_offset, "msg_id": message.msg_id, "attempt": delivery.attempt}
            await self._print(msgspec.json.encode({**facts, **ended, "seconds": round(delivery.age, 3)}) + b"\n")

    async def _print(self, data: bytes) -> None:
        try:
            await self.printer.write(data)
        except OSError as error:
            self.cut.set()
            self._end(error)
            await self._leave()

    async def _leave(self) -> None:
        """Wait until the stop cancels the call, so that its message is not settled."""
        self.leaving = True
        await asyncio.get_running_loop().create_future()

    def summarize(self) -> None:
        parts = [f"{self._outcomes['done']} done"]
        if self._options.command is not None:
            parts += [f"{self._outcomes['retry']} to be tried again", f"{self._outcomes['dead-letter']} dead-lettered"]
        if cut := self._begun - self._outcomes.total():
            parts.append(f"{cut} cut off, to be delivered again")
        self._output.trouble(f"{self._begun} messages: {', '.join(parts)}")


@click.command(short_help="Consume a topic as a group: print, or run a command for each message.")
@click.argument("topic")
@click.option("--group", required=True, metavar="GROUP", help="Consumer group whose offsets are committed.")
@click.option(
    "--from", "start", type=MOMENT, default="latest", show_default=True,
    help="Where a group without offsets begins: earliest, latest or a time as for rmq pull.",
)  # fmt: skip
@click.option("--tags", default="*", show_default=True, metavar="TAGS", help="Messages with one of these tags: a || b.")
@click.option("--sql", metavar="CONDITION", help="Messages whose properties meet an SQL92 condition (enablePropertyFilter).")
@number_option("--count", help="End after N messages.")
@click.option("--exec", "command", metavar="COMMAND", help="Shell command to run for each message, see above.")
@number_option("--concurrency", most=1024, default=1, help="Messages at a time.")
@seconds_option(
    "--exec-timeout", most=86400.0, min_open=True, default=900.0,
    help="Time limit of a command. After it, the command is ended, and its message is tried again.",
)  # fmt: skip
@click.option(
    "--verbose", "-v", is_flag=True, help="Print a line with queue, offset, time, id, tags and keys before each body."
)
@client_options
@pass_options(ConsumeOptions)
def consume(options: ConsumeOptions) -> int:
    """Consume TOPIC as a member of a group: print each message as rmq pull does, and commit the messages that were printed.

    With --exec, a command gets the body of each message as its input, and its exit code decides: with 0 the message is done,
    with 65 (EX_DATAERR) it is dead-lettered, and with any other code, such as 75 (EX_TEMPFAIL), it is tried again later, by the
    group's retries. The codes 126 and 127, with which the shell reports that it cannot run the command, also end rmq consume.
    Messages wait while the machine lacks the resources to start a process. If it cannot start any process, rmq consume ends,
    and the messages stay in the group. The command's environment contains RMQ_TOPIC, RMQ_GROUP, RMQ_BROKER, RMQ_QUEUE_ID,
    RMQ_QUEUE_OFFSET, RMQ_MSG_ID, RMQ_TAGS, RMQ_KEYS (separated by spaces), RMQ_SHARDING_KEY, RMQ_PROPERTIES (JSON), RMQ_ATTEMPT
    (1 or more), RMQ_BORN_TIME_MS and RMQ_STORE_TIME_MS. With --json, each outcome is an object on stdout, and the output of the
    commands goes to stderr.

    After the first SIGINT or SIGTERM, running commands may end, and their messages are committed. A second signal ends the
    commands, and their messages are delivered again. A summary goes to stderr. The exit code is 0 after --count and after the
    first signal, and 130 or 143 after the second.
    """
    options.check()
    config = client_config(options.namesrv, options.timeout)
    # a command that runs indefinitely must report the failures that it waits out
    logging.getLogger("rmq_async").setLevel(logging.WARNING)
    return run(consume_messages(options, config))
