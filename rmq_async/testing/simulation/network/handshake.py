"""One connection attempt. A kernel repeats its request until it gets a response or a refusal, or until the time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from errno import ECONNREFUSED, ETIMEDOUT
from typing import Final, Protocol

from ..scheduler import Call, Scheduler
from .link import Link, system_error
from .listener import Listener
from .stream import End, Observer, Place, Side, connect_ends

REPETITIONS: Final = (0, 1, 3, 7, 15, 31, 63)
"""Seconds after the first request at which the request is sent, as Linux does with ``tcp_syn_retries`` = 6."""
PATIENCE: Final = 127
"""Seconds after the first request at which the kernel gives up."""
SECOND: Final = 1_000_000_000


class Target(Side, Protocol):
    """A machine that may listen."""

    off: bool

    def listener(self, place: Place) -> Listener | None:
        """Return the listener at a place. Return None if there is no listener."""


class Directory(Protocol):
    """The machines of a network, by address."""

    scheduler: Scheduler
    observe: Observer | None

    def at(self, caller: Side, address: str) -> Target | None:
        """Return the machine that currently has an address, as seen by ``caller``. Return None if no machine has the address."""

    def link(self, a: str, b: str) -> Link:
        """Return the link between two machines."""

    def next_stream(self) -> int:
        """Return the number of a new stream."""


class Attempt:
    """A connection attempt. ``future`` gets the caller's ``End`` of the new stream, or the error."""

    def __init__(self, directory: Directory, side: Side, local: Place, remote: Place, future: asyncio.Future[End]) -> None:
        self.future = future
        self._directory = directory
        self._side = side
        self._local = local
        self._remote = remote
        self._timer: Call | None = None
        self._over = False

    def start(self) -> None:
        self._request(0)

    def end(self) -> None:
        """Give up the attempt. Later responses to it are dropped."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _request(self, repetition: int) -> None:
        if repetition == len(REPETITIONS):
            self._fail(ETIMEDOUT)
            return
        following = REPETITIONS[repetition + 1] if repetition + 1 < len(REPETITIONS) else PATIENCE
        scheduler = self._directory.scheduler
        self._timer = scheduler.after((following - REPETITIONS[repetition]) * SECOND, self._request, repetition + 1)
        target = self._directory.at(self._side, self._remote[0])
        if target is not None:
            link = self._directory.link(self._side.name, target.name)
            link.way(self._side.name).send(0, self._requested, target, link)

    def _requested(self, target: Target, link: Link) -> None:
        if self._over:
            return
        if link.way(self._side.name).cut or link.hanging:
            link.unconnected += 1
            return
        if target.off or self._directory.at(self._side, self._remote[0]) is not target:
            return
        listener = target.listener(self._remote)
        if link.refusing:
            link.unconnected += 1
            listener = None
        if listener is None or not listener.full:
            link.way(target.name).send(0, self._answered, target, link, listener)

    def _answered(self, target: Target, link: Link, listener: Listener | None) -> None:
        if self._over:
            return
        if link.way(target.name).cut:
            link.unconnected += 1
        elif listener is None:
            self._fail(ECONNREFUSED)
        else:
            if link.closing:
                link.unconnected += 1
            self._connect(target, link, _close if link.closing else listener.accepted)

    def _connect(self, target: Target, link: Link, accepted: Callable[[End], None]) -> None:
        self.end()
        if self.future.done():  # the caller was cancelled in this iteration
            return
        directory = self._directory
        end, other = connect_ends(
            directory.scheduler,
            link,
            directory.next_stream(),
            (self._side, self._local),
            (target, self._remote),
            directory.observe,
        )
        other.expect(accepted, directory.scheduler)
        end.out.open()
        self.future.set_result(end)

    def _fail(self, number: int) -> None:
        self.end()
        if not self.future.done():
            self.future.set_exception(system_error(number, f"Connect call failed {self._remote}"))


def _close(end: End) -> None:
    """Close an accepted stream, with a reset or in order: the link's generator decides."""
    if end.out.way.flip():
        end.reset()
    else:
        end.close()
