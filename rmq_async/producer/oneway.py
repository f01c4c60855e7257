"""Paces one-way sends, which a stock broker drops without a word when they wait too long in its queue.

Per broker connection, shared by all producers on it: every window's last message goes as an ordinary request, whose answer
says that the broker has worked off the window. At most two windows are open; the message that would open a third waits. So
up to three windows stand in the broker's queue, which drops what waited 200 ms there, and a broker that shares its cores
pauses for 50 to 100 ms now and then. What keeps the queue short is the size of the windows, led by how long answers take: they
begin at two messages, since a cold broker spends 50 to 200 ms on the first, and double up to ``STEADY`` while answers are
good; up to the configured size only while they are fast; slow answers halve them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

import msgspec

from rmq_protocol.message import Message
from rmq_protocol.send_codec import SendReply

from ..client.text import printable
from ..errors import BackpressureError, QueueNotExistError, RocketMQError
from ..transport import Connection, wait_until
from .credits import Epoch
from .lanes import Target
from .outgoing import Outgoing
from .replies import reply_error
from .selectors import Wish
from .watching import Watch

if TYPE_CHECKING:
    from .sender import Sender

__all__ = [
    "OnewayPacing",
    "Tally",
    "WindowReceiver",
    "accept_oneway",
    "pacing_of",
    "probing",
    "send_oneway",
    "sent_plainly",
    "watched_oneway",
]

logger = logging.getLogger("rmq_async.producer")

STORED: Final = frozenset({0, 10, 11, 12})
"""Codes of answers to a message that is stored, confirmed or not."""
FIRST_WINDOW: Final = 2
MAX_OPEN: Final = 2
STEADY: Final = 640
FAST: Final = 0.02
GOOD: Final = 0.05
SLOW: Final = 0.1
"""Seconds from a window's last message to its answer; a stock broker drops what waited 0.2 s (``waitTimeMillsInSendQueue``)."""


class OnewayPacing:
    """Windows of one connection. ``errors``: ordinary requests of windows that failed or were refused."""

    __slots__ = ("_halved_at", "_progress", "errors", "open", "sent", "size")

    def __init__(self, window: int) -> None:
        self.size = min(FIRST_WINDOW, window)
        self.sent = 0
        self.open = 0
        self.errors = 0
        self._halved_at = 0.0
        self._progress: asyncio.Future[None] | None = None

    def due(self) -> bool:
        """Whether the next message is the last of its window."""
        return self.sent + 1 >= self.size

    def opened(self, window: int) -> None:
        """The last message of a window has gone."""
        self.sent = 0
        self.open += 1
        self.size = min(self.size, window)

    def closed(self, window: int, opened_at: float, *, answered: bool) -> None:
        """A window that was ``opened_at`` (monotonic) is worked off, or given up. ``window``: the size it may have at most."""
        self.open -= 1
        if answered:
            self._resize(window, opened_at, monotonic())
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    def _resize(self, window: int, opened_at: float, now: float) -> None:
        seconds = now - opened_at
        if seconds > SLOW:
            if opened_at > self._halved_at:  # once for all windows that one pause of the broker held up
                self._halved_at = now
                self.size = max(self.size // 2, min(FIRST_WINDOW, window))
        elif seconds < FAST:
            self.size = min(self.size * 2, window)
        elif seconds < GOOD:
            self.size = min(self.size * 2, STEADY, window)
        else:
            self.size = min(self.size, STEADY, window)

    async def wait(self, deadline: float, address: str) -> None:
        """Until a window closes. Raises BackpressureError at ``deadline`` (monotonic)."""
        if self._progress is None or self._progress.done():
            self._progress = asyncio.get_running_loop().create_future()
        began = monotonic()
        if not await wait_until(self._progress, deadline):
            raise BackpressureError(
                f"{address} did not work off {MAX_OPEN} windows of one-way messages within {monotonic() - began:.3g} s",
                address=address,
            )


class WindowReceiver:
    """Takes the answer to a window's ordinary request: counted and logged, never raised or retried.

    ``learn``: called with the answer, or the error in its place, and how many seconds that took; those that come after may go
    elsewhere.
    """

    __slots__ = ("_connection", "_done", "_finished", "_learn", "_opened_at", "_pacing", "_window")

    def __init__(
        self,
        pacing: OnewayPacing,
        window: int,
        connection: Connection,
        finished: Callable[[], None],
        learn: Callable[[SendReply | BaseException, float], None],
    ) -> None:
        self._pacing = pacing
        self._window = window
        self._connection = connection
        self._finished = finished
        self._learn = learn
        self._opened_at = monotonic()
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, reply: SendReply) -> None:
        if reply.code not in STORED:
            self._count(f"code {reply.code}: {reply.remark}")
        self._learn(reply, monotonic() - self._opened_at)
        self._end(True)

    def set_exception(self, error: BaseException) -> None:
        self._count(str(error))
        self._learn(error, monotonic() - self._opened_at)
        self._end(False)

    def _count(self, why: str) -> None:
        self._pacing.errors += 1
        if self._pacing.errors & (self._pacing.errors - 1) == 0:
            address, count = self._connection.address, self._pacing.errors
            text = "%s: %d windows of one-way messages ended with an error, the last: %s"
            logger.warning(text, address, count, printable(why, 300))

    def _end(self, answered: bool) -> None:
        self._done = True
        self._pacing.closed(self._window, self._opened_at, answered=answered)
        self._finished()


