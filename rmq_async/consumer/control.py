"""Controls of a running consumer: pauses, positions, and the waits of tests."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Literal

from rmq_protocol.message import MessageQueue

from ..client import LifeCycle, LifeState, Names, check_queue, known_queue
from ..config import ClientConfig, check_group, check_int
from ..timeouts import checked_timeout
from .config import ConsumerConfig
from .session import MemberSession
from .settled import Settled
from .subscription import Subscription

__all__ = ["Control"]


class Control(LifeCycle):
    """The part of a Consumer for pauses, positions, and the waits of tests."""

    def __init__(self, group: str, client_config: ClientConfig, config: ConsumerConfig) -> None:
        check_group(group)
        self.group = str.__str__(group)
        self.config = config
        super().__init__(client_config, label=f"consumer {self.group}", stop_timeout=config.stop_timeout)
        self._names = Names(client_config.namespace)
        self._wire_group = self._names.wire(self.group)
        check_group(self._wire_group)
        self._subscriptions: dict[str, Subscription] = {}
        """The subscriptions by topic on the wire."""
        self._session: MemberSession | None = None

    # -- control

    def pause(self, *topics_or_queues: str | MessageQueue) -> None:
        """Pauses topics or queues, or all if none are given: begins no more calls for them, and does not pull them. They stay
        with this member.

        Running calls continue. Messages that were pulled and have no call are dropped, and pulled again after ``resume()``;
        failed ones that wait for another attempt in place are kept. A topic stays paused for queues that this member takes
        later, and for its messages that are delivered again; a queue stays paused until it leaves this member. A stop ends all
        pauses.

        With ``mode="pop"`` only topics can be paused; messages that were popped and have no call go back to their broker at
        once.

        Raises ConfigError for a topic that is not subscribed to, for a value that is no queue, and with ``mode="pop"`` for a
        queue; QueueLostError for a queue that this member does not read; ClientStateError unless running.
        """
        self._running_session().pause(topics_or_queues)

    def resume(self, *topics_or_queues: str | MessageQueue) -> None:
        """Ends the pauses of the given topics, with all their queues, and of the given queues; all pauses if none are given.

        Raises as ``pause`` does, and ClientStateError for a queue whose topic is paused as a whole, and for a topic or queue
        after a pause of all; with ``mode="pop"`` single topics may be resumed after a pause of all.
        """
        self._running_session().resume(topics_or_queues)

    async def seek(self, queue: MessageQueue, to: int | Literal["earliest", "latest"] | datetime) -> None:
        """Moves a queue to another offset: waits for its running calls (10 s at most, after which those of an ordered queue are
        cancelled), drops its buffer, and commits.

        ``to``: an offset, the first or the end of the queue, or the first message stored at an aware datetime or later.
        Messages between the offsets are delivered again, or not at all. A commit that is not answered is repeated each
        ``commit_interval``. Messages of the queue that the calling task has in hand (reading by hand) are left unsettled.

        Raises QueueLostError for a queue that this member does not read, or gives up or loses during the call; ConfigError for a
        value that is no queue, an invalid position or one outside of the queue, and with ``mode="pop"``; ClientStateError unless
        running, and in a handler, for which the call would have to wait; and the errors of the requests for offsets.
        """
        await self._running_session().seek(queue, to)

    # -- positions

    def position(self, queue: MessageQueue) -> int:
        """Returns the lowest offset of a queue that is not settled: the next commit writes it.

        Raises QueueLostError for a queue that this member neither reads nor gives up at the moment; ConfigError for a value
        that is no queue, and with ``mode="pop"``; ClientStateError unless running.
        """
        check_queue(queue)
        return self._running_session().position(queue)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Returns the offset that the broker keeps for the group, in broadcast the one that was loaded or saved last; None
        without one.

        With ``mode="pop"`` it moves when messages are popped, not when they are settled.

        Raises TopicNotFoundError if the name servers do not know the topic; BrokerNotFoundError if the topic is not on the
        queue's broker; ConfigError if it has no queue of that id there, and for a value that is no queue; InvalidMessageError
        for an invalid topic name; ClientStateError unless running; and the errors of the requests.
        """
        session = self._running_session()
        return await session.committed(await known_queue(session.instance, queue))

    async def commit(self) -> None:
        """Commits the queues whose position has moved; returns when the brokers have answered. In broadcast it saves the
        positions. With ``mode="pop"`` it sends the acknowledgements that are gathered, and returns when those of messages that
        were handled before the call are answered, or given up after the end of their leases.

        Raises the error of the first request that failed; the other requests are still made. With ``mode="pop"``, where
        requests are repeated, it raises an error that made this member give up acknowledgements; in broadcast the errors of
        ``save``, ConfigError if that is no coroutine function, and TimeoutError after 30 s. Raises ClientStateError unless
        running, and with ``mode="pop"`` if a stop ends before the brokers have answered.
        """
        await self._running_session().commit()

    # -- tests

    async def wait_settled(self, n: int, *, timeout: float = 5.0) -> tuple[Settled, ...]:
        """Returns the next ``n`` attempts of messages that have their outcome, abandoned ones left out: since ``start()``, or
        after those that an earlier call of this method returned.

        It is meant for tests: while no call of it waits, at most 1,000 messages are kept, and no further ones once their bodies
        have 1 MiB; later ones are left out. ``timeout``: seconds.

        Raises TimeoutError after ``timeout`` seconds; ClientStateError unless running; ConfigError for another ``n`` than a whole
        number from 0 to 2**31; TypeError for a ``timeout`` that is not a number, ValueError for one that is not above 0.
        """
        check_int("n", n, 0, 1 << 31)
        return await self._running_session().settled.wait(n, checked_timeout(timeout))

    async def wait_idle(self, *, timeout: float = 5.0) -> None:
        """Waits until all messages that this member's queues hold at this moment are settled, and no call runs. For tests; it
        does not wait for messages whose next attempt a broker delays. ``timeout``: seconds.

        With ``mode="pop"`` it waits until all messages of the topics were popped, by any member, and this one holds none.

        Raises TimeoutError after ``timeout`` seconds; ClientStateError unless running; TypeError for a ``timeout`` that is not
        a number, ValueError for one that is not above 0; and the errors of the requests for offsets.
        """
        session = self._running_session()
        async with asyncio.timeout(checked_timeout(timeout)):
            await session.until_idle()

    def _running_session(self) -> MemberSession:
        """Returns the session, also during a start and a stop, when callbacks and handlers run. Raises ClientStateError without
        a session, ForkedError in a forked child, WrongLoopError on another event loop."""
        session = self._session
        if session is None or self._state not in (LifeState.STARTING, LifeState.STOPPING):
            self._running_instance()
            assert session is not None
        session.instance.check_usable()
        return session
