"""One connection per address, made when it is first needed and shared by all.

Deciding is pure (``Backoff``), acting is the pool: any number of callers share one connect, which no caller's cancellation
stops; each waits with its own deadline. After a failed connect the address is left alone for a growing moment, at most one
second, so that a dead broker costs neither a storm of SYNs nor a send its whole budget. Connections without a use for
``idle_timeout`` are closed by one timer for the whole pool.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import ResponseCode

from ..config import ClientConfig, host_and_port, name_servers
from ..errors import ClientStateError, ConnectError, ConnectionLostError, RequestTimeoutError
from .addresses import Resolver, first_of
from .allowed_hosts import AllowedHosts
from .connection import Connection
from .process import check_not_forked, generation
from .request_hooks import RequestHooks
from .serving import RequestHandler
from .single_flight import Flight, SingleFlight, WaitFor
from .states import CloseReason
from .tls import SHUTDOWN_TIMEOUT, handshake_reason

__all__ = ["Backoff", "ConnectionPool", "split_address"]

logger = logging.getLogger("rmq_async.transport")

FIRST_BACKOFF: Final = 0.05
LAST_BACKOFF: Final = 1.0
BACKOFFS_KEPT: Final = 256
"""Addresses that failed are remembered at least up to this number, beyond it only while they are recent."""
LOST_KEPT: Final = 1024
"""Addresses whose connections broke that are remembered."""
MIN_DEAD_AFTER: Final = 10.0
RETIRED_AT_MOST: Final = 30.0
"""Seconds for what is under way on a connection whose server sent us away; most end sooner, by their own deadlines."""
RETIRED_LOOK: Final = 0.1
SENT_AWAY_FOR: Final = 10.0
"""Seconds in which a server that sends us away a second time is one that will go on doing so."""


class Backoff:
    """When an address may be tried again: 50 ms after the first failure, doubling up to one second. ``reason``: the last one."""

    __slots__ = ("_delay", "_until", "reason")

    def __init__(self) -> None:
        self._delay = 0.0
        self._until = 0.0
        self.reason = ""

    def failed(self, now: float, reason: str = "") -> None:
        self.reason = reason
        self._delay = min(LAST_BACKOFF, self._delay * 2 or FIRST_BACKOFF)
        self._until = now + self._delay

    def remaining(self, now: float) -> float:
        """Seconds until the next try is allowed; 0 when it is."""
        return max(0.0, self._until - now)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port". Raises ConnectError for anything else: addresses come from routes."""
    found = host_and_port(address)
    if found is None:
        raise ConnectError(f"{address[:200]!r} is not host:port", permanent=True, address=address[:200])
    return found


