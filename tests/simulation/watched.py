"""A broker of the simulation that keeps the requests of consumer groups, and says what it has of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from rmq_async.embedded import Broker, Connection
from rmq_async.testing.simulation import Simulation
from rmq_async.testing.simulation.network import Host
from rmq_async.testing.simulation.servers import BrokerMachine, NameServerMachine
from rmq_protocol.bodies import BatchAckMessageRequestBody, decode_body, unpack_bits
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import MASTER_ID, RETRY_TOPIC_PREFIX, RequestCode, ResponseCode
from rmq_protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    from_ext,
)
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pop import parse_extra_info, real_topic
from rmq_protocol.stored import decode_messages

__all__ = ["Commit", "Loss", "PopRequest", "WatchedBroker"]


class Commit(NamedTuple):
    """A commit of a group's offset at a broker. ``before``: the previous offset, -1 for none. ``client_id``: id of the member that
    committed, None if the broker lists no member with that connection. ``holder``: id of the client that has the queue's lock, None
    without a lock."""

    time: float
    group: str
    queue: MessageQueue
    offset: int
    before: int
    client_id: str | None
    holder: str | None


class PopRequest(NamedTuple):
    """One message of a request that a broker has served with success. ``topic``: that of its queue, a retry topic included.
    ``start``, ``pop_time``: first offset and time of the pop, as in the handle. ``suspended``: whether the redelivery after a
    change is not counted as an attempt."""

    time: float
    broker: str
    what: Literal["ack", "change"]
    group: str
    topic: str
    queue_id: int
    start: int
    pop_time: int
    offset: int
    suspended: bool = False

    @property
    def handle(self) -> tuple[str, str, str, int, int, int, int]:
        """The fields that identify a handle."""
        return (self.broker, self.group, self.topic, self.queue_id, self.start, self.pop_time, self.offset)


class Loss(NamedTuple):
    """A queue that has lost its messages from offset ``first`` to ``last``, by a power loss or a new master. It gives the offsets
    out again."""

    time: float
    queue: MessageQueue
    first: int
    last: int


class WatchedBroker(BrokerMachine):
    """A broker that keeps the ``commits`` of groups, their requests about popped messages (``pop_requests``), and the ``losses`` of
    its queues. ``taken``: the highest offset that a queue has lost."""

    def __init__(self, name: str, simulation: Simulation, host: Host, name_servers: Sequence[str]) -> None:
        super().__init__(name, simulation, host, name_servers)
        self._simulation = simulation
        self.commits: list[Commit] = []
        self.pop_requests: list[PopRequest] = []
        self.losses: list[Loss] = []
        self.taken: dict[MessageQueue, int] = {}

    def lose(self, position: int) -> None:
        super().lose(position)
        gone: dict[MessageQueue, list[int]] = {}
        for message in self.stored(position):
            queue = MessageQueue(message.topic, self.name, message.queue_id)
            gone.setdefault(queue, []).append(message.offset)
        for queue, offsets in gone.items():
            self.taken[queue] = max(*offsets, self.taken.get(queue, -1))
            self.losses.append(Loss(self._simulation.now, queue, min(offsets), max(offsets)))

    def broker_made(self, broker: Broker) -> None:
        """Add an entry to ``commits`` or ``pop_requests`` for each request that the process serves."""
        _watch_pops(broker, lambda: self._simulation.now, self.pop_requests)
        update, state = broker.handlers[RequestCode.UPDATE_CONSUMER_OFFSET], broker.state

        def watched(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            header = from_ext(UpdateConsumerOffsetRequestHeader, command.ext_fields)
            group = header.consumerGroup
            queue = MessageQueue(header.topic, self.name, header.queueId)
            before = state.offsets.find(group, header.topic, header.queueId)
            response = update(connection, command)
            members = state.clients.consumers.get(group)
            client_id = next((name for name, used in members.members if used is connection), None) if members else None
            lock = self.lock_of(RETRY_TOPIC_PREFIX + group, queue)
            holder = None if lock is None else lock[0]
            self.commits.append(Commit(self._simulation.now, group, queue, header.commitOffset, before, client_id, holder))
            return response

        broker.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = watched

    @property
    def serves(self) -> bool:
        """Whether its process runs, is not paused, and has begun to serve."""
        return self.running and not self.paused and self.broker.listener.running

    def is_listed(self, server: NameServerMachine) -> bool:
        """Returns whether a name server serves, and lists the broker under its present address as a master."""
        known = server.registrations
        if not server.running or server.paused or not server.server.listener.running or self.name in known.forgotten:
            return False
        entry = known._entries.get(self.name)  # noqa: SLF001 - what it would answer, without counting a difference
        return entry is not None and (entry.address, entry.broker_id) == (self.broker.state.address, MASTER_ID)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the queues in use of a topic that consumers may read; none of an unknown topic."""
        found = self.disk.topics.get(topic)
        if found is None:
            return []
        readable = found.config.read_queue_nums
        return [MessageQueue(topic, self.name, queue.queue_id) for queue in found.queues() if queue.queue_id < readable]

    def held(self, queue: MessageQueue, offset: int) -> MessageExt | None:
        """Returns the message at an offset; None if there is none."""
        found = self.disk.topics.find_queue(queue.topic, queue.queue_id)
        record = None if found is None else found.record(offset)
        return decode_messages(record).messages[0] if record else None

    def lock_of(self, group: str, queue: MessageQueue) -> tuple[str, float] | None:
        """Returns the id of the client that has the lock of a group's queue, and the seconds since it has locked or renewed it,
        by the broker's clock; None if there is none."""
        return self.broker.state.locks.holding(group, queue, self.monotonic())

    def committed(self, group: str, queue: MessageQueue) -> int:
        """Returns the offset that the running process keeps for a group, 0 for none."""
        return max(self.broker.state.offsets.find(group, queue.topic, queue.queue_id), 0)

    def taken_away(self, topic: str) -> list[MessageQueue]:
        """Returns the queues in use of a topic that consumers may not read."""
        found, readable = self.disk.topics.get(topic), self.queues(topic)
        used = [] if found is None else [MessageQueue(topic, self.name, queue.queue_id) for queue in found.queues()]
        return [queue for queue in used if queue not in readable]

    def members(self, group: str) -> tuple[str, ...]:
        """Returns the client ids that the running process lists for a group, once for each of their connections."""
        found = self.broker.state.clients.consumers.get(group)
        return () if found is None else found.ids()

    def popped(self, group: str, queue: MessageQueue) -> int:
        """Returns the offset that the running process keeps for the pops of a group, 0 for none."""
        state = self.broker.state
        table = state.pop_offsets if state.check_points.single else state.offsets
        return max(table.find(group, queue.topic, queue.queue_id), 0)

    def in_flight(self, group: str) -> list[str]:
        """Returns the unique ids of messages that a group has popped and not acknowledged, and that were not stored for
        redelivery."""
        return [message.msg_id for message in self.broker.popping.in_flight(group)]

    def delayed(self, group: str) -> int:
        """Returns the number of messages that were given back by a group and wait for the end of their delay."""
        return sum(message.queue_offset < 0 for message in self.broker.retries(group))

    def unique_ids(self, queue: MessageQueue, low: int, high: int) -> list[str]:
        """Returns the unique ids of the messages that the broker has from offset ``low`` of a queue to below ``high``."""
        found = (self.held(queue, offset) for offset in range(low, high))
        return [message.msg_id for message in found if message is not None]


