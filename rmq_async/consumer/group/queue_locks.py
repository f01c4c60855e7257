"""Locks queues at their brokers (LOCK_BATCH_MQ 41, UNLOCK_BATCH_MQ 42). At most one client of a group has the lock of a queue."""

# A broker keeps locks in memory by the group string of the request, for 60 s after the last request of their client. It checks
# neither members nor group configs (observed on 5.5.0 and 4.9.7). Java's orderly consumers lock under their group. A handover
# locks under ``%RETRY%<group>`` instead, for two reasons. While the group has any lock under its plain name, a broker of version
# 5.x turns every send to ``%RETRY%<group>`` into a dead letter. And the ACL of 5.x removes this prefix before it checks the right
# to subscribe with the group, which each member has; a name with a suffix would require another right.
#
# A new or restarted master has no locks, and grants any. So a lock is in doubt when the master is reached over another connection
# than the connection that granted the lock, until the lock has been requested over the new connection. While a broker has no
# master, no member can get a lock there, so each time all name servers confirm this, it counts as a renewal. A member that cannot
# reach the name servers or the master gets no such confirmation, and its locks expire in time.

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from rmq_protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody, decode_body, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RETRY_TOPIC_PREFIX, RequestCode, ResponseCode
from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import for_each
from ..._text import printable
from ...broker_answers import broker_error
from ...client import ClientInstance, is_masterless
from ...errors import ConnectionLostError, RocketMQError
from ...transport import Connection
from .lock_state import Hold, LockState

logger = logging.getLogger(__name__)

LONGEST_REQUEST: Final = 1.0
MAX_ERRORS: Final = 64
MAX_ADDRESSES: Final = 1024


def handover_group(group: str) -> str:
    """Return the name under which the members of ``group`` lock their queues for handovers."""
    return RETRY_TOPIC_PREFIX + group