class ConnectionPool:
    """Connections of one client instance; belongs to the loop that makes it.

    ``on_connected`` and ``on_closed`` are plain functions called with the connection, the latter once it takes no more requests
    (closed, or ``retired`` and still open for answers); ``on_request`` answers servers' requests.
    ``tls``: what ``client_context`` made of the settings.
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
        self.hooks = RequestHooks(config.credentials, config.namespace_v2)
        """What every request of its connections passes."""
        self._loop = asyncio.get_running_loop()
        self._generation = generation()
        self.open: dict[str, Connection] = {}
        """The open connections by address, to read only; a plain dict because it is asked for every message."""
        self._all: set[Connection] = set()
        self._connecting: SingleFlight[Connection] = SingleFlight("connect")
        self._resolver = Resolver()
        self._backoffs: dict[str, Backoff] = {}
        self._most_backoffs = BACKOFFS_KEPT
        self._lost: dict[str, str] = {}
        """Why connections ended that had been heard of, where this client did not close them; until the next one ends."""
        self._stored_at = -inf
        """The newest ``stored_at`` of connections that are gone."""
        self._retired: dict[Connection, asyncio.TimerHandle] = {}
        """Connections whose servers sent us away, and when to look next whether they have done their work."""
        self._sent_away: dict[str, float] = {}
        """When servers last sent us away."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing = False

    def __repr__(self) -> str:
        return f"<ConnectionPool {len(self.open)} open, {len(self._connecting)} connecting>"

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The open ones, and those that only wait for their last answers."""
        return (*self.open.values(), *self._retired)

    def get(self, address: str) -> Connection | None:
        """The open connection to ``address``, if there is one; does no I/O."""
        return self.open.get(address)

    def connecting(self, address: str) -> bool:
        """Whether a connect is under way."""
        return address in self._connecting

    def backing_off(self, address: str) -> bool:
        """Whether the last connect failed so recently that the next one waits."""
        backoff = self._backoffs.get(address)
        return backoff is not None and backoff.remaining(monotonic()) > 0

    def is_down(self, address: str) -> bool:
        """Whether there is no connection, and the last attempt to make one failed."""
        return address in self._backoffs and address not in self.open

    def refusal(self, address: str) -> ConnectError | None:
        """The error of a caller that does not wait until an address that is backing off is tried again; None where it is not."""
        if not self.backing_off(address):
            return None
        return ConnectError(f"{address} is left alone for a moment: {self._backoffs[address].reason}", address=address)

    def trouble(self, address: str) -> str | None:
        """Why ``address`` cannot be reached, as far as is known without asking; None also where nothing was tried yet.

        This and ``last_stored`` may be called from any thread.
        """
        connection = self.open.get(address)
        if connection is not None and connection.heard:
            return None
        backoff = self._backoffs.get(address)
        return backoff.reason if backoff is not None else self._lost.get(address)

    def last_stored(self) -> float | None:
        """When a server last said of a message that it is stored (monotonic); None if none has."""
        newest = max([self._stored_at, *[connection.stored_at for connection in self.open.copy().values()]])
        return None if newest == -inf else newest

    async def connect(self, address: str, timeout: float, wait: WaitFor[Connection] = Flight.wait) -> Connection:
        """The connection to ``address``, made if need be; several callers share one connect. ``wait``: how the caller waits for it.

        Raises ConnectError when it is refused or cannot be resolved, when TLS fails, and for a host that is not allowed;
        RequestTimeoutError when ``timeout`` seconds have passed. While the address is backing off the call waits inside its
        timeout.
        """
        deadline = monotonic() + timeout
        check_not_forked(self._generation)
        while True:  # each round waits for a connect, and ends with the caller's time at the latest
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
        """The error of a caller whose ``seconds`` were over before there was a connection."""
        backoff = self._backoffs.get(address)
        if backoff is None:
            text = f"no connection to {address} within {seconds:.3g} s"
        else:
            text = f"no connection to {address} for {seconds:.3g} s, the newest attempt to connect: {backoff.reason}"
        return RequestTimeoutError(text, maybe_stored=False, address=address)

    def start_connecting(self, address: str) -> Flight[Connection]:
        """The connect to ``address`` that is under way, or a new one. Raises as ``connect`` does, without waiting."""
        if self._closing:
            raise ClientStateError("the client is stopping", address=address)
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
        calls: set[asyncio.Future[RemotingCommand]] | None = None,
        sent_away: RemotingCommand | None = None,
    ) -> RemotingCommand:
        """One request, connecting and answer within ``timeout`` seconds; the answer may have any code.

        Where the server sends us away (GO_AWAY, so it has not looked at the request) it is asked once more, over a new connection.
        ``sent_away``: such an answer, where this already is the second time of asking.
        Raises as ``connect`` and ``Connection.request`` do.
        """
        deadline = monotonic() + timeout
        response = sent_away
        for _ in range(2 if sent_away is None else 1):
            connection = self.open.get(address)
            if connection is None:
                try:
                    connection = await self.connect(address, max(deadline - monotonic(), 0.0))
                except (ConnectError, RequestTimeoutError):
                    if response is not None:  # it went, as it said
                        return response
                    raise
            response = await connection.request(command, max(deadline - monotonic(), 0.0), long_poll=long_poll, calls=calls)
            if response.code != ResponseCode.GO_AWAY:
                break
        assert response is not None
        return response

    async def aclose(self, timeout: float = 0.0) -> None:
        """Closes every connection, after waiting up to ``timeout`` seconds for requests under way. No socket is left."""
        self._closing = True
        check_not_forked(self._generation)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        tasks = [*self._connecting.close(), *self._resolver.close()]
        deadline = monotonic() + timeout
        try:
            for connection in list(self._all):
                connection.drain()
            while any(connection.pending for connection in self._all) and monotonic() < deadline:  # noqa: ASYNC110 - once
                await asyncio.sleep(0.01)
        finally:
            for connection in list(self._all):
                connection.close(CloseReason.LOCAL)
        ending: list[asyncio.Future[Any]] = [*tasks, *[connection.closed for connection in self._all]]
        if ending:
            await asyncio.wait(ending)  # unlike gather() it cancels nothing that others wait for, when it is cancelled itself

    # -- inside

    async def _connect(self, address: str) -> Connection:
        """One connect for all its callers; a failure makes the address be left alone for a moment."""
        try:
            backoff = self._backoffs.get(address)
            if backoff is not None:
                await asyncio.sleep(backoff.remaining(monotonic()))
            return self._adopt(address, await self._open(address))
        except Exception as error:
            self._back_off(address, str(error))
            logger.debug("connect to %s failed: %s", address, error)
            raise

    async def _open(self, address: str) -> Connection:
        """A connection to the first address of the host that takes one, within ``connect_timeout``. Raises ConnectError."""
        host, port = split_address(address)
        timeout = self._config.connect_timeout
        deadline = monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolver.addresses(host, deadline)
                return await first_of(addresses, lambda ip: self._open_at(address, ip, host, port), _drop, timeout)
        except TimeoutError as error:
            raise ConnectError(f"no connection to {address} within {timeout:.3g} s", address=address) from error
        except (OSError, ValueError) as error:  # ValueError: names that cannot be looked up
            # A text: the error itself, which has this frame in its traceback, would be one of the frame's variables.
            why = str(error) if self._tls is None else handshake_reason(error)
            raise ConnectError(f"cannot connect to {address}: {why}", address=address) from error

    async def _open_at(self, address: str, ip: str, host: str, port: int) -> Connection:
        """A connection to one of the addresses of ``host``, for which the server's certificate is checked."""
        connection = Connection(
            address,
            max_frame_size=self._config.max_frame_size,
            serialize_type=self._config.header_type,
            dead_after=max(MIN_DEAD_AFTER, 2 * self._config.request_timeout),
            on_request=self._on_request,
            on_closed=self._forget,
            on_retired=self._retire,
            hooks=self.hooks,
        )
        try:
            if self._tls is None:
                await self._loop.create_connection(lambda: connection, ip, port)
            else:
                name = self._config.server_hostname or host
                await self._loop.create_connection(
                    lambda: connection, ip, port, ssl=self._tls, server_hostname=name, ssl_shutdown_timeout=SHUTDOWN_TIMEOUT
                )
        except BaseException:
            # The loop has closed the socket; uvloop does so without a word to the protocol, so nothing may wait for one.
            connection.close(CloseReason.RESET)
            raise
        return connection

    def _check_allowed(self, address: str, host: str) -> None:
        if self._allowed is not None and address not in self._name_servers and host not in self._allowed:
            text = f"allowed_broker_hosts does not allow {host}, which the route or message id names ({address})"
            raise ConnectError(text, permanent=True, address=address)

    def _adopt(self, address: str, connection: Connection) -> Connection:
        if not connection.closed.done():
            self._all.add(connection)
            connection.closed.add_done_callback(lambda _: self._all.discard(connection))
        if self._closing or not connection.is_open:
            connection.close(CloseReason.LOCAL)
            raise ConnectionLostError(f"{address}: connection lost at once", address=address)
        self.open[address] = connection
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._config.idle_timeout / 4, self._close_idle)
        if self._on_connected is not None:
            self._on_connected(connection)
        return connection

    def _retire(self, connection: Connection) -> None:
        """The server sent us away. The first time in a while a new connection may find another server at the address."""
        address = connection.address
        if self.open.get(address) is not connection:
            return
        del self.open[address]
        self._stored_at = max(self._stored_at, connection.stored_at)
        now = monotonic()
        self._look_again(connection, now + RETIRED_AT_MOST)
        again = now - self._sent_away.get(address, -inf) < SENT_AWAY_FOR
        self._sent_away = {each: at for each, at in self._sent_away.items() if now - at < SENT_AWAY_FOR}
        self._sent_away[address] = now
        self._note_lost(address, "it sends its clients away")
        if again:
            self._back_off(address, "it sends its clients away")
        else:
            self._backoffs.pop(address, None)
        logger.info("%s sends its clients away, %d requests still wait for their answers", address, connection.pending)
        if self._on_closed is not None:
            self._on_closed(connection)

    def _look_again(self, connection: Connection, until: float) -> None:
        self._retired[connection] = self._loop.call_later(RETIRED_LOOK, self._look_whether_done, connection, until)

    def _look_whether_done(self, connection: Connection, until: float) -> None:
        if not connection.pending or monotonic() >= until:
            connection.close(CloseReason.AWAY)
        else:
            self._look_again(connection, until)

    def _forget(self, connection: Connection) -> None:
        if (look := self._retired.pop(connection, None)) is not None:
            look.cancel()
        self._stored_at = max(self._stored_at, connection.stored_at)
        if self.open.get(connection.address) is connection:
            del self.open[connection.address]
            if connection.heard:
                self._backoffs.pop(connection.address, None)
                own = connection.close_reason in (CloseReason.LOCAL, CloseReason.IDLE)
                self._note_lost(connection.address, None if own else connection.ending())
            elif connection.close_reason not in (CloseReason.LOCAL, CloseReason.IDLE):  # accepted, and that was all
                self._back_off(connection.address, f"it accepted a connection and said nothing: {connection.ending()}")
            if self._on_closed is not None:
                self._on_closed(connection)

    def _note_lost(self, address: str, why: str | None) -> None:
        self._lost.pop(address, None)
        if why is None:
            return
        if len(self._lost) >= LOST_KEPT:
            del self._lost[next(iter(self._lost))]
        self._lost[address] = f"the connection was lost: {why}"

    def _back_off(self, address: str, reason: str) -> None:
        now = monotonic()
        if len(self._backoffs) >= self._most_backoffs:  # routes name addresses, and may name others every time
            self._backoffs = {
                each: backoff for each, backoff in self._backoffs.items() if backoff.remaining(now - LAST_BACKOFF)
            }
            self._most_backoffs = max(BACKOFFS_KEPT, 2 * len(self._backoffs))
        self._backoffs.setdefault(address, Backoff()).failed(now, reason)

    def _close_idle(self) -> None:
        self._idle_timer = None
        before = monotonic() - self._config.idle_timeout
        for connection in list(self.open.values()):
            if connection.last_used < before and not connection.pending:
                connection.close(CloseReason.IDLE)
        if self.open:
            self._idle_timer = self._loop.call_later(self._config.idle_timeout / 4, self._close_idle)


def _drop(connection: Connection) -> None:
    """Another address of the same host was quicker."""
    connection.close(CloseReason.LOCAL)
