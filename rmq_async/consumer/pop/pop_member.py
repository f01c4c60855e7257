"""Membership in a group that pops: the heartbeats, the first positions, the checks of the group, and the checks whether brokers
support pops.
"""

# A broker before version 5.3.2 loses and repeats popped messages in some cases, and a broker before 5.0 does not support pops. The
# member does not pull from such brokers instead, because positions of a group that pulls and of a group that pops have different
# meanings.

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from rmq_protocol.bodies import KVTable, MessageRequestModeSerializeWrapper, SubscriptionGroupConfig, decode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RETRY_TOPIC_PREFIX, RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.heartbeat import ConsumerData, ConsumeType
from rmq_protocol.message import MessageQueue
from rmq_protocol.subscription import TAG, build_subscription

from ... import machine
from ..._asyncio import for_each
from ..._text import printable
from ...client import ClientInstance, committed_offset
from ...errors import ConfigError, RocketMQError, SubscriptionGroupNotExistError, TopicNotFoundError
from ..config import ConsumerConfig
from ..group import Conflicts, check_filter, first_positions, joined_settings, missing_group, settings_at, store_positions
from ..subscription import Subscription, subscription_data
from .pop_redelivery import USUAL_LIMIT
from .sources import Source

logger = logging.getLogger(__name__)

OLDEST: Final = 477
"""``MQVersion.V5_3_2``."""
_V4_0_0: Final = 213
_PER_NUMBER: Final = 2
"""Each version has two numbers in ``MQVersion``, one for its snapshots and one for its release."""
AT_ONCE: Final = 16
LOOK_SPREAD: Final = 0.25
KEPT_FOR: Final = 300.0
"""Seconds for which ``health()`` reports a conflict after it was last seen."""
LOOK_UP_EVERY: Final = 2.0
"""Seconds between two requests for the route of a topic that no name server knows, and between two checks of a broker after a
temporary error."""
ROUTES_EVERY: Final = 20.0
CHECK_AGAIN: Final = 30.0
"""Seconds between two checks of the version of a broker that does not support pops."""


class Looked(NamedTuple):
    """The result of the check of one broker.

    Attributes:
        version: Number of the broker's version in ``MQVersion``.
        pulled: Topics for which an operator has set the mode of the group to pull.
    """

    version: int
    pulled: tuple[str, ...]


