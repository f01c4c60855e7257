"""Leases of popped messages, and their acknowledgements. Acknowledgements for one broker are sent in batches, with at most one
request in flight.
"""

# A handle has one owner, its lease. A change of the invisible time makes the handle invalid: the broker then ignores an
# acknowledgement with it, and a second change causes a second delivery. A change after an acknowledgement brings the message back.
# So a lease has a state, and makes one request at a time.

# A broker keeps one record for each pop and queue in a request, not one for each message. A late acknowledgement still counts
# until the broker delivers the message again, about 2 s after the end of the lease, so the first attempt is always made. An
# acknowledgement without a response is sent again until these 2 s have passed; repetition is harmless.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from msgspec import field

from rmq_protocol.pop import ExtraInfo
from rmq_protocol.pop_handles import can_be_gathered

from ... import machine
from ..._backoff import Backoff
from ..._text import printable
from ...errors import BrokerError, ClientStateError, RocketMQError
from ..held_queue import Waiting
from .pop_requests import Requests

logger = logging.getLogger(__name__)

NO_HANDLE: Final = ExtraInfo(0, 0, 0, 0, "0", "", 0)
GATHER: Final = 32
"""Number of acknowledgements that are sent without waiting for more."""
GATHER_TIME: Final = 0.01
"""Maximum seconds for which fewer than GATHER acknowledgements wait for more."""
MOST_IN_REQUEST: Final = 1024
ANSWER_WITHIN: Final = 3.0
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
MOST_PENDING: Final = 8192
"""Number of pending acknowledgements at which no pops are sent to a broker."""
AFTER_EXPIRY: Final = 2.0
"""Seconds for which an acknowledgement may still count after the end of its lease."""
_broker_of: Callable[[Lease], str] = attrgetter("handle.broker_name")
Run = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], object]


class LeaseState(Enum):
    """The state of a lease.

    Attributes:
        HELD: The handle is valid as far as the client knows.
        CHANGING: A change of the invisible time is in flight.
        ADRIFT: A change had no valid response, so the handle may be invalid and is not changed again.
        OVER: The message was acknowledged, given back or let go.
    """

    HELD = "held"
    CHANGING = "changing"
    ADRIFT = "adrift"
    OVER = "over"


class Lease(Waiting, eq=False):
    """A popped message that the broker has leased to this member.

    Attributes:
        held: The buffer of the source from which the message was popped.
        since: Monotonic time of the message's arrival.
        topic: Name on the wire of the subscribed topic, even if the message came from a retry topic.
        handle: The handle (POP_CK) of the delivery, which its acknowledgement contains.
        expires: Monotonic time at which the broker delivers the message again.
        changed: A future that resolves when the change in flight has ended; None if there is none.
        is_done: Whether to acknowledge the message after the change in flight.
        group: The leases that are extended together with this one.
        ack_number: Number of the acknowledgement, counted from 1 for each broker.
    """

    topic: str = ""
    handle: ExtraInfo = NO_HANDLE
    expires: float = 0.0
    state: LeaseState = LeaseState.HELD
    changed: asyncio.Future[None] | None = None
    is_done: bool = False
    group: dict[Lease, None] = field(default_factory=dict)
    ack_number: int = 0

    def __repr__(self) -> str:
        return f"<Lease of {self.message.msg_id} from {self.handle.broker_name}, {self.state.value}>"


class Acks:
    """The acknowledgements of one member. An acknowledgement is pending until it ends: its broker has confirmed it, or this member
    has given it up.

    Args:
        run: Starts a task that runs as long as the consumer, and restarts it when it fails.

    Attributes:
        count: Number of messages that were acknowledged.
        lost: Number of messages whose acknowledgement was refused, or still failed AFTER_EXPIRY seconds after the end of their
            lease. They may be delivered again.
    """

    def __init__(self, requests: Requests, run: Run) -> None:
        self._requests = requests
        self._run = run
        self._lines: dict[str, _Line] = {}
        self.count = 0
        self.lost = 0
        self.errors: dict[str, str] = {}
        """By broker name: the error of the last request. It is removed when a request succeeds or no acknowledgement is left."""

    def add(self, leases: Iterable[Lease]) -> None:
        """Acknowledge messages soon, together with other messages of their broker."""
        for broker, found in groupby(leases, _broker_of):
            line = self._lines.get(broker)
            if line is None:
                line = self._lines[broker] = _Line(self, self._requests, broker)
                self._run(f"acks to {broker}", line.run)
            line.add(found)

    def is_full(self, broker: str) -> bool:
        """Return whether too many acknowledgements to a broker are pending, so that no pops are sent to it."""
        line = self._lines.get(broker)
        return line is not None and line.pending >= MOST_PENDING

    @property
    def pending(self) -> int:
        """Number of pending acknowledgements."""
        return sum(line.pending for line in self._lines.values())

    def close(self) -> None:
        """Give up the pending acknowledgements, so that ``flush`` does not wait for them."""
        for line in self._lines.values():
            line.close()

    async def flush(self) -> None:
        """Send the pending acknowledgements without delay. Return when all acknowledgements that were added before the call have
        ended.

        If some were given up meanwhile, raise the error that was the reason. At the end of a stop, that is ClientStateError.
        """
        lines = [*self._lines.values()]
        with ExitStack() as hurry:
            added = [hurry.enter_context(line.hurried()) for line in lines]
            errors = [await line.until_ended(number) for line, number in zip(lines, added, strict=True)]
        for error in errors:
            if error is not None:
                raise error


