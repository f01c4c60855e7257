"""One embedded broker: its state, its processors, and its pending requests to clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import MASTER_ID, RETRY_TOPIC_PREFIX, RequestCode, ResponseCode
from rmq_protocol.frame import Frame
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.stored import decode_messages

from .arguments import check_queue, check_whole, check_within
from .assignments import AssignmentProcessor
from .calls import ClientCalls
from .clock import Clock, SystemClock
from .connections import ClientProcessor
from .directory import Registration
from .disk import BrokerDisk
from .faults import LONGEST_WAIT, NO_POPS, THROTTLED, FailureScript, PopFaults, PopSettings, SendQueue
from .groups import GroupProcessor
from .held_pops import HeldPops
from .lite_serving import LiteServing
from .lite_settings import LiteSettings
from .locks import LockProcessor
from .lookups import LookupProcessor
from .popping import Popping, PopServing
from .progress import ProgressProcessor, QueryProcessor
from .pulls import HeldPulls, PullMessageProcessor
from .relay import RelayProcessor
from .replies import ReplyProcessor
from .schedule import DELAY_LEVELS, RecallProcessor, Schedule
from .send_back import SendBackProcessor
from .sends import SendMessageProcessor
from .server import Connection, Parts
from .service import BaseService, not_supported
from .state import BrokerState
from .stats import StatisticsProcessor
from .store import CommitLog
from .topic_admin import TopicProcessor
from .topics import MAX_QUEUES
from .transactions import CheckSettings, Transactions
from .writer import MessageWriter

_JSON: Final = 0
_REPLICA_ID: Final = 1
_FIRST_OFFSETS: Final = 2
"""Number of the first call of ``tick`` that saves committed offsets. A real broker saves them for the first time 10 s after its
start (``BrokerController``)."""
_LEVELS_EVERY: Final = 2
"""Number of calls of ``tick`` between two saves of the progress of the delay levels (``flushDelayOffsetInterval``)."""
_FIRST_PORT_ONLY: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.POP_LITE_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)
"""Request codes that a broker does not serve at its second port (``BrokerController.registerProcessor``)."""


VERSIONS: Final = ("5.5.0", NO_POPS)
"""Versions of RocketMQ that an embedded broker can imitate."""
_SINCE_5: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.RECALL_MESSAGE,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.POP_LITE_MESSAGE,
        RequestCode.LITE_SUBSCRIPTION_CTL,
        RequestCode.GET_BROKER_LITE_INFO,
        RequestCode.GET_PARENT_TOPIC_INFO,
        RequestCode.GET_LITE_TOPIC_INFO,
        RequestCode.GET_LITE_CLIENT_INFO,
        RequestCode.GET_LITE_GROUP_INFO,
        RequestCode.TRIGGER_LITE_DISPATCH,
    }
)
"""Request codes that a broker of version ``NO_POPS`` does not know."""


class BrokerSettings(NamedTuple):
    """Settings that the brokers of one server share; see ``EmbeddedRocketMQ``. Times are seconds."""

    clock: Clock = SystemClock()
    delay_levels: Sequence[float] = DELAY_LEVELS
    checks: CheckSettings = CheckSettings()
    server_side_reset: bool = True
    property_filter: bool = True
    version: str = VERSIONS[0]
    pops: PopSettings = PopSettings()
    lite: LiteSettings = LiteSettings()

    def as_config(self) -> dict[str, bool]:
        """Return the boolean settings by their names on a real broker."""
        return {
            "useServerSideResetOffset": self.server_side_reset,
            "enablePropertyFilter": self.property_filter,
            "popConsumerKVServiceEnable": self.pops.store == "kv",
            "enableRetryTopicV2": self.pops.retry_v2,
            "enableDLegerCommitLog": False,
            "enableLmq": self.lite.served_by(self.version),
            "enableMultiDispatch": self.lite.served_by(self.version),
        }


class Broker(BaseService):
    """A broker that stores its data on a ``BrokerDisk``.

    To run a single broker and a name server with which the broker is registered::

        log = DiskLog(64 * 1024 * 1024, SystemClock().now_ms)
        disk = BrokerDisk("broker-a", log)
        broker = Broker(disk)
        await broker.start("127.0.0.1", 0)
        registrations = Registrations()
        name_server = NameServer(registrations)
        await name_server.start("127.0.0.1", 9876)
        registrations.register(broker.registration())  # every 30 s, and when broker.topics_changed is called
        ...
        broker.crash()  # or await broker.stop()
        disk.power_loss()  # if the machine lost its power, too
        broker = Broker(disk)  # and so on

    Args:
        disk: The disk of the broker. No other broker object may use the disk at the same time.
        settings: The default is ``BrokerSettings()``.
        failures: The script of requests that fail. The default is an empty script.

    Attributes:
        topics_changed: Called each time a topic was created, changed or deleted. If a request changed the topic, the call comes
            before the response.
    """

    def __init__(self, disk: BrokerDisk, settings: BrokerSettings | None = None, failures: FailureScript | None = None) -> None:
        super().__init__(disk.name, failures)
        settings = BrokerSettings() if settings is None else settings
        self.topics_changed: Callable[[], object] = lambda: None
        self.state = BrokerState(disk, pops_in_store=settings.pops.store == "kv")
        self.state.topics.changed = lambda: self.topics_changed()
        self.held = HeldPulls(self._reply)
        self.calls = ClientCalls()
        self._clients = ClientProcessor(self.state, self.calls, property_filter=settings.property_filter)
        held_pops = HeldPops(settings.clock, self._reply)
        writer = MessageWriter(self.state, self.held, held_pops, has_light=settings.lite.served_by(settings.version))
        faults = PopFaults()
        self.lite = LiteServing(self.state, self.calls, settings.clock, settings.lite, faults, self._reply)
        writer.light_arrived = self.lite.arrived
        serving = PopServing(held_pops, faults, self.lite.acks)
        self.popping = Popping(
            self.state, writer, serving, settings.clock, settings.pops, property_filter=settings.property_filter
        )
        self._schedule = Schedule(self.state, writer, settings.clock, settings.delay_levels)
        self._transactions = Transactions(self.state, writer, self._schedule, self.calls, settings.clock, settings.checks)
        self._lookups = LookupProcessor(self.state, self._reply)
        self.send_back = SendBackProcessor(self.state, self._schedule)
        self._sends = SendMessageProcessor(
            self.state,
            writer,
            self._schedule,
            self._transactions,
            self.send_back,
            knows_lite=settings.version != NO_POPS,
        )
        self._fast_send = self._sends.fast
        self.broker_id = MASTER_ID
        self._ticks = 0
        self._queue: SendQueue | None = None
        """The queue in which sends wait while ``throttle`` is on. None if ``throttle`` is off."""
        self._throttled: SendQueue | None = None
        """The queue of the last ``throttle`` call, which is kept after a stop for ``refused_sends``. None if that call ended
        the throttling."""
        self.handlers = {
            **self._clients.handlers(),
            **self._sends.handlers(),
            **self.send_back.handlers(),
            **self._transactions.handlers(),
            **RecallProcessor(self.state, self._schedule).handlers(),
            **self._lookups.handlers(),
            **ReplyProcessor(self.state, self.calls, self._sends, self._reply).handlers(),
            **PullMessageProcessor(self.state, self.held, property_filter=settings.property_filter).handlers(),
            **QueryProcessor(self.state).handlers(),
            **ProgressProcessor(
                self.state, self.calls, by_server=settings.server_side_reset, gate=self.listener.gate
            ).handlers(),
            **GroupProcessor(self.state.groups, self.state.offsets, self.state.pop_offsets).handlers(),
            **LockProcessor(self.state.locks).handlers(),
            **AssignmentProcessor(self.state).handlers(),
            **TopicProcessor(self.state, self.held, self.popping, self.lite).handlers(),
            **StatisticsProcessor(self.state, settings.as_config(), settings.version, settings.clock.now_ms).handlers(),
            **RelayProcessor(self.state, self.calls, self._reply).handlers(),
            **self.popping.handlers(),
            **self.lite.handlers(),
        }
        if settings.version == NO_POPS:
            self.handlers = {code: handler for code, handler in self.handlers.items() if code not in _SINCE_5}

    def registration(self) -> Registration:
        """Return the data that the broker currently registers with its name servers.

        Raises:
            RuntimeError: Before the first start.
        """
        if not self.state.address:
            raise RuntimeError(f"{self.name} has no address before its first start; start it, then register it")
        return Registration(
            self.name,
            self.state.address,
            {topic.config.topic_name: topic.config for topic in self.state.topics},
            broker_id=self.broker_id,
        )

    def messages(self, topic: str) -> list[MessageExt]:
        """Return the messages that the broker has stored in the topic, in store order. Damaged records are left out."""
        return stored_messages(self.state.log, topic, self.name)

    def progress(self, group: str) -> dict[MessageQueue, int]:
        """Implement ``EmbeddedRocketMQ.progress``."""
        offsets = self.state.offsets.of_group(group)
        return {MessageQueue(topic, self.name, queue_id): offset for (topic, queue_id), offset in offsets.items()}

    def retries(self, group: str) -> list[MessageExt]:
        """Implement ``EmbeddedRocketMQ.retries``."""
        topic = RETRY_TOPIC_PREFIX + group
        popped = (message for name in self.popping.retry_topics(group) for message in self.messages(name))
        return [*self.messages(topic), *popped, *self._schedule.waiting(topic)]

    def lose_offsets(self) -> None:
        """Implement ``EmbeddedRocketMQ.lose_offsets``."""
        self.state.offsets.restore(self.state.disk.offsets)
        self.state.pop_offsets.restore(self.state.disk.pop_offsets)

    def lose_master(self) -> None:
        """Implement ``EmbeddedRocketMQ.lose_master``."""
        self.broker_id = _REPLICA_ID
        self.listener.drop_connections()
        self._forget_process()
        self.topics_changed()

    def elect_master(self, *, offsets: bool = False) -> None:
        """Implement ``EmbeddedRocketMQ.elect_master``."""
        if not offsets:
            self.state.offsets.forget_all()
            self.state.pop_offsets.forget_all()
            self._save_offsets()
        self.broker_id = MASTER_ID
        self.topics_changed()

    def rebalance(self, group: str) -> None:
        """Implement ``EmbeddedRocketMQ.rebalance``."""
        self._clients.notify_members(group)

    def list_members(self, group: str, client_ids: Sequence[str] | None) -> None:
        """Implement ``EmbeddedRocketMQ.list_members``."""
        if client_ids is None:
            self._clients.listed.pop(group, None)
        else:
            self._clients.listed[group] = tuple(client_ids)

    @property
    def refused_sends(self) -> int:
        """Number of sends that were refused since the last call of ``throttle``."""
        return 0 if self._throttled is None else self._throttled.refused

    def throttle(self, rate: float | None, warm: float | None = None) -> None:
        """Implement ``EmbeddedRocketMQ.throttle``."""
        self._queue = self._throttled = None if rate is None else SendQueue(rate, warm)

    def refuse_give_backs(self, code: int | None) -> None:
        """Implement ``EmbeddedRocketMQ.refuse_give_backs``."""
        self.send_back.refusal = code

    def resize(self, topic: str, queues: int) -> None:
        """Implement ``EmbeddedRocketMQ.resize``."""
        check_within("queues", queues, 0, MAX_QUEUES)
        found = self.state.topics.get(topic)
        if found is None:
            raise ValueError(f"{self.name} has no topic {topic!r}; create it, or send to it first")
        if self.state.topics.is_own(topic):
            raise ValueError(f"the topic {topic!r} belongs to the broker and cannot be resized; give a topic of your own")
        self.state.topics.put(
            msgspec.structs.replace(found.config, read_queue_nums=queues, write_queue_nums=queues, attributes={}), ""
        )

    def truncate(self, count: int) -> int:
        """Implement ``EmbeddedRocketMQ.truncate``."""
        check_whole("count", count)
        if count < 0:
            raise ValueError(f"count must not be negative, it is {count}")
        log = self.state.log
        position = log.place_of_last(count, self.name)
        taken = log.truncate(position, self.name)
        self._schedule.truncated()
        self._transactions.truncated(position)
        self.state.disk.forget_check_points()
        return taken

    def expire(self, queue: MessageQueue, before: int, *, corrected: bool = False) -> None:
        """Implement ``EmbeddedRocketMQ.expire``."""
        check_queue(queue)
        check_whole("before", before)
        found = self.state.topics.find_queue(queue.topic, queue.queue_id)
        if found is None or queue.broker_name != self.name:
            raise ValueError(f"{self.name} has never used {queue}; give a queue to which messages were sent")
        if not 0 <= before <= found.max_offset:
            raise ValueError(f"before must be from 0 to {found.max_offset}, the end of {queue}, not {before}")
        self.state.log.expire(found, before)
        if corrected:
            found.correct()
            for light in self.state.topics.light:
                light.correct()

    async def start(self, host: str, port: int) -> None:
        """Start the listener on two ports, and start deliveries, transaction checks and redeliveries."""
        await self.listener.start(host, port, second=True)
        self.state.address = self.listener.address()
        self._sends.listening()
        self._schedule.start()
        self._transactions.start()
        self.popping.start()
        self.lite.start()

    async def stop(self) -> None:
        """Stop the broker gracefully: save its progress and flush its log.

        If the broker is not running, for example after ``crash``, nothing is saved.
        """
        running = self.listener.running
        self._end()
        await super().stop()
        self._forget_waiting()
        if running:
            self._save()
            self.state.log.flush()

    def crash(self) -> None:
        """End the broker without saving, as a kill of its process does. Its event loop may already be closed."""
        self._end()
        super().crash()
        self.state.log.halt()

    def _end(self) -> None:
        self._queue = None
        self._schedule.stop()
        self._transactions.stop()
        self.popping.stop()
        self.lite.stop()
        self._forget_waiting()

    def _save(self, *, offsets: bool = True, levels: bool = True) -> None:
        disk = self.state.disk
        if offsets:
            self._save_offsets()
        schedule = self._schedule.progress()
        disk.schedule = schedule if levels else schedule._replace(levels=disk.schedule.levels)
        disk.transactions = self._transactions.progress()

    def _save_offsets(self) -> None:
        self.state.offsets.save(self.state.disk.offsets)
        self.state.pop_offsets.save(self.state.disk.pop_offsets)

    def _forget_waiting(self) -> None:
        self.held.close()
        self.popping.held.close()
        self.lite.close()
        self.calls.close()
        self._clients.close()
        self._lookups.close()
        self._forget_process()

    def _forget_process(self) -> None:
        """Drop the state that a new process would not have."""
        self.state.locks.clear()
        self.state.offsets.clear_resets()
        self.lite.forget()

    def serve(self, connection: Connection, frame: Frame) -> Parts | None:
        fast = (
            not self.failures.pending and self._queue is None and not self.send_back.is_silent and self.broker_id == MASTER_ID
        )
        if frame.body and frame.serialize_type == _JSON and fast:
            served = self._fast_send(connection, frame)
            if served is not None:
                code, answer = served
                self.requests[code] += 1
                return None if answer is None else (answer,)
        return super().serve(connection, frame)

    def respond(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        if connection.second and command.code in _FIRST_PORT_ONLY:
            return not_supported(command)
        if self.broker_id != MASTER_ID and command.code in THROTTLED:
            return make_response(command, ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a replica: it stores no messages")
        if self._queue is not None and command.code in THROTTLED:
            self._respond_in_turn(connection, command, self._queue)
            return None
        response = super().respond(connection, command)
        return None if self.send_back.is_unanswered(command) else response

    def _respond_in_turn(self, connection: Connection, command: RemotingCommand, queue: SendQueue) -> None:
        now = self.listener.now()
        wait = queue.take(now)
        if wait is None:
            if not command.is_oneway:  # a refused send is not served, so ``lose_answers`` does not drop its response
                refusal = make_response(command, ResponseCode.SYSTEM_BUSY, queue.refusal(now))
                connection.send_later(self.encode(command, refusal), LONGEST_WAIT)
            return
        response = super().respond(connection, command)
        if response is None or command.is_oneway or (self.failures.pending and self.failures.takes_answer(command.code)):
            return
        connection.send_later(self.encode(command, response), wait)

    def disconnected(self, connection: Connection) -> None:
        self.held.disconnected(connection)
        self.popping.held.disconnected(connection)
        self.lite.disconnected(connection)
        self.calls.disconnected(connection)
        self.state.clients.disconnected(connection)

    def resumed(self, connection: Connection) -> None:
        self.held.resumed(connection)
        self.popping.held.resumed(connection)
        self.lite.resumed(connection)

    def answered(self, connection: Connection, response: RemotingCommand) -> None:
        self.calls.answered(connection, response)

    def tick(self) -> None:
        self.state.clients.expire()
        self.state.locks.expire()
        self.held.look_again()
        self._schedule.sweep()
        self._ticks += 1
        self._save(offsets=self._ticks >= _FIRST_OFFSETS, levels=self._ticks % _LEVELS_EVERY == 0)

    def _reply(self, connection: Connection, command: RemotingCommand, response: RemotingCommand) -> None:
        """Send the response to a request that was held.

        Drop the response if the request was one-way, if the peer does not read its responses, or if ``lose_answers`` applies.
        """
        if self.failures.pending and self.failures.takes_answer(command.code):
            return
        if not command.is_oneway and not connection.congested:
            connection.send(self.encode(command, response))


def stored_messages(log: CommitLog, topic: str, broker_name: str | None = None) -> list[MessageExt]:
    """Return the messages that the broker (None: all brokers of the log) has stored in the topic, in store order.

    Damaged records are left out.
    """
    found: list[MessageExt] = []
    for record, queue in log.records():
        if queue.topic == topic and broker_name in (None, queue.broker_name):
            found += decode_messages(record, topic_queue_broker=queue.broker_name).messages
    return found
