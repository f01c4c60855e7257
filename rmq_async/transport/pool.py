"""One connection per address, made at first use and shared by all callers.

All callers for an address share one connection attempt, which continues if a caller is cancelled; each caller waits until its own
deadline. After a failed attempt, the pool waits up to one second before the next attempt (``Backoff``), so that a dead broker
causes no storm of SYNs and does not use up the whole time of a send. One timer for the whole pool closes connections that were idle
for ``idle_timeout``, and looks up the host names of the other connections again. If a name now resolves to other addresses, its
connection accepts no more requests, and is closed when its pending requests are answered.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from math import inf
from typing import Any, Final, TypedDict

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, RequestCode, ResponseCode
from rmq_protocol.headers import GetRouteInfoRequestHeader, request_of
from rmq_protocol.heartbeat import HeartbeatData, encode_heartbeat

from .. import machine
from .._asyncio import Flight, SingleFlight, WaitFor
from .._lookups import is_ip
from .._ordered import OrderedSet
from ..config import ClientConfig, host_and_port, name_servers
from ..errors import ClientStateError, ConnectError, ConnectionLostError, RequestTimeoutError, RocketMQError
from .addresses import AllowedHosts, Resolver, first_of
from .connection import Connection, ConnectionSettings, RequestHandler
from .process import check_not_forked, generation
from .request_hooks import RequestHooks
from .states import CloseReason
from .tls import SHUTDOWN_TIMEOUT, handshake_reason, system_text

logger = logging.getLogger("rmq_async.transport")

FIRST_BACKOFF: Final = 0.05
MAX_BACKOFF: Final = 1.0
MAX_BACKOFFS: Final = 256
"""Number of addresses with a back-off from which the pool drops the back-offs that ended more than MAX_BACKOFF seconds ago."""
MAX_LOST: Final = 1024
"""Maximum number of addresses for which the reason of the last lost connection is kept."""
MIN_DEAD_AFTER: Final = 10.0
MAX_RETIRED: Final = 30.0
"""Maximum seconds that a retired connection stays open for its pending requests; most requests end earlier, by their own
deadlines."""
RETIRED_CHECK: Final = 0.1
REPEATED_GO_AWAY: Final = 10.0
"""If a second GO_AWAY arrives within this many seconds of the first, the pool waits before it connects to the address again."""


LOOK_EVERY: Final = 600.0
"""Seconds after which the host name of an open connection is looked up again."""
LOOK_SPACING: Final = 3.0
"""Minimum seconds between two lookups of a name after failed requests."""
LOOK_WITHIN: Final = 1.0
"""Maximum seconds that callers wait for a lookup after a failed request, counted from its start. The lookup may be slow because the
resolver itself fails."""
PROOF_SHARE: Final = 0.9
"""The share of the connect timeout within which a server must respond if its name has several addresses."""
MAX_SIBLINGS: Final = 1024


class RequestOptions(TypedDict, total=False):
    """Options of ``ConnectionPool.request``, for functions that pass them on."""

    long_poll: bool
    calls: OrderedSet[asyncio.Future[RemotingCommand]] | None
    sent_away: RemotingCommand | None


class Backoff:
    """Decides when a new attempt to connect to an address is allowed.

    The delay is 50 ms after the first failure and doubles with each further failure, up to one second.

    Attributes:
        reason: Text of the last failure.
    """

    __slots__ = ("_delay", "_until", "reason")

    def __init__(self) -> None:
        self._delay = 0.0
        self._until = 0.0
        self.reason = ""

    def failed(self, now: float, reason: str = "") -> None:
        self.reason = reason
        self._delay = min(MAX_BACKOFF, self._delay * 2 or FIRST_BACKOFF)
        self._until = now + self._delay

    def remaining(self, now: float) -> float:
        """Return the seconds until the next attempt is allowed. Return 0 if it is allowed now."""
        return max(0.0, self._until - now)


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port" or "[IPv6]:port".

    Raises:
        ConnectError: If the string has another form; ``permanent`` is True. Addresses come from routes and may be anything.
    """
    found = host_and_port(address)
    if found is None:
        text = f"an address must be host:port or [IPv6]:port with a port from 1 to 65535, not {address[:200]!r}"
        raise ConnectError(text, permanent=True, address=address[:200])
    return found


