"""Telling the brokers who we are.

A broker forgets a client it has not heard of for 120 s, and asks back only clients it knows (transaction checks, rebalancing). So
every master in use gets one heartbeat per ``interval``, whatever number of producers and consumers the client carries, and one at
once on a new connection and when a group joins. A connection that had its heartbeat less than half an interval ago is left out
of the round. Brokers whose connections broke are tried again in between, so that a client that sends nothing notices that they are
back. Two unanswered ones in a row prove a connection dead, and it is closed.

To push a reply a broker looks the client up by its id, and that entry is easily lost: any producer group that leaves takes the id
along, and so does a former connection that ends after a new one was introduced. It comes back only with a group that is new to the
broker on that connection, so one of those that stay leaves and joins again; where no call has ever waited for a reply, none does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from functools import partial
from time import monotonic

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import UnregisterClientRequestHeader, to_ext
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, ProducerData, encode_heartbeat

from ..errors import ConfigError, RequestTimeoutError, RocketMQError
from ..transport import CloseReason, Connection, ConnectionPool
from .text import printable

__all__ = ["Heartbeats"]

logger = logging.getLogger(__name__)

UNANSWERED_LIMIT = 2
RECONNECTS = 6
"""Attempts per heartbeat interval to reconnect to a broker, also while the client sends no messages."""
MISSED_FOR = 5.0
"""Seconds for which no call waits for a broker that did not answer its first heartbeat."""
FORMER_NOTICED = 0.5
"""Seconds that a broker gets to notice the end of a former connection."""


class _Beaten:
    """What is known of the heartbeats on one connection."""

    __slots__ = ("at", "forgotten", "met", "restored", "task", "unanswered")

    def __init__(self) -> None:
        self.at = 0.0
        self.met = False
        """The broker has answered one, so it knows this client on this connection."""
        self.forgotten = 0
        """How often it may have dropped the client's id since then."""
        self.restored = 0
        """Which of these times was the last that was made up for."""
        self.unanswered = 0
        self.task: asyncio.Task[None] | None = None


