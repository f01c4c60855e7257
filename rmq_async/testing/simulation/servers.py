"""The machines of brokers and name servers, with the disks and the registrations of brokers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from rmq_protocol.command import RemotingCommand, decode_command, encode_command, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.frame import FrameDecoder
from rmq_protocol.headers import GetRouteInfoRequestHeader, request_of
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import TopicRouteData, decode_route
from rmq_protocol.stored import decode_messages
from rmq_protocol.topics import TopicConfig

from ...embedded import Broker, BrokerDisk, BrokerSettings, Connection, DiskLog, Holder, NameServer, Registration, Registrations
from .checkers import Stored
from .history import digest
from .machines import Machine, World
from .network import Host


class DoubtfulRegistrations(Registrations):
    """Registrations of a name server that may forget brokers or disagree with brokers about the number of queues.

    Attributes:
        forgotten: Names of brokers that the name server does not know and whose registrations it drops.
        more: Number of queues that the name server reports for a topic in addition to the registered queues. A negative number
            removes queues, but at least one queue is left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: dict[str, None] = {}
        self.more = 0
        self.differences = 0
        """Number of responses about topics and brokers that differed from the registrations of brokers."""

    def register(self, registration: Registration) -> None:
        if registration.broker_name not in self.forgotten:
            super().register(registration)

    def holders(self, topic: str, connection: Connection) -> list[Holder]:
        known = super().holders(topic, connection)
        shown = [self._shown(holder) for holder in known if holder.broker_name not in self.forgotten]
        self.differences += shown != known
        return shown

    def brokers(self, connection: Connection) -> dict[str, dict[int, str]]:
        known = super().brokers(connection)
        shown = {name: addresses for name, addresses in known.items() if name not in self.forgotten}
        self.differences += shown != known
        return shown

    def _shown(self, holder: Holder) -> Holder:
        if not self.more:
            return holder
        config = holder.config
        read, write = (max(1, number + self.more) for number in (config.read_queue_nums, config.write_queue_nums))
        return holder._replace(config=replace(config, read_queue_nums=read, write_queue_nums=write))


BROKER_PORT: Final = 10911
NAME_SERVER_PORT: Final = 9876
REGISTER_EVERY: Final = 30.0
"""Seconds between two registrations of a broker (``registerNameServerPeriod``)."""
REGISTER_TIMEOUT: Final = 3.0
"""Seconds for the connection to a name server, and for its response (a stock broker's ``registerBrokerTimeoutMills`` is 24 s)."""
REGISTER_AGAIN: Final = 1.0
"""Seconds after which a broker tries again to register with a name server."""
READ_SIZE: Final = 1 << 16
FLUSH_INTERVAL: Final = 0.5
"""Maximum number of seconds from the arrival of a message to its flush (``flushIntervalCommitLog``)."""
MAX_MEMORY: Final = 1 << 30
"""Maximum number of bytes of messages of one broker."""


class ServerMachine(Machine, ABC):
    """A machine that runs a server of the cluster."""

    @property
    @abstractmethod
    def traffic(self) -> int:
        """Number of open connections."""