class ConnectionPool:
    """The connections of one client instance. A pool belongs to the event loop that is running when it is made.

    Args:
        on_request: Answers the requests of the servers.
        on_connected: A plain function that is called with each new connection.
        on_closed: A plain function that is called with a connection when it accepts no more requests: because it is closed, or
            because it is retired and stays open only for pending responses.
        tls: The result of ``client_context``.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        on_request: RequestHandler | None = None,
        on_connected: Callable[[Connection], None] | None = None,
        on_closed: Callable[[Connection], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._config = config
        self._on_request = on_request
        self._on_connected = on_connected
        self._on_closed = on_closed
        self._tls = tls
        allowed = config.allowed_broker_hosts
        self._allowed = AllowedHosts(allowed) if allowed is not None else None
        self._name_servers = frozenset(name_servers(config.namesrv))
        self._connection_settings = ConnectionSettings(
            config.max_frame_size, config.header_type, max(MIN_DEAD_AFTER, 2 * config.request_timeout)
        )
        self.hooks = RequestHooks(config.credentials, config.namespace_v2)
        """The hooks of all requests on the pool's connections."""
        self._loop = asyncio.get_running_loop()
        self._generation = generation()
        self.open: dict[str, Connection] = {}
        """The open connections, by address. Callers must not change this dict. It is a plain dict because it is read for every
        message."""
        self._all: OrderedSet[Connection] = OrderedSet()
        self._answering: OrderedSet[asyncio.Task[None]] = OrderedSet()
        """Tasks of closed connections that were answering requests of the server and have not ended yet."""
        self._connecting: SingleFlight[Connection] = SingleFlight("connect")
        self._resolver = Resolver()
        self._looking: SingleFlight[bool] = SingleFlight("new look-up of")
        self._looks: dict[str, float] = {}
        """The start (monotonic) of the newest lookup by ``look_again``, by address."""
        self._siblings: dict[str, str] = {}
        """The name server as "host:port", by each address to which its name resolves."""
        self._backoffs: dict[str, Backoff] = {}
        self._max_backoffs = MAX_BACKOFFS
        self._lost: dict[str, str] = {}
        """The reason why the last connection to an address was lost, by address. An address is included only if the server had sent
        a byte, and this client did not close the connection."""
        self._stored_at = -inf
        """The newest ``stored_at`` of connections that are closed or retired."""
        self._retired: dict[Connection, asyncio.TimerHandle] = {}
        """The timer of the next check whether a retired connection can be closed, by connection."""
        self._sent_away: dict[str, float] = {}
        """The time (monotonic) of the last GO_AWAY, by address."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing = False

    def __repr__(self) -> str:
        return f"<ConnectionPool {len(self.open)} open, {len(self._connecting)} connecting>"

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The open connections, and the retired connections that wait for their last responses."""
        return (*self.open.values(), *self._retired)

    def get(self, address: str) -> Connection | None:
        """Return the open connection to ``address`` without I/O. Return None if there is none."""
        return self.open.get(address)

    def connecting(self, address: str) -> bool:
        """Return whether an attempt to connect to ``address`` is in progress."""
        return address in self._connecting

    def backing_off(self, address: str) -> bool:
        """Return whether a new attempt to connect to ``address`` would first wait, because earlier attempts failed."""
        backoff = self._backoffs.get(address)
        return backoff is not None and backoff.remaining(machine.monotonic()) > 0

    def is_down(self, address: str) -> bool:
        """Return whether ``address`` has no open connection, and either the last attempt failed or an attempt is in progress."""
        return address not in self.open and (address in self._backoffs or address in self._connecting)

    def refusal(self, address: str) -> ConnectError | None:
        """Return the error for callers that do not wait for the next attempt. Return None if an attempt is allowed now."""
        if not self.backing_off(address):
            return None
        text = f"no connection attempt to {address} for up to {MAX_BACKOFF:.3g} s after a failure: {self._backoffs[address].reason}"
        return ConnectError(text, address=address)

    def trouble(self, address: str) -> str | None:
        """Return why ``address`` cannot be reached. Return None if no reason is known, for example before the first attempt.

        This method and ``last_stored`` may be called from any thread.
        """
        connection = self.open.get(address)
        if connection is not None and connection.has_received:
            return None
        backoff = self._backoffs.get(address)
        return backoff.reason if backoff is not None else self._lost.get(address)

    def last_stored(self) -> float | None:
        """Return the monotonic time of the last read in which a server confirmed a stored message. Return None if none did."""
        newest = max([self._stored_at, *[connection.stored_at for connection in self.open.copy().values()]])
        return None if newest == -inf else newest

    async def connect(self, address: str, timeout: float, wait: WaitFor[Connection] = Flight.wait) -> Connection:
        """Return the connection to ``address``. Connect if there is none; concurrent callers share one connection attempt.

        Args:
            wait: The function that waits for the connection attempt.

        Raises:
            ConnectError: If the connection attempt fails or takes longer than ``connect_timeout``, including the lookup of the name
                and the TLS handshake, or if the address is malformed or not allowed.
            ConnectionLostError: If the new connection is lost immediately.
            RequestTimeoutError: If there is no connection after ``timeout`` seconds, which include the wait after earlier failures.
            ClientStateError: If the client is stopping or stopped.
            ForkedError: If the process is a fork of the process that made the pool.
        """
        deadline = machine.monotonic() + timeout
        check_not_forked(self._generation)
        while True:  # each pass waits for one connection attempt, at most until the deadline
            connection = self.open.get(address)
            if connection is not None:
                return connection
            try:
                connection = await wait(self.start_connecting(address), deadline)
            except TimeoutError:
                raise self.too_late(address, timeout) from None
            if connection.is_open:
                return connection

    def too_late(self, address: str, seconds: float) -> RequestTimeoutError:
        """Return the error for a caller that got no connection within ``seconds``."""
        backoff = self._backoffs.get(address)
        if backoff is None:
            text = f"no connection to {address} within {seconds:.3g} s; check that the server runs, or raise the timeout"
        else:
            text = f"no connection to {address} for {seconds:.3g} s; the last attempt failed: {backoff.reason}"
        return RequestTimeoutError(text, maybe_stored=False, address=address)

    def start_connecting(self, address: str) -> Flight[Connection]:
        """Return the connection attempt to ``address`` that is in progress, or start one.

        Raises:
            ClientStateError: If the client is stopping or stopped.
            ConnectError: If the address is malformed or not allowed.
        """
        if self._closing:
            text = f"cannot connect to {address}: the client is stopping or stopped; start it again"
            raise ClientStateError(text, address=address)
        if address not in self._connecting:
            host, _ = split_address(address)
            self._check_allowed(address, host)
        return self._connecting.start(address, lambda: self._connect(address))

    async def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float,
        *,
        long_poll: bool = False,
        calls: OrderedSet[asyncio.Future[RemotingCommand]] | None = None,
        sent_away: RemotingCommand | None = None,
    ) -> RemotingCommand:
        """Connect if necessary, send one request and return the response, with any code, within ``timeout`` seconds.

        A server that responds with GO_AWAY has not processed the request, so the request is sent once more over a new connection.
        If that connection cannot be made (ConnectError or RequestTimeoutError), the GO_AWAY response is returned. Errors of
        ``connect`` and ``Connection.request`` propagate.

        Args:
            sent_away: The GO_AWAY response to an earlier attempt of the caller. If it is given, the request is sent only once.
        """
        deadline = machine.monotonic() + timeout
        response = sent_away
        for _ in range(2 if sent_away is None else 1):
            connection = self.open.get(address)
            if connection is None:
                try:
                    connection = await self.connect(address, max(deadline - machine.monotonic(), 0.0))
                except (ConnectError, RequestTimeoutError):
                    if response is not None:  # the server is gone, as GO_AWAY announced
                        return response
                    raise
            response = await connection.request(
                command, max(deadline - machine.monotonic(), 0.0), long_poll=long_poll, calls=calls
            )
            if response.code != ResponseCode.GO_AWAY:
                break
        assert response is not None
        return response

    # -- names

    async def look_again(self, address: str, timeout: float) -> bool:
        """Look up the host name of an open connection again, unless it was looked up less than LOOK_SPACING seconds ago.

        If the name no longer resolves to the connection's address, retire the connection and return True. Return False otherwise,
        also if ``address`` is an IP address or has no connection, or if the lookup fails or takes too long.
        """
        connection, host, now = self.open.get(address), _host_of(address), machine.monotonic()
        if connection is None or self._resolver.age(host) < LOOK_SPACING or is_ip(host):
            return False
        if address not in self._looking:
            if now - self._looks.get(address, -inf) < LOOK_SPACING:
                return False
            self._looks = {each: at for each, at in self._looks.items() if now - at < LOOK_SPACING or each in self._looking}
            self._looks[address] = now
        until = min(now + timeout, self._looks.get(address, now) + LOOK_WITHIN)
        try:
            return await self._looking.join(address, lambda: self._look_again(connection, host), until)
        except TimeoutError:
            return False

    async def _look_again(self, connection: Connection, host: str) -> bool:
        try:
            found = await self._resolver.addresses(host, machine.monotonic() + self._config.connect_timeout)
        except (OSError, ValueError) as error:
            logger.debug("%s: a repeated lookup of the host name failed: %s", connection.address, error)
            return False
        if connection.ip in found or self.open.get(connection.address) is not connection:
            return False
        self._give_up(connection, f"the host name now resolves to {', '.join(found[:4])}")
        return True

    def siblings(self, address: str) -> list[str]:
        """Return the other addresses of a name server whose name resolves to several, as "ip:port". The connected address is left
        out.

        Return an empty list if there is no connection.
        """
        host, connection = _host_of(address), self.open.get(address)
        known = self._resolver.known(host)
        if len(known) < 2 or connection is None:
            return []
        port = address.rpartition(":")[2]
        found = [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in known if ip != connection.ip]
        if len(self._siblings) > MAX_SIBLINGS:
            self._siblings.clear()
        self._siblings.update(dict.fromkeys(found, address))
        return found

    def lead(self, sibling: str) -> str:
        """Connect to ``sibling`` from now on, one of the ``siblings`` of a name server's address, and retire the present
        connection.

        Return the name server's address. If ``sibling`` belongs to no name server, change nothing and return ``sibling``.
        """
        address = self._siblings.get(sibling)
        if address is None:
            return sibling
        self._resolver.prefer(_host_of(address), _host_of(sibling))
        if (connection := self.open.get(address)) is not None:
            self._give_up(connection, f"{sibling} is preferred")
        return address

    async def aclose(self, timeout: float = 0.0) -> None:
        """Wait at most ``timeout`` seconds for pending requests, close all connections, and wait until their sockets are closed and
        the pool's tasks have ended.

        Raises:
            ForkedError: If the process is a fork of the process that made the pool.
        """
        self._closing = True
        check_not_forked(self._generation)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        tasks: list[asyncio.Task[Any]] = [*self._connecting.close(), *self._looking.close(), *self._resolver.close()]
        deadline = machine.monotonic() + timeout
        try:
            for connection in list(self._all):
                connection.drain()
            while any(connection.pending for connection in self._all) and machine.monotonic() < deadline:  # noqa: ASYNC110 - once
                await asyncio.sleep(0.01)
        finally:
            for connection in list(self._all):
                connection.close(CloseReason.LOCAL)
        ending: list[asyncio.Future[Any]] = [*tasks, *self._answering, *[connection.closed for connection in self._all]]
        if ending:
            await asyncio.wait(ending)  # unlike gather(), wait() does not cancel the tasks if it is cancelled

    # -- inside

    async def _connect(self, address: str) -> Connection:
        """Make one connection attempt, which all callers share. If it fails, delay the next attempt."""
        try:
            backoff = self._backoffs.get(address)
            if backoff is not None:
                await asyncio.sleep(backoff.remaining(machine.monotonic()))
            return self._adopt(address, await self._open(address))
        except Exception as error:
            self._back_off(address, str(error))
            logger.debug("connect to %s failed: %s", address, error)
            raise

    async def _open(self, address: str) -> Connection:
        """Connect to the first address of the host that accepts the connection, within ``connect_timeout``.

        Raises:
            ConnectError: If the lookup or all attempts fail, or take too long.
        """
        host, port = split_address(address)
        timeout = self._config.connect_timeout
        deadline = machine.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolver.addresses(host, deadline)
                connection = await first_of(
                    addresses,
                    lambda ip: self._open_at(address, ip, host, port),
                    lambda each: self._prove(each, timeout * PROOF_SHARE),
                    _drop,
                    timeout,
                )
                self._resolver.prefer(host, connection.ip)
                return connection
        except TimeoutError as error:
            raise ConnectError(
                f"no connection to {address} within {timeout:.3g} s (connect_timeout)", address=address
            ) from error
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be resolved
            # Keep the text only: a variable with the error would form a cycle through the frame in the error's traceback.
            why = system_text(error) if self._tls is None else handshake_reason(error)
            raise ConnectError(f"cannot connect to {address}: {why}", address=address) from error

    async def _open_at(self, address: str, ip: str, host: str, port: int) -> Connection:
        """Connect to ``ip``, one of the addresses of the host name ``host``.

        The server's certificate must match ``server_hostname``. The default is the host name that was configured or looked up.
        """
        connection = Connection(
            address,
            self._connection_settings,
            on_request=self._on_request,
            on_closed=self._forget,
            on_retired=self._retire,
            hooks=self.hooks,
        )
        connection.ip = ip
        try:
            if self._tls is None:
                await self._loop.create_connection(lambda: connection, ip, port)
            else:
                name = self._config.server_hostname or _host_of(self._siblings.get(address, address))
                await self._loop.create_connection(
                    lambda: connection, ip, port, ssl=self._tls, server_hostname=name, ssl_shutdown_timeout=SHUTDOWN_TIMEOUT
                )
        except BaseException:
            # The loop has closed the socket. uvloop does not call the protocol in this case, so nothing may wait for that call.
            connection.close(CloseReason.RESET)
            raise
        return connection

    async def _prove(self, connection: Connection, timeout: float) -> None:
        """Check that the server responds to a request on the new connection.

        Raises:
            OSError: If no response arrives within ``timeout`` seconds.
        """
        try:
            await connection.request(_question(connection.address in self._name_servers), timeout)
        except RocketMQError as error:
            text = f"{connection.ip} accepted the connection but did not respond"
            raise OSError(text if isinstance(error, RequestTimeoutError) else f"{text}: {error}") from None

    def _check_allowed(self, address: str, host: str) -> None:
        if (
            self._allowed is not None
            and address not in self._name_servers
            and address not in self._siblings
            and host not in self._allowed
        ):
            text = f"allowed_broker_hosts does not allow {host}; add it if {address} (from a route or a message id) is a broker"
            raise ConnectError(text, permanent=True, address=address)

    def _adopt(self, address: str, connection: Connection) -> Connection:
        if not connection.closed.done():
            self._all.add(connection)
            connection.closed.add_done_callback(lambda _: self._all.discard(connection))
        if self._closing or not connection.is_open:
            connection.close(CloseReason.LOCAL)
            text = f"{address}: the new connection was closed immediately: {connection.close_text()}"
            raise ConnectionLostError(text, address=address)
        self.open[address] = connection
        if self._idle_timer is None:
            self._set_idle_timer()
        if self._on_connected is not None:
            self._on_connected(connection)
        return connection

    def _retire(self, connection: Connection) -> None:
        """Retire a connection after GO_AWAY.

        A new connection may reach another server at the same address. After a repeated GO_AWAY, the next connection attempt is
        delayed.
        """
        address = connection.address
        if self.open.get(address) is not connection:
            return
        now = machine.monotonic()
        self._part_with(connection, CloseReason.AWAY)
        again = now - self._sent_away.get(address, -inf) < REPEATED_GO_AWAY
        self._sent_away = {each: at for each, at in self._sent_away.items() if now - at < REPEATED_GO_AWAY}
        self._sent_away[address] = now
        self._note_lost(address, "the server is shutting down (GO_AWAY)")
        if again:
            self._back_off(address, "the server is shutting down (GO_AWAY)")
        else:
            self._backoffs.pop(address, None)
        logger.info("%s is shutting down (GO_AWAY); %d requests still wait for responses", address, connection.pending)
        if self._on_closed is not None:
            self._on_closed(connection)

    def _give_up(self, connection: Connection, why: str) -> None:
        """Retire a connection, because its host name now resolves to other addresses or another address is preferred."""
        text = "giving up the connection of %s to %s; %d requests still wait for responses: %s"
        logger.info(text, connection.address, connection.ip, connection.pending, why)
        connection.drain()
        self._part_with(connection, CloseReason.LOCAL)
        self._backoffs.pop(connection.address, None)
        if self._on_closed is not None:
            self._on_closed(connection)

    def _part_with(self, connection: Connection, reason: CloseReason) -> None:
        """Remove a connection from ``open``. It is closed when its pending requests are answered, or after MAX_RETIRED seconds."""
        del self.open[connection.address]
        self._stored_at = max(self._stored_at, connection.stored_at)
        self._schedule_check(connection, reason, machine.monotonic() + MAX_RETIRED)

    def _schedule_check(self, connection: Connection, reason: CloseReason, until: float) -> None:
        self._retired[connection] = self._loop.call_later(RETIRED_CHECK, self._check_retired, connection, reason, until)

    def _check_retired(self, connection: Connection, reason: CloseReason, until: float) -> None:
        if not connection.pending or machine.monotonic() >= until:
            connection.close(reason)
        else:
            self._schedule_check(connection, reason, until)

    def _forget(self, connection: Connection) -> None:
        for task in connection.answering:
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        if (timer := self._retired.pop(connection, None)) is not None:
            timer.cancel()
        self._stored_at = max(self._stored_at, connection.stored_at)
        if self.open.get(connection.address) is connection:
            del self.open[connection.address]
            if connection.has_received:
                self._backoffs.pop(connection.address, None)
                own = connection.close_reason in (CloseReason.LOCAL, CloseReason.IDLE)
                self._note_lost(connection.address, None if own else connection.close_text())
            elif connection.close_reason not in (CloseReason.LOCAL, CloseReason.IDLE):  # the server sent no byte
                self._back_off(connection.address, f"it accepted a connection but sent nothing: {connection.close_text()}")
            if self._on_closed is not None:
                self._on_closed(connection)

    def _note_lost(self, address: str, why: str | None) -> None:
        self._lost.pop(address, None)
        if why is None:
            return
        if len(self._lost) >= MAX_LOST:
            del self._lost[next(iter(self._lost))]
        self._lost[address] = f"the connection was lost: {why}"

    def _back_off(self, address: str, reason: str) -> None:
        now = machine.monotonic()
        if len(self._backoffs) >= self._max_backoffs:  # each route may contain new addresses
            self._backoffs = {each: backoff for each, backoff in self._backoffs.items() if backoff.remaining(now - MAX_BACKOFF)}
            self._max_backoffs = max(MAX_BACKOFFS, 2 * len(self._backoffs))
        self._backoffs.setdefault(address, Backoff()).failed(now, reason)

    def _close_idle(self) -> None:
        self._idle_timer = None
        before = machine.monotonic() - self._config.idle_timeout
        for connection in list(self.open.values()):
            if connection.requests.last_used < before and not connection.pending:
                connection.close(CloseReason.IDLE)
            else:
                self._look_if_due(connection)
        if self.open:
            self._set_idle_timer()

    def _set_idle_timer(self) -> None:
        self._idle_timer = self._loop.call_later(min(self._config.idle_timeout, LOOK_EVERY) / 4, self._close_idle)

    def _look_if_due(self, connection: Connection) -> None:
        """Start a background lookup of a connection's host name if the last lookup is at least LOOK_EVERY seconds old."""
        host = _host_of(connection.address)
        if inf > self._resolver.age(host) >= LOOK_EVERY:
            self._looking.start(connection.address, lambda: self._look_again(connection, host))


def _host_of(address: str) -> str:
    found = host_and_port(address)
    return found[0] if found is not None else address


def _question(name_server: bool) -> RemotingCommand:
    """Return a request that changes nothing on the server: a route request for a name server, or a heartbeat without groups for a
    broker.
    """
    if name_server:
        return request_of(GetRouteInfoRequestHeader(topic=AUTO_CREATE_TOPIC_KEY, acceptStandardJsonOnly=True))
    return RemotingCommand(code=RequestCode.HEART_BEAT, body=encode_heartbeat(HeartbeatData("rmq_async")))


def _drop(connection: Connection) -> None:
    """Close a connection that is not needed, because a connection to another address of the host is used."""
    connection.close(CloseReason.LOCAL)