class Heartbeats:
    """The groups of one client and the heartbeats that announce them.

    ``masters()``: addresses of the brokers in use. ``interval``, ``timeout``: seconds. ``told``: what errors call a group.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        masters: Callable[[], Iterable[str]],
        *,
        client_id: str,
        interval: float,
        timeout: float,
        told: Callable[[str], str] = str,
    ) -> None:
        self._pool = pool
        self._masters = masters
        self._client_id = client_id
        self._interval = interval
        self._timeout = timeout
        self._told = told
        self._producers: set[str] = set()
        self._consumers: dict[str, ConsumerData] = {}
        self._beaten: dict[Connection, _Beaten] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: set[str] = set()
        self._meetings: dict[str, asyncio.Task[None]] = {}
        self._missed: dict[str, float] = {}
        """Until when a broker that could not be met is not waited for."""
        self._meets = False
        """Whether a call has ever waited for brokers to know this client."""
        self._later: set[asyncio.TimerHandle] = set()
        self._soon: asyncio.Handle | None = None
        self._body = b""
        self._closed = False

    @property
    def producer_groups(self) -> frozenset[str]:
        return frozenset(self._producers)

    @property
    def consumer_groups(self) -> frozenset[str]:
        return frozenset(self._consumers)

    def add_producer(self, group: str) -> None:
        """Raises ConfigError when the group is there already."""
        if group in self._producers:
            raise _twice("producer", self._told(group))
        self._producers.add(group)
        self._groups_changed(announce=True)

    def add_consumer(self, data: ConsumerData) -> None:
        """Raises ConfigError when the group is there already."""
        if data.group_name in self._consumers:
            raise _twice("consumer", self._told(data.group_name))
        self._consumers[data.group_name] = data
        self._groups_changed(announce=True)

    async def remove_producer(self, group: str, timeout: float) -> None:
        """Takes the group out and tells every broker that is connected; waits up to ``timeout`` seconds for their answers."""
        if group in self._producers:
            self._producers.discard(group)
            self._groups_changed(announce=False)
            await self._unregister(UnregisterClientRequestHeader(clientID=self._client_id, producerGroup=group), timeout)

    async def remove_consumer(self, group: str, timeout: float) -> None:
        """As ``remove_producer``."""
        if self._consumers.pop(group, None) is not None:
            self._groups_changed(announce=False)
            await self._unregister(UnregisterClientRequestHeader(clientID=self._client_id, consumerGroup=group), timeout)

    def connected(self, connection: Connection) -> None:
        """A new connection: if it leads to a broker in use, its first heartbeat leaves now."""
        if connection.address in set(self._masters()):
            self._beat(connection)

    def closed(self, connection: Connection) -> None:
        """It takes no more requests; when its socket closes the broker may forget the client, whatever it heard since."""
        if self._beaten.pop(connection, None) is not None:
            connection.closed.add_done_callback(partial(self._former_over, connection.address))

    def catch_up(self) -> None:
        """Sends the first heartbeat on connections that were made before their brokers came into use."""
        for address in self._masters():
            connection = self._pool.get(address)
            if connection is not None and connection not in self._beaten:
                self._beat(connection)

    async def run(self) -> None:
        """One round every ``interval`` seconds, and tries broken connections in between, for ever."""
        due = monotonic() + self._interval
        while True:
            await asyncio.sleep(min(max(due - monotonic(), 0.0), self._interval / RECONNECTS))
            try:
                if monotonic() < due:
                    self.reconnect()
                else:
                    due = monotonic() + self._interval
                    self.round()
            except Exception:
                logger.exception("heartbeats failed; the next round is in %s s", self._interval)

    def round(self) -> None:
        """Begins a heartbeat to every master in use that had none lately; connects to those that are not connected."""
        if not self._body:
            return
        recently = monotonic() - self._interval / 2
        masters = set(self._masters())
        self._reported &= masters
        for address in masters:
            connection = self._pool.get(address)
            if connection is None:
                self._spawn(self._connect(address), f"connect {address} for a heartbeat")
            else:
                beaten = self._beaten.get(connection)
                if beaten is None or beaten.at < recently:
                    self._beat(connection)

    def reconnect(self) -> None:
        """Begins to connect to masters in use that could not be reached lately, so that it is known when they are back."""
        if not self._body:
            return
        for address in set(self._masters()):
            if (
                self._pool.get(address) is None
                and not self._pool.connecting(address)
                and self._pool.trouble(address) is not None
            ):
                self._spawn(self._connect(address), f"connect {address} again")

    async def greet(self, timeout: float) -> None:
        """Connects to every master in use and waits up to ``timeout`` seconds for the answers to their first heartbeats."""
        self.round()
        deadline = monotonic() + timeout
        while self._tasks and monotonic() < deadline:  # a connect is followed by its heartbeat
            await asyncio.wait(tuple(self._tasks), timeout=deadline - monotonic())

    async def meet(self, addresses: Iterable[str], timeout: float) -> None:
        """Returns when the brokers at ``addresses`` have answered a heartbeat on the connections they have now.

        Connects where need be, waits ``timeout`` seconds at most, and not at all for a broker that could not be met a moment ago.
        """
        self._meets = True
        now, meetings = monotonic(), []
        for address in addresses:
            connection = self._pool.get(address)
            beaten = self._beaten.get(connection) if connection is not None else None
            if (beaten is not None and beaten.met) or self._missed.get(address, 0.0) > now:
                continue
            meeting = self._meetings.get(address)
            if meeting is None:
                self._missed.pop(address, None)
                meeting = self._meetings[address] = self._spawn(self._meet(address), f"meet {address}")
                meeting.add_done_callback(partial(self._met, address))
            meetings.append(meeting)
        if meetings and timeout > 0:
            await asyncio.wait(meetings, timeout=timeout)

    async def answered(self, address: str, timeout: float) -> None:
        """Waits up to ``timeout`` seconds for the answer to a heartbeat that is under way to ``address``, if one is."""
        connection = self._pool.get(address)
        beaten = self._beaten.get(connection) if connection is not None else None
        if beaten is not None and beaten.task is not None:
            await asyncio.wait([beaten.task], timeout=timeout)

    def close(self) -> list[asyncio.Task[None]]:
        """Ends everything under way; returns the tasks, which need an iteration of the loop to end."""
        self._closed = True
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        for timer in self._later:
            timer.cancel()
        self._later.clear()
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    # -- inside

    def _groups_changed(self, *, announce: bool) -> None:
        if self._producers or self._consumers:
            data = HeartbeatData(
                client_id=self._client_id,
                producer_data_set=tuple(ProducerData(group_name=group) for group in sorted(self._producers)),
                consumer_data_set=tuple(self._consumers[group] for group in sorted(self._consumers)),
            )
            self._body = encode_heartbeat(data)
        else:
            self._body = b""
        if announce and self._soon is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        """Groups that joined in one iteration of the loop are announced together, to brokers that are connected."""
        self._soon = None
        for address in set(self._masters()):
            connection = self._pool.get(address)
            if connection is not None:
                self._beat(connection)

    def _beat(self, connection: Connection) -> None:
        if not self._body or self._closed:
            return
        beaten = self._beaten.setdefault(connection, _Beaten())
        beaten.at = monotonic()
        beaten.task = self._spawn(self._send(connection, beaten), f"heartbeat {connection.address}")

    async def _send(self, connection: Connection, beaten: _Beaten) -> None:
        if not self._body:
            return  # the last group left before this task ran
        address = connection.address
        try:
            if beaten.forgotten > beaten.restored and self._meets and self._producers:
                await self._leave_to_join_again(connection, beaten)
                if not self._body:
                    return
            command = RemotingCommand(code=RequestCode.HEART_BEAT, body=self._body)
            response = await connection.request(command, self._timeout)
        except RequestTimeoutError as error:
            beaten.unanswered += 1
            logger.warning("broker %s left %d heartbeats unanswered", address, beaten.unanswered)
            if beaten.unanswered >= UNANSWERED_LIMIT:
                connection.close(CloseReason.DEAD, error)
            return
        except RocketMQError as error:
            logger.debug("heartbeat to %s: %s", address, error)
            return
        beaten.unanswered = 0
        if response.code == ResponseCode.SUCCESS:
            beaten.met = beaten.restored == beaten.forgotten
            self._reported.discard(address)
            self._missed.pop(address, None)
        elif response.code == ResponseCode.GO_AWAY:
            logger.debug("broker %s sends us away", address)  # the pool has heard of it; the next connection tries anew
        else:
            log = self._log_of(address)
            log("broker %s refused a heartbeat: %d %s", address, response.code, printable(response.remark))

    async def _leave_to_join_again(self, connection: Connection, beaten: _Beaten) -> None:
        """The heartbeat that follows has a group that is new to the broker, which so enters the client's id again."""
        times = beaten.forgotten
        header = UnregisterClientRequestHeader(clientID=self._client_id, producerGroup=min(self._producers))
        command = RemotingCommand(code=RequestCode.UNREGISTER_CLIENT, ext_fields={**to_ext(header)})
        await connection.request(command, self._timeout)
        beaten.restored = times

    def _forgotten(self, connection: Connection) -> None:
        """The broker has dropped the client's id, or is about to."""
        beaten = self._beaten.get(connection)
        if beaten is not None:
            beaten.met = False
            beaten.forgotten += 1

    def _restore(self, connection: Connection) -> None:
        """Brings the id back that the broker has dropped by now, where replies may be waited for."""
        self._forgotten(connection)
        if self._meets and self._producers and connection.is_open and connection in self._beaten:
            self._beat(connection)

    def _former_over(self, address: str, _: object) -> None:
        if not self._closed:
            timer: asyncio.TimerHandle
            timer = asyncio.get_running_loop().call_later(FORMER_NOTICED, lambda: self._former_noticed(address, timer))
            self._later.add(timer)

    def _former_noticed(self, address: str, timer: asyncio.TimerHandle) -> None:
        self._later.discard(timer)
        if (connection := self._pool.get(address)) is not None:
            self._restore(connection)

    async def _meet(self, address: str) -> None:
        if self._pool.get(address) is None:
            await self._connect(address)
        connection = self._pool.get(address)
        beaten = self._beaten.get(connection) if connection is not None else None
        if connection is not None and (beaten is None or beaten.task is None or (beaten.task.done() and not beaten.met)):
            self._beat(connection)
            beaten = self._beaten.get(connection)
        waited: asyncio.Task[None] | None = None
        while beaten is not None and beaten.task is not None and beaten.task is not waited and not beaten.met:
            waited = beaten.task
            await asyncio.wait([waited])
        if beaten is None or not beaten.met:
            now = monotonic()
            self._missed = {each: until for each, until in self._missed.items() if until > now}
            self._missed[address] = now + MISSED_FOR

    def _met(self, address: str, _: object) -> None:
        self._meetings.pop(address, None)

    async def _connect(self, address: str) -> None:
        """The pool reports the connection, and that sends the heartbeat."""
        try:
            await self._pool.connect(address, self._timeout)
        except RocketMQError as error:
            log = self._log_of(address)
            log("no heartbeat to broker %s: %s", address, printable(error))

    def _log_of(self, address: str) -> Callable[..., None]:
        """Trouble with a broker is a warning when it begins, and none when its broker has left the routes meanwhile."""
        if address in self._reported or address not in set(self._masters()):
            return logger.debug
        self._reported.add(address)
        return logger.warning

    async def _unregister(self, header: UnregisterClientRequestHeader, timeout: float) -> None:
        timeout = min(timeout, self._timeout)
        deadline = monotonic() + timeout
        under_way = [beaten.task for beaten in self._beaten.values() if beaten.task is not None and not beaten.task.done()]
        if under_way and timeout > 0:  # a broker may handle a heartbeat after the farewell that followed it
            await asyncio.wait(under_way, timeout=timeout / 2)
        command = RemotingCommand(code=RequestCode.UNREGISTER_CLIENT, ext_fields={**to_ext(header)})
        producer = header.producerGroup is not None
        farewells = [
            self._spawn(
                self._farewell(connection, command, deadline - monotonic(), producer), f"unregister at {connection.address}"
            )
            for connection in list(self._beaten)
            if connection.is_open
        ]
        if farewells:
            try:
                await asyncio.wait(farewells, timeout=max(deadline - monotonic(), 0.0))
            finally:
                for task in farewells:
                    task.cancel()

    async def _farewell(self, connection: Connection, command: RemotingCommand, timeout: float, producer: bool) -> None:
        if producer:
            self._forgotten(connection)
        try:
            response = await connection.request(command, max(timeout, 0.0))
        except RocketMQError as error:
            logger.debug("unregister at %s: %s", connection.address, error)
            return
        finally:
            if producer:
                self._restore(connection)
        if response.code != ResponseCode.SUCCESS:
            logger.debug("unregister at %s: %d %s", connection.address, response.code, printable(response.remark))

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=f"rmq_async {name}", context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _twice(kind: str, group: str) -> ConfigError:
    return ConfigError(
        f"{kind} group {group} is already in use by this client; share that {kind}, or give another instance_name"
    )
