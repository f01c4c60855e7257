"""One-way sends that may have to wait, and the counts of one-way messages that are not yet written to the socket."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, cast

import msgspec

from rmq_protocol.send_codec import SendReply

from ... import machine
from ...client import UniqueIds
from ...errors import QueueNotExistError, RequestTimeoutError, RocketMQError
from ...transport import Connection
from ..admission import Admission, Credits
from ..batching import OrderedSends
from ..calls import Call, Dispatch
from ..encoding import reply_error
from ..routing import Target
from ..watching import Watch
from .pacing import MAX_OPEN, STORED, OnewayPacing, WindowReceiver, pacing_of

logger = logging.getLogger("rmq_async.producer")


class Tally:
    """The credits of one-way messages that ``queue_now`` has queued on one connection and that are not yet written.

    Args:
        pacing: The pacing of the connection. None if the producer's ``oneway_window`` is 0.
    """

    __slots__ = ("_connection", "_credits", "_tallies", "epoch", "number", "pacing", "size")

    def __init__(
        self, tallies: dict[Connection, Tally], credits: Credits, connection: Connection, pacing: OnewayPacing | None
    ) -> None:
        self._tallies = tallies
        self._credits = credits
        self._connection = connection
        self.pacing = pacing
        self.epoch = credits.epoch
        self.number = self.size = 0

    def written(self, _: int) -> None:
        """Give the credits back. This is called when all these messages are written or the connection is lost."""
        if self._tallies.get(self._connection) is self:
            del self._tallies[self._connection]
        self._credits.give_back(self.epoch, self.number, self.size)


class Oneway:
    """The one-way sends of one producer.

    A *window* is a series of one-way messages whose last one is sent as an ordinary request (see ``pacing``).

    Args:
        answer_within: Seconds to wait for the response to that request.
    """

    __slots__ = (
        "_answer_within", "_credits", "_dispatch", "_ids", "_ordered", "_router", "_tallies", "_window", "admission",
    )  # fmt: skip

    def __init__(
        self, dispatch: Dispatch, admission: Admission, ordered: OrderedSends, ids: UniqueIds, answer_within: float
    ) -> None:
        self._dispatch = dispatch
        self._router = dispatch.router
        self.admission = admission
        self._credits = admission.credits
        self._ordered = ordered
        self._ids = ids
        self._tallies: dict[Connection, Tally] = {}  # messages that are not yet written to the socket
        self._answer_within = answer_within
        self._window = dispatch.config.oneway_window

    def queue_now(self, call: Call[Any]) -> bool:
        """Queue the frame of an admitted call, and count its credits in the tally of its connection. Return whether it was queued.

        The frame is not queued if the call has hooks or must keep an order, if the connection is missing or not ready, if the
        broker is avoided, or if the message would end a window.
        """
        outgoing, target, faults, epoch = call.outgoing, call.target, self._dispatch.faults, call.epoch
        connection = self._dispatch.connections.get(target.address)
        if (
            connection is None
            or epoch is None
            or outgoing.watch is not None
            or call.choice is not None
            or (call.lite_topic is not None and not self._dispatch.serves(connection, call))
            or (faults is not None and target.broker in faults.items)
        ):
            return False
        requests, tally = connection.requests, self._tallies.get(connection)
        if not requests.is_open or requests.writer.paused or requests.held:
            return False
        if tally is not None and tally.epoch is epoch:
            pacing = tally.pacing
        else:
            tally, pacing = None, connection.attributes.get(OnewayPacing) if self._window else None
            if pacing is None and self._window:
                return False
        if pacing is not None:
            sent = pacing.sent + 1
            if sent >= pacing.size or sent >= self._window:
                return False
            pacing.sent = sent
        if tally is None:
            tally = self._tallies[connection] = Tally(self._tallies, self._credits, connection, pacing)
            requests.when_written(tally.written)
        tally.number += 1
        tally.size += call.size
        call.epoch = None
        requests.submit_single_oneway(target.oneway, self._ids.born_ms, outgoing.properties, outgoing.body, outgoing.flag)
        return True

    async def send(self, call: Call[Any]) -> None:
        """Admit and send a call.

        Messages for one chosen queue are written in the order of the calls, also relative to sends that wait for responses.
        """
        try:
            if not call.target and not self.admission.enter_now(call):
                await self.admission.enter(call)
            if call.choice is None:
                await self._send(call, probes=self._is_on_trial(call.target))
                return
            in_turn = self._ordered.turn(call.topic_queues, call.target, call.outgoing, call.deadline)
            if call.place is not None:
                call.place.leave()
            async with in_turn:
                await self._send(call, probes=False)
        finally:
            self.admission.leave(call)

    async def _send(self, call: Call[Any], *, probes: bool) -> None:
        if call.outgoing.watch is None:
            await self._submit(call, probes=probes)
            return
        attempt = cast(Watch, call.outgoing.watch).begin(call.outgoing, call.target)
        try:
            call.outgoing = msgspec.structs.replace(attempt.added(call.outgoing), watch=None)
            await self._submit(call, probes=probes)
        except BaseException as error:
            attempt.failed(error)
            raise
        attempt.queued()

    async def _submit(self, call: Call[Any], *, probes: bool) -> None:
        """Queue the frame of a one-way request, or of the ordinary request that ends a window.

        Args:
            probes: Whether the broker is on trial (it was avoided, and may be healthy again). The message is then sent as an
                ordinary request, whose response can end the trial.
        """
        connection, pacing = await self._paced(call, probes=probes)
        target = call.target
        if not self._dispatch.serves(connection, call):
            topic = self._router.topics.wire_topic(call.outgoing.topic)
            await self._router.unless_stopped(self._dispatch.lite.check(connection, topic, call.deadline))
        if pacing is not None and (probes or pacing.due(self._window)):
            self._submit_confirmed(call, connection, pacing)
            return
        outgoing, credits = call.outgoing, self._credits
        opaque, passed = connection.requests.next_opaque(), None
        if target.general or outgoing.code:
            _, parts, passed = self._dispatch.wire.frame(connection, target, outgoing, opaque, oneway=True)
        else:  # for nearly all messages, ``frame`` would do only this
            born_ms = self._dispatch.wire.born_ms()
            parts = target.oneway.parts(
                opaque, born_ms, outgoing.properties, outgoing.body, outgoing.sys_flag, outgoing.flag
            )  # fmt: skip
        epoch = call.transfer()
        try:
            connection.requests.submit_oneway(parts, lambda cost: credits.give_back(epoch, 1, cost), call.size)
        except BaseException as error:
            credits.give_back(epoch, 1, call.size)
            if passed is not None and isinstance(error, RocketMQError):
                passed.finish(None, error)
            raise
        if pacing is not None:
            pacing.sent += 1
        if passed is not None:
            passed.finish(None, None)

    async def _paced(self, call: Call[Any], *, probes: bool) -> tuple[Connection, OnewayPacing | None]:
        """Return an open connection to the call's target, and the pacing of the connection (None if it is not paced).

        If there is no connection, connect to the newest known address of the broker. If the message would end a window, wait while
        ``MAX_OPEN`` earlier windows have no response yet.
        """
        window = self._window
        while True:
            connection = self._dispatch.connections.get(call.target.address)
            if connection is None:
                call.target = await self._connect(call, call.target)
                continue
            pacing = pacing_of(connection) if window else None
            if probes:
                pacing = pacing or OnewayPacing(connection.requests)
            elif pacing is None or not pacing.due(window):
                return connection, pacing
            if pacing.open < MAX_OPEN:
                return connection, pacing
            await self._router.unless_stopped(pacing.wait(call.deadline, call.target.address))

    async def _connect(self, call: Call[Any], target: Target) -> Target:
        """Connect to the broker, at its new address if it has moved. Return the target with that address, or raise the error."""
        began, dispatch, topics, topic = machine.monotonic(), self._dispatch, self._router.topics, call.outgoing.topic
        target = topics.moved(topic, target)  # the call may have waited in a line since its target was chosen
        failed = await dispatch.connect(target, dispatch.connect_deadline(target, call.deadline))
        if failed is not None and failed.retriable:
            await self._router.unless_stopped(topics.renew(topic, call.deadline))
            before, target = target.address, topics.moved(topic, target)
            # A connection attempt that is still in progress gets the remaining time, because the broker may be slow and not have
            # moved.
            if target.address != before or isinstance(failed, RequestTimeoutError):
                failed = await dispatch.connect(target, call.deadline)
        if failed is None:
            return target
        if self._dispatch.faults is not None:
            self._dispatch.faults.failed(target.broker, failed, machine.monotonic() - began, machine.monotonic())
        self._router.topics.doubt(call.outgoing.topic, failed)
        try:
            raise failed
        finally:
            del failed  # breaks the cycle frame -> error -> traceback -> frame

    def _submit_confirmed(self, call: Call[Any], connection: Connection, pacing: OnewayPacing) -> None:
        """Send a message that ends a window as an ordinary request, to which the broker responds."""
        credits, epoch = self._credits, call.transfer()
        finished = partial(credits.give_back, epoch, 1, call.size)
        learn = partial(self._learn, call.outgoing.topic, call.target)
        try:
            receiver = WindowReceiver(pacing, connection, finished, learn)
            until = machine.monotonic() + self._answer_within
            self._dispatch.submit(connection, call.target, call.outgoing, receiver, until, until)
        except BaseException:
            finished()
            raise
        pacing.opened()  # only now: no response closes the window of a request that was not sent

    def _is_on_trial(self, target: Target) -> bool:
        """Return whether the target's broker is on trial: it was avoided, and may be healthy again."""
        faults = self._dispatch.faults
        return faults is not None and target.broker in faults.items and faults.on_trial(target.broker, machine.monotonic())

    def _learn(self, topic: str, target: Target, outcome: SendReply | BaseException, seconds: float) -> None:
        """Record the outcome of an ordinary request, so that later messages avoid a failed broker or a deleted queue.

        One-way messages themselves have no response that could show this.
        """
        faults, now = self._dispatch.faults, machine.monotonic()
        if isinstance(outcome, BaseException):
            if faults is not None:
                faults.failed(target.broker, outcome, seconds, now)
            return
        if outcome.code in STORED:
            if faults is not None and target.broker in faults.items:
                faults.succeeded(target.broker, seconds, now)
            return
        error = reply_error(outcome, target)
        self._router.topics.doubt(topic, error)
        if isinstance(error, QueueNotExistError):
            self._router.topics.without(topic, target.queue)