class QueueLocks:
    """The locks of one client under one group string, which is sent unchanged.

    No method raises an error if a broker refuses a request or does not respond. The lock is then not granted, and ``errors``
    keeps the error. Requests to a broker are sent one after the other, because a broker may handle two requests of one connection
    in either order.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._states: dict[MessageQueue, LockState] = {}
        self._granted_by: dict[str, Connection] = {}
        """By broker name: the connection over which the broker last granted or renewed locks."""
        self._errors: dict[str, RocketMQError] = {}
        self._addresses: dict[str, str] = {}
        """By broker name: the last address that responded, for unlocks while no name server knows the broker."""
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        """By broker name: the asyncio.Lock for requests to the broker, and the number of requests that hold it or wait for it."""

    def __repr__(self) -> str:
        return f"<QueueLocks of {printable(self._group)}: {len(self.held)} held, {len(self.assumed)} assumed>"

    @property
    def held(self) -> Mapping[MessageQueue, float]:
        """The held queues, with the monotonic time at which the last request that obtained or renewed the lock was sent."""
        return {queue: state.taken_at for queue, state in self._states.items() if state.is_held}

    @property
    def assumed(self) -> frozenset[MessageQueue]:
        """Queues that were taken with ``assume`` and whose locks have not been granted since."""
        return frozenset(queue for queue, state in self._states.items() if state.hold is Hold.ASSUMED)

    @property
    def errors(self) -> Mapping[str, RocketMQError]:
        """By broker name: the error of the last failed request. It is removed when a lock or unlock for this client succeeds there.

        At most MAX_ERRORS brokers have an entry.
        """
        return MappingProxyType(self._errors)

    def errors_of(self, queues: Iterable[MessageQueue]) -> dict[str, RocketMQError]:
        """Return the ``errors`` of the brokers that have ``queues``. May be called from any thread."""
        brokers = {self._instance.routes.broker_of(queue) for queue in queues}
        return {broker: error for broker, error in [*self._errors.items()] if broker in brokers}

    @property
    def owes(self) -> bool:
        """Whether a broker has not confirmed an unlock, so that ``unlock_owed`` must repeat it."""
        return any(state.owed_since is not None for state in self._states.values())

    def owns(self, queue: MessageQueue) -> bool:
        """Return whether this client may still write offsets of ``queue``: its lock was renewed in time, or it is assumed."""
        state = self._states.get(queue)
        return state is not None and state.owns(machine.monotonic())

    def is_sure(self, queue: MessageQueue) -> bool:
        """Return whether ``owns`` is true and, as far as this client knows, the broker process that granted the lock still runs."""
        state = self._states.get(queue)
        return state is not None and state.hold is not Hold.DOUBTED and state.owns(machine.monotonic())

    @property
    def is_masterless(self) -> bool:
        """Whether a broker that has granted locks has no master now, so that a new master must be noticed soon."""
        return any(self._instance.routes.address_of(broker_name) is None for broker_name in self._granted_by)

    def doubt_replaced(self) -> frozenset[str]:
        """Put in doubt the locks of brokers whose process may have been replaced since the grant. Return the brokers with locks in
        doubt, where they must be requested again.
        """
        for broker_name, known in [*self._granted_by.items()]:
            if self._instance.is_replaced(broker_name, known):
                self._replaced(broker_name)
        broker_of = self._instance.routes.broker_of
        return frozenset(broker_of(queue) for queue, state in self._states.items() if state.hold is Hold.DOUBTED)

    def unreached(self) -> list[str]:
        """Return the addresses of masters of brokers that have granted locks, if there is no open connection to them."""
        found = [self._instance.routes.address_of(broker_name) for broker_name in self._granted_by]
        return [address for address in found if address is not None and address not in self._instance.pool.open]

    def _replaced(self, broker_name: str) -> None:
        self._granted_by.pop(broker_name, None)
        for queue, state in self._states.items():
            if self._instance.routes.broker_of(queue) == broker_name:
                state.doubt()

    def _state(self, queue: MessageQueue) -> LockState:
        return self._states.setdefault(queue, LockState())

    async def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Request or renew locks; return the queues that are now locked for this client."""
        granted: set[MessageQueue] = set()

        async def ask(broker_name: str, asked: Collection[MessageQueue]) -> None:
            granted.update(await self._lock(broker_name, asked))

        await self._for_each_broker(queues, ask)
        return frozenset(granted)

    async def seize(self, queues: Iterable[MessageQueue], client_ids: Iterable[str]) -> frozenset[MessageQueue]:
        """Unlock queues in the name of clients that have left the group, and lock them for this client. Return the queues whose
        locks were granted.

        A crashed client keeps its locks for up to 60 s, and a queue that is assumed during that time cannot be handed over, because
        each next owner would wait again. Brokers accept any client id in an UNLOCK_BATCH_MQ. Call this only for queues whose owner
        has had the time to unlock them.
        """
        wanted = tuple(queues)
        for client_id in client_ids:
            await self.unlock_for(client_id, wanted)
        return await self.lock(wanted)

    async def unlock_for(self, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues in the name of a client that has left the group. Locks of other clients stay."""

        async def unlock(broker_name: str, asked: Collection[MessageQueue]) -> None:
            async with self._turn(broker_name):
                body = encode_body(UnlockBatchRequestBody(self._group, client_id, tuple(asked)))
                try:
                    await self._ask(broker_name, asked, RequestCode.UNLOCK_BATCH_MQ, body)
                except RocketMQError as error:
                    self._keep(broker_name, error)

        await self._for_each_broker(queues, unlock)

    def assume(self, queues: Iterable[MessageQueue]) -> None:
        """Take queues without their locks, because a crashed client may keep the locks for up to 60 s.

        ``renew`` requests the locks later.
        """
        now = machine.monotonic()
        for queue in queues:
            self._state(queue).assume(now)

    async def renew(self) -> frozenset[MessageQueue]:
        """Renew all locks and request the locks of assumed queues. Return the queues lost since the last call.

        A lock is lost when its broker refuses it. It is also lost 55 s after the last request that obtained or renewed it, or 55
        s after the last time at which the broker certainly had no master. An assumed queue is lost when its lock is refused after
        60 s, because a running client must have the lock then.
        """
        self._drop_ended()

        async def ask(broker_name: str, asked: Collection[MessageQueue]) -> None:
            began = machine.monotonic()
            await self._lock(broker_name, asked, renews=True)
            if self._instance.routes.address_of(broker_name) is None:
                await self._keep_without_master(broker_name, asked, began)

        await self._for_each_broker([queue for queue, state in self._states.items() if state.is_taken], ask)
        self._drop_ended()
        return frozenset([queue for queue, state in self._states.items() if state.take_lost()])

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues, after the responses to requests in flight.

        No request is sent for queues whose brokers cannot have a lock of this client. A broker that does not respond keeps the lock
        for up to 60 s.
        """
        # The unlocks are owed from now on until brokers confirm them, because this call may be cancelled.
        now = machine.monotonic()
        to_unlock = [queue for queue in queues if (state := self._states.get(queue)) is not None and state.release(now)]
        await self._for_each_broker(to_unlock, self._unlock)

    async def unlock_owed(self) -> None:
        """Repeat once the unlocks that brokers have not confirmed, except for locks that have expired."""
        now = machine.monotonic()
        owed = [queue for queue, state in self._states.items() if state.owes(now)]

        async def unlock(broker_name: str, queues: Collection[MessageQueue]) -> None:
            await self._unlock(broker_name, queues, owed=True)

        await self._for_each_broker(owed, unlock)

    def leave(self, queues: Iterable[MessageQueue]) -> None:
        """Forget locks without a request. Brokers keep them for up to 60 s."""
        for queue in queues:
            self._states.pop(queue, None)

    async def unlock_all(self, but: Collection[MessageQueue] = ()) -> None:
        await self.unlock(
            [
                queue for queue, state in self._states.items()
                if (state.is_taken or state.asked_at is not None) and queue not in but
            ]
        )  # fmt: skip

    # -- inside

    async def _keep_without_master(self, broker_name: str, queues: Collection[MessageQueue], began: float) -> None:
        """Count locks as renewed at ``began`` if the broker has had no master since then."""
        timeout = min(self._instance.config.request_timeout, LONGEST_REQUEST)
        if await is_masterless(self._instance, broker_name, next(iter(queues)).topic, timeout):
            for queue in queues:
                self._state(queue).renew(began)

    async def _lock(
        self, broker_name: str, queues: Collection[MessageQueue], *, renews: bool = False
    ) -> frozenset[MessageQueue]:
        """Request locks at one broker; return the queues whose locks were granted.

        Args:
            renews: Whether to leave out queues that are no longer taken when the request is sent.
        """
        async with self._turn(broker_name):
            if renews:  # checked here, because unlocks may have been sent while this request waited for its turn
                queues = [queue for queue in queues if self._state(queue).is_taken]
            if not queues:
                return frozenset()
            self._drop_ended()
            asked = frozenset(queues)
            sent = machine.monotonic()
            connection = self._instance.open_connection(broker_name, any_replica=False)
            self._forget_expired(sent)
            for queue in queues:
                self._state(queue).ask(sent, to_lock=True)
            body = encode_body(LockBatchRequestBody(self._group, self._instance.client_id, tuple(queues)))
            try:
                response = await self._ask(broker_name, queues, RequestCode.LOCK_BATCH_MQ, body)
                granted = asked.intersection(decode_body(LockBatchResponseBody, response.body).lock_ok_mq_set)
            except RocketMQError as error:
                self._keep(broker_name, error)
                return frozenset()
            self._errors.pop(broker_name, None)
            kept = self._take_answer(asked, granted, sent)
            self._note_grant(broker_name, connection, asked)
            return kept

    def _note_grant(self, broker_name: str, before: Connection | None, asked: frozenset[MessageQueue]) -> None:
        """Note the connection over which a broker has responded.

        Args:
            before: The connection before the request. It is noted unless there is another connection by now.
        """
        connection = self._instance.open_connection(broker_name, any_replica=False)
        if self._granted_by.get(broker_name, connection) is not connection:
            self._replaced(broker_name)
        if connection is not None and before in (None, connection):
            while len(self._granted_by) >= MAX_ADDRESSES:
                del self._granted_by[next(iter(self._granted_by))]
            self._granted_by[broker_name] = connection
            for queue in asked:
                self._state(queue).confirm()

    def _take_answer(
        self, asked: frozenset[MessageQueue], granted: frozenset[MessageQueue], sent: float
    ) -> frozenset[MessageQueue]:
        """Note the response to a request for locks.

        Return the granted queues, except queues that have been unlocked since the request began and whose unlocks follow.
        """
        for queue in asked - granted:
            self._state(queue).refuse(sent)
        return frozenset([queue for queue in granted if self._state(queue).grant(sent)])

    async def _unlock(self, broker_name: str, queues: Collection[MessageQueue], *, owed: bool = False) -> None:
        async with self._turn(broker_name):
            if owed and not (queues := [queue for queue in queues if self._state(queue).owed_since is not None]):
                return  # the locks were requested again while this unlock waited for its turn
            now = machine.monotonic()
            self._forget_expired(now)
            for queue in queues:
                self._state(queue).unlock(now)
            body = encode_body(UnlockBatchRequestBody(self._group, self._instance.client_id, tuple(queues)))
            try:
                try:
                    await self._ask(broker_name, queues, RequestCode.UNLOCK_BATCH_MQ, body)
                except ConnectionLostError:  # the request may succeed over a new connection
                    await self._ask(broker_name, queues, RequestCode.UNLOCK_BATCH_MQ, body)
            except RocketMQError as error:
                self._keep(broker_name, error)
                return
            self._errors.pop(broker_name, None)
            for queue in queues:
                self._state(queue).unlocked()

    def _drop_ended(self) -> None:
        now = machine.monotonic()
        for state in self._states.values():
            state.end(now)

    def _forget_expired(self, now: float) -> None:
        for queue, state in [*self._states.items()]:
            state.expire(now)
            if state.is_blank:
                del self._states[queue]

    def _keep(self, broker_name: str, error: RocketMQError) -> None:
        if broker_name not in self._errors:
            text = printable(error, 500)
            logger.warning(
                "a request for locks of group %s failed at broker %s; check that the broker runs, and that this user may subscribe "
                "with the group: %s", printable(self._group), broker_name, text,
            )  # fmt: skip
            while len(self._errors) >= MAX_ERRORS:
                del self._errors[next(iter(self._errors))]
        self._errors[broker_name] = error.with_traceback(None)

    async def _for_each_broker(
        self, queues: Iterable[MessageQueue], act: Callable[[str, Collection[MessageQueue]], Awaitable[None]]
    ) -> None:
        by_broker: dict[str, dict[MessageQueue, None]] = defaultdict(dict)
        for queue in sorted(queues):  # the iteration order of a set differs between processes
            by_broker[self._instance.routes.broker_of(queue)][queue] = None

        async def at(broker_name: str) -> None:
            await act(broker_name, by_broker[broker_name])

        if len(by_broker) == 1:
            await at(next(iter(by_broker)))
        elif by_broker:
            await for_each(by_broker, at, at_once=len(by_broker))

    async def _ask(self, broker_name: str, queues: Collection[MessageQueue], code: RequestCode, body: bytes) -> RemotingCommand:
        timeout = min(self._instance.config.request_timeout, LONGEST_REQUEST)
        topic = next(iter(queues)).topic
        command = RemotingCommand(code=code, body=body)
        former = self._addresses.get(broker_name)
        if code == RequestCode.UNLOCK_BATCH_MQ and former is not None and self._instance.routes.address_of(broker_name) is None:
            # A restarted name server may not know a broker that runs and whose locks keep other members waiting. An unlock names
            # the broker and the client, so it has no effect if another broker has the address by now.
            response, address = await self._instance.pool.request(former, command, timeout), former
        else:
            response, address = await self._instance.ask_broker(broker_name, topic, command, timeout)
        self._addresses.pop(broker_name, None)
        while len(self._addresses) >= MAX_ADDRESSES:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[broker_name] = address
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark, request=code.name, broker=broker_name, address=address)
        return response

    @asynccontextmanager
    async def _turn(self, broker_name: str) -> AsyncIterator[None]:
        lock, users = self._turns.get(broker_name, (asyncio.Lock(), 0))
        self._turns[broker_name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._turns.pop(broker_name)
            if users > 1:
                self._turns[broker_name] = (lock, users - 1)
