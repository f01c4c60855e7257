"""The client instance: connections, routes, heartbeats and ids that producers, consumers and admins of one process share.

There is one instance for each running loop and config, and it counts its users. The first user starts the instance and the others
wait for that start; the last user that leaves closes it. The start runs in a task of its own, so that a cancelled user neither
stops the start for the others nor leaves anything behind. Closing awaits nothing until only cancelled tasks and closing sockets are
left. These are awaited in a task of its own, so that a second cancellation cannot leave the instance half closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextvars import Context
from enum import Enum
from typing import Final, Unpack

from rmq_protocol import compression
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import LOGICAL_QUEUE_MOCK_BROKER_PREFIX, RequestCode
from rmq_protocol.heartbeat import ConsumerData
from rmq_protocol.message import MessageQueue

from .. import _lookups, errors, machine
from .._text import printable
from ..config import ClientConfig
from ..tracebacks import own_copy
from ..transport import (
    CloseReason,
    Connection,
    ConnectionPool,
    RequestHandler,
    RequestOptions,
    Threads,
    check_not_forked,
    client_context,
    generation,
    not_supported,
)
from . import client_ids
from .broker_clock import BrokerClocks
from .cluster_probe import ClusterProbe, local_address
from .first_commits import FirstCommits
from .gaps import GapTable
from .group_requests import GroupRequests
from .heartbeat import Heartbeats
from .lite_support import LiteSupport
from .loop_monitor import LoopMonitor
from .name_servers import NameServers, NameServerWatch
from .names import Names
from .pull_sizes import PullSizes
from .replication import Replication
from .reply_table import ReplyTable
from .route_table import RouteTable
from .topic_route import TopicRoute, first_port
from .unique_ids import UniqueIds, packed_ip

logger = logging.getLogger(__name__)

_LOOPBACK: Final = b"\x7f\x00\x00\x01"
_UNEXPECTED: Final = frozenset(
    {CloseReason.PEER, CloseReason.RESET, CloseReason.DEAD, CloseReason.PROTOCOL, CloseReason.NOT_READING}
)


class _State(Enum):
    STARTING = "starting"
    RUNNING = "running"
    CLOSED = "closed"


class ClientInstance:
    """The connections, routes and heartbeats of one client, shared by all users with an equal config.

    ``acquire`` returns an instance and ``release`` gives it back. Use the other methods only in between.

    Attributes:
        handlers: For each request code of a server, a plain function that returns the response, an awaitable of the response, or
            None to send no response.
        group_requests: The requests of brokers for consumer groups.
    """

    pool: ConnectionPool
    threads: Threads
    name_servers: NameServers
    cluster_probe: ClusterProbe
    routes: RouteTable
    heartbeats: Heartbeats
    loop_monitor: LoopMonitor
    unique_ids: UniqueIds
    client_ip: str
    client_id: str

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.names = Names(config.namespace)
        self.gaps = GapTable()
        self.clocks = BrokerClocks()
        self.pull_sizes = PullSizes(config.max_frame_size)
        self.first_commits = FirstCommits()
        self.replication = Replication(config.request_timeout)
        self.lite_support = LiteSupport(config.request_timeout, self.names.display_name)
        self.replies = ReplyTable()
        self.group_requests = GroupRequests()
        self.handlers: dict[int, RequestHandler] = {
            **self.group_requests.handlers(),
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.replies.serve,
        }
        self._loop = asyncio.get_running_loop()
        self._generation = generation()
        self._key = (self._generation, self._loop, config)
        self._state = _State.STARTING
        self._users = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ClientInstance {getattr(self, 'client_id', '?')} {self._state.value}, {self._users} users>"

    # -- sharing

    @classmethod
    async def acquire(cls, config: ClientConfig) -> ClientInstance:
        """Return the running instance for ``config`` on this loop. The first user starts it.

        After an error, or the cancellation of the only user, no connection or task remains.

        Raises:
            ConfigError: If ``NAMESRV_ADDR`` contains an invalid address.
            NameServerError: If no name server is configured, or if none responds within ``request_timeout`` and the client may
                not start without a cluster.
            RequestTimeoutError: If the system's certificate authorities are not read within ``request_timeout``.
            ClientStateError: If the start was cancelled.
        """
        resolved = config.resolved()
        key = (generation(), asyncio.get_running_loop(), resolved)
        instance = _instances.get(key)
        if instance is None:
            _forget_closed_loops()
            instance = cls(resolved)
            # An empty context, as for all tasks of the instance: they also serve later users and outlive the first one.
            instance._starting = instance._loop.create_task(instance._start(), name="rmq_async start", context=Context())
            instance._starting.add_done_callback(instance._start_over)
            _instances[key] = instance
        instance._users += 1
        starting = instance._starting
        try:
            if starting is not None:
                await asyncio.wait([starting])
                if starting.cancelled():
                    raise errors.ClientStateError("the client was stopped while it started; start it again")
                error = starting.exception()
                if error is not None:
                    raise own_copy(error)
        except BaseException:
            await instance._leave()
            raise
        return instance

    async def release(self, timeout: float = 0.0) -> None:
        """Give the instance back. The last user closes it and waits at most ``timeout`` seconds for pending requests.

        Raises:
            RocketMQError: The errors of ``check_usable``.
        """
        self.check_usable()
        await self._leave(timeout)

    @property
    def users(self) -> int:
        return self._users

    def check_usable(self) -> None:
        """Check that the instance may be used here.

        Raises:
            ForkedError: If the process is a fork of the process that started the instance.
            WrongLoopError: If another event loop is running.
            ClientStateError: If the instance is closed.
        """
        if self._generation != generation():
            check_not_forked(self._generation)
        if asyncio.get_running_loop() is not self._loop:
            raise errors.WrongLoopError(
                "this client was started on another event loop; make and start one for each loop that uses it"
            )
        if self._state is _State.CLOSED:
            raise errors.ClientStateError("the client is stopped; start it again")

    def is_here(self) -> bool:
        """Return whether the caller runs in the process and on the event loop in which the instance was started."""
        return self._generation == generation() and asyncio.get_running_loop() is self._loop

    # -- groups

    def register_producer(self, group: str) -> None:
        """Add the group to the heartbeats.

        Raises:
            ConfigError: If the group is already registered.
        """
        self.heartbeats.add_producer(group)

    async def unregister_producer(self, group: str, timeout: float) -> None:
        """Unregister the group at connected brokers, as ``Heartbeats.remove_producer`` does."""
        await self.heartbeats.remove_producer(group, timeout)

    def register_consumer(self, data: ConsumerData) -> None:
        """Add the group to the heartbeats.

        Raises:
            ConfigError: If the group is already registered.
        """
        self.heartbeats.add_consumer(data)

    async def unregister_consumer(self, group: str, timeout: float) -> None:
        """Unregister the group as ``unregister_producer`` does."""
        await self.heartbeats.remove_consumer(group, timeout)

    # -- requests to brokers

    async def broker_address(self, broker_name: str, topic: str, timeout: float, *, any_replica: bool = False) -> str:
        """Return the address of a broker's master, from known routes or else from a new lookup of the route of ``topic``.

        Args:
            any_replica: Whether to return the address of the replica with the lowest id if no master is known.

        Raises:
            BrokerNotFoundError: If no route contains such an address.
            RocketMQError: Other errors of ``RouteTable.get``.
        """
        address = self._known_address(broker_name, any_replica)
        if address is None:
            deadline = machine.monotonic() + timeout
            await self.routes.get(topic, timeout)
            address = self._known_address(broker_name, any_replica)
            if address is None:
                await self.routes.refresh(topic, max(deadline - machine.monotonic(), 0.0))
                address = self._known_address(broker_name, any_replica)
        if address is None:
            topic = self.names.display_name(topic)
            wanted = "an address" if any_replica else "a master"
            broker = printable(broker_name)
            text = f"neither the route of topic {topic} nor any other route names {wanted} of broker {broker}"
            if replicas := len(self.routes.addresses_of(broker_name)):
                raise errors.BrokerNotFoundError(
                    f"{text}; they name only {replicas} of its replicas, from which messages can be read; without a master the "
                    "broker stores, commits and locks nothing, and no group starts: wait until a master is elected, or start one",
                    broker=broker_name,
                )
            raise errors.BrokerNotFoundError(f"{text}; start the broker, or check its name", broker=broker_name)
        return address

    async def holder_of(self, queue: MessageQueue, timeout: float) -> str:
        """Return the name of the broker that holds a queue. If the queue belongs to a static topic whose route is unknown, look it
        up.

        Raises:
            RocketMQError: The errors of ``RouteTable.get``.
        """
        if queue.broker_name.startswith(LOGICAL_QUEUE_MOCK_BROKER_PREFIX) and self.routes.cached(queue.topic) is None:
            await self.routes.get(queue.topic, timeout)
        return self.routes.broker_of(queue)

    async def ask_broker(
        self,
        broker_name: str,
        topic: str,
        command: RemotingCommand,
        timeout: float,
        *,
        any_replica: bool = False,
        **options: Unpack[RequestOptions],
    ) -> tuple[RemotingCommand, str]:
        """Send one request to a broker and return the response and the broker's address.

        Look up the route and connect if necessary. All steps together take at most ``timeout`` seconds.

        Args:
            **options: The options of ``ConnectionPool.request``.

        Raises:
            RocketMQError: The errors of ``broker_address`` and ``ConnectionPool.request``. Each error names the broker.
        """
        deadline = machine.monotonic() + timeout
        try:
            address = await self.broker_address(broker_name, topic, timeout, any_replica=any_replica)
            left = max(deadline - machine.monotonic(), 0.0)
            response = await self.pool.request(address, command, left, **options)
        except errors.RocketMQError as error:
            self.explain(error, broker_name, topic)
            raise
        return response, address

    def plain_connection(self, broker_name: str) -> Connection | None:
        """Return the connection of ``open_connection`` if requests on it may be sent as frames from pre-encoded templates.

        Return None if there is no connection, or if hooks, credentials, ``namespace_v2`` or binary headers need a RemotingCommand.
        """
        address = self._known_address(broker_name, True)
        connection = self.pool.open.get(address) if address is not None else None
        if connection is None or connection.hooks.active or connection.serialize_type:
            return None
        return connection

    def open_connection(self, broker_name: str, *, any_replica: bool = True) -> Connection | None:
        """Return the open connection to a broker's master. Return None if there is none.

        Args:
            any_replica: Whether to return the connection to the replica with the lowest id if no master is known.
        """
        address = self._known_address(broker_name, any_replica)
        return None if address is None else self.pool.open.get(address)

    def is_replaced(self, broker_name: str, known: Connection | None) -> bool:
        """Return whether a broker's master may now be a different process from the one at the other end of the connection
        ``known``.

        Return True if the master has another address, or if there is another connection to it. Return False while no route names a
        master, or while there is no connection to an unchanged address.
        """
        address = self.routes.address_of(broker_name)
        if address is None:
            return False
        connection = self.pool.open.get(address)
        if connection is None:
            return known is not None and known.address != address
        return connection is not known

    def explain(self, error: errors.RocketMQError, broker_name: str, topic: str) -> None:
        """Set the broker's name in the error of a request, and refresh the topic's route if the broker may have moved."""
        if error.broker is None:
            error.broker = broker_name
        if isinstance(error, errors.ConnectError | errors.ConnectionLostError | errors.RequestTimeoutError):
            self.routes.refresh_soon(topic)

    # -- inside

    def _known_address(self, broker_name: str, any_replica: bool) -> str | None:
        address = self.routes.address_of(broker_name)
        if address is None and any_replica:
            replicas = self.routes.addresses_of(broker_name)
            address = replicas[min(replicas)] if replicas else None
        return address

    async def _start(self) -> None:
        config = self.config
        compression.load()
        _lookups.load()
        self.threads = Threads()
        tls = await client_context(config, self.threads)
        self.pool = pool = ConnectionPool(
            config, on_request=self._serve, on_connected=self._connected, on_closed=self._disconnected, tls=tls
        )
        self.name_servers = NameServers(pool, tuple(config.namesrv or ()))
        self.cluster_probe = ClusterProbe(self.name_servers, config.request_timeout)
        self.name_server_watch = NameServerWatch(self.name_servers, self.cluster_probe.run_once)
        local_ip = await self._local_ip()
        self.client_ip = config.client_ip or local_ip or "127.0.0.1"
        self.client_id = self.replies.client_id = client_ids.take(self.client_ip, config.instance_name, config.unit_name)
        self.unique_ids = UniqueIds(packed_ip(self.client_ip) or packed_ip(local_ip) or _LOOPBACK)
        self.routes = RouteTable(
            self.name_servers,
            request_timeout=config.request_timeout,
            poll_interval=config.route_poll_interval,
            display_name=self.names.display_name,
            cluster_found=self.cluster_probe.cluster_found if config.start_without_cluster else None,
        )
        self.heartbeats = Heartbeats(
            pool,
            self.routes.master_addresses,
            client_id=self.client_id,
            interval=config.heartbeat_interval,
            timeout=config.request_timeout,
            display_name=self.names.display_name,
        )
        self.routes.on_change.append(self._route_changed)
        self.loop_monitor = LoopMonitor(self._loop)
        self._tasks = [
            self._loop.create_task(self.routes.poll(), name="rmq_async route poll", context=Context()),
            self._loop.create_task(self.heartbeats.run(), name="rmq_async heartbeats", context=Context()),
        ]
        if config.start_without_cluster and not self.cluster_probe.cluster_found.is_set():
            trying = self.cluster_probe.run_until_found()
            self._tasks.append(self._loop.create_task(trying, name="rmq_async cluster probe", context=Context()))
        self._state = _State.RUNNING
        self._starting = None
        logger.debug("client %s started, name servers %s", self.client_id, ", ".join(self.name_servers.addresses))

    async def _local_ip(self) -> str:
        """Return the address with which this machine reaches a name server, or "" if it is unknown.

        Use the name server that responds, or else the first name server that is reachable.

        Raises:
            NameServerError: If no name server responds, unless the client may start without a cluster and the error is not
                permanent.
        """
        try:
            address = await self.cluster_probe.run_once()
        except errors.NameServerError as error:
            if error.permanent or not self.config.start_without_cluster:
                raise
            self.name_servers.patient = True
            logger.warning("started without a cluster; calls wait for it within their timeouts: %s", printable(error, 1000))
            return await local_address(self.name_servers.addresses)
        connection = self.pool.get(address)
        return connection.local_ip if connection is not None else ""

    def _start_over(self, starting: asyncio.Task[None]) -> None:
        """Remove the instance after a failed start, so that the next caller starts a new one."""
        if starting.cancelled() or starting.exception() is not None:
            self._unlist()

    async def _leave(self, timeout: float = 0.0) -> None:
        self._users -= 1
        if self._users > 0:
            return
        if self._closing is None:
            tasks = self._take_down()
            self._closing = self._loop.create_task(self._finish(tasks, timeout), name="rmq_async close", context=Context())
        closing = self._closing
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            if hasattr(self, "pool"):
                for connection in self.pool.connections:
                    connection.close(CloseReason.LOCAL)  # without waiting for pending requests
            if not closing.done():
                await asyncio.wait([closing])
            raise

    def _take_down(self) -> list[asyncio.Task[object]]:
        """End the work of the instance without awaiting, and return the cancelled tasks. The connections stay open."""
        self._state = _State.CLOSED
        self._unlist()
        tasks: list[asyncio.Task[object]] = [*self._tasks]
        if self._starting is not None:
            tasks.append(self._starting)
        for task in tasks:
            task.cancel()
        if hasattr(self, "loop_monitor"):
            self.loop_monitor.stop()
        if hasattr(self, "name_server_watch"):  # a peer that is no name server may have started the watch
            tasks += self.name_server_watch.close()
        if hasattr(self, "heartbeats"):
            tasks += self.heartbeats.close()
            tasks += self.routes.close()
        tasks += self.replication.close()
        tasks += self.lite_support.close()
        return tasks

    def _unlist(self) -> None:
        if _instances.get(self._key) is self:
            del _instances[self._key]

    async def _finish(self, tasks: list[asyncio.Task[object]], timeout: float) -> None:
        try:
            if left := [task for task in tasks if not task.done()]:  # gather() would wait for tasks that are done
                await asyncio.wait(left)
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # mark it as retrieved: it was reported where it was raised
            self._tasks = []  # since Python 3.12 a cancelled task keeps its frames, which refer to this client
            if hasattr(self, "pool"):
                await self.pool.aclose(timeout)
        finally:
            if hasattr(self, "client_id"):
                client_ids.give_back(self.client_id)
            if hasattr(self, "threads"):
                self.threads.close()

    def _serve(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        handler = self.handlers.get(command.code)
        if handler is None:
            logger.debug("%s sent request %d, which this client does not handle", connection.address, command.code)
            return not_supported(command)
        return handler(connection, command)

    def _connected(self, connection: Connection) -> None:
        if self._state is _State.RUNNING:
            self.heartbeats.on_connected(connection)

    def _disconnected(self, connection: Connection) -> None:
        if self._state is not _State.RUNNING:
            return
        self.heartbeats.on_closed(connection)
        if connection.close_reason is None or connection.close_reason in _UNEXPECTED:  # None: it still waits for responses
            self.routes.broker_lost(connection.address)
            self.name_server_watch.lost(connection.address)
            if self.config.vip_channel:
                self.routes.broker_lost(first_port(connection.address))

    def _route_changed(self, route: TopicRoute) -> None:
        self.heartbeats.send_missing()


_Key = tuple[int, asyncio.AbstractEventLoop, ClientConfig]
_instances: dict[_Key, ClientInstance] = {}


def _forget_closed_loops() -> None:
    """Remove the instances of this process that were not released before their event loops were closed."""
    for key, instance in list(_instances.items()):
        if key[0] == generation() and instance._loop.is_closed():  # noqa: SLF001 - this module's class
            _instances.pop(key, None)
            if hasattr(instance, "threads"):
                instance.threads.close()
