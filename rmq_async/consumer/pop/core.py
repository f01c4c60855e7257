"""Receives popped messages, acknowledges them, gives them back and extends their leases. Handler calls are made elsewhere."""

# The time of the broker in its responses is used to date the next pop. A held lease is extended after about two thirds of its time,
# again and again, until it ends or would last longer than ``max_lease`` since its pop.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from heapq import heappop, heappush
from math import ceil
from typing import Final

from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.message import MessageExt

from ... import machine
from ..._asyncio import for_each
from ..._backoff import Backoff
from ..._text import printable
from ...client import BrokerClocks
from ...errors import BrokerError, ConnectionLostError, RequestTimeoutError, RocketMQError
from ..held_queue import HeldQueue
from ..subscription import Subscription
from ..supervisor import Supervisor
from .acks import Acks, Lease, LeaseState
from .pop_requests import Popped, Requests, Wanted

logger = logging.getLogger(__name__)

EARLY: Final = 0.2
"""Seconds before the end of the poll time. A response without messages counts as early if it comes before that."""
AHEAD_MS: Final = 3_600_000, 100 * 365 * 86_400_000
"""Milliseconds by which a pop is dated ahead of this machine's clock while the broker's clock is unknown. The second value is for a
broker whose clock is further ahead than the first value."""
RENEW_AT: Final = 2 / 3
"""Fraction of a lease after which the lease is extended."""
RENEW_SPREAD: Final = 0.1
SLOTS: Final = 64
"""Number of slots that the invisible time is divided into. The leases of one slot are extended together."""
LEAST_PAUSE: Final = 0.2
"""Minimum seconds between two attempts to extend a lease."""
CHANGE_WITHIN: Final = 3.0
ACKS_WITHIN: Final = 1.0
AT_ONCE: Final = 16
RENEW_AT_ONCE: Final = 64
LONGER: Final = 0.1
"""Maximum fraction by which a delay is lengthened at random, because a broker falls behind if very many messages are due at the
same time."""
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0

Group = dict[Lease, None]
Outlasted = Callable[[list[Lease]], list[Lease]]


