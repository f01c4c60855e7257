"""The membership of a consumer of lite topics: heartbeats, and the checks of brokers and of the group."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rmq_protocol.bodies import SubscriptionGroupConfig

from ... import machine
from ..._asyncio import for_each
from ..._text import printable
from ...client import ClientInstance
from ...errors import BrokerNotFoundError, ConfigError, RocketMQError
from ..config import ConsumerConfig
from ..group import joined_settings
from ..pop.pop_member import AT_ONCE, PopMember
from ..subscription import Subscription

logger = logging.getLogger(__name__)


class LiteMember(PopMember):
    """The membership of a consumer of lite topics in its group.

    Args:
        topic: Name of the parent topic on the wire.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        topic: str,
    ) -> None:
        super().__init__(instance, group, subscriptions, config)
        self._topic = topic

    async def join(self) -> None:
        """Check the brokers and the group, and join the group.

        Raises:
            TopicNotFoundError: If the topic does not exist.
            ConfigError: For a broker that serves no lite topics, and for a group that is not bound to the topic.
            SubscriptionGroupNotExistError: If a broker does not have the group. The errors of the requests also propagate.
        """
        instance, timeout = self._instance, self._instance.config.request_timeout
        await instance.routes.get(self._topic, timeout)
        brokers = [*dict.fromkeys(broker for _, broker in self.brokers())]
        await for_each(brokers, self._check_first, at_once=AT_ONCE)
        instance.register_consumer(self.data)
        self._registered = True
        await instance.heartbeats.send_first(timeout)

    async def _check(self, broker: str) -> None:
        instance, timeout = self._instance, self._instance.config.request_timeout
        deadline = machine.monotonic() + timeout
        address = await instance.broker_address(broker, self._topic, timeout)
        await instance.pool.connect(address, timeout)
        connection = instance.pool.get(address)
        if connection is None:
            raise BrokerNotFoundError(f"the connection to broker {printable(broker)} was lost; try again", broker=broker)
        await instance.lite_support.check(connection, self._topic, deadline)
        self._check_group(broker, await joined_settings(instance, self._group, broker, self._topic, timeout))
        self._checked[broker] = None

    def _check_group(self, broker: str, settings: SubscriptionGroupConfig | None) -> None:
        if settings is None:
            return
        bound, names = settings.attributes.get("lite.bind.topic"), self._instance.names
        if bound != self._topic:
            group, topic = names.display_name(self._group), names.display_name(self._topic)
            found = "to no topic" if bound is None else f"to topic {printable(names.display_name(bound))}"
            raise ConfigError(
                f"group {group} at broker {printable(broker)} is bound {found}; create it with the attribute "
                f"lite.bind.topic={topic}",
                broker=broker,
            )

    async def watch(self) -> None:
        """Check for another process with this client id periodically. Never return."""
        while True:
            await self.conflicts.wait()
            try:
                await self.conflicts.look()
            except RocketMQError as error:
                logger.debug("group %s: %s", self._group, printable(error, 300))
