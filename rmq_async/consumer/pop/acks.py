"""Acknowledgements, gathered by broker: one request under way, and what is handled meanwhile goes into the next one.

A broker keeps one record for each queue of a request, in place of one for each message. An acknowledgement that is late still
counts until the broker has delivered the message again, some 2 s after the lease, so the first attempt is made in any case. One
without an answer is sent again, which is harmless, until the lease has expired.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from rmq_protocol.pop_handles import can_be_gathered

from ... import machine
from ..._backoff import Backoff
from ..._text import printable
from ...errors import BrokerError, RocketMQError
from .lease import Lease
from .requests import Requests

__all__ = ["Acks"]

logger = logging.getLogger(__name__)

GATHER: Final = 32
"""Acknowledgements that are sent at once."""
GATHER_TIME: Final = 0.01
"""Seconds for which fewer wait for others."""
MOST_IN_REQUEST: Final = 1024
ANSWER_WITHIN: Final = 3.0
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
MOST_PENDING: Final = 8192
"""Acknowledgements that wait for one broker, above which it is popped no more."""
AFTER_EXPIRY: Final = 2.0
"""Seconds after the end of a lease in which an acknowledgement may still count."""

Spawn = Callable[[str, Coroutine[Any, Any, None]], object]


class Acks:
    """``spawn``: starts a task that lives as long as the consumer. ``count``: messages that brokers have acknowledged. ``lost``:
    those whose acknowledgement was not answered until their lease had expired, or was refused; they may be delivered again."""

    def __init__(self, requests: Requests, spawn: Spawn) -> None:
        self._requests = requests
        self._spawn = spawn
        self._lines: dict[str, _Line] = {}
        self.count = 0
        self.lost = 0
        self.errors: dict[str, str] = {}
        """The last error by broker; without those whose last request was answered."""

    def add(self, lease: Lease) -> None:
        """Acknowledges a message soon."""
        broker = lease.handle.broker_name
        line = self._lines.get(broker)
        if line is None:
            line = self._lines[broker] = _Line(self, self._requests, broker)
            self._spawn(f"acks to {broker}", line.run())
        line.add(lease)

    def is_full(self, broker: str) -> bool:
        """Returns whether so many wait that the broker is not to be popped."""
        line = self._lines.get(broker)
        return line is not None and line.pending >= MOST_PENDING

    @property
    def pending(self) -> int:
        """Number of acknowledgements without an answer."""
        return sum(line.pending for line in self._lines.values())

    async def flush(self) -> None:
        """Sends what is gathered, and returns when nothing waits any more."""
        for line in [*self._lines.values()]:
            await line.flush()


class _Line:
    """The acknowledgements of one broker."""

    def __init__(self, acks: Acks, requests: Requests, broker: str) -> None:
        self._acks = acks
        self._requests = requests
        self._broker = broker
        self._gathered: list[Lease] = []
        self._sending: list[Lease] = []
        self._hurry = False
        self._some = asyncio.Event()
        self._full = asyncio.Event()
        self._empty = asyncio.Event()
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)

    @property
    def pending(self) -> int:
        return len(self._gathered) + len(self._sending)

    def add(self, lease: Lease) -> None:
        gathered = self._gathered
        gathered.append(lease)
        if len(gathered) == 1:
            self._some.set()
            self._empty.clear()
        elif len(gathered) == GATHER:
            self._full.set()

    async def flush(self) -> None:
        if self.pending:
            self._hurry = True
            self._full.set()
            await self._empty.wait()
            self._hurry = False

    async def run(self) -> None:
        """Sends for ever."""
        while True:
            if not self._gathered:
                self._some.clear()
                self._empty.set()
                self._acks.errors.pop(self._broker, None)  # what was given up is counted, and logged
                await self._some.wait()
            if len(self._gathered) < GATHER and not self._hurry:
                self._full.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(GATHER_TIME):
                        await self._full.wait()
            leases = self._sending = self._gathered[:MOST_IN_REQUEST]
            del self._gathered[:MOST_IN_REQUEST]
            try:
                pause = await self._send(leases)
            finally:
                self._sending = []
            if pause:
                await asyncio.sleep(pause)

    async def _send(self, leases: list[Lease]) -> float:
        """Sends once; returns the seconds until the next attempt, 0 where it was answered."""
        acks = self._acks
        together = [lease for lease in leases if can_be_gathered(lease.handle)]
        alone = [lease for lease in leases if not can_be_gathered(lease.handle)]
        left = leases
        try:
            if together:
                handles = [(lease.topic, lease.handle) for lease in together]
                await self._requests.acknowledge(self._broker, handles, ANSWER_WITHIN)
                acks.count += len(together)
                left = alone
            while alone:
                await self._requests.acknowledge_one(alone[0].topic, alone[0].handle, ANSWER_WITHIN)
                acks.count += 1
                del alone[0]
        except RocketMQError as error:
            return self._failed(left, error)
        self._pauses.reset()
        acks.errors.pop(self._broker, None)
        return 0.0

    def _failed(self, leases: list[Lease], error: RocketMQError) -> float:
        acks = self._acks
        text = acks.errors[self._broker] = printable(error, 500)
        refused = isinstance(error, BrokerError) and not error.retriable
        now = machine.monotonic()
        again = [] if refused else [lease for lease in leases if lease.expires + AFTER_EXPIRY > now]
        if len(again) < len(leases):
            acks.lost += len(leases) - len(again)
            logger.warning(
                "%d messages of broker %s were handled and not acknowledged, they may be delivered again: %s",
                len(leases) - len(again),
                self._broker,
                text,
            )
        self._gathered[:0] = again
        return self._pauses.next()
