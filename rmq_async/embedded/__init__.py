"""RocketMQ for development and tests: a name server and brokers in one asyncio process, in memory.

    async with EmbeddedRocketMQ() as server:
        ...  # any client at server.namesrv

The servers speak the remoting protocol on real sockets, so every client that speaks this protocol can connect. The messages are
lost when the object is deleted.

The docstring of ``Broker`` shows how to create a single broker with a disk, and a separate name server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from rmq_protocol.constants import DLQ_TOPIC_PREFIX
from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt, MessageQueue

from .._loops import Turns
from .arguments import (
    check_clock,
    check_count,
    check_delay,
    check_flags,
    check_one_of,
    check_queue,
    check_span,
    check_text,
    check_whole,
    check_within,
)
from .broker import VERSIONS, stored_messages
from .broker import Broker as Broker
from .broker import BrokerSettings as BrokerSettings
from .clock import Clock, ManualClock, SystemClock
from .directory import Holder as Holder
from .directory import Registration as Registration
from .directory import Registrations as Registrations
from .disk import BrokerDisk as BrokerDisk
from .disk import DiskLog as DiskLog
from .faults import FailureScript as FailureScript
from .faults import PopSettings as PopSettings
from .faults import PopStore, check_code, checked_settings
from .lite_settings import MAX_LITE_SUBSCRIPTIONS, MAX_LITE_TOPICS, checked_lite_settings
from .lite_settings import LiteSettings as LiteSettings
from .nameserver import LiveBrokers
from .nameserver import NameServer as NameServer
from .schedule import DELAY_LEVELS
from .server import Connection as Connection
from .server import Listener
from .service import BaseService
from .sockets import MAX_PORT
from .sockets import SECOND_BELOW as SECOND_BELOW
from .sockets import broker_ports as broker_ports
from .store import CommitLog
from .transactions import CheckSettings as CheckSettings

__all__ = ["Clock", "EmbeddedRocketMQ", "ManualClock", "ServerStatistics", "SystemClock"]

logger = logging.getLogger("rmq_async.embedded")

S = TypeVar("S", bound=BaseService)
MAX_BROKERS: Final = 64
MAX_DELAY_LEVELS: Final = 256
MAX_COPIES: Final = 16
"""Maximum number of copies in ``repeat_revival``."""


class ServerStatistics(NamedTuple):
    """The counters of one server. Except for ``connections``, they count from the creation of the ``EmbeddedRocketMQ``.

    Attributes:
        requests: Number of received requests by request code. Unknown codes are counted only while fewer than 1024 codes have
            been counted.
        connections: Number of connections that are open now.
        accepted: Number of accepted connections, including refused connections.
        refused: Number of connections that the server has closed because the peer sent invalid bytes, because the server was
            stopping, or because a limit was exceeded (the number of connections, the bytes of unfinished frames, or the bytes
            of responses that the peer did not read).
    """

    requests: Counter[int]
    connections: int
    accepted: int
    refused: int


def _letters(index: int) -> str:
    """Return the letters of a broker's name: a to z, then aa, ab and so on."""
    first, last = divmod(index, 26)
    return (_letters(first - 1) if first else "") + chr(ord("a") + last)