def pacing_of(connection: Connection, window: int) -> OnewayPacing:
    """The connection's pacing, made on first use."""
    pacing = connection.pacing
    if not isinstance(pacing, OnewayPacing):
        connection.pacing = pacing = OnewayPacing(window)
    return pacing


class Tally:
    """One-way messages of one producer on one connection whose last byte is not in the kernel yet, counted together."""

    __slots__ = ("_connection", "_sender", "epoch", "number", "size")

    def __init__(self, sender: Sender, connection: Connection) -> None:
        self._sender = sender
        self._connection = connection
        self.epoch = sender.oneway_credits.epoch
        self.number = self.size = 0

    def written(self, _: int) -> None:
        """All of them are, or never will be."""
        tallies = self._sender.tallies
        if tallies.get(self._connection) is self:
            del tallies[self._connection]
        self._sender.oneway_credits.give_back(self.epoch, self.number, self.size)


def sent_plainly(sender: Sender, topic: str, body: bytes, size: int) -> tuple[bool, Target | None]:
    """Queues the frame of a message that says nothing but topic and body, where nothing has to be waited for.

    Returns whether it did, and otherwise the queue whose turn it was, if it came to that. It costs a quarter of the general way:
    the frame is filled in at once, and credits are counted together until they leave.
    """
    credit, lane = sender.oneway_credits, sender.lanes.get(topic)
    if lane is None or credit.contended or credit.free <= 0 or credit.free_bytes < size:
        return False, None
    target, faults = lane.next(), sender.faults
    connection = sender.connections.get(target.address)
    if connection is None or not connection.takes_oneways() or (faults is not None and target.broker in faults.items):
        return False, target
    if sender.config.oneway_window:
        pacing = connection.pacing
        if pacing.__class__ is not OnewayPacing or pacing.sent + 1 >= pacing.size:
            return False, target
        pacing.sent += 1
    tally = sender.tallies.get(connection)
    if tally is None or tally.epoch is not credit.epoch:
        tally = sender.tallies[connection] = Tally(sender, connection)
        connection.when_written(tally.written)
    credit.free -= 1
    credit.free_bytes -= size
    tally.number += 1
    tally.size += size
    unique_id = sender.ids.next()
    connection.submit_plain_oneway(target.oneway, sender.ids.born_ms, unique_id, body)
    return True, None


def probing(sender: Sender, target: Target) -> bool:
    """Whether a message that is free to go anywhere shows there that a broker on trial works."""
    faults = sender.faults
    return faults is not None and target.broker in faults.items and faults.on_trial(target.broker, monotonic())


