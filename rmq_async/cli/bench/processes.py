"""Runs several sending processes at the same time, each with its own producer. A single one is not forked: this process sends.

The processes are forked, while no loop runs, so that certificates and credentials need not pass through arguments. Through a pipe,
each process reports its progress and, at the end or after a signal, its counts. All processes have ended when ``run_processes``
returns, even after an error.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import rmq_async
from rmq_async import ClientConfig, RocketMQError

from ..running import FAILED, run
from ..signals import end_at_once, signals_handled
from .figures import Part
from .load import Ending, LoadSettings, Report, run_load


def run_processes(settings: LoadSettings, client: ClientConfig, number: int, report: Report, ending: Ending) -> list[Part]:
    """Divide ``settings.messages`` among ``number`` processes and return the counts of each process.

    If ``number`` is 1, raise the errors of ``run_load``. A second signal ends the children and this process at once.

    Raises:
        RocketMQError: If there are several processes and one of them fails to start or stop its producer, or ends without a
            result.
    """
    if number == 1:
        return [run(run_load(settings, client, report, ending))]
    context = multiprocessing.get_context("fork")
    children: dict[Connection, Any] = {}
    try:
        for each in range(number):
            ours, theirs = context.Pipe(duplex=False)
            shared = _share(settings, each, number)
            child = context.Process(target=_child, args=(shared, client, theirs, os.getpid()), daemon=True)
            child.start()
            theirs.close()
            children[ours] = child
        with _ended_by_signal(children.values(), ending):
            return _collected(children, report)
    finally:
        for pipe, child in children.items():
            child.kill()
            child.join()
            child.close()
            pipe.close()


def _ended_by_signal(children: Iterable[Any], ending: Ending) -> AbstractContextManager[None]:
    """Pass a first signal on to the children.

    A second signal ends the children and this process without flushing stdout, because the flush would wait for a reader of the
    output.
    """

    def first(number: int) -> None:
        ending.number = number
        for child in children:
            if child.is_alive():
                os.kill(child.pid, signal.SIGTERM)

    def again(number: int) -> None:
        for child in children:
            child.kill()
        end_at_once(number)

    return signals_handled(first, again)


def _share(settings: LoadSettings, number: int, of: int) -> LoadSettings:
    if settings.messages is None:
        return settings
    whole, rest = divmod(settings.messages, of)
    return replace(settings, messages=whole + (number < rest))


def _collected(children: dict[Connection, Any], report: Report) -> list[Part]:
    parts: list[Part] = []
    so_far: dict[Connection, tuple[int, int]] = dict.fromkeys(children, (0, 0))
    reported: set[Connection] = set()
    open_pipes = set(children)
    while open_pipes:
        for ready in wait(list(open_pipes)):
            assert isinstance(ready, Connection)
            try:
                said = ready.recv()
            except EOFError:
                code = _code(children[ready])
                raise RocketMQError(
                    f"a sending process ended with exit code {code} (-9 means killed) and without a result; run the bench again"
                ) from None
            if isinstance(said, Part):
                parts.append(said)
                open_pipes.discard(ready)
            elif isinstance(said, str):
                raise RocketMQError(said)
            else:
                so_far[ready] = said
                reported.add(ready)
        if open_pipes <= reported:  # once a second, when all processes that still send have reported
            report(*map(sum, zip(*so_far.values(), strict=True)))
            reported.clear()
    return parts


def _code(child: Any) -> object:
    child.join(1.0)
    return child.exitcode


def _child(settings: LoadSettings, client: ClientConfig, pipe: Connection, parent: int) -> None:
    def report(count: int, failed: int) -> None:
        # the parent was killed; a write would not fail, because this process also holds the pipe's reading end
        if os.getppid() != parent:
            os._exit(FAILED)
        pipe.send((count, failed))

    try:
        pipe.send(rmq_async.run(run_load(settings, client, report, Ending(shares=True))))
    except KeyboardInterrupt:
        pass
    except Exception as error:  # noqa: BLE001 - the parent prints it, in one line
        pipe.send(f"{type(error).__name__}: {error}")
    finally:
        pipe.close()