class EmbeddedRocketMQ:
    """A name server and brokers in memory that listen on real sockets.

    After ``stop()`` and a new ``start()``, ports, topics, offsets and messages are the same, as after a restart of real
    servers.

    The defaults of ``delay_levels`` and of the three settings of transactions are the defaults of a 5.5.0 broker.

    Methods with an argument ``broker`` raise ValueError for an unknown broker. The methods ``delay``, ``slice``, ``stall``,
    ``resume``, ``shuffle`` and ``drop_connections`` also take "namesrv", the name server.

    Args:
        host: Address or name to listen on.
        port: The port of the name server. 0 means any free port.
        brokers: The number of brokers, 1 to 64. Their names are "broker-a", "broker-b", and so on.
        broker_port: The port of the first broker. The port of each further broker is ten higher. 0 means any free ports. Each
            broker also listens on the port two below its own.
        auto_create_topics: Whether the first send to a topic creates it.
        auto_create_groups: Whether the first request of a group creates it.
        max_memory: Maximum number of bytes of messages. Each message counts as its size plus 128 bytes. Above this limit, the
            oldest messages are deleted and the minimum offsets increase. The newest message is never deleted.
        clock: The clock for store times, delays, timers, transaction checks and pops. A ``ManualClock`` moves only when a test
            advances it.
        delay_levels: The delays in seconds of delay levels 1, 2 and so on. There can be 1 to 256 levels.
        transaction_timeout: Seconds after which the broker checks an unfinished transaction with the producer, unless its
            message sets its own time (CHECK_IMMUNITY_TIME_IN_SECONDS).
        transaction_check_interval: Seconds between two rounds of transaction checks.
        transaction_check_max: Number of checks after which the message moves to TRANS_CHECK_MAX_TIME_TOPIC.
        server_side_reset: Whether a broker keeps a reset of a group's offsets (222) until the next pull or pop of each queue,
            as 5.x does. If False, the broker sends the offsets to the members (220), as 4.9 does.
        property_filter: Whether brokers filter by SQL92 conditions. A real broker does this only with
            ``enablePropertyFilter=true``, which is not the default.
        order_conf: Whether routes contain the order of queues that ``create_topic(order=True)`` writes. A real name server adds
            this order only with ``orderMessageEnable=true``, which is not the default.
        version: "5.5.0" or "4.9.7". With "4.9.7", brokers respond to pops and other requests of 5.x with code 3, and send
            resets of offsets to the members.
        pop_store: The store of popped messages that brokers imitate: "log" (the revive log) or "kv" (the key-value store,
            ``popConsumerKVServiceEnable``).
        pop_retry_v2: Whether the retry topics of pops have the newer form of names (``enableRetryTopicV2``).
        pop_revive_delay: Seconds from the end of an invisible time to the redelivery. None means the delay of a real broker,
            about 2 s with "log" and 0.5 s with "kv".
        lite_topics: Whether brokers serve lite topics. A real broker does this only with ``enableLmq=true`` and
            ``enableMultiDispatch=true``, which are not the defaults. Otherwise, it confirms a message to a lite topic and stores
            it only in the parent topic.
        max_lite_topics: Number of lite topics from which on a broker refuses messages to new ones (2017).
        max_lite_subscriptions: Number of subscriptions to lite topics from which on a broker refuses further ones (2018).
        min_lite_ttl: Seconds before which no lite topic expires, after its last message and after the start of the broker. The
            expiration is an attribute of the topic (``lite.topic.expiration``, in minutes).

    Raises:
        ValueError: For a number out of range and for an unknown ``version`` or ``pop_store``.
        TypeError: If an argument is not of the required type (a number, a clock or a sequence). Methods raise the same error
            for their arguments.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        brokers: int = 1,
        broker_port: int = 0,
        auto_create_topics: bool = True,
        auto_create_groups: bool = True,
        max_memory: int = 256 * 1024 * 1024,
        clock: Clock | None = None,
        delay_levels: Sequence[float] = DELAY_LEVELS,
        transaction_timeout: float = 6.0,
        transaction_check_interval: float = 30.0,
        transaction_check_max: int = 15,
        server_side_reset: bool = True,
        property_filter: bool = True,
        order_conf: bool = False,
        version: str = VERSIONS[0],
        pop_store: PopStore = "log",
        pop_retry_v2: bool = False,
        pop_revive_delay: float | None = None,
        lite_topics: bool = True,
        max_lite_topics: int = MAX_LITE_TOPICS,
        max_lite_subscriptions: int = MAX_LITE_SUBSCRIPTIONS,
        min_lite_ttl: float = 900.0,
    ) -> None:
        check_text("host", host)
        check_flags(auto_create_topics=auto_create_topics, auto_create_groups=auto_create_groups, order_conf=order_conf)
        check_flags(server_side_reset=server_side_reset, property_filter=property_filter, pop_retry_v2=pop_retry_v2)
        check_within("port", port, 0, MAX_PORT)
        check_within("brokers", brokers, 1, MAX_BROKERS)
        self._ports = [port, *broker_ports(broker_port, brokers)]
        for name, whole in (("max_memory", max_memory), ("transaction_check_max", transaction_check_max)):
            check_whole(name, whole)
        if not isinstance(delay_levels, Sequence):
            raise TypeError(f"delay_levels must be a sequence of seconds, not {shown(delay_levels)}")
        if max_memory <= 0:
            raise ValueError(f"max_memory must be a positive number of bytes, not {max_memory}")
        if not 1 <= len(delay_levels) <= MAX_DELAY_LEVELS:
            raise ValueError(f"delay_levels must have 1 to {MAX_DELAY_LEVELS} levels, not {len(delay_levels)}")
        for name, seconds in (
            *((f"delay level {level}", each) for level, each in enumerate(delay_levels, 1)),
            ("transaction_timeout", transaction_timeout),
            ("transaction_check_interval", transaction_check_interval),
        ):
            check_delay(name, seconds)
        if transaction_check_max < 0:
            raise ValueError(f"transaction_check_max must not be negative, it is {transaction_check_max}")
        check_one_of("version", version, VERSIONS)
        clock = SystemClock() if clock is None else check_clock(clock)
        checks = CheckSettings(transaction_timeout, transaction_check_interval, transaction_check_max)
        pops = checked_settings(pop_store, pop_revive_delay, retry_v2=pop_retry_v2)
        by_server = server_side_reset and version == VERSIONS[0]
        lite = checked_lite_settings(
            enabled=lite_topics,
            max_topics=max_lite_topics,
            max_subscriptions=max_lite_subscriptions,
            min_ttl=min_lite_ttl,
        )
        settings = BrokerSettings(clock, delay_levels, checks, by_server, property_filter, version, pops, lite)
        self._turns = Turns()
        self._host = host
        self._failures = FailureScript()
        self._log = CommitLog(max_memory, clock.now_ms)
        self._brokers = [
            Broker(
                BrokerDisk(
                    f"broker-{_letters(index)}",
                    self._log,
                    auto_create_topics=auto_create_topics,
                    auto_create_groups=auto_create_groups,
                ),
                settings,
                self._failures,
            )
            for index in range(brokers)
        ]
        for broker in self._brokers:
            broker.state.peers = [each.state for each in self._brokers]
        directory = LiveBrokers(self._brokers)
        for broker in self._brokers:
            broker.state.holders = directory.holders
        self._name_server = NameServer(directory, self._failures, order_conf=order_conf)
        self._services: list[BaseService] = [self._name_server, *self._brokers]

    async def start(self) -> None:
        """Start the name server and the brokers.

        Concurrent calls of ``start`` and ``stop`` run one after the other, in the order of the calls.

        Raises:
            OSError: If ``host`` cannot be resolved or a port is not available. No socket stays open in this case.
            RuntimeError: If the server is already running.
        """
        async with self._turns.here():
            if self._name_server.listener.running:
                raise RuntimeError("this server is already running; call stop() first")
            try:
                await self._listen()
            except BaseException:
                await self._close()
                raise

    async def _listen(self) -> None:
        for index, broker in enumerate(self._brokers, 1):
            await broker.start(self._host, self._ports[index])
            self._ports[index] = broker.listener.port
        await self._name_server.start(self._host, self._ports[0])
        self._ports[0] = self._name_server.listener.port
        if not ipaddress.ip_address(self._name_server.listener.host).is_loopback:
            logger.warning(
                "listening on %s without access control: every client that can reach this address can read and write everything; "
                "listen on 127.0.0.1 to prevent that",
                self._name_server.listener.host,
            )

    async def stop(self) -> None:
        """Close all sockets and connections, and end ``delay``, ``slice``, ``stall``, ``shuffle`` and ``throttle``.

        The call has no effect if the server is not running.
        """
        async with self._turns.here():
            await self._close()

    async def _close(self) -> None:
        await asyncio.gather(*(service.stop() for service in self._services))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def namesrv(self) -> str:
        """The address ("ip:port") of the name server. If the server listens on all addresses, this is the loopback address.

        Raises:
            RuntimeError: Before the first start.
        """
        if not self._name_server.listener.port:
            raise RuntimeError("this server was not started; await start() first")
        return self._name_server.listener.address()

    @property
    def brokers(self) -> dict[str, str]:
        """The addresses ("ip:port") of the brokers by name. If the brokers listen on all addresses, these are loopback
        addresses. The mapping is empty before the first start.
        """
        return {broker.name: broker.listener.address() for broker in self._brokers if broker.listener.port}

    def messages(self, topic: str) -> list[MessageExt]:
        """Return the messages that are stored in the topic, in all queues of all brokers, in store order.

        Damaged records are left out, for example a record whose body is marked as compressed but is not.
        """
        return stored_messages(self._log, topic)

    def progress(self, group: str) -> Mapping[MessageQueue, int]:
        """Return the group's committed offsets by queue, for all topics including the group's retry topic."""
        return {queue: offset for broker in self._brokers for queue, offset in broker.progress(group).items()}

    def retries(self, group: str) -> list[MessageExt]:
        """Return the messages that are stored for another attempt of the group, one message for each attempt.

        For each broker, the messages come in this order: messages in the group's retry topic, in store order; messages in the
        retry topics of the group's pops; messages that wait for their delay level, soonest first, with queue offset -1.
        """
        return [message for broker in self._brokers for message in broker.retries(group)]

    def dead_letters(self, group: str) -> list[MessageExt]:
        """Return the messages in the group's dead-letter topic (``%DLQ%group``), in store order."""
        return self.messages(DLQ_TOPIC_PREFIX + group)

    def rebalance(self, group: str) -> None:
        """Notify the members of the group (40) that the members of the group have changed, even if they have not."""
        for broker in self._brokers:
            broker.rebalance(group)

    def list_members(self, group: str, client_ids: Sequence[str] | None, *, broker: str | None = None) -> None:
        """Make a broker list ``client_ids`` as the members of the group.

        Members request the list (38) when they divide the queues. If the list is empty, they receive an error. The broker
        does not notify members of the change; call ``rebalance`` to notify them.

        Args:
            client_ids: The ids to list. An id may occur twice. If None, the real members are listed again.
            broker: Name of the broker. If None, all brokers list the ids.
        """
        if isinstance(client_ids, str):
            raise TypeError(f"client_ids must be a sequence of ids, not {shown(client_ids)}")
        for each in self._chosen(broker):
            each.list_members(group, client_ids)

    def clear(self) -> None:
        """Delete all messages.

        Topics and committed offsets stay. The minimum offset of each queue becomes its maximum offset.
        """
        self._log.clear()
        for broker in self._brokers:
            for topic in broker.state.topics:
                for queue in topic.queues():
                    queue.correct()
            for queue in broker.state.topics.light:
                queue.correct()

    def expire(self, queue: MessageQueue, before: int, *, corrected: bool = False) -> None:
        """Delete the messages of ``queue`` below offset ``before``, as a broker does when it removes its oldest files.

        As at a real broker, the queue's minimum offset stays unchanged until it is corrected (here: until a call with
        ``corrected``, until ``clear``, or until ``max_memory`` deletes another message of the queue). Until then, a pull from
        below ``before`` skips the deleted messages and returns messages from ``before`` on. If these messages are at least 800
        offsets away (at least 32 with a long SQL92 condition), the pull returns only a later ``next_offset``.

        Raises:
            ValueError: For an unknown queue, for a queue that was never used, and for an offset that is negative or beyond the
                end of the queue.
        """
        check_queue(queue)
        broker = next((each for each in self._brokers if each.name == queue.broker_name), None)
        if broker is None:
            raise ValueError(f"no broker has {queue}; give a queue of one of {', '.join(each.name for each in self._brokers)}")
        broker.expire(queue, before, corrected=corrected)

    def truncate(self, broker: str, count: int) -> int:
        """Remove the last ``count`` messages that the broker has stored, or all messages if it has fewer. A real broker loses
        messages in the same way when a replica that lags behind becomes the master.

        The maximum offsets of the queues decrease, and the broker assigns the removed offsets again. Committed offsets are
        unchanged and may be ahead of their queues. Messages that wait in system topics of the broker (delays, transactions)
        count too.

        Returns:
            The number of removed messages.
        """
        return self._broker(broker).truncate(count)

    def lose_master(self, broker: str) -> None:
        """Make the broker a replica without a master. Its connections end, and the name server lists it with id 1 until
        ``elect_master`` is called. The broker serves reads and refuses messages (14).
        """
        self._broker(broker).lose_master()

    def elect_master(self, broker: str, *, offsets: bool = False) -> None:
        """Make the broker a master again, as an election does with a replica. The broker has all messages but no queue locks.

        Args:
            offsets: Whether the broker keeps the committed offsets of groups. A replica of 5.5.0 has usually not copied them
                when it is elected.
        """
        check_flags(offsets=offsets)
        self._broker(broker).elect_master(offsets=offsets)

    def resize(self, topic: str, queues: int, *, broker: str | None = None) -> None:
        """Change the number of read and write queues of the topic to ``queues``, 0 to 16,384, on the broker (None: on each
        broker that has the topic), as an administrator does.

        Messages in removed queues can be read again when the topic grows.

        Raises:
            ValueError: For an unknown topic and for a system topic of the broker.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a string, not {shown(topic)}")
        having = [each for each in self._chosen(broker) if each.state.topics.get(topic) is not None]
        if not having:
            who = "no broker has the" if broker is None else f"{broker} has no"
            raise ValueError(f"{who} topic {topic!r}; create it, or send to it first")
        for each in having:
            each.resize(topic, queues)

    def throttle(self, rate: float | None, *, warm: float | None = None, broker: str | None = None) -> None:
        """Make the broker (None: each broker) serve ``rate`` sends per second, one after the other. A ``rate`` of None ends the
        throttling.

        Messages that consumers send back (36) count as sends.

        A send that would wait for more than 0.2 s is not stored: the broker refuses it after that time with SYSTEM_BUSY and the
        remark of a stock broker, or drops the send if it is one-way.

        Args:
            warm: If given, the broker behaves as if it had just started: its rate rises by two with each send that it serves,
                up to ``warm``.

        Raises:
            ValueError: For a rate that is not positive and finite, and for ``warm`` below ``rate``.
        """
        for each in self._chosen(broker):
            each.throttle(rate, warm)

    def refuse_give_backs(self, code: int | None, *, broker: str | None = None) -> None:
        """Make the broker (None: each broker) refuse with response ``code`` the messages that consumers send back:
        CONSUMER_SEND_MSG_BACK (36) and sends to retry topics. A ``code`` of None ends the refusals.
        """
        if code is not None:
            check_code("code", code, "ResponseCode.SYSTEM_BUSY")
        for each in self._chosen(broker):
            each.refuse_give_backs(code)

    def in_flight(self, group: str) -> list[MessageExt]:
        """Return the stored messages that the group has popped and not acknowledged and that were not yet copied for
        redelivery. Messages of ordered pops are not included.
        """
        return [message for broker in self._chosen(None) for message in broker.popping.in_flight(group)]

    def empty_pops(self, n: int = 1, *, broker: str | None = None) -> None:
        """Make the broker (None: each broker) respond to the next ``n`` pops at once with POLLING_TIMEOUT (210), even if there
        are messages. ``n`` replaces the number that remains from earlier calls, so 0 ends the fault.
        """
        check_count(n)
        for each in self._chosen(broker):
            each.popping.faults.empty = n

    def lose_acks(self, n: int = 1, *, broker: str | None = None) -> None:
        """Make the broker (None: each broker) ignore the next ``n`` acks, single acks (200051) or batches (200151), but respond
        to them with success. ``n`` replaces the number that remains from earlier calls, so 0 ends the fault.
        """
        check_count(n)
        for each in self._chosen(broker):
            each.popping.faults.lost_acks = n

    def delay_revival(self, seconds: float, *, broker: str | None = None) -> None:
        """Delay the redelivery of popped messages without an ack by ``seconds`` on the broker (None: each broker). 0 ends the
        delay.

        Messages of ordered pops are not delayed.
        """
        check_span("seconds", seconds)
        for each in self._chosen(broker):
            each.popping.delay_revival(seconds)

    def repeat_revival(self, copies: int, *, broker: str | None = None) -> None:
        """Make the broker (None: each broker) redeliver each popped message without an ack ``copies`` times, 1 to 16.

        1 restores the normal behaviour. Messages of ordered pops are always redelivered once.
        """
        check_within("copies", copies, 1, MAX_COPIES)
        for each in self._chosen(broker):
            each.popping.faults.copies = copies

    def lose_offsets(self, *, broker: str | None = None) -> None:
        """Set the committed offsets of the broker (None: each broker) back to the offsets that it saved last, as after a kill.
        The broker saves the offsets every 5 s, for the first time 10 s after its start, and when it stops. Pops continue from
        the saved offsets, so messages that were popped after the save are delivered again, even if they were acknowledged.
        """
        for each in self._chosen(broker):
            each.lose_offsets()

    def fail_next(self, code: int, n: int = 1, *, request: int | None = None) -> None:
        """Make the servers respond to the next ``n`` requests with ``code``, without serving them.

        One-way requests are dropped. If ``code`` is 10, 11 or 12, a send is stored, because these codes mean "stored". A send
        that ``throttle`` refuses does not count.

        Args:
            n: Number of requests that fail. 0 cancels the remaining failures of earlier calls with the same ``request``.
            request: Fail only requests of this RequestCode, at the name server or the brokers. None means any request to a
                broker except heartbeats and unregistrations.
        """
        self._failures.add(code, n, request)

    def lose_answers(self, n: int = 1, *, request: int) -> None:
        """Make the servers serve the next ``n`` requests of this RequestCode without sending responses.

        Repeated calls add up. ``n`` = 0 cancels the remaining losses of this RequestCode. A send that ``throttle`` refuses gets
        its response and does not count.
        """
        self._failures.lose(n, request)

    def delay(self, seconds: float, *, broker: str | None = None, jitter: float = 0.0, seed: int = 0) -> None:
        """Delay each frame that the broker (None: each broker) sends by ``seconds``. 0 ends the delay.

        Args:
            jitter: Maximum of a random delay in seconds that each frame gets in addition, so that later frames can overtake
                earlier ones. The same ``seed`` draws the same random numbers again.
        """
        for listener in self._listeners(broker):
            listener.gate.set_delay(seconds, jitter, random.Random(f"{seed} delay {listener.name}"))

    def slice(self, seed: int | None, *, broker: str | None = None) -> None:
        """Make the broker (None: all brokers) send its frames in slices of random size, a millisecond apart.

        A ``seed`` of None makes the broker send whole frames again.

        The same ``seed`` draws the same random numbers again.
        """
        for listener in self._listeners(broker):
            listener.gate.slices = None if seed is None else random.Random(f"{seed} slice {listener.name}")

    def stall(self, broker: str | None = None) -> None:
        """Stall the broker (None: all brokers). Until ``resume``, the broker reads no requests and sends no responses, like a
        stopped process.
        """
        for listener in self._listeners(broker):
            listener.set_stalled(True)

    def resume(self, broker: str | None = None) -> None:
        """End ``stall`` for the broker (None: all brokers), which then serves the requests that have arrived."""
        for listener in self._listeners(broker):
            listener.set_stalled(False)

    def shuffle(self, seed: int | None, *, broker: str | None = None) -> None:
        """Make the broker (None: all brokers) serve concurrent requests of one connection in random order.

        Real brokers serve requests in several threads: two concurrent sends may be stored in either order, and some of the
        concurrent first commits of a group are lost. The same ``seed`` draws the same random numbers again. A ``seed`` of None
        restores the order of arrival.
        """
        for listener in self._listeners(broker):
            listener.shuffle(None if seed is None else random.Random(seed))

    def drop_connections(self, broker: str | None = None) -> None:
        """Reset all connections to the broker (None: to all brokers). The broker accepts new connections."""
        for listener in self._listeners(broker):
            listener.drop_connections()

    @property
    def requests(self) -> Counter[int]:
        """The total numbers of requests that the name server and the brokers have received, by request code."""
        total: Counter[int] = Counter()
        for service in self._services:
            total.update(service.requests)
        return total

    @property
    def connections(self) -> int:
        """The total number of open connections to the name server and the brokers."""
        return sum(len(service.listener.connections) for service in self._services)

    def statistics(self, server: str) -> ServerStatistics:
        """Return the statistics of one server: "namesrv" or a broker's name.

        Raises:
            ValueError: For an unknown name.
        """
        service = _named(server, self._services, "server")
        listener = service.listener
        return ServerStatistics(Counter(service.requests), len(listener.connections), listener.accepted, listener.refused)

    def _listeners(self, name: str | None) -> list[Listener]:
        services = self._brokers if name is None else [_named(name, self._services, "server")]
        return [service.listener for service in services]

    def _broker(self, name: str) -> Broker:
        return _named(name, self._brokers, "broker")

    def _chosen(self, name: str | None) -> list[Broker]:
        return self._brokers if name is None else [self._broker(name)]


def _named(name: str, services: Sequence[S], kind: str) -> S:
    found = next((each for each in services if each.name == name), None)
    if found is None:
        raise ValueError(f"there is no {kind} {name!r}; there are {', '.join(each.name for each in services)}")
    return found
