"""Heartbeats, which announce the client's groups to the brokers.

A broker forgets a client that sends no heartbeat for 120 s, and it sends requests (transaction checks, rebalancing) only to clients
that it knows. Therefore each master in use gets one heartbeat per ``interval`` for all producers and consumers of the client, and
one immediately on a new connection and when a group is added. The heartbeat of an interval is omitted on connections on which one
was sent less than half an interval ago. In between, the client reconnects broken connections, so that a client that sends no
messages notices when brokers are back. After two unanswered heartbeats in a row, a connection is considered dead and is closed.

To push a reply, a broker looks up the client by its id. The broker removes the id when a producer group is unregistered, and when a
former connection ends after the client has sent heartbeats on a new one (``FormerConnections``). Only a group that is new to the
broker on that connection restores the id. Therefore one of the remaining producer groups is unregistered and registered again,
provided that a call of this client has ever waited for a reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from functools import partial
from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import UnregisterClientRequestHeader, request_of
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, ProducerData, encode_heartbeat

from .. import machine
from .._ordered import OrderedSet
from .._text import printable
from ..errors import ConfigError, RequestTimeoutError, RocketMQError
from ..transport import CloseReason, Connection, ConnectionPool

# Former connections to a broker: when the broker notices that such a connection has ended, it removes the client's id.
#
# A broker removes the id of a client when a connection ends on which the client sent a heartbeat, even if the client uses a new
# connection by then. The broker notices a FIN or RST at once. If neither arrives, for example because the client's address has
# changed, the connection is silent, and the broker closes it after 120 s without reads and writes (``IdleStateHandler(0, 0, 120)``
# of ``NettyRemotingServer``). Until the client sends a heartbeat on its new connection, the broker may still write replies and
# notices to the old one.

NOTICED: Final = 0.5
"""Seconds after which a broker has noticed that a former connection has ended."""
SILENT: Final = 120.5
"""Seconds from the last heartbeat on a silent connection to the earliest time at which the broker closes it."""
SILENT_UNTIL: Final = 155.5
"""Seconds from the last heartbeat on a silent connection to the latest time at which the broker closes it, if the broker writes
nothing more to it. Other requests can have followed the heartbeat for 30 s, until the next one was due."""
REPLACED_UNTIL: Final = 130.5
"""Seconds from the first heartbeat that a broker has answered on a newer connection to the latest time at which the broker closes a
former connection."""
AGAIN: Final = 5.0
"""Seconds between two calls of ``forgotten`` for one broker, while the broker may close a silent connection at any time."""
MOST_UNREPLACED: Final = 256
"""Maximum number of addresses in ``_unreplaced``. The limit is needed because an address without a broker never responds again."""

_SILENT: Final = frozenset({CloseReason.DEAD, CloseReason.RESET, CloseReason.NOT_READING})


class FormerConnections:
    """The former connections to brokers. When a former connection ends, its broker removes the client's id.

    Args:
        forgotten: Called with the address of a broker that may have removed the client's id.
    """

    def __init__(self, forgotten: Callable[[str], None]) -> None:
        self._forgotten = forgotten
        self._timers: OrderedSet[asyncio.TimerHandle] = OrderedSet()
        self._doubted: dict[str, float] = {}
        """The latest time (monotonic) at which a broker may close a silent connection, by the broker's address."""
        self._unreplaced: dict[str, None] = {}
        """Addresses of brokers that have answered no heartbeat since a connection to them fell silent."""
        self._closed = False

    def add(self, connection: Connection, last_heartbeat: float) -> None:
        """Add a connection that accepts no more requests.

        Args:
            last_heartbeat: Monotonic time at which the last answered heartbeat was sent on the connection. If no heartbeat was
                answered, the time at which the last one was sent.
        """
        connection.closed.add_done_callback(partial(self._over, connection.address))
        if connection.close_reason in _SILENT:
            while len(self._unreplaced) >= MOST_UNREPLACED:
                del self._unreplaced[next(iter(self._unreplaced))]
            self._unreplaced[connection.address] = None
            self._doubt(connection.address, last_heartbeat + SILENT_UNTIL, SILENT_UNTIL - SILENT)

    def answered(self, address: str) -> None:
        """Record that a broker has answered a heartbeat on its present connection.

        From now on, the broker writes nothing more to a silent connection.
        """
        if address in self._unreplaced:
            del self._unreplaced[address]
            self._doubt(address, machine.monotonic() + REPLACED_UNTIL, REPLACED_UNTIL)

    def close(self) -> None:
        """Cancel all timers."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _over(self, address: str, _: object) -> None:
        self._after(NOTICED, partial(self._forgotten, address))

    def _doubt(self, address: str, until: float, seconds: float) -> None:
        """Call ``forgotten`` every ``AGAIN`` seconds in the last ``seconds`` before ``until``.

        If calls for the address are already scheduled, do not schedule more, but continue them until ``until`` if that is later
        than their end.
        """
        if (known := self._doubted.get(address)) is not None:
            self._doubted[address] = max(known, until)
        elif (left := until - machine.monotonic()) > 0:
            self._doubted[address] = until
            self._after(max(left - seconds, AGAIN), partial(self._doubtful, address))

    def _doubtful(self, address: str) -> None:
        self._forgotten(address)
        if self._doubted[address] - machine.monotonic() > AGAIN:
            self._after(AGAIN, partial(self._doubtful, address))
        else:
            del self._doubted[address]

    def _after(self, seconds: float, call: Callable[[], object]) -> None:
        if self._closed:
            return

        def fire() -> None:
            self._timers.discard(timer)
            call()

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._timers.add(timer)


logger = logging.getLogger(__name__)

UNANSWERED_LIMIT = 2
"""Number of unanswered heartbeats in a row after which a connection is closed."""
RECONNECTS = 6
"""Number of attempts per heartbeat interval to reconnect to a broker, even while the client sends no messages."""
FAREWELL = 1.0
"""Maximum seconds to wait for brokers to confirm that a group is unregistered. The end of a connection removes its groups in any
case."""
UNREACHABLE_FOR = 5.0
"""Seconds after a failed introduction to a broker in which no call waits for that broker."""
INTRODUCED_WITHIN = 1.0
BACK_WITHIN = 0.1
"""Maximum seconds that calls wait for an introduction, which makes the client's id known to a broker, counted from its start.
BACK_WITHIN applies if the previous introduction failed: a broker that is back responds at once, and a silent broker must not delay
calls to other brokers again."""


class HeartbeatState:
    """The state of the heartbeats on one connection."""

    __slots__ = ("drops", "known", "reached_at", "restored_drops", "sent_at", "task", "unanswered")

    def __init__(self) -> None:
        self.sent_at = 0.0
        """Time (monotonic) at which the last heartbeat was sent."""
        self.reached_at = 0.0
        """Time (monotonic) at which the last answered heartbeat was sent; 0 if none was answered."""
        self.known = False
        """Whether the broker knows the client's id on this connection: it has accepted a heartbeat since it last removed the id."""
        self.drops = 0
        """How many times the broker may have removed the client's id."""
        self.restored_drops = 0
        """The value of ``drops`` at the start of the last ``_rejoin`` that succeeded."""
        self.unanswered = 0
        """Number of unanswered heartbeats since the last response."""
        self.task: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat should be sent, because none is pending and the broker may not know the client."""
        return self.task is None or (self.task.done() and not self.known)


class Heartbeats:
    """The groups of one client, and the heartbeats that announce them.

    Args:
        masters: Returns the addresses of the masters in use.
        interval: Seconds between two regular heartbeats to a broker.
        timeout: Seconds to wait for the response to one heartbeat.
        display_name: Returns a group's name for error messages.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        masters: Callable[[], Iterable[str]],
        *,
        client_id: str,
        interval: float,
        timeout: float,
        display_name: Callable[[str], str] = str,
    ) -> None:
        self._pool = pool
        self._masters = masters
        self._client_id = client_id
        self._interval = interval
        self._timeout = timeout
        self._display_name = display_name
        self._producers: set[str] = set()
        self._consumers: dict[str, ConsumerData] = {}
        self._states: dict[Connection, HeartbeatState] = {}
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._reported: set[str] = set()
        self._introductions: dict[str, tuple[asyncio.Task[None], float]] = {}
        """The running introduction to the broker at an address, and the time (monotonic) until which calls wait for it."""
        self._unreachable: dict[str, float] = {}
        """The time (monotonic) until which no call starts another introduction, by the address of a broker to which the last one
        failed."""
        self._introduces = False
        """Whether a call has ever waited until brokers know this client's id."""
        self._former = FormerConnections(self._forgotten)
        self._soon: asyncio.Handle | None = None
        self._body: bytes | None = None
        """The encoded heartbeat, cached because encoding many groups takes milliseconds. None after a change of the groups."""
        self._closed = False

    @property
    def consumer_groups(self) -> frozenset[str]:
        return frozenset(self._consumers)

    def add_producer(self, group: str) -> None:
        """Add a producer group to the heartbeats.

        Raises:
            ConfigError: If the group exists already.
        """
        if group in self._producers:
            raise _twice("producer", self._display_name(group))
        self._producers.add(group)
        self._groups_changed(announce=True)

    def add_consumer(self, data: ConsumerData) -> None:
        """Add a consumer group to the heartbeats.

        Raises:
            ConfigError: If the group exists already.
        """
        if data.group_name in self._consumers:
            raise _twice("consumer", self._display_name(data.group_name))
        self._consumers[data.group_name] = data
        self._groups_changed(announce=True)

    async def remove_producer(self, group: str, timeout: float) -> None:
        """Remove the group and unregister it at all connected brokers.

        Wait for the brokers' responses for at most the shortest of ``timeout``, the request timeout and 1 s (``FAREWELL``). Do
        nothing for a group that was not added.
        """
        if group in self._producers:
            self._producers.discard(group)
            self._groups_changed(announce=False)
            await self._unregister(UnregisterClientRequestHeader(clientID=self._client_id, producerGroup=group), timeout)

    async def remove_consumer(self, group: str, timeout: float) -> None:
        """Remove a consumer group and unregister it, as ``remove_producer`` does for a producer group."""
        if self._consumers.pop(group, None) is not None:
            self._groups_changed(announce=False)
            await self._unregister(UnregisterClientRequestHeader(clientID=self._client_id, consumerGroup=group), timeout)

    def on_connected(self, connection: Connection) -> None:
        """Start the first heartbeat of a new connection to a broker in use."""
        if connection.address in set(self._masters()):
            self._beat(connection)

    def on_closed(self, connection: Connection) -> None:
        """Remove a connection that accepts no more requests. The broker may remove the client's id when the socket closes."""
        if (state := self._states.pop(connection, None)) is not None:
            self._former.add(connection, state.reached_at or state.sent_at)

    def send_missing(self) -> None:
        """Send the first heartbeat on connections that were made before their brokers came into use."""
        for address in self._masters():
            connection = self._pool.get(address)
            if connection is not None and connection not in self._states:
                self._beat(connection)

    def announce(self) -> None:
        """Schedule one heartbeat on each connection to a master in use, in the next iteration of the loop. Further calls until then
        do nothing.
        """
        if self._soon is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_soon(self._announce)

    async def run(self) -> None:
        """Call ``round`` every ``interval`` seconds and ``reconnect`` in between, until cancelled."""
        due = machine.monotonic() + self._interval
        while True:
            await asyncio.sleep(min(max(due - machine.monotonic(), 0.0), self._interval / RECONNECTS))
            try:
                if machine.monotonic() < due:
                    self.reconnect()
                else:
                    due = machine.monotonic() + self._interval
                    self.round()
            except Exception:
                logger.exception("sending heartbeats failed; the next attempt starts within %s s", self._interval)

    def round(self) -> None:
        """Send a heartbeat to each master in use to which none was sent recently. Connect if necessary. Do nothing without
        groups.
        """
        if not self._has_groups():
            return
        recently = machine.monotonic() - self._interval / 2
        masters = dict.fromkeys(self._masters())
        self._reported &= masters.keys()
        for address in masters:
            connection = self._pool.get(address)
            if connection is None:
                self._spawn(self._connect(address), f"connect {address} for a heartbeat")
            else:
                state = self._states.get(connection)
                if state is None or state.sent_at < recently:
                    self._beat(connection)

    def reconnect(self) -> None:
        """Try to reconnect to masters in use that could not be reached, to notice when they are back. Do nothing without groups."""
        if not self._has_groups():
            return
        for address in dict.fromkeys(self._masters()):
            if (
                self._pool.get(address) is None
                and not self._pool.connecting(address)
                and self._pool.trouble(address) is not None
            ):
                self._spawn(self._connect(address), f"connect {address} again")

    async def send_first(self, timeout: float) -> None:
        """Connect to every master in use and wait at most ``timeout`` seconds for the responses to the first heartbeats."""
        self.round()
        deadline = machine.monotonic() + timeout
        while self._tasks and machine.monotonic() < deadline:  # a heartbeat follows each new connection
            await asyncio.wait(tuple(self._tasks), timeout=deadline - machine.monotonic())

    async def introduce(self, addresses: Iterable[str], timeout: float) -> None:
        """Wait at most ``timeout`` seconds until the brokers at ``addresses`` know the client on their present connections.

        Connect if necessary. Do not wait for an introduction that began more than 1 s ago (``INTRODUCED_WITHIN``), or for a broker
        whose last introduction failed less than 5 s ago (``UNREACHABLE_FOR``). If the previous introduction to a broker failed,
        wait only 0.1 s for the next one (``BACK_WITHIN``).
        """
        self._introduces = True
        now, waits = machine.monotonic(), list[tuple[float, asyncio.Task[None]]]()
        for address in addresses:
            state = self._state_at(address)
            if (state is not None and state.known) or self._unreachable.get(address, 0.0) > now:
                continue
            if address not in self._introductions:
                until = now + (BACK_WITHIN if address in self._unreachable else INTRODUCED_WITHIN)
                introduction = self._spawn(self._introduce(address), f"introduction to {address}")
                self._introductions[address] = introduction, until
                introduction.add_done_callback(partial(self._introduced, address))
            introduction, until = self._introductions[address]
            waits.append((min(until, now + timeout), introduction))
        for until, introduction in waits:
            if (left := until - machine.monotonic()) > 0:
                await asyncio.wait([introduction], timeout=left)

    async def wait_answer(self, address: str, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the response to a pending heartbeat to ``address``, if there is one."""
        state = self._state_at(address)
        if state is not None and state.task is not None:
            await asyncio.wait([state.task], timeout=timeout)

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel all tasks and timers, and return the tasks, which need one more iteration of the loop to end."""
        self._closed = True
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._former.close()
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    # -- inside

    def _groups_changed(self, *, announce: bool) -> None:
        self._body = None
        if announce:
            self.announce()

    def _has_groups(self) -> bool:
        return bool(self._producers or self._consumers)

    def _encoded(self) -> bytes:
        if self._body is None:
            data = HeartbeatData(
                client_id=self._client_id,
                producer_data_set=tuple(ProducerData(group_name=group) for group in sorted(self._producers)),
                consumer_data_set=tuple(self._consumers[group] for group in sorted(self._consumers)),
            )
            self._body = encode_heartbeat(data)
        return self._body

    def _announce(self) -> None:
        """Send the heartbeats that ``announce`` has scheduled."""
        self._soon = None
        for address in dict.fromkeys(self._masters()):
            connection = self._pool.get(address)
            if connection is not None:
                self._beat(connection)

    def _beat(self, connection: Connection) -> None:
        if not self._has_groups() or self._closed:
            return
        state = self._states.setdefault(connection, HeartbeatState())
        state.sent_at = machine.monotonic()
        state.task = self._spawn(self._send(connection, state), f"heartbeat {connection.address}")

    async def _send(self, connection: Connection, state: HeartbeatState) -> None:
        if not self._has_groups():
            return  # the last group left before this task ran
        address = connection.address
        try:
            if state.drops > state.restored_drops and self._introduces and self._producers:
                await self._rejoin(connection, state)
                if not self._has_groups():
                    return
            command = RemotingCommand(code=RequestCode.HEART_BEAT, body=self._encoded())
            response = await connection.request(command, self._timeout)
        except RequestTimeoutError as error:
            state.unanswered += 1
            logger.warning(
                "broker %s did not respond to %d heartbeats in a row; the connection is closed after %d; check the broker's log "
                "and load, and the network in between", address, state.unanswered, UNANSWERED_LIMIT,
            )  # fmt: skip
            if state.unanswered >= UNANSWERED_LIMIT:
                connection.close(CloseReason.DEAD, error)
            return
        except RocketMQError as error:
            logger.debug("heartbeat to %s: %s", address, error)
            return
        state.unanswered, state.reached_at = 0, state.sent_at
        self._former.answered(address)
        if response.code == ResponseCode.SUCCESS:
            state.known = state.restored_drops == state.drops
            self._reported.discard(address)
            self._unreachable.pop(address, None)
        elif response.code == ResponseCode.GO_AWAY:  # the pool retires the connection
            logger.debug("broker %s is shutting down (GO_AWAY)", address)
        else:
            log = self._log_of(address)
            text = "broker %s refused a heartbeat (check this client's credentials and the broker's log): %d %s"
            log(text, address, response.code, printable(response.remark))

    async def _rejoin(self, connection: Connection, state: HeartbeatState) -> None:
        """Unregister one group, so that the next heartbeat has a group that is new to the broker and restores the client's id."""
        times = state.drops
        command = request_of(UnregisterClientRequestHeader(clientID=self._client_id, producerGroup=min(self._producers)))
        await connection.request(command, self._timeout)
        state.restored_drops = times

    def _count_drop(self, connection: Connection) -> None:
        """Record that the broker has removed the client's id, or is about to do so."""
        state = self._states.get(connection)
        if state is not None:
            state.known = False
            state.drops += 1

    def _restore(self, connection: Connection) -> None:
        """Record that the broker may have removed the client's id. If a call has ever waited for a reply, send the heartbeat that
        restores the id.
        """
        self._count_drop(connection)
        if self._introduces and self._producers and connection.is_open and connection in self._states:
            self._beat(connection)

    def _forgotten(self, address: str) -> None:
        """Restore the client's id at a broker that may have removed it when a former connection ended."""
        if (connection := self._pool.get(address)) is not None:
            self._restore(connection)

    def _state_at(self, address: str) -> HeartbeatState | None:
        connection = self._pool.get(address)
        return self._states.get(connection) if connection is not None else None

    async def _introduce(self, address: str) -> None:
        if self._pool.get(address) is None:
            await self._connect(address)
        connection = self._pool.get(address)
        state = self._state_at(address)
        if connection is not None and (state is None or state.is_due):
            self._beat(connection)
            state = self._states.get(connection)
        if state is None or not await _is_known(state):
            in_use = set(self._masters())
            self._unreachable = {each: until for each, until in self._unreachable.items() if each in in_use}
            self._unreachable[address] = machine.monotonic() + UNREACHABLE_FOR

    def _introduced(self, address: str, _: object) -> None:
        self._introductions.pop(address, None)

    async def _connect(self, address: str) -> None:
        """Connect to ``address``. The pool then calls ``on_connected``, which sends the heartbeat."""
        try:
            await self._pool.connect(address, self._timeout)
        except RocketMQError as error:
            log = self._log_of(address)
            text = "cannot send a heartbeat to broker %s: %s; check that it runs and that this host can reach its address"
            log(text, address, printable(error))

    def _log_of(self, address: str) -> Callable[..., None]:
        """Return ``logger.warning`` for the first failure of a broker in use, else ``logger.debug``."""
        if address in self._reported or address not in set(self._masters()):
            return logger.debug
        self._reported.add(address)
        return logger.warning

    async def _unregister(self, header: UnregisterClientRequestHeader, timeout: float) -> None:
        timeout = min(timeout, self._timeout, FAREWELL)
        deadline = machine.monotonic() + timeout
        pending = [state.task for state in self._states.values() if state.task is not None and not state.task.done()]
        if pending and timeout > 0:  # a broker may handle a heartbeat after a later unregistration
            await asyncio.wait(pending, timeout=timeout / 2)
        command = request_of(header)
        producer = header.producerGroup is not None
        leaving = [
            self._spawn(
                self._leave(connection, command, deadline - machine.monotonic(), producer),
                f"unregister at {connection.address}",
            )
            for connection in list(self._states)
            if connection.is_open
        ]
        if leaving:
            try:
                await asyncio.wait(leaving, timeout=max(deadline - machine.monotonic(), 0.0))
            finally:
                for task in leaving:
                    task.cancel()

    async def _leave(self, connection: Connection, command: RemotingCommand, timeout: float, producer: bool) -> None:
        if producer:
            self._count_drop(connection)
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


async def _is_known(state: HeartbeatState) -> bool:
    """Wait for pending heartbeats until one is accepted or all have ended. Return whether the broker knows the client."""
    waited: asyncio.Task[None] | None = None
    while state.task is not None and state.task is not waited and not state.known:
        waited = state.task
        await asyncio.wait([waited])
    return state.known


def _twice(kind: str, group: str) -> ConfigError:
    return ConfigError(
        f"{kind} group {group} is already in use by this client; share that {kind}, or set another instance_name"
    )