class _Line:
    """The acknowledgements of one broker, in the order in which they were added."""

    def __init__(self, acks: Acks, requests: Requests, broker: str) -> None:
        self._acks = acks
        self._requests = requests
        self._broker = broker
        self._gathered: list[Lease] = []
        self._sending: list[Lease] = []
        """Acknowledgements of the request in flight that have not ended."""
        self._added = 0
        self._flushes = 0
        """Number of calls of ``flush`` that wait."""
        self._losses = 0
        """Number of requests after which acknowledgements were given up."""
        self._lost_by: RocketMQError | None = None
        """The error of the last of these requests."""
        self._some = asyncio.Event()
        self._full = asyncio.Event()
        self._moved = asyncio.Event()
        """An event that is set when acknowledgements have ended, or a request has failed."""
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)

    @property
    def pending(self) -> int:
        return len(self._gathered) + len(self._sending)

    @property
    def _oldest(self) -> int:
        """The number of the oldest acknowledgement that has not ended. If there is none, the number of the next one to be added."""
        first = self._sending or self._gathered
        return first[0].ack_number if first else self._added + 1

    def add(self, leases: Iterable[Lease]) -> None:
        """Add one acknowledgement or more."""
        gathered = self._gathered
        before = len(gathered)
        gathered += leases
        for number, lease in enumerate(gathered[before:], self._added + 1):
            lease.ack_number = number
        self._added += len(gathered) - before
        if not before:
            self._some.set()
        if before < GATHER <= len(gathered):
            self._full.set()

    @contextmanager
    def hurried(self) -> Iterator[int]:
        """Make ``run`` send without waiting for more until the context ends. Yield the number of the last acknowledgement."""
        self._flushes += 1
        self._full.set()
        try:
            yield self._added
        finally:
            self._flushes -= 1

    async def until_ended(self, number: int) -> RocketMQError | None:
        """Wait until the acknowledgements up to ``number`` have ended.

        Return the last error that made this member give up acknowledgements during the wait, or None.
        """
        losses = self._losses
        while self._oldest <= number:
            self._moved.clear()
            await self._moved.wait()
        return self._lost_by if self._losses > losses else None

    def close(self) -> None:
        if count := self.pending:
            self._gathered.clear()
            self._acks.lost += count
            text = f"the consumer was stopped before broker {printable(self._broker)} had confirmed {count} acknowledgements"
            self._given_up(ClientStateError(f"{text}; the messages may be delivered again", broker=self._broker))

    async def run(self) -> None:
        """Send acknowledgements. Never return."""
        while True:
            if not self._gathered:
                self._some.clear()
                self._acks.errors.pop(self._broker, None)  # acknowledgements that were given up have been counted and logged
                await self._some.wait()
            if len(self._gathered) < GATHER and not self._flushes:
                self._full.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(GATHER_TIME):
                        await self._full.wait()
            self._sending = self._gathered[:MOST_IN_REQUEST]
            del self._gathered[:MOST_IN_REQUEST]
            try:
                pause = await self._send()
            finally:
                self._gathered[:0] = self._sending
                self._sending = []
                self._moved.set()
            if pause:
                await asyncio.sleep(pause)

    async def _send(self) -> float:
        """Send the acknowledgements in ``_sending``: one request for all that can be part of a batch, and one request for each of
        the others.

        Afterwards, ``_sending`` has the acknowledgements to send again. Errors other than RocketMQError propagate.

        Returns:
            0 if all requests succeeded, otherwise the seconds until the next attempt.
        """
        acks = self._acks
        try:
            handles, alone = list[tuple[str, ExtraInfo]](), list[Lease]()
            for lease in self._sending:
                if can_be_gathered(lease.handle):
                    handles.append((lease.topic, lease.handle))
                else:
                    alone.append(lease)
            if handles:
                await self._requests.acknowledge(self._broker, handles, ANSWER_WITHIN)
                acks.count += len(handles)
                self._sending = alone
            while self._sending:
                lease = self._sending[0]
                await self._requests.acknowledge_one(lease.topic, lease.handle, ANSWER_WITHIN)
                acks.count += 1
                del self._sending[0]
        except RocketMQError as error:
            self._failed(error)
            return self._pauses.next()
        except Exception as error:
            text = f"acknowledgements to broker {printable(self._broker)} were not sent, so messages may be delivered again"
            self._failed(RocketMQError(f"{text}: {printable(repr(error), 300)}", broker=self._broker))
            raise
        self._pauses.reset()
        acks.errors.pop(self._broker, None)
        return 0.0

    def _failed(self, error: RocketMQError) -> None:
        """Give up the acknowledgements that were refused or are too late, and keep the others."""
        acks, leases = self._acks, self._sending
        text = acks.errors[self._broker] = printable(error, 500)
        refused = isinstance(error, BrokerError) and not error.retriable
        now = machine.monotonic()
        self._sending = [] if refused else [lease for lease in leases if lease.expires + AFTER_EXPIRY > now]
        if given_up := len(leases) - len(self._sending):
            acks.lost += given_up
            self._given_up(error)
            logger.warning(
                "%d acknowledgements to broker %s were given up, so the messages may be delivered again: %s",
                given_up,
                self._broker,
                text,
            )

    def _given_up(self, error: RocketMQError) -> None:
        self._losses += 1
        self._lost_by = error
        self._moved.set()