class PopCore:
    """Pops messages, and manages their leases: acknowledges messages, gives them back, and extends their leases.

    Args:
        supervisor: Supervisor of the consumer's tasks.
        invisible_time: Seconds of a lease.
        max_lease: Maximum seconds from the pop to the end of a renewed lease.
        outlasted: Called with leases that have lasted for ``max_lease``. It gives back messages that wait for a call, and returns
            the other leases.

    Attributes:
        given_back: Number of give-backs that brokers have confirmed.
        extended: Number of extensions that brokers have confirmed.
        unsure: Number of changes of the invisible time without a valid response, after which a message may be delivered twice, or
            later than requested.
        expired: Number of leases that ended while this member held them, or that had too little time left for a call.
    """

    def __init__(
        self, requests: Requests, supervisor: Supervisor, invisible_time: float, max_lease: float, outlasted: Outlasted
    ) -> None:
        self._requests = requests
        self.spawn = supervisor.once
        self._invisible_ms = round(invisible_time * 1000)
        self.invisible_time = invisible_time
        self._max_lease = max_lease
        self.acks = Acks(requests, supervisor.run)
        self.clocks = BrokerClocks()
        self._far: dict[str, None] = {}
        """Brokers that responded without their time to a pop that was dated ahead, because the pop was too old by their clock."""
        self._renewals: list[int] = []
        """A heap of the slots in which leases must be extended."""
        self._groups: dict[int, Group] = {}
        """The leases of each slot, in the order in which they were added."""
        self._slot = invisible_time / SLOTS
        """Length of a slot in seconds."""
        self._some = asyncio.Event()
        self._outlasted = outlasted
        self.given_back = self.extended = self.unsure = self.expired = 0

    # -- receive

    async def receive(self, topic: str, broker: str, subscription: Subscription, messages: int, poll: float) -> Popped:
        """Pop once. The errors of ``Requests.pop`` propagate.

        Args:
            poll: Seconds for which the broker may hold the pop. While the broker's clock is unknown, 0 is requested instead.
        """
        clock = self.clocks.of(broker)
        now = machine.monotonic()
        born, poll_ms = clock.broker_ms(now), round(poll * 1000)
        if born is None:
            born, poll_ms = round(machine.time() * 1000) + AHEAD_MS[broker in self._far], 0
        try:
            popped = await self._requests.pop(Wanted(topic, broker, subscription, messages, self._invisible_ms, poll_ms, born))
        except RequestTimeoutError:
            clock.forget()  # if its clock was set back, the broker holds pops for too long
            raise
        clock.note(popped.popped_ms, popped.sent, popped.arrived)
        if not clock.is_known:
            self._far[broker] = None
        return popped

    def knows_clock(self, broker: str) -> bool:
        """Return whether a broker's clock is known, so that the broker may hold the next pop."""
        return self.clocks.of(broker).is_known

    def doubt_clock(self, broker: str) -> None:
        """Note that a broker has responded to a pop early, so that the next pop reads the broker's time again."""
        self.clocks.of(broker).forget()

    def leases(self, held: HeldQueue, topic: str, popped: Popped) -> list[Lease | None]:
        """Return a lease for each message of a response, or None for a message without a handle.

        ``renew`` extends the leases from now on.
        """
        clock = self.clocks.of(held.queue.broker_name)
        expires = clock.ends(popped.popped_ms, popped.invisible_ms, popped.sent, popped.arrived)
        spread = 1 - RENEW_SPREAD * machine.random.random()
        group = self._planned(popped.arrived + (expires - popped.arrived) * RENEW_AT * spread)
        found: list[Lease | None] = []
        for message, handle in zip(popped.messages, popped.handles, strict=True):
            if handle is None:
                found.append(None)
                continue
            lease = Lease(
                held,
                message,
                message.reconsume_times + 1,
                since=popped.arrived,
                topic=topic,
                handle=handle,
                expires=expires,
                group=group,
            )
            group[lease] = None
            found.append(lease)
        return found

    def unread(self, held: HeldQueue, topic: str, popped: Popped) -> list[Lease]:
        """Return a lease without a message for each record of a response that was not read. These leases are not extended."""
        expires = popped.arrived + popped.invisible_ms / 1000
        empty = MessageExt(topic, b"")
        return [
            Lease(held, empty, 1, since=popped.arrived, topic=topic, handle=handle, expires=expires) for handle in popped.unread
        ]

    # -- the ends of a lease

    def ack(self, *leases: Lease) -> None:
        """Acknowledge messages, even if their leases have expired. Messages whose lease is OVER are ignored.

        If a change is in flight, the acknowledgement is sent after the change.
        """
        changing, over, ended = LeaseState.CHANGING, LeaseState.OVER, list[Lease]()
        for lease in leases:
            lease.group.pop(lease, None)
            if lease.state is changing:
                lease.is_done = True
            elif lease.state is not over:
                lease.state = over
                ended.append(lease)
        self.acks.add(ended)

    def let_go(self, lease: Lease) -> None:
        """End a lease without a request. The message is delivered again when the lease has expired."""
        lease.group.pop(lease, None)
        lease.state = LeaseState.OVER

    async def nack(self, lease: Lease, delay: float, *, suspend: bool = False) -> bool:
        """Make the broker deliver a message again after ``delay`` seconds, lengthened at random by up to a tenth.

        Return whether the broker has confirmed this.

        Args:
            suspend: Whether the broker should not count an attempt.
        """
        lease.group.pop(lease, None)
        while lease.changed is not None:
            await asyncio.wait([lease.changed])
        if lease.handle.lite_topic is not None:
            await self._earlier_acks()
        milliseconds = max(round(delay * 1000 * (1 + LONGER * machine.random.random())), 1)
        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        try:
            while lease.state is LeaseState.HELD and lease.expires > machine.monotonic():
                error = await self._change(lease, milliseconds, suspend=suspend)
                if error is None:
                    self.given_back += 1
                    return True
                pause = pauses.next()
                if not error.retriable or machine.monotonic() + pause > lease.expires:
                    break
                await asyncio.sleep(pause)
        finally:
            lease.state = LeaseState.OVER
        return False

    async def _earlier_acks(self) -> None:
        """Send the pending acknowledgements, and wait for the responses at most ACKS_WITHIN seconds.

        A broker (5.5.0) delivers all messages of a lite topic again from the first one that is not acknowledged, as soon as a later
        one is given back.
        """
        with suppress(TimeoutError, RocketMQError):  # acknowledgements that were given up are logged
            async with asyncio.timeout(ACKS_WITHIN):
                await self.acks.flush()

    async def nack_all(self, leases: Iterable[Lease], delay: float, *, suspend: bool) -> None:
        """Give messages back as ``nack`` does, each with a random delay of up to ``delay`` seconds."""

        async def give_back(lease: Lease) -> None:
            await self.nack(lease, delay * machine.random.random(), suspend=suspend)

        await for_each(leases, give_back, at_once=AT_ONCE)

    async def extend(self, lease: Lease) -> bool:
        """Extend a lease to the invisible time from now. Return whether the broker has confirmed this."""
        if lease.state is not LeaseState.HELD or await self._change(lease, self._invisible_ms, suspend=False) is not None:
            return False
        self.extended += 1
        return True

    async def _change(self, lease: Lease, milliseconds: int, *, suspend: bool) -> RocketMQError | None:
        """Request another invisible time for the message of a held lease, once. Return the error, or None.

        If the broker may have made the change in spite of the error, the lease becomes ADRIFT.
        """
        lease.state, lease.changed = LeaseState.CHANGING, asyncio.get_running_loop().create_future()
        error, after = None, LeaseState.ADRIFT  # until a response or the kind of error shows the real state
        try:
            changed = await self._requests.change(lease.topic, lease.handle, milliseconds, CHANGE_WITHIN, suspend=suspend)
        except RocketMQError as failure:
            error = failure
            unknown = isinstance(failure, ConnectionLostError | RequestTimeoutError) and failure.maybe_stored
            if not unknown and not isinstance(failure, RemoteProtocolError):
                after = LeaseState.HELD
        else:
            after = LeaseState.HELD
            lease.handle = changed.handle
            clock = self.clocks.of(lease.handle.broker_name)
            if lease.handle.lite_topic is None:  # else the time of the pop stays
                clock.note(changed.handle.pop_time, changed.sent, changed.arrived)
            lease.expires = clock.ends(changed.handle.pop_time, changed.invisible_ms, changed.sent, changed.arrived)
        finally:
            lease.state = after
            self.unsure += after is LeaseState.ADRIFT
            lease.changed.set_result(None)
            lease.changed = None
            if lease.is_done:
                lease.is_done = False
                self.ack(lease)
        if error is not None:
            logger.log(
                logging.WARNING if after is LeaseState.ADRIFT or isinstance(error, BrokerError) else logging.DEBUG,
                "the invisible time of message %s was not changed%s: %s",
                lease.message.msg_id,
                ", as far as this member knows; it may be delivered twice" if after is LeaseState.ADRIFT else "",
                printable(error, 300),
            )
        return error

    # -- renewals

    def _planned(self, at: float) -> Group:
        """Return the leases of the first slot that begins at the monotonic time ``at`` or later. They are extended then."""
        slot = ceil(at / self._slot)
        group = self._groups.get(slot)
        if group is None:
            group = self._groups[slot] = {}
            heappush(self._renewals, slot)
            self._some.set()
        return group

    async def renew(self) -> None:
        """Extend leases in time. Never return."""
        while True:
            if not self._renewals:
                self._some.clear()
                await self._some.wait()
            left = self._renewals[0] * self._slot - machine.monotonic()
            if left > 0:
                await asyncio.sleep(min(left, self.invisible_time * RENEW_SPREAD))
                continue
            group = self._groups.pop(heappop(self._renewals))
            if group:
                self.spawn("renewal of leases", self._renew(group))

    def _remove_old(self, group: Group) -> None:
        """Remove leases that would last longer than ``max_lease``. Give back messages that wait for a call, and log the others."""
        now = machine.monotonic()
        old = [lease for lease in group if now + self.invisible_time - lease.since > self._max_lease]
        for lease in old:
            del group[lease]
        if old and (old := self._outlasted(old)):
            logger.warning(
                "the leases of %d messages are no longer extended because of max_lease=%g s, for example of %s; the messages are "
                "delivered again when their leases end; raise max_lease if handlers need more time",
                len(old),
                self._max_lease,
                old[0].message.msg_id,
            )

    async def _renew(self, group: Group) -> None:
        self._remove_old(group)
        await for_each([lease for lease in group if lease.state is LeaseState.HELD], self.extend, at_once=RENEW_AT_ONCE)
        now = machine.monotonic()
        ended = [lease for lease in group if lease.expires <= now]
        if ended:
            self.expired += len(ended)
            logger.warning(
                "the leases of %d messages, for example %s, ended before they were extended, so another member may have the "
                "messages; raise invisible_time if this happens often",
                len(ended),
                ended[0].message.msg_id,
            )
        for lease in [*group]:
            if lease.state is LeaseState.ADRIFT or lease.expires <= now:
                del group[lease]
        if not group:
            return
        third = self.invisible_time * (1 - RENEW_AT) * (1 + RENEW_SPREAD * machine.random.random())
        for lease in [*group]:
            lease.group = self._planned(max(lease.expires - third, now + LEAST_PAUSE))
            lease.group[lease] = None
