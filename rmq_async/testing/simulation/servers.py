"""Brokers and name servers as machines: what they keep on disk, and how brokers register."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from rmq_protocol.command import RemotingCommand, encode_command, make_response
from rmq_protocol.constants import ResponseCode
from rmq_protocol.stored import decode_messages

from ...embedded import Broker, BrokerDisk, Connection, DiskLog, NameServer, Registration, Registrations
from .checkers import Stored
from .history import digest
from .machines import Host, Machine, World

__all__ = ["BROKER_PORT", "NAME_SERVER_PORT", "BrokerMachine", "NameServerMachine", "ServerMachine"]

BROKER_PORT: Final = 10911
NAME_SERVER_PORT: Final = 9876
REGISTER_BROKER: Final = 103
REGISTER_EVERY: Final = 30.0
"""Seconds between two registrations of a broker (``registerNameServerPeriod``)."""
REGISTER_TIMEOUT: Final = 3.0
"""Seconds to connect to a name server, and to answer (a stock broker's ``registerBrokerTimeoutMills`` is 24 s)."""
REGISTER_AGAIN: Final = 1.0
"""Seconds after which a broker tries again to reach a name server."""
SAVE_EVERY: Final = 5.0
"""Seconds between two snapshots of the committed offsets (``flushConsumerOffsetInterval``)."""
MAX_MEMORY: Final = 1 << 30
"""Bytes of messages of one broker."""


class ServerMachine(Machine):
    """A machine with a server of the cluster."""

    @property
    def traffic(self) -> int:
        """Number of open connections."""
        raise NotImplementedError


class _RegisteringNameServer(NameServer):
    """A name server with which brokers register over the network, and which forgets those whose connection has ended."""

    def __init__(self, name: str) -> None:
        self._registrations = Registrations()
        super().__init__(self._registrations, name=name)
        self._brokers: dict[Connection, str] = {}
        self.handlers[REGISTER_BROKER] = self._register

    def _register(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        registration = msgspec.json.decode(command.body or b"", type=Registration)
        self._brokers[connection] = registration.broker_name
        self._registrations.register(registration)
        return make_response(command, ResponseCode.SUCCESS)

    def disconnected(self, connection: Connection) -> None:
        super().disconnected(connection)
        name = self._brokers.pop(connection, None)
        if name is not None and name not in self._brokers.values():
            self._registrations.unregister(name)


class NameServerMachine(ServerMachine):
    """A name server; a new process knows no broker."""

    def __init__(self, name: str, world: World, host: Host) -> None:
        self.server = _RegisteringNameServer(name)
        super().__init__(name, world, host)
        self.serve(self._serve)

    @property
    def traffic(self) -> int:
        return len(self.server.listener.connections)

    def process_ended(self) -> None:
        self.server.crash()

    async def _serve(self) -> None:
        self.server = _RegisteringNameServer(self.name)
        await self.server.listener.start(self.address, NAME_SERVER_PORT)
        await asyncio.get_running_loop().create_future()


class BrokerMachine(ServerMachine):
    """A broker and its disk.

    ``name_servers``: their names. ``lost``: unique ids of messages that power losses took. ``registered``: names of the name
    servers that have answered a registration of the present process.
    """

    broker: Broker

    def __init__(self, name: str, world: World, host: Host, name_servers: Sequence[str]) -> None:
        super().__init__(name, world, host)
        self.log = DiskLog(MAX_MEMORY, lambda: int(self.time() * 1000))
        self.disk = BrokerDisk(name, self.log)
        self.lost: list[str] = []
        self.registered: dict[str, None] = {}
        self._name_servers = name_servers
        self.serve(self._serve)

    @property
    def traffic(self) -> int:
        return len(self.broker.listener.connections)

    @property
    def requests(self) -> int:
        """Number of requests to this process."""
        return sum(self.broker.requests.values())

    def stored(self, position: int = 0) -> list[Stored]:
        """Returns the messages on disk from a physical offset on, in the order in which they were stored."""
        return [
            Stored(self.name, queue.topic, queue.queue_id, message.queue_offset, message.msg_id, digest(message.body))
            for record, queue in self.log.records(position)
            for message in decode_messages(record, topic_queue_broker=queue.broker_name).messages
        ]

    def process_ended(self) -> None:
        if hasattr(self, "broker"):  # the first process may end before it has begun to serve
            self.broker.crash()
        self.registered.clear()

    def power_lost(self) -> None:
        self.lost += [message.unique_id for message in self.stored(self.log.flushed)]
        self.disk.power_loss()

    async def _serve(self) -> None:
        self.broker = broker = Broker(self.disk)
        await broker.start(self.address, BROKER_PORT)
        changes = {name: asyncio.Event() for name in self._name_servers}

        def changed() -> None:
            for event in changes.values():
                event.set()

        broker.topics_changed = changed
        async with asyncio.TaskGroup() as tasks:
            for name, event in changes.items():
                tasks.create_task(self._register(name, event), name=f"{self.name} registers with {name}")

    async def _register(self, name_server: str, changed: asyncio.Event) -> None:
        """Registers with one name server: at once, after each change of a topic, and every ``REGISTER_EVERY`` seconds."""
        while True:
            with suppress(OSError, TimeoutError, EOFError):
                async with asyncio.timeout(REGISTER_TIMEOUT):
                    reader, writer = await asyncio.open_connection(name_server, NAME_SERVER_PORT)
                try:
                    while True:
                        changed.clear()
                        body = msgspec.json.encode(self.broker.registration())
                        writer.writelines(encode_command(RemotingCommand(code=REGISTER_BROKER, body=body)))
                        async with asyncio.timeout(REGISTER_TIMEOUT):
                            size = int.from_bytes(await reader.readexactly(4), "big")
                            await reader.readexactly(size)
                        self.registered[name_server] = None
                        with suppress(TimeoutError):
                            async with asyncio.timeout(REGISTER_EVERY):
                                await changed.wait()
                finally:
                    writer.close()
            await asyncio.sleep(REGISTER_AGAIN)