def version_name(version: int) -> str:
    """Return the release of a number of ``MQVersion``, such as "5.3.2". Return "before 4.0.0" for lower numbers."""
    if version < _V4_0_0:
        return "before 4.0.0"
    major, rest = divmod((version - _V4_0_0) // _PER_NUMBER, 100)
    return f"{4 + major}.{rest // 10}.{rest % 10}"


async def check_broker(instance: ClientInstance, group: str, broker: str, topics: Iterable[str], timeout: float) -> Looked:
    """Check a broker with a request for the modes that operators have set (GET_ALL_MESSAGE_REQUEST_MODE, 402). The response also
    has the version of the broker.

    QUERY_ASSIGNMENT (400) does not show the modes, because it returns PULL for every group without a mode.

    Args:
        group: Name of the group on the wire.
        topics: Names of its topics on the wire.

    Raises:
        ConfigError: For a broker that is older than 5.3.2, or does not know the request. The errors of the request also propagate.
    """
    names = [*topics]
    command = RemotingCommand(code=RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    response, address = await instance.ask_broker(broker, names[0], command, timeout)
    if response.version < OLDEST or response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        name = version_name(response.version)
        fault = f"is RocketMQ {name}"
        if response.version >= OLDEST:
            said = await _said_version(instance, broker, names[0], timeout)
            fault = f"is RocketMQ {said}" if said else f"refuses GET_ALL_MESSAGE_REQUEST_MODE, although it responds as {name}"
        raise ConfigError(
            f"broker {printable(broker)} at {address} {fault}; mode='pop' requires 5.3.2 or later; use mode='pull', which all "
            "versions support",
            code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            broker=broker,
            address=address,
        )
    if response.code != ResponseCode.SUCCESS:  # this request may require a right that pops do not require
        logger.debug("broker %s does not return the modes of groups: %d %s", broker, response.code, printable(response.remark))
        return Looked(response.version, ())
    try:
        modes = decode_body(MessageRequestModeSerializeWrapper, response.body).message_request_mode_map
    except RemoteProtocolError as error:
        logger.debug("modes of broker %s: %s", broker, printable(error))
        return Looked(response.version, ())
    return Looked(response.version, tuple(topic for topic in names if _is_pulled(modes.get(topic, {}), group)))


async def _said_version(instance: ClientInstance, broker: str, topic: str, timeout: float) -> str | None:
    """Return the version in a broker's runtime information, or None. Behind a proxy, responses may have the version of the
    client.
    """
    command = RemotingCommand(code=RequestCode.GET_BROKER_RUNTIME_INFO)
    try:
        response, _ = await instance.ask_broker(broker, topic, command, timeout)
        said = decode_body(KVTable, response.body).table.get("brokerVersionDesc")
    except RocketMQError:
        return None
    return said.removeprefix("V").replace("_", ".") if said else None


def _is_pulled(modes: Mapping[str, object], group: str) -> bool:
    return getattr(modes.get(group), "mode", None) == "PULL"


class PopMember:
    """The membership in a group that pops.

    Args:
        group: Name of the group on the wire.
        subscriptions: Subscriptions by topic on the wire.

    Attributes:
        topics: Names on the wire of the subscribed topics, and of the retry topic, which members that pull use.
        known: The subscribed topics that have a route.
        data: This member's part of the heartbeat.
        limit: Maximum number of attempts of a message after the first one, according to the group's settings.
    """

    def __init__(
        self, instance: ClientInstance, group: str, subscriptions: Mapping[str, Subscription], config: ConsumerConfig
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._config = config
        self._retry_topic = RETRY_TOPIC_PREFIX + group
        self.topics = (*subscriptions, self._retry_topic)
        self.known: frozenset[str] = frozenset()
        version = round(machine.time() * 1000)
        self.data = ConsumerData(
            group_name=group,
            consume_type=ConsumeType.CONSUME_POP,
            subscription_data_set=(
                *(subscription_data(each, topic, version) for topic, each in subscriptions.items()),
                build_subscription(self._retry_topic, sub_version=version),
            ),
            unit_mode=instance.config.unit_mode,
        )
        self.limit = USUAL_LIMIT
        self._limits: dict[str, int] = {}
        """The limit in the last response of each broker, by broker name."""
        self.conflicts = Conflicts(instance, self.data, KEPT_FOR, LOOK_SPREAD)
        self._checked: dict[str, None] = {}
        """Brokers that have passed the check."""
        self._first: dict[str, dict[MessageQueue, int]] = {}
        self._registered = False

    @property
    def unknown(self) -> list[str]:
        """The subscribed topics without a route, with the user's names. May be read from any thread."""
        return [each.topic for topic, each in self._subscriptions.items() if topic not in self.known]

    async def join(self) -> None:
        """Check the brokers and the group, and join the group.

        Raises:
            ConfigError: For a broker that ``check_broker`` rejects.
            SubscriptionGroupNotExistError: If a broker does not have the group and may not create it. The errors of
                ``check_filter``, of ``Conflicts.look_first``, and of the requests for routes and offsets also propagate.
        """
        instance = self._instance
        for topic in self._subscriptions:
            try:
                await instance.routes.get(topic, instance.config.request_timeout)
            except TopicNotFoundError as error:
                logger.warning(
                    "a subscribed topic has no route yet and is popped as soon as it has one: %s", printable(error, 300)
                )
        brokers = dict.fromkeys(broker for _, broker in self.brokers())
        await for_each(brokers, self._check_first, at_once=AT_ONCE)
        filtered = [each for each in self.data.subscription_data_set if each.expression_type != TAG]
        await for_each(filtered, lambda each: check_filter(instance, self._group, each), at_once=AT_ONCE)
        await for_each(self.known, self._prepare, at_once=AT_ONCE)
        await self.conflicts.look_first(self._config.on_conflict)
        instance.register_consumer(self.data)
        self._registered = True
        await instance.heartbeats.send_first(instance.config.request_timeout)
        await self.conflicts.look_joined(self._config.on_conflict)
        try:
            await self._store_first()
        except SubscriptionGroupNotExistError as error:
            raise missing_group(instance, self._group, error) from None
        await self._read_limit(joined_settings)

    async def leave(self, timeout: float) -> None:
        if self._registered:
            self._registered = False
            await self._instance.unregister_consumer(self._group, max(timeout, 0.0))

    async def watch(self) -> None:
        """Check the other members and the group's settings periodically. Never return."""
        while True:
            await self.conflicts.wait()
            await self.conflicts.look()
            await self._read_limit(settings_at)

    def brokers(self) -> list[tuple[str, str]]:
        """Return pairs of a topic (name on the wire) and the name of a broker from which it is popped, according to the routes in
        use. Update ``known``.
        """
        routes, found = self._instance.routes, dict[tuple[str, str], None]()
        known = set[str]()
        for topic in self._subscriptions:
            route = routes.cached(topic)
            if route is None or route.provisional:
                continue
            known.add(topic)
            found |= dict.fromkeys((topic, routes.broker_of(queue)) for queue in route.subscribe_queues)
        self.known = frozenset(known)
        return [*found]

    def look_for_routes(self) -> float:
        """Request routes that are not known yet. Return the seconds until the next call."""
        routes = self._instance.routes
        unknown = [topic for topic in self._subscriptions if topic not in self.known]
        for topic in unknown:
            routes.use.mark(topic)
            routes.refresh_soon(topic)
        return LOOK_UP_EVERY if unknown else ROUTES_EVERY

    async def until_checked(self, source: Source) -> None:
        """Check the broker of a source repeatedly, until it can be popped or the source ends."""
        while source.broker not in self._checked and not source.ends:
            try:
                await self._check(source.broker)
            except RocketMQError as error:
                if str(error) != str(source.held.error):
                    logger.error("%s is not popped: %s", source.held.shown, printable(error, 500))  # noqa: TRY400
                source.held.fail(error)
                source.tried.set()
                await source.wait(LOOK_UP_EVERY if error.retriable else CHECK_AGAIN)

    async def _check_first(self, broker: str) -> None:
        """Check a broker as ``_check`` does. A broker that does not respond is checked again before it is popped."""
        try:
            await self._check(broker)
        except ConfigError:
            raise
        except RocketMQError as error:
            logger.warning("broker %s is popped as soon as it responds: %s", broker, printable(error, 300))

    async def _check(self, broker: str) -> None:
        timeout = self._instance.config.request_timeout
        looked = await check_broker(self._instance, self._group, broker, self._subscriptions, timeout)
        for topic in looked.pulled:
            logger.warning(
                "an operator has set at broker %s that group %s pulls topic %s (setConsumeMode), but this member pops it; members "
                "that follow the setting repeat messages; set the mode to POP, or use mode='pull' in all members",
                broker,
                self._group,
                topic,
            )
        self._checked[broker] = None

    async def _prepare(self, topic: str) -> None:
        """Find the offsets at which a new group begins, before the member joins. The errors of the requests propagate.

        A group that begins with the first messages needs no positions, because brokers begin there in queues without a position.
        """
        if self._config.start_from == "earliest":
            return
        route = await self._instance.routes.get(topic, self._instance.config.request_timeout)
        self._first[topic] = await first_positions(self._instance, self._group, route.subscribe_queues, self._config.start_from)

    async def _store_first(self) -> None:
        """Store the first positions of a new group. Queues that have a committed offset by now are left out, because another
        member has begun to pop them.
        """
        for positions in self._first.values():
            stored = await for_each(positions, lambda queue: committed_offset(self._instance, self._group, queue))
            left = {queue: offset for queue, offset in positions.items() if stored[queue] is None}
            await store_positions(self._instance, self._group, left)

    async def _read_limit(self, settings_of: Callable[..., Awaitable[SubscriptionGroupConfig | None]]) -> None:
        brokers = [*dict.fromkeys(broker for _, broker in self.brokers())]
        topic = next(iter(self._subscriptions))
        ask = partial(settings_of, self._instance, self._group, topic=topic, timeout=self._instance.config.request_timeout)
        answers = await for_each(brokers, lambda broker: ask(broker=broker), at_once=AT_ONCE)
        found = {broker: max(answer.retry_max_times, 0) for broker, answer in answers.items() if answer is not None}
        self._limits = {broker: limit for broker, limit in (self._limits | found).items() if broker in answers}
        self.limit = min(self._limits.values(), default=USUAL_LIMIT)