def _watch_pops(broker: Broker, now: Callable[[], float], requests: list[PopRequest]) -> None:
    """Wraps the broker's handlers so that each message that a successful request acknowledges, or whose invisible time it changes,
    adds an entry to ``requests``."""

    def watch(code: int, read: Callable[[RemotingCommand], list[PopRequest]]) -> None:
        serve = broker.handlers[code]

        def watched(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            response = serve(connection, command)
            if response is not None and response.code == ResponseCode.SUCCESS:
                requests.extend(read(command))
            return response

        broker.handlers[code] = watched

    def ack(command: RemotingCommand) -> list[PopRequest]:
        header = from_ext(AckMessageRequestHeader, command.ext_fields)
        info = parse_extra_info(header.extraInfo)
        at = (header.consumerGroup, header.topic, header.queueId, info.ck_queue_offset, info.pop_time)
        return [PopRequest(now(), broker.name, "ack", *at, header.offset)]

    def acks(command: RemotingCommand) -> list[PopRequest]:
        return [
            PopRequest(
                now(),
                broker.name,
                "ack",
                each.consumer_group,
                real_topic(each.retry, each.topic, each.consumer_group),
                each.queue_id,
                each.start_offset,
                each.pop_time,
                each.start_offset + bit,
            )
            for each in decode_body(BatchAckMessageRequestBody, command.body).acks
            for bit in unpack_bits(each.bit_set)
        ]

    def change(command: RemotingCommand) -> list[PopRequest]:
        header = from_ext(ChangeInvisibleTimeRequestHeader, command.ext_fields)
        info = parse_extra_info(header.extraInfo)
        at = (header.consumerGroup, header.topic, header.queueId, info.ck_queue_offset, info.pop_time)
        return [PopRequest(now(), broker.name, "change", *at, header.offset, header.suspend)]

    watch(RequestCode.ACK_MESSAGE, ack)
    watch(RequestCode.BATCH_ACK_MESSAGE, acks)
    watch(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