async def accept_oneway(
    sender: Sender, outgoing: Outgoing, message: Message, wish: Wish | None, deadline: float, turn: Target | None
) -> None:
    """A whole call that has to wait for something, or may have to. ``turn``: the next queue, where its turn is taken already.

    With a ``wish`` it is written in the order of the calls, also among those that wait for answers.
    """
    credit, size = sender.oneway_credits, len(message.body)
    place = sender.ordered.line(message.topic).join() if wish is not None else None
    try:
        if place is not None:
            await place.turn(deadline)
        epoch = credit.try_take(1, size) or await credit.take(1, size, deadline)
        try:
            outgoing, lane, target = await sender.aim(outgoing, message, wish, deadline, turn)
            send = send_oneway if outgoing.watch is None else watched_oneway
            if place is None:
                await send(sender, outgoing, target, deadline, epoch, size, probes=probing(sender, target))
                return
            in_turn = sender.ordered.turn(lane, target, outgoing, deadline)
            place.leave()
            async with in_turn:
                await send(sender, outgoing, target, deadline, epoch, size)
        except BaseException:
            credit.give_back(epoch, 1, size)
            raise
    finally:
        if place is not None:
            place.leave()


async def watched_oneway(
    sender: Sender, outgoing: Outgoing, target: Target, deadline: float, epoch: Epoch, size: int, *, probes: bool = False
) -> None:
    """``send_oneway`` for a call whose attempt hooks watch."""
    attempt = cast(Watch, outgoing.watch).begin(outgoing, target)
    try:
        outgoing = msgspec.structs.replace(attempt.added(outgoing), watch=None)
        await send_oneway(sender, outgoing, target, deadline, epoch, size, probes=probes)
    except BaseException as error:
        attempt.failed(error)
        raise
    attempt.queued()


async def send_oneway(
    sender: Sender, outgoing: Outgoing, target: Target, deadline: float, epoch: Epoch, size: int, *, probes: bool = False
) -> None:
    """Queues one frame that is not answered, or the ordinary request that ends a window of them.

    ``probes``: the broker is on trial, which only an answer can end: the message goes as an ordinary request.
    """
    credits, window = sender.oneway_credits, sender.config.oneway_window
    while True:
        connection = sender.connections.get(target.address)
        if connection is None:
            began = monotonic()
            failed = await sender.connect(target, deadline)
            if failed is not None:
                if sender.faults is not None:
                    sender.faults.failed(target.broker, failed, monotonic() - began, monotonic())
                sender.topics.doubt(outgoing.topic, failed)
                try:
                    raise failed
                finally:
                    del failed  # its traceback has this frame
            continue
        pacing = pacing_of(connection, window) if window else None
        if probes:
            pacing = pacing or OnewayPacing(1)
        elif pacing is None or not pacing.due():
            break
        if pacing.open < MAX_OPEN:
            finished, learn = partial(credits.give_back, epoch, 1, size), partial(_learn, sender, outgoing.topic, target)
            receiver = WindowReceiver(pacing, window, connection, finished, learn)
            until = monotonic() + sender.instance.config.request_timeout
            sender.submit(connection, target, outgoing, receiver, until, until)
            pacing.opened(window)  # not before: what could not be sent has no answer to close it
            return
        await sender.unless_stopped(pacing.wait(deadline, target.address))
    opaque, passed = connection.next_opaque(), None
    if target.general or outgoing.code:
        _, parts, passed = sender.wire.frame(connection, target, outgoing, opaque, oneway=True)
    else:  # what ``frame`` does, nearly always
        born_ms = sender.encoder.born_ms()
        parts = target.oneway.parts(
            opaque, born_ms, outgoing.properties, outgoing.body, outgoing.sys_flag, outgoing.flag
        )  # fmt: skip
    try:
        connection.submit_oneway(parts, lambda cost: credits.give_back(epoch, 1, cost), size)
    except RocketMQError as error:
        if passed is not None:
            passed.tell(None, error)
        raise
    if pacing is not None:
        pacing.sent += 1
    if passed is not None:
        passed.tell(None, None)


def _learn(sender: Sender, topic: str, target: Target, outcome: SendReply | BaseException, seconds: float) -> None:
    """Later ones avoid a broker that does not answer, and a queue that is gone: no other message says so."""
    faults, now = sender.faults, monotonic()
    if isinstance(outcome, BaseException):
        if faults is not None:
            faults.failed(target.broker, outcome, seconds, now)
        return
    if outcome.code in STORED:
        if faults is not None and target.broker in faults.items:
            faults.succeeded(target.broker, seconds, now)
        return
    error = reply_error(outcome, target)
    sender.topics.doubt(topic, error)
    if isinstance(error, QueueNotExistError):
        sender.topics.without(topic, target.queue)