class _RegisteringNameServer(NameServer):
    """A name server with which brokers register over the network. It removes a broker when the last connection that registered
    the broker's name has ended.
    """

    def __init__(self, name: str, forgotten: Callable[[str], object], settings: dict[str, dict[str, str]]) -> None:
        self._forgotten = forgotten
        self.registrations = DoubtfulRegistrations()
        super().__init__(self.registrations, name=name, order_conf=True, settings=settings)
        self._brokers: dict[Connection, str] = {}
        self.handlers[RequestCode.REGISTER_BROKER] = self._register

    def _register(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        registration = msgspec.json.decode(command.body or b"", type=Registration)
        self._brokers[connection] = registration.broker_name
        self.registrations.register(registration)
        return make_response(command, ResponseCode.SUCCESS)

    def disconnected(self, connection: Connection) -> None:
        super().disconnected(connection)
        name = self._brokers.pop(connection, None)
        if name is not None and name not in self._brokers.values():
            self.registrations.unregister(name)
            self._forgotten(name)


class NameServerMachine(ServerMachine):
    """The machine of a name server. A new process on it knows no brokers but has the key-value settings of the former process."""

    def __init__(self, name: str, world: World, host: Host) -> None:
        super().__init__(name, world, host)
        self._settings: dict[str, dict[str, str]] = {}
        self.server = self._new()
        self.serve(self._serve)

    @property
    def traffic(self) -> int:
        return len(self.server.listener.connections)

    @property
    def registrations(self) -> DoubtfulRegistrations:
        """The registrations of the newest process."""
        return self.server.registrations

    def process_ended(self) -> None:
        self.server.crash()

    def _new(self) -> _RegisteringNameServer:
        def forgotten(broker: str) -> None:
            self._world.record(self.name, "forget", broker=broker)

        return _RegisteringNameServer(self.name, forgotten, self._settings)

    async def _serve(self) -> None:
        self.server = self._new()
        await self.server.listener.start(self.address, NAME_SERVER_PORT)
        await asyncio.get_running_loop().create_future()


class BrokerMachine(ServerMachine):
    """The machine of a broker, including the disk.

    Args:
        name_servers: Names of the name servers.

    Attributes:
        lost: Unique ids of messages that power losses and new masters removed.
        deleted: Unique ids of messages that were deleted because of their age.
        settings: The settings of each process that starts.
        registered: Names of the name servers that have accepted a registration of the current process.
    """

    broker: Broker

    def __init__(self, name: str, world: World, host: Host, name_servers: Sequence[str]) -> None:
        super().__init__(name, world, host)
        self.log = DiskLog(MAX_MEMORY, lambda: int(self.time() * 1000), flush_interval=FLUSH_INTERVAL)
        self.disk = BrokerDisk(name, self.log)
        self.lost: list[str] = []
        self.deleted: list[str] = []
        self.settings = BrokerSettings()
        self.registered: dict[str, None] = {}
        self._holders: dict[str, list[Holder]] = {}
        """The brokers that have a topic of the type LITE, as a name server listed them when this broker registered."""
        self._name_servers = name_servers
        self.serve(self._serve)

    @property
    def traffic(self) -> int:
        return len(self.broker.listener.connections)

    @property
    def requests(self) -> int:
        """Number of requests to the current process."""
        return sum(self.broker.requests.values())

    def stored(self, position: int = 0) -> list[Stored]:
        """Return the messages on the disk from a physical offset on, in store order."""
        return [
            Stored(self.name, queue.topic, queue.queue_id, message.queue_offset, message.msg_id, digest(message.body))
            for record, queue in self.log.records(position)
            for message in decode_messages(record, topic_queue_broker=queue.broker_name).messages
        ]

    def truncate(self, count: int) -> int:
        """Remove the last ``count`` messages, as happens when a replica that lags behind becomes the master.

        Return the number of removed messages.
        """
        self.lose(self.log.place_of_last(count, self.name))
        return self.broker.truncate(count)

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the offset of the oldest message of a queue, and the offset after its newest message. Return 0 and 0 for an
        unknown queue.
        """
        found = self.disk.topics.find_queue(queue.topic, queue.queue_id)
        return (0, 0) if found is None else (found.oldest, found.max_offset)

    def expire(self, queue: MessageQueue, before: int, *, corrected: bool = False) -> int:
        """Delete the messages of a queue below an offset. Return their number. See ``EmbeddedRocketMQ.expire``."""
        found = self.disk.topics.find_queue(queue.topic, queue.queue_id)
        records = [] if found is None else [found.record(offset) for offset in range(found.oldest, before)]
        gone = [each for record in records if record for each in decode_messages(record).messages]
        self.deleted += [message.msg_id for message in gone]
        self.broker.expire(queue, before, corrected=corrected)
        return len(gone)

    def resize(self, topic: str, queues: int) -> tuple[int, int]:
        """Change the number of queues of a topic. Return the old number and the new number. Ignore an unknown topic."""
        found = self.disk.topics.get(topic)
        if found is None:
            return queues, queues
        before = found.config.write_queue_nums
        self.broker.resize(topic, queues)
        return before, queues

    def lose_master(self) -> None:
        """Make the broker a replica without a master until ``elect_master`` is called. Do nothing unless the broker serves
        requests.
        """
        if self.running and self.broker.listener.running:
            self.broker.lose_master()

    def elect_master(self) -> None:
        """Make the broker a master that has all messages but no offsets of groups, whether it is running or not."""
        self.disk.offsets.clear()
        self.disk.pop_offsets.clear()
        if self.running and self.broker.listener.running:
            self.broker.elect_master()

    def broker_made(self, broker: Broker) -> None:
        """Do nothing. A subclass may watch the requests to each new broker, which has not started yet."""

    def process_ended(self) -> None:
        if hasattr(self, "broker"):  # the first process may end before it serves
            self.broker.crash()
        self.registered.clear()
        self._holders.clear()

    def power_lost(self) -> None:
        self.lose(self.log.flushed)
        self.disk.power_loss()

    def lose(self, position: int) -> None:
        """Record the messages from a physical offset on, which are about to be lost. A subclass may record more about them."""
        self.lost += [message.unique_id for message in self.stored(position)]

    async def _serve(self) -> None:
        self.broker = broker = Broker(self.disk, self.settings)
        this_broker = broker.state.holders
        broker.state.holders = lambda topic: self._holders.get(topic) or this_broker(topic)
        self.broker_made(broker)
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
        """Register with one name server: at once, after changes of topics, every ``REGISTER_EVERY`` seconds, and
        ``REGISTER_AGAIN`` seconds after a failed registration. After each registration, ask for the routes of topics of the type
        LITE, by which the broker knows its lite topics.
        """
        while True:
            with suppress(OSError, TimeoutError, EOFError, RemoteProtocolError):
                async with asyncio.timeout(REGISTER_TIMEOUT):
                    reader, writer = await asyncio.open_connection(name_server, NAME_SERVER_PORT)
                decoder = FrameDecoder()
                try:
                    while True:
                        changed.clear()
                        body = msgspec.json.encode(self.broker.registration())
                        request = RemotingCommand(code=RequestCode.REGISTER_BROKER, body=body)
                        writer.writelines(encode_command(request))
                        async with asyncio.timeout(REGISTER_TIMEOUT):
                            answer = await _read_command(reader, decoder)
                        if answer.code != ResponseCode.SUCCESS:
                            self._world.record(self.name, "registration refused", name_server=name_server, code=answer.code)
                            break
                        self.registered[name_server] = None
                        for topic in [each.config.topic_name for each in self.disk.topics if each.is_lite]:
                            writer.writelines(encode_command(request_of(GetRouteInfoRequestHeader(topic=topic))))
                            async with asyncio.timeout(REGISTER_TIMEOUT):
                                answer = await _read_command(reader, decoder)
                            if answer.code == ResponseCode.SUCCESS:
                                self._holders[topic] = _holders_of(decode_route(answer.body), topic)
                        with suppress(TimeoutError):
                            async with asyncio.timeout(REGISTER_EVERY):
                                await changed.wait()
                finally:
                    writer.close()
            await asyncio.sleep(REGISTER_AGAIN)


def _holders_of(route: TopicRouteData, topic: str) -> list[Holder]:
    addresses = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    return [
        Holder(
            queues.broker_name,
            address,
            TopicConfig(topic, queues.read_queue_nums, queues.write_queue_nums, queues.perm),
            number,
        )
        for queues in route.queue_datas
        for number, address in addresses.get(queues.broker_name, {}).items()
    ]


async def _read_command(reader: asyncio.StreamReader, decoder: FrameDecoder) -> RemotingCommand:
    """Return the next command.

    Raises:
        EOFError: If the peer closes the connection before the end of a command.
    """
    while True:
        data = await reader.read(READ_SIZE)
        if not data:
            raise EOFError
        for frame in decoder.feed(data):
            return decode_command(frame)
